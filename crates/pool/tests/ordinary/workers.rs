//! Pools whose workers are guests of this process.

use crate::common::{PATIENCE, attach, failed, host};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_mesh::{AttachedGuest, Guest, Mesh};
use sheave_pool::{Function, Functions, Named, Packet, Program, Settings, Tasker, Turn, Workers, work};
use sheave_tensor::{Dtype, Tensor};
use sheave_wire::Value;
use std::collections::HashMap;
use std::sync::{Arc, Barrier, Mutex, Weak};
use std::thread::{JoinHandle, spawn};

fn pool(mesh: &Mesh, settings: Settings) -> (Workers, Tasker) {
    let workers = Workers::new(mesh, 1, settings).expect("the node is there");
    let tasker = workers.tasker();
    (workers, tasker)
}

/// Arguments with so many handles of one tensor, of which the first is an argument.
fn packet(tensor: &Tensor, handles: usize) -> Packet {
    Packet::new(&Value::Tensor(0), vec![tensor.clone(); handles].into()).expect("it is short")
}

fn floats(value: f32) -> Tensor {
    Tensor::from_slice(&[value; 4], [4]).expect("memory")
}

/// A guest, and the same as its host has it.
fn guest(mesh: &Mesh) -> (Guest, AttachedGuest) {
    attach(mesh, Transport::Auto)
}

/// Has a guest work, on a thread of its own, and the pool hire it.
fn hire(mesh: &Mesh, workers: &Workers) -> (AttachedGuest, JoinHandle<()>) {
    let sum = |(tensor,): (Tensor,)| Ok(tensor.to_vec::<f32>()?.iter().sum::<f32>());
    hire_with(mesh, workers, move |guest| Named::new(Functions::new().on("sum", sum), guest.node()))
}

/// As [`hire`], with a program of its own.
fn hire_with<P: Program>(
    mesh: &Mesh,
    workers: &Workers,
    program: impl FnOnce(&Guest) -> P + Send + 'static,
) -> (AttachedGuest, JoinHandle<()>) {
    let ((guest, attached), turn) = (guest(mesh), Turn::here());
    let own = turn.clone();
    let thread = spawn(move || {
        let program = program(&guest);
        // Its host may be gone first.
        let _ = work(&guest, own, program, None);
        let _ = guest.leave();
    });
    let ready = mesh.guest_ready(attached.node).expect("it is there");
    ready.wait_timeout(PATIENCE).expect("it is ready");
    workers.hire(0, &attached, turn).expect("it is there");
    (attached, thread)
}

fn value(work: &Work<Packet>) -> Value {
    work.wait_timeout(PATIENCE).and_then(|sum| sum.value()).expect("a sum")
}

fn submit(tasker: &Tasker, function: &Function, tensor: &Tensor) -> Work<Packet> {
    tasker.submit(function, packet(tensor, 1), 0).expect("there is room")
}

/// Has the pool hire a worker, which does a task, and end.
fn works_to_the_end(mesh: &Mesh, workers: &Workers, tasker: &Tasker) {
    let (attached, thread) = hire(mesh, workers);
    let work = submit(tasker, &tasker.named("sum").expect("a short name"), &floats(2.0));
    assert_eq!(value(&work), Value::Float(8.0));
    mesh.dismiss(attached.node).expect("it is there");
    thread.join().expect("no panic");
    workers.end();
}

/// One thread's tasks are too large and refused, beside another one's of the same job.
#[test]
fn a_task_that_is_refused_takes_no_place_of_another() {
    const COUNT: u64 = 4_000;
    let mesh = host(Transport::Auto);
    // All handles are of one tensor, so that far more bytes than there may be need little memory.
    let large = packet(&Tensor::private(Dtype::U8, [64 << 20]).expect("memory"), 40);
    for is_ordered in [true, false] {
        let (workers, tasker) = pool(&mesh, Settings::default());
        let function = tasker.named("sum").expect("a short name");
        let (job, empty) = (tasker.job(is_ordered).expect("it is there"), tasker.job(is_ordered).expect("it is there"));
        tasker.submit_to(&job, &function, Packet::default(), 0).expect("there is room");
        let refused = |job| failed(tasker.submit_to(job, &function, large.clone(), 0)).kind();
        assert_eq!(refused(&empty), ErrorKind::LimitExceeded);
        assert!(empty.next().is_done() && empty.all().is_done() && empty.take().is_none() && empty.left() == 0);
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                both.wait();
                (0..COUNT).for_each(|_| assert_eq!(refused(&job), ErrorKind::LimitExceeded));
            });
            both.wait();
            for _ in 1..COUNT {
                tasker.submit_to(&job, &function, Packet::default(), 0).expect("there is room");
            }
        });
        workers.break_by(&Error::new(ErrorKind::Closed, "it was to end"));
        assert!(job.all().is_done());
        let mut places: Vec<u64> = std::iter::from_fn(|| job.take()).map(|(place, _)| place).collect();
        if !is_ordered {
            places.sort_unstable();
        }
        assert!(places.iter().copied().eq(0..COUNT), "ordered: {is_ordered}, {} of {COUNT} came", places.len());
        workers.end();
    }
}

