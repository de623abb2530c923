//! Real processes of which a worker is killed in the middle of a training that bears it: the others go on at once, with
//! exactly the sums of those who are left, or, where the last push of the victim has reached only a part of the
//! servers, they all hear that.

use crate::common;
use crate::common::raw::{ask_raw, number_of};
use crate::common::{ended_well, hear, job, note, part, parts, roles, say, start_all, until, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::{Member, Mesh, Role};
use sheave_net::chaos::{ChaosConfig, Trouble};
use sheave_net::{Part, Parts};
use sheave_store::{Config, Key, Kind, KvStore, OnWorkerLoss, ServerConfig, Updater, run_server};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::to_control;
use std::time::{Duration, Instant};

/// The bound of the design.
const BOUND: Duration = Duration::from_secs(1);
const SIGKILL: i32 = 9;
const SERVERS: u32 = 2;
const WORKERS: u32 = 3;
const CUT_ELEMENTS: u64 = 100;
/// Of the tensor that is cut; each server has half of it.
const BIG: usize = 2000;
const STALENESS: u64 = 1;
/// Rounds without the victim.
const ROUNDS: usize = 3;

const VICTIM: &str = "SHEAVE_TEST_VICTIM";
const SCENE: &str = "SHEAVE_TEST_SCENE";
const KIND: &str = "SHEAVE_TEST_KIND";

/// The victim dies when it has pushed nothing that the others have not.
const IDLE: &str = "idle";
/// It dies when it has pushed for the next round, and nobody else has.
const WHOLE: &str = "whole";
/// It dies when what it has pushed last has reached one server of two.
const TORN: &str = "torn";
/// It dies when the others wait for it, and the word of its death comes late to some of them.
const KNOWN: &str = "known";
/// How late, at most: the scheduler agrees on deaths with everybody.
const LATE: Duration = Duration::from_millis(60);
/// It dies when it has said that it is done.
const DONE: &str = "done";

fn variable(name: &str) -> String {
    std::env::var(name).expect("the test has set it")
}

fn big() -> Key {
    Key::from("a big one")
}

fn filled(value: f32) -> Vec<(Key, Tensor)> {
    let tensor = |elements: usize| Tensor::from_slice(&vec![value; elements], [elements as u64]).expect("it fits");
    // Small keys live on one server each, on which one does not matter.
    let mut pairs: Vec<_> = (0..4).map(|number| (Key::from(number), tensor(3))).collect();
    pairs.push((big(), tensor(BIG)));
    pairs
}

#[test]
fn actor() {
    let Some(mut config) = part() else { return };
    if variable(SCENE) == KNOWN && config.role == Role::Scheduler {
        let outbound = Trouble { delay_max: LATE, ..Trouble::default() };
        config.node.chaos = Some(ChaosConfig { seed: 2, outbound, ..ChaosConfig::default() });
    }
    let mesh = Mesh::join(config).expect("everybody comes");
    if mesh.me().introduction.role == Role::Worker {
        return Worker::begin(mesh).act();
    }
    say(&format!("ready {}", std::process::id()));
    let served = run_server(&mesh, ServerConfig::default());
    match mesh.me().introduction.role {
        Role::Server if variable(SCENE) == TORN => {
            check_torn("run", &served.expect_err("the store could not bear it"));
            // So that the others still hear it from here.
            let is_worker = |member: &Member| member.introduction.role == Role::Worker;
            mesh.until_gone_tolerating(is_worker, |_| true, None).expect("the others leave");
        }
        _ => served.expect("the store bears it, and the others leave"),
    }
    // Of the last ones not all can be told.
    let _ = mesh.leave();
}

/// Says who died and why that is the end.
fn check_torn(operation: &str, error: &Error) {
    let (text, victim) = (error.to_string(), variable(VICTIM));
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{operation}: {text}");
    for needle in [victim.as_str(), "some servers and not others", "cannot go on without it"] {
        assert!(text.contains(needle), "{operation} does not say {needle}: {text}");
    }
}

struct Worker {
    mesh: Mesh,
    store: KvStore,
    scene: String,
    is_synchronous: bool,
}

impl Worker {
    fn begin(mesh: Mesh) -> Self {
        let kind = Kind::parse(&variable(KIND)).expect("the test knows kinds");
        let config = Config {
            cut_elements: CUT_ELEMENTS,
            staleness: STALENESS,
            on_worker_loss: OnWorkerLoss::Shrink,
            ..kind.into()
        };
        let store = KvStore::open(&mesh, config).expect("all servers serve");
        store.init(&filled(0.0)).expect("it is new");
        store.set_updater(Updater::Sum).expect("servers add");
        store.barrier().expect("all are there");
        let worker = Self { mesh, store, scene: variable(SCENE), is_synchronous: kind == Kind::DistSync };
        worker.push();
        worker.check(WORKERS as f32);
        worker
    }

    fn act(self) {
        if variable("SHEAVE_TEST_PART") == variable(VICTIM) {
            self.be_killed();
        }
        match self.scene.as_str() {
            TORN => self.hear_of_the_end(),
            scene => {
                let of_victim = if scene == WHOLE { 1.0 } else { 0.0 };
                match scene {
                    IDLE => self.wait_for_victim(),
                    DONE => self.be_done_with_victim(),
                    KNOWN => self.know_who_is_in_a_sum(),
                    _ => self.push_after_victim(),
                }
                say("over");
                self.go_on(WORKERS as f32 + of_victim + (WORKERS - 1) as f32);
            }
        }
        self.mesh.leave().expect("the rest agrees");
        say("left");
    }

    fn push(&self) {
        wait(&self.store.push(&filled(1.0)).expect("it is sent")).expect("all push");
    }

    /// Everybody sees just this, everywhere.
    fn check(&self, expected: f32) {
        self.store.barrier().expect("all come");
        let places = filled(-1.0);
        wait(&self.store.pull(&places).expect("it is sent")).expect("servers live");
        for (key, place) in &places {
            let values = place.to_vec::<f32>().expect("floats");
            assert!(values.iter().all(|value| *value == expected), "{key}: {:?}, not {expected}", &values[..3]);
        }
        self.store.barrier().expect("all come");
    }

    fn be_killed(&self) {
        match self.scene.as_str() {
            WHOLE => {
                let pushed = self.store.push(&filled(1.0)).expect("it is sent");
                // What is asked of a server later is answered later. The thread that finds an answer ends its
                // operation, so the push may end a moment after others have been heard.
                self.ask_all_servers();
                until("it is merged, or waits", || pushed.is_done() == self.is_done_at_once());
            }
            DONE => drop(self.store.done().expect("it is sent")),
            TORN => self.push_in_part(),
            _ => {}
        }
        self.ask_all_servers();
        say(&format!("ready {}", std::process::id()));
        loop {
            std::thread::park();
        }
    }

    /// Whether pushes wait for those of others.
    fn is_done_at_once(&self) -> bool {
        !self.is_synchronous
    }

    fn ask_all_servers(&self) {
        for server in self.mesh.of_role(Role::Server) {
            let nothing = to_control(&(0u32, Vec::<u64>::new())).expect("it is short");
            let work = ask_raw(&self.mesh, server.node, "describe", nothing, Parts::new());
            let work = work.expect("it is sent");
            work.wait_timeout(common::PATIENCE).expect("it is no mistake");
        }
    }

    /// One half of the big tensor, to the server that has it. The head of an update is the store, and the pieces that
    /// are pushed and pulled: each a number, its bytes, whether it is packed, and its form, of which 0 is plain.
    fn push_in_part(&self) {
        let number = number_of("a big one");
        let home = (number % u64::from(SERVERS)) as usize;
        let server = self.mesh.of_role(Role::Server).nth(home).expect("it is one of them").node;
        let half = Tensor::from_slice(&vec![1f32; BIG / 2], [BIG as u64 / 2]).expect("it fits");
        type Piece = (u64, u64, bool, u32);
        let pushed: [Piece; 1] = [(number, half.len_bytes() as u64, true, 0)];
        let head = to_control(&(0u32, pushed.to_vec(), Vec::<Piece>::new())).expect("it is short");
        let tensors = std::iter::once(Part::new(half, Mode::Copy)).collect();
        let work = ask_raw(&self.mesh, server, "update", head, tensors).expect("it is sent");
        until("it is merged, or waits", || work.is_done() == self.is_done_at_once());
    }

    /// Pushes that wait for the victim in a store of rounds; in one of clocks a pull that is too far ahead of it.
    fn pend(&self) -> sheave_base::Work<()> {
        if self.is_synchronous {
            return self.store.push(&filled(1.0)).expect("it is sent");
        }
        for _ in 0..STALENESS {
            self.push();
        }
        let ones = filled(1.0);
        self.store.push_pull(&ones, &filled(-1.0)).expect("it is sent")
    }

    fn pend_ready(&self) -> sheave_base::Work<()> {
        let pending = self.pend();
        self.ask_all_servers();
        assert!(!pending.is_done(), "it waits for the victim");
        say(&format!("ready {}", std::process::id()));
        pending
    }

    fn wait_for_victim(&self) {
        wait(&self.pend_ready()).expect("the others are enough");
        if !self.is_synchronous {
            // As often as in a store of rounds, in sum.
            let surplus = filled(-(STALENESS as f32));
            wait(&self.store.push(&surplus).expect("it is sent")).expect("servers live");
        }
    }

    fn push_after_victim(&self) {
        say(&format!("ready {}", std::process::id()));
        until("somebody dies", || self.mesh.num_dead_node(|_| true) == 1);
        self.push();
    }

    /// Who has a sum of those who are left counts nobody else.
    fn know_who_is_in_a_sum(&self) {
        say(&format!("ready {}", std::process::id()));
        let places = filled(-1.0);
        wait(&self.store.push_pull(&filled(1.0), &places).expect("it is sent")).expect("the others are enough");
        let counted = self.store.group_size();
        let sum = places[0].1.to_vec::<f32>().expect("floats")[0] - WORKERS as f32;
        assert_eq!(counted, sum as usize, "a sum of {sum} workers, of a group of {counted}");
        assert_eq!(self.store.is_first(), self.first_survivor());
    }

    /// Nobody waits for who is done, dead or alive.
    fn be_done_with_victim(&self) {
        self.push();
        let is_first = self.first_survivor();
        let done = is_first.then(|| self.store.done().expect("it is sent"));
        say(&format!("ready {}", std::process::id()));
        until("somebody dies", || self.mesh.num_dead_node(|_| true) == 1);
        let done = done.unwrap_or_else(|| self.store.done().expect("it is sent"));
        wait(&done).expect("all who are left are done");
    }

    fn first_survivor(&self) -> bool {
        let victim = variable(VICTIM);
        let first = if victim == "worker-0" { 1 } else { 0 };
        self.store.rank() == first
    }

    /// Everything works without the victim.
    fn go_on(&self, mut expected: f32) {
        until("it is known", || self.store.group_size() == WORKERS as usize - 1);
        self.check(expected);
        for _ in 0..ROUNDS {
            self.push();
            expected += (WORKERS - 1) as f32;
            self.check(expected);
        }
        let fresh = |value: f32| [(Key::from("new"), Tensor::from_slice(&[value; 9], [9]).expect("it fits"))];
        self.store.init(&fresh(7.0)).expect("the first survivor gives its value");
        let place = fresh(0.0);
        wait(&self.store.push_pull(&fresh(1.0), &place).expect("it is sent")).expect("all push");
        self.store.barrier().expect("all come");
        wait(&self.store.pull(&place).expect("it is sent")).expect("servers live");
        assert_eq!(place[0].1.to_vec::<f32>().expect("floats"), [9.0; 9]);
        self.store.delete(&["new".into()]).expect("all come");
        assert_eq!(self.store.pull(&place).expect_err("it is gone").kind(), ErrorKind::NotFound);
        wait(&self.store.done().expect("it is sent")).expect("all are done");
        self.push();
        self.check(expected + (WORKERS - 1) as f32);
        self.store.wait(&[]).expect("nothing is left");
        self.store.close().expect("all come");
    }

    fn hear_of_the_end(&self) {
        let pending = self.pend_ready();
        check_torn("pending", &wait(&pending).expect_err("no sum is whole"));
        let end = |operation: &str, outcome: Result<()>| {
            check_torn(operation, &outcome.expect_err("no sum is whole"));
        };
        let places = filled(-1.0);
        end("push", self.store.push(&filled(1.0)).and_then(|work| wait(&work)));
        end("pull", self.store.pull(&places).and_then(|work| wait(&work)));
        end("push_pull", self.store.push_pull(&filled(1.0), &places).and_then(|work| wait(&work)));
        end("barrier", self.store.barrier());
        end("done", self.store.done().and_then(|work| wait(&work)));
        end("close", self.store.close());
        say("over");
    }
}

fn kill(scene: &str, kind: &str, victim: &str, transport: Transport) {
    let job = job();
    let expected = roles(SERVERS, WORKERS);
    let variables = [(VICTIM, victim), (SCENE, scene), (KIND, kind)];
    let mut children = start_all(&job, expected, transport, &variables);
    children.iter().for_each(|child| drop(hear(child, "ready")));
    let at = parts(expected).iter().position(|part| part == victim).expect("it is one of them");
    let begun = Instant::now();
    children.remove(at).kill(SIGKILL).expect("it lives");
    let survivors = || children.iter().filter(|child| child.name().starts_with("worker"));
    survivors().for_each(|child| drop(hear(child, "over")));
    let took = begun.elapsed();
    note(&format!("{transport:?}, {kind}: {victim} killed, {scene}: {:.0} ms", took.as_secs_f64() * 1e3));
    assert!(took < BOUND, "{victim} of {kind} over {transport:?}, {scene}: {took:?}");
    survivors().for_each(|child| drop(hear(child, "left")));
    ended_well(&children);
}

fn kill_all(scenes: &[&str], transport: Transport) {
    for scene in scenes {
        for kind in ["dist_sync", "dist_ssp"] {
            for victim in ["worker-0", "worker-1"] {
                kill(scene, kind, victim, transport);
            }
        }
    }
}

#[test]
fn the_others_go_on_over_shm() {
    kill_all(&[IDLE, WHOLE, DONE], Transport::Shm);
}

#[test]
fn the_others_go_on_over_tcp() {
    kill_all(&[IDLE, WHOLE, DONE], Transport::Tcp);
}

#[test]
fn a_push_that_has_reached_one_server_of_two_ends_the_store_for_all() {
    kill_all(&[TORN], Transport::Shm);
    kill_all(&[TORN], Transport::Tcp);
}

#[test]
fn f02_an_answer_without_a_dead_worker_tells_that_it_is_gone() {
    for transport in [Transport::Shm, Transport::Tcp] {
        for victim in ["worker-0", "worker-1"] {
            kill(KNOWN, "dist_sync", victim, transport);
        }
    }
}
