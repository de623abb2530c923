//! Processes are killed while a checkpoint is written: the worker that writes it, a server that gives it slices, and
//! others. The checkpoint that was there before stays whole, and whoever is left goes on or hears who died.

use crate::common::deaths::{Deaths, tell};
use crate::common::raw::name_on;
use crate::common::{PART, hear, now_ms, part, roles, say, until, wait};
use sheave_base::Result;
use sheave_base::config::Transport;
use sheave_mesh::{Member, Mesh, Role};
use sheave_net::chaos::{ChaosConfig, Trouble};
use sheave_store::{Config, Key, Kind, KvStore, OnWorkerLoss, Server, ServerConfig};
use sheave_tensor::{Tensor, file};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

const SERVERS: u32 = 2;
const WORKERS: u32 = 3;
const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

const FOLDER: &str = "SHEAVE_TEST_FOLDER";
const KIND: &str = "SHEAVE_TEST_KIND";
const LOSS: &str = "SHEAVE_TEST_LOSS";

/// A tensor of which each server has so many slices, which are saved one after the other.
const ELEMENTS: usize = 2 * SLICES * SLICE_ELEMENTS;
const SLICES: usize = 25;
const SLICE_ELEMENTS: usize = 10;
/// So slow are servers: saving takes about a second, and begins with the first server's slices.
const DELAY_MAX: Duration = Duration::from_millis(40);

/// After so long a silence a member is dead: no test waits for that.
const SILENCE: Duration = Duration::from_secs(30);

/// What is in the checkpoint that is there, and what the store has.
const OLD: f32 = 1.0;
const NEW: f32 = 2.0;

fn variable(name: &str) -> String {
    std::env::var(name).expect("the test has set it")
}

fn weights(value: f32) -> [(Key, Tensor); 1] {
    let values = vec![value; ELEMENTS];
    [(Key::from(name()), Tensor::from_slice(&values, [ELEMENTS as u64]).expect("it fits"))]
}

/// Its first slices are on the first server.
fn name() -> String {
    name_on(0, SERVERS.into(), "weights")
}

fn checkpoint(folder: &Path) -> PathBuf {
    folder.join("checkpoint")
}

#[test]
fn actor() {
    let Some(mut config) = part() else { return };
    config.node.liveness.timeout = SILENCE;
    if variable(PART).starts_with("server") {
        let outbound = Trouble { delay_max: DELAY_MAX, ..Trouble::default() };
        config.node.chaos = Some(ChaosConfig { seed: 2, outbound, ..ChaosConfig::default() });
    }
    let mesh = Mesh::join(config).expect("everybody comes");
    let is_worker = |member: &Member| member.introduction.role == Role::Worker;
    match mesh.me().introduction.role {
        Role::Worker => return work(&mesh),
        Role::Server => {
            let server = Server::start(&mesh, ServerConfig::default()).expect("it is the first");
            say("ready");
            // What it says is looked at elsewhere.
            let _ = server.run();
        }
        _ => say("ready"),
    }
    mesh.until_gone_tolerating(is_worker, |_| true, None).expect("the workers leave or die");
    // Of the last ones, whose coordinator may be gone already, not all can be told.
    let _ = mesh.leave();
}

fn work(mesh: &Mesh) {
    let path = checkpoint(Path::new(&variable(FOLDER)));
    let kind = Kind::parse(&variable(KIND)).expect("the test knows kinds");
    let on_worker_loss = if variable(LOSS) == "shrink" { OnWorkerLoss::Shrink } else { OnWorkerLoss::Fail };
    let slice_elements = SLICE_ELEMENTS as u64;
    let config = Config { cut_elements: 100, slice_elements, on_worker_loss, ..kind.into() };
    let store = KvStore::open(mesh, config).expect("all servers serve");
    store.init(&weights(NEW)).expect("it is new");
    if store.rank() == 0 {
        // The same file as one of the store on servers.
        let local = KvStore::local("local").expect("it needs nobody");
        local.init(&weights(OLD)).expect("it is new");
        local.save(&path).expect("there is room");
    }
    store.barrier().expect("all are there");
    say("under way");
    if store.rank() == 0 {
        goes("saved", &store.save(&path));
    }
    let met = store.barrier();
    goes("met", &met);
    if met.is_ok() && on_worker_loss == OnWorkerLoss::Shrink {
        say(&format!("has {:?}", resume(&store, &path)));
    }
    mesh.leave().expect("the rest agrees");
}

fn goes(label: &str, outcome: &Result<()>) {
    match outcome {
        Ok(()) => say(&format!("{label} {}", now_ms())),
        Err(error) => tell(label, error),
    }
}