#[test]
fn what_workers_are_set_up_with_is_not_written_meanwhile() {
    let (mesh, tensor) = (host(Transport::Auto), floats(1.0));
    let settings = || Settings { setups: vec![packet(&tensor, 1)], ..Settings::default() };
    let writing = tensor.write_lease("write").expect("nobody has it");
    assert_eq!(failed(Workers::new(&mesh, 1, settings())).kind(), ErrorKind::BufferInUse);
    drop(writing);
    let (workers, tasker) = pool(&mesh, settings());
    assert_eq!(failed(tensor.write_lease("write")).kind(), ErrorKind::BufferInUse);
    works_to_the_end(&mesh, &workers, &tasker);
    drop((workers, tasker));
    drop(tensor.write_lease("write").expect("the pool is gone"));
}

/// A shared tensor is its owner's to write. While that happens it cannot be sent, which is no reason to end the pool.
#[test]
fn a_worker_that_cannot_be_set_up_now_makes_room_for_the_next() {
    let (mesh, tensor) = (host(Transport::Auto), floats(1.0));
    tensor.buffer().share().expect("nobody has it");
    let (workers, tasker) = pool(&mesh, Settings { setups: vec![packet(&tensor, 1)], ..Settings::default() });
    let ((first, attached), writing) = (guest(&mesh), tensor.write_lease("write").expect("it is shared"));
    assert_eq!(failed(workers.hire(0, &attached, Turn::here())).kind(), ErrorKind::BufferInUse);
    mesh.guest_end(attached.node).expect("it was there").wait_timeout(PATIENCE).expect("it was let go");
    tasker.check().expect("the pool goes on");
    drop((writing, first));
    works_to_the_end(&mesh, &workers, &tasker);
}

/// The first of two tasks that leave together has a tensor that is being written.
#[test]
fn a_task_whose_tensor_is_written_fails_alone() {
    let mesh = host(Transport::Auto);
    let (workers, tasker) = pool(&mesh, Settings::default());
    let (function, written) = (tasker.named("sum").expect("a short name"), floats(1.0));
    let writing = written.write_lease("write").expect("nobody has it");
    let fails = submit(&tasker, &function, &written);
    let others: Vec<_> = (0..5_u8).map(|number| submit(&tasker, &function, &floats(number.into()))).collect();
    let (attached, thread) = hire(&mesh, &workers);
    for (number, work) in (0..5_u8).zip(others) {
        assert_eq!(value(&work), Value::Float(4.0 * f64::from(number)));
    }
    assert_eq!(failed(fails.wait_timeout(PATIENCE)).kind(), ErrorKind::BufferInUse);
    drop(writing);
    let work = submit(&tasker, &function, &written);
    assert_eq!(value(&work), Value::Float(4.0));
    mesh.dismiss(attached.node).expect("it is there");
    thread.join().expect("no panic");
    workers.end();
}

/// A program whose functions do nothing, and that says which of them it has, by their names.
#[derive(Clone, Default)]
struct Known(Arc<Mutex<HashMap<String, Weak<()>>>>);

impl Known {
    fn has(&self, name: &str) -> bool {
        self.0.lock().expect("nobody panics").get(name).is_some_and(|function| function.strong_count() > 0)
    }
}

impl Program for Known {
    type Function = Arc<()>;

    fn set_up(&self, _: Option<Packet>) -> Result<()> {
        Ok(())
    }

    fn function(&self, definition: Packet) -> Result<Arc<()>> {
        let Value::Str(name) = definition.value()? else { panic!("it has a name") };
        let function = Arc::new(());
        self.0.lock().expect("nobody panics").insert(name, Arc::downgrade(&function));
        Ok(function)
    }

    fn run(&self, _: &Arc<()>, args: Packet) -> Result<Packet> {
        Ok(args)
    }
}

/// The functions of a worker are as the pool has them, whatever became of the messages that were to tell it.
#[test]
fn a_worker_forgets_functions_though_a_message_was_not_sent() {
    let mesh = host(Transport::Auto);
    let (workers, tasker) = pool(&mesh, Settings::default());
    let known = Known::default();
    let own = known.clone();
    let (attached, thread) = hire_with(&mesh, &workers, move |_| own);
    let named = |name| tasker.named(name).expect("a short name");
    let (other, written) = (named("other"), floats(1.0));
    // Whoever tells of an outcome has let go of its function when that of a later message is here.
    let runs = |function: &Function| {
        for function in [function, &other] {
            submit(&tasker, function, &floats(1.0)).wait_timeout(PATIENCE).expect("it runs");
        }
    };
    let fails = |function: &Function| {
        let writing = written.write_lease("write").expect("nobody has it");
        let work = submit(&tasker, function, &written);
        assert_eq!(failed(work.wait_timeout(PATIENCE)).kind(), ErrorKind::BufferInUse);
        drop(writing);
    };
    // The message that was to tell of it fails.
    let told = named("told");
    runs(&told);
    assert!(known.has("told"));
    drop(told);
    fails(&other);
    runs(&other);
    assert!(!known.has("told"), "the worker keeps what it was not told to forget");
    // One of its own messages fails, after another one has brought it.
    let brought = named("brought");
    runs(&brought);
    fails(&brought);
    assert!(known.has("brought"));
    drop(brought);
    runs(&other);
    assert!(!known.has("brought"), "the worker keeps what the pool takes for not sent");
    // Its only message fails.
    let unsent = named("unsent");
    fails(&unsent);
    runs(&unsent);
    assert!(known.has("unsent") && known.has("other"));
    mesh.dismiss(attached.node).expect("it is there");
    thread.join().expect("no panic");
    workers.end();
}
