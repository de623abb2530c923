//! Waits of an exchange within callbacks that are so deep in others that the next one is put off: it may be what brings
//! about what is waited for.

use crate::common::{echo, floats, next_batch, roles, together_with, values, zeros};
use sheave_base::Work;
use sheave_base::config::Transport;
use sheave_exchange::{Config, Handle, Pull, Push, Server, Terms, Worker};
use sheave_mesh::{Mesh, Role};
use sheave_tensor::Tensor;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const ENOUGH: Duration = Duration::from_secs(10);

fn on_ready(act: impl FnOnce() + Send + 'static) {
    Work::ready("test", Ok(())).on_complete(move |_| act());
}

/// Calls `act` within callbacks, so deep that further ones are put off.
fn deep_within_callbacks(act: impl FnOnce() + Send + 'static) {
    let has_run = Arc::new(AtomicBool::new(false));
    let own = Arc::clone(&has_run);
    on_ready(move || own.store(true, SeqCst));
    match has_run.load(SeqCst) {
        true => on_ready(|| deep_within_callbacks(act)),
        false => act(),
    }
}

/// Waits by `wait` within callbacks, for something that a word to somebody else brings about, which is put off.
fn wait_deep_within_callbacks<T: Send + 'static>(
    say: Sender<()>,
    wait: impl FnOnce() -> sheave_base::Result<T> + Send + 'static,
) -> T {
    let (tell, told) = channel();
    deep_within_callbacks(move || {
        on_ready(move || say.send(()).expect("somebody listens"));
        tell.send(wait()).expect("somebody listens");
    });
    told.try_recv().expect("it was not put off").expect("what ends the wait comes")
}

fn until() -> Option<Instant> {
    Some(Instant::now() + ENOUGH)
}

fn hear(words: &Mutex<Receiver<()>>) {
    words.lock().expect("no panic").recv_timeout(2 * ENOUGH).expect("the word comes, if late");
}

fn push_pull(worker: &Worker, places: &[Tensor; 1]) -> sheave_base::Result<Handle> {
    let terms = Terms { until: until(), ..Terms::default() };
    worker.push_pull_on([Push::new(0, &floats(&[3.0]))], [Pull::into(0, &places[0])], terms, None)
}

/// The server answers when it has the worker's word: first one request, then one of a full window.
fn work(mesh: &Mesh, to_server: Sender<()>, from_server: &Mutex<Receiver<()>>) {
    let worker = Arc::new(Worker::open(mesh, Config { window: 1, ..Config::default() }).expect("everybody comes"));
    let places = [zeros(1)];
    let request = push_pull(&worker, &places).expect("there is room");
    let own = Arc::clone(&worker);
    wait_deep_within_callbacks(to_server.clone(), move || own.wait(request, until(), None));
    assert_eq!(values(&places[0]), [3.0]);
    push_pull(&worker, &places).expect("there is room");
    let (own, other) = (Arc::clone(&worker), [zeros(1)]);
    let request = wait_deep_within_callbacks(to_server, move || push_pull(&own, &other));
    worker.wait(request, until(), None).expect("an answer");
    hear(from_server);
    let request = push_pull(&worker, &places).expect("there is room");
    worker.wait(request, until(), None).expect("an answer");
    worker.close();
}

fn serve(mesh: &Mesh, to_worker: Sender<()>, from_worker: &Mutex<Receiver<()>>) {
    let server = Arc::new(Server::open(mesh, Config { window: 1, ..Config::default() }).expect("everybody comes"));
    for is_prompt in [false, false, true] {
        let batch = next_batch(&server).expect("the worker pushes");
        if !is_prompt {
            hear(from_worker);
        }
        server.respond(batch[0].handler, &batch[0].tensors).expect("one pull, one push");
    }
    let own = Arc::clone(&server);
    let batch = wait_deep_within_callbacks(to_worker, move || own.get_batch(until(), None));
    server.respond(batch[0].handler, &batch[0].tensors).expect("one pull, one push");
    drop(batch);
    echo(&server);
    server.close();
}

#[test]
fn a_wait_within_a_callback_runs_what_its_thread_has_put_off() {
    let ((to_server, from_worker), (to_worker, from_server)) = (channel(), channel());
    let (from_worker, from_server) = (Arc::new(Mutex::new(from_worker)), Arc::new(Mutex::new(from_server)));
    together_with(
        roles(1, 1),
        Transport::Shm,
        |_| (),
        move |mesh| {
            match mesh.me().introduction.role {
                Role::Worker => work(&mesh, to_server.clone(), &from_server),
                Role::Server => serve(&mesh, to_worker.clone(), &from_worker),
                _ => mesh.until_gone(|_| true).expect("nobody dies"),
            }
            mesh.leave().expect("the others agree");
        },
    );
}