/// The first one that is left loads what is there and saves it elsewhere, and all look at it. Only where all servers
/// live.
fn resume(store: &KvStore, path: &Path) -> Result<f32> {
    let copy = path.with_extension("copy");
    if store.is_first() {
        store.load(path)?;
        store.save(&copy)?;
        assert_eq!(std::fs::read(path)?, std::fs::read(&copy)?, "a file does not depend on who saves it");
    }
    store.barrier()?;
    let place = weights(-1.0);
    wait(&store.pull(&place)?)?;
    let values = place[0].1.to_vec::<f32>()?;
    assert!(values.iter().all(|value| *value == values[0]), "it is torn");
    Ok(values[0])
}

/// A folder of this test's own, which is gone when this is.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("deaths-{}-{}", std::process::id(), NUMBER.fetch_add(1, SeqCst));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("a folder").filter_map(std::result::Result::ok);
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// The one value in the checkpoint.
    fn saved(&self) -> f32 {
        let contents = file::load(checkpoint(&self.0)).expect("it is whole");
        let values = contents.tensors[&format!("value/text:{}", name())].to_vec::<f32>().expect("floats");
        assert!(values.len() == ELEMENTS && values.iter().all(|value| *value == values[0]), "it is torn");
        values[0]
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Kills these when the first worker has begun to write.
fn kill(folder: &Folder, transport: Transport, (kind, loss): (&str, &str), victims: &[&str]) -> Deaths {
    let path = folder.0.to_str().expect("a text");
    let variables = [(FOLDER, path), (KIND, kind), (LOSS, loss)];
    let mut deaths = Deaths::start(roles(SERVERS, WORKERS), transport, victims, &variables);
    deaths.hear_all("scheduler", "ready");
    deaths.hear_all("server", "ready");
    deaths.hear_all("worker", "under way");
    until("a checkpoint is begun", || folder.names().iter().any(|name| name.ends_with(".tmp")));
    deaths.kill();
    deaths
}

const KINDS: [&str; 2] = ["dist_sync", "dist_async"];

#[test]
fn f42_a_checkpoint_stays_whole_when_the_worker_dies_that_writes_the_next() {
    for transport in TRANSPORTS {
        for kind in KINDS {
            let folder = Folder::new();
            let deaths = kill(&folder, transport, (kind, "shrink"), &["worker-0"]);
            for child in deaths.survivors("worker") {
                let met = hear(child, "met");
                deaths.is_in_time(child.name(), &met);
                assert_eq!(hear(child, "has"), format!("Ok({OLD:?})"));
            }
            assert_eq!(folder.saved(), OLD);
            deaths.all_end();
            let folder = Folder::new();
            let deaths = kill(&folder, transport, (kind, "fail"), &["worker-0", "worker-1"]);
            deaths.survivors("worker").for_each(|child| deaths.fails(child, "met"));
            assert_eq!(folder.saved(), OLD);
            deaths.all_end();
        }
    }
}

#[test]
fn f42_a_checkpoint_stays_whole_when_a_server_dies_whose_slices_are_written() {
    for transport in TRANSPORTS {
        for victims in [&["server-0"][..], &["server-1"], &["server-1", "worker-1"]] {
            for kind in KINDS {
                let folder = Folder::new();
                let deaths = kill(&folder, transport, (kind, "fail"), victims);
                let saver = deaths.survivors("worker").next().expect("it lives");
                deaths.fails(saver, "saved");
                let said = hear(saver, "saved");
                assert!(said.contains(checkpoint(&folder.0).to_str().expect("a text")), "which file? {said}");
                assert!(said.contains("server-"), "which server? {said}");
                assert_eq!(folder.saved(), OLD);
                assert_eq!(folder.names(), ["checkpoint"], "nothing is left of the next one");
                deaths.all_end();
            }
        }
    }
}

#[test]
fn f42_a_checkpoint_is_written_to_its_end_when_others_die() {
    for transport in TRANSPORTS {
        for kind in KINDS {
            let folder = Folder::new();
            let deaths = kill(&folder, transport, (kind, "shrink"), &["worker-1", "worker-2"]);
            let saver = deaths.survivors("worker").next().expect("it lives");
            let saved = hear(saver, "saved");
            assert!(!saved.contains(' '), "it needs nobody who died: {saved}");
            assert_eq!(hear(saver, "has"), format!("Ok({NEW:?})"));
            assert_eq!(folder.saved(), NEW);
            deaths.all_end();
        }
    }
}
