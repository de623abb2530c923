//! Several processes are killed at once while a store is at work: in the middle of pushes and pulls, while keys are
//! initialised, while a checkpoint is written, while all come to their ends. Whoever is left has whole and right sums,
//! or an error that names one of the dead, within the bound.

use crate::common::deaths::{Deaths, is_victim, tell, victims};
use crate::common::raw::{ask_raw, name_on, number_of};
use crate::common::{PATIENCE, hear, now_ms, part, roles, say, until, wait};
use sheave_base::Result;
use sheave_base::config::Transport;
use sheave_mesh::{Member, Mesh, Role};
use sheave_net::Part;
use sheave_store::{Config, Key, Kind, KvStore, OnWorkerLoss, Server, ServerConfig, Updater};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::to_control;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

const SERVERS: u32 = 2;
const WORKERS: u32 = 4;
const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

/// After so long a silence a member is dead: no test waits for that.
const SILENCE: Duration = Duration::from_secs(30);

const CUT_ELEMENTS: u64 = 100;
/// Of the tensor that is cut; each server has half of it.
const BIG: usize = 2000;

const MOMENT: &str = "SHEAVE_TEST_MOMENT";
const KIND: &str = "SHEAVE_TEST_KIND";
const LOSS: &str = "SHEAVE_TEST_LOSS";

/// Two of them, the first one among them, and all workers but one.
const WORKERS_DIE: [&[&str]; 3] =
    [&["worker-1", "worker-2"], &["worker-0", "worker-3"], &["worker-0", "worker-1", "worker-2"]];
/// A worker and a server.
const BOTH_DIE: [&[&str]; 2] = [&["worker-1", "server-1"], &["worker-0", "server-0"]];

/// Rounds after which a job is under way.
const WARM_ROUNDS: usize = 10;
/// Rounds that are compared between survivors.
const TOLD_ROUNDS: usize = 20;

fn variable(name: &str) -> String {
    std::env::var(name).expect("the test has set it")
}

fn filled(key: impl Into<Key>, elements: usize, value: f32) -> (Key, Tensor) {
    (key.into(), Tensor::from_slice(&vec![value; elements], [elements as u64]).expect("it fits"))
}

/// The value of all elements, which have the same.
fn uniform(key: &Key, values: &[f32]) -> f32 {
    assert!(values.iter().all(|value| *value == values[0]), "{key} is torn: {} to {:?}", values[0], values.last());
    values[0]
}

fn values_of((_, place): &(Key, Tensor)) -> Vec<f32> {
    place.to_vec::<f32>().expect("floats")
}

#[test]
fn actor() {
    let Some(mut config) = part() else { return };
    config.node.liveness.timeout = SILENCE;
    let mesh = Mesh::join(config).expect("everybody comes");
    let is_worker = |member: &Member| member.introduction.role == Role::Worker;
    match mesh.me().introduction.role {
        Role::Worker => return Worker::begin(mesh).act(),
        Role::Server => serve(&mesh),
        _ => {
            say("ready");
            mesh.until_gone_tolerating(is_worker, |_| true, None).expect("the workers leave or die");
        }
    }
    // Of the last ones, whose coordinator may be gone already, not all can be told.
    let _ = mesh.leave();
}

fn serve(mesh: &Mesh) {
    let server = Server::start(mesh, ServerConfig::default()).expect("it is the first");
    say("ready");
    match server.run() {
        Ok(()) => say("served"),
        Err(error) => {
            tell("served", &error);
            // So that the others still hear it from here.
            let is_worker = |member: &Member| member.introduction.role == Role::Worker;
            mesh.until_gone_tolerating(is_worker, |_| true, None).expect("the workers leave or die");
        }
    }
}

struct Worker {
    mesh: Mesh,
    store: KvStore,
    shrinks: bool,
    /// How many workers are left.
    survivors: usize,
}

impl Worker {
    fn begin(mesh: Mesh) -> Self {
        let kind = Kind::parse(&variable(KIND)).expect("the test knows kinds");
        let shrinks = variable(LOSS) == "shrink";
        let on_worker_loss = if shrinks { OnWorkerLoss::Shrink } else { OnWorkerLoss::Fail };
        let config = Config { cut_elements: CUT_ELEMENTS, on_worker_loss, ..kind.into() };
        let store = KvStore::open(&mesh, config).expect("all servers serve");
        let dead = victims().iter().filter(|victim| victim.starts_with("worker")).count();
        Self { mesh, store, shrinks, survivors: WORKERS as usize - dead }
    }

    fn act(self) {
        match variable(MOMENT).as_str() {
            "traffic" if self.store.kind() == Kind::DistAsync => self.push_alone(),
            "traffic" => self.push_together(),
            "init" => self.init_until_it_fails(),
            "half an init" => self.be_left_with_half_an_init(),
            moment => return self.end(moment),
        }
        self.mesh.leave().expect("the rest agrees");
        say("left");
    }

    fn all_are_dead(&self) -> bool {
        self.mesh.num_dead_node(|_| true) == victims().len()
    }

    /// Waits until it is killed.
    fn be_killed(&self) -> ! {
        say("under way");
        loop {
            std::thread::park();
        }
    }
}

/// What rounds of pushes have come to.
#[derive(Default)]
struct History {
    totals: Vec<f32>,
    /// By how much the last round has changed each key.
    grown: Vec<f32>,
    told: VecDeque<String>,
    rounds: usize,
}

impl History {
    /// One more round, with these values of the keys that everybody pushes one to.
    fn add(&mut self, totals: Vec<f32>, workers: std::ops::RangeInclusive<f32>) {
        let before = if self.totals.is_empty() { vec![0.0; totals.len()] } else { std::mem::take(&mut self.totals) };
        let grown: Vec<f32> = totals.iter().zip(&before).map(|(now, before)| now - before).collect();
        for (at, grown) in grown.iter().enumerate() {
            assert!(workers.contains(grown), "round {}: {grown} workers in a sum", self.rounds);
            let more_than_before = self.grown.get(at).is_some_and(|before| grown > before);
            assert!(!more_than_before, "round {}: a worker that was left out is in a sum again", self.rounds);
        }
        self.told.push_back(format!("{}={totals:?}", self.rounds).replace(' ', ""));
        if self.told.len() > TOLD_ROUNDS {
            self.told.pop_front();
        }
        (self.totals, self.grown) = (totals, grown);
        self.rounds += 1;
    }

    fn tell(&self) {
        let told: Vec<&str> = self.told.iter().map(String::as_str).collect();
        say(&format!("history {}", told.join(" ")));
    }
}

/// Rounds of which all workers have the same sums.
impl Worker {
    /// What all push to: a key on each server and one that is on both.
    fn shared(value: f32) -> Vec<(Key, Tensor)> {
        let on = |server: u64| name_on(server, SERVERS.into(), "a key");
        vec![filled(on(0), 3, value), filled(on(1), 3, value), filled("a big one", BIG, value)]
    }

    fn push_together(&self) {
        self.store.init(&[Self::shared(0.0), vec![filled("votes", 1, 0.0)]].concat()).expect("they are new");
        self.store.set_updater(Updater::Sum).expect("servers add");
        self.store.barrier().expect("all are there");
        let mut history = History::default();
        let outcome = self.rounds(&mut history);
        if let Err(error) = &outcome {
            tell("failed", error);
        }
        history.tell();
        match outcome {
            Ok(()) => say(&format!("outcome went on {}", history.rounds)),
            Err(_) => self.fail_again(),
        }
    }

    /// Goes on until all who are left have seen the deaths, which they say to each other in sums.
    fn rounds(&self, history: &mut History) -> Result<()> {
        let (end, mut has_voted) = (Instant::now() + PATIENCE, false);
        loop {
            assert!(Instant::now() < end, "nobody was killed");
            let votes = !has_voted && self.all_are_dead();
            let values = [Self::shared(1.0), vec![filled("votes", 1, f32::from(u8::from(votes)))]].concat();
            let places = [Self::shared(-1.0), vec![filled("votes", 1, -1.0)]].concat();
            wait(&self.store.push_pull(&values, &places)?)?;
            let mut totals: Vec<f32> = places.iter().map(|pair| uniform(&pair.0, &values_of(pair))).collect();
            let voted = totals.pop().expect("four keys");
            let least = if self.shrinks && history.rounds >= WARM_ROUNDS { self.survivors } else { WORKERS as usize };
            history.add(totals, least as f32..=WORKERS as f32);
            if history.rounds == WARM_ROUNDS {
                say("under way");
            }
            if votes {
                has_voted = true;
                say(&format!("goes-on {}", now_ms()));
            }
            if voted == self.survivors as f32 {
                return Ok(());
            }
        }
    }

    /// What is begun after the failure fails too, for one of the dead.
    fn fail_again(&self) {
        let places = Self::shared(-1.0);
        let pushed = self.store.push_pull(&Self::shared(1.0), &places).and_then(|work| wait(&work));
        tell("again", &pushed.expect_err("somebody is gone"));
        say("outcome failed");
    }
}

/// Pushes of which none waits for another worker.
impl Worker {
    /// A server that is not killed.
    fn home() -> u64 {
        u64::from(victims().iter().any(|victim| victim == "server-0"))
    }

    fn own(rank: u32) -> String {
        name_on(Self::home(), SERVERS.into(), &format!("of worker {rank}"))
    }

    /// Each worker counts its own pushes in a key of its own, and all push to one that is on both servers.
    fn push_alone(&self) {
        let mut all: Vec<_> = (0..WORKERS).map(|rank| filled(Self::own(rank), 5, 0.0)).collect();
        all.push(filled("a big one", BIG, 0.0));
        self.store.init(&all).expect("they are new");
        self.store.set_updater(Updater::Sum).expect("servers add");
        self.store.barrier().expect("all are there");
        let own = Self::own(self.store.rank());
        let (mut count, mut after, mut fails) = (0, 0, false);
        let end = Instant::now() + PATIENCE;
        while after < WARM_ROUNDS {
            assert!(Instant::now() < end, "nobody was killed");
            after += usize::from(self.all_are_dead());
            count += 1;
            let place = filled(own.clone(), 5, -1.0);
            let pushed = self.store.push_pull(&[filled(own.clone(), 5, 1.0)], std::slice::from_ref(&place));
            wait(&pushed.expect("its server lives")).expect("it needs nobody who died");
            assert_eq!(uniform(&place.0, &values_of(&place)), count as f32, "its own pushes, each once");
            fails = fails || self.push_big(count as f32).inspect_err(|error| tell("failed", error)).is_err();
            match (count, after) {
                (10, _) => say("under way"),
                (_, 1) => say(&format!("goes-on {}", now_ms())),
                _ => {}
            }
        }
        let barrier = self.store.barrier();
        barrier.expect_err("barriers of such a store count everybody");
        say(if fails { "outcome failed in part" } else { "outcome went on" });
    }

    /// One more push to the tensor that is cut. What comes of it has all that this worker has pushed, and is whole on
    /// each server.
    fn push_big(&self, count: f32) -> Result<()> {
        let place = filled("a big one", BIG, -1.0);
        wait(&self.store.push_pull(&[filled("a big one", BIG, 1.0)], std::slice::from_ref(&place))?)?;
        for half in values_of(&place).chunks(BIG / 2) {
            assert!(uniform(&place.0, half) >= count, "{half:?} lacks some of {count} pushes");
        }
        Ok(())
    }
}

/// New keys, and deaths meanwhile.
impl Worker {
    fn init_until_it_fails(&self) {
        let end = Instant::now() + PATIENCE;
        for round in 0.. {
            assert!(Instant::now() < end, "nobody was killed");
            if let Err(error) = self.store.init(&[filled(format!("key {round}"), BIG, 1.0)]) {
                tell("failed", &error);
                break;
            }
            if round == WARM_ROUNDS {
                say("under way");
            }
        }
        until("all are dead", || self.all_are_dead());
        tell("again", &self.store.init(&[filled("one more", BIG, 1.0)]).expect_err("somebody is gone"));
    }

    /// The first worker has sent its values to the first of two servers, and dies.
    fn be_left_with_half_an_init(&self) {
        self.store.barrier().expect("all are there");
        if is_victim() {
            if self.shrinks {
                // That of the init of the others: with it they agree on who gives the values.
                self.store.barrier().expect("all are there");
            }
            self.send_half_an_init();
            self.be_killed();
        }
        say("under way");
        let rank = self.store.rank() as f32;
        let init = |name: &str| self.store.init(&[filled(name, BIG, 5.0 + rank)]);
        if self.shrinks {
            init("a big one").expect("the first one that is left gives its values");
            say(&format!("goes-on {}", now_ms()));
            return self.use_what_is_new();
        }
        tell("failed", &init("a big one").expect_err("half of it is there"));
        tell("again", &init("another").expect_err("somebody is gone"));
    }

    /// The key has the values of worker-1, whole, and all push to it.
    fn use_what_is_new(&self) {
        let place = filled("a big one", BIG, -1.0);
        let pull = || {
            wait(&self.store.pull(std::slice::from_ref(&place)).expect("it is there")).expect("servers live");
            let value = uniform(&place.0, &values_of(&place));
            self.store.barrier().expect("all who are left come");
            value
        };
        assert_eq!(pull(), 6.0);
        self.store.set_updater(Updater::Sum).expect("servers add");
        self.store.barrier().expect("all who are left come");
        wait(&self.store.push(&[filled("a big one", BIG, 1.0)]).expect("it is there")).expect("all push");
        self.store.barrier().expect("all who are left come");
        assert_eq!(pull(), 6.0 + self.survivors as f32);
        self.store.delete(&["a big one".into()]).expect("nobody uses it");
    }

    /// The head of an init is the store, the slices, each of what is said of its key, its number and its first element,
    /// and their pieces.
    fn send_half_an_init(&self) {
        type Piece = (u64, u64, bool, u32);
        let number = number_of("a big one");
        let home = (number % u64::from(SERVERS)) as usize;
        let half = Tensor::from_slice(&vec![5f32; BIG / 2], [BIG as u64 / 2]).expect("it fits");
        let dense = 0u32;
        let described = (Key::from("a big one"), half.dtype().code(), vec![BIG as u64], dense);
        let piece: Piece = (number, half.len_bytes() as u64, true, 0);
        let head = to_control(&(0u32, vec![(described, 0u64, 0u64)], vec![piece])).expect("it is short");
        let tensors = std::iter::once(Part::new(half, Mode::Copy)).collect();
        let server = self.mesh.of_role(Role::Server).nth(home).expect("it is one of them").node;
        wait(&ask_raw(&self.mesh, server, "init", head, tensors).expect("it is sent")).expect("it is new");
    }
}

/// Ends of jobs.
impl Worker {
    fn end(&self, moment: &str) {
        self.store.init(&Self::shared(0.0)).expect("they are new");
        self.store.set_updater(Updater::Sum).expect("servers add");
        for _ in 0..WARM_ROUNDS {
            wait(&self.store.push(&Self::shared(1.0)).expect("it is sent")).expect("all push");
        }
        self.store.barrier().expect("all come");
        if moment == "close" && is_victim() {
            self.be_killed();
        }
        if moment != "finish" {
            say("under way");
        }
        let closed = self.store.close();
        self.goes("closed", &closed);
        if moment == "finish" && is_victim() {
            self.be_killed();
        }
        if moment == "finish" {
            say("under way");
        }
        let ended = if moment == "leave" { self.mesh.leave() } else { self.mesh.finish() };
        self.goes("ended", &ended);
        say("left");
    }

    fn goes(&self, label: &str, outcome: &Result<()>) {
        match outcome {
            Ok(()) => say(label),
            Err(error) => tell(label, error),
        }
    }
}

fn job(transport: Transport, (moment, kind, loss): (&str, &str, &str), victims: &[&str]) -> Deaths {
    let variables = [(MOMENT, moment), (KIND, kind), (LOSS, loss)];
    let deaths = Deaths::start(roles(SERVERS, WORKERS), transport, victims, &variables);
    deaths.hear_all("server", "ready");
    deaths.hear_all("scheduler", "ready");
    deaths.hear_all("worker", "under way");
    deaths
}

/// Survivors that have a round have the same sums in it.
fn have_one_history(deaths: &Deaths) {
    let mut sums = BTreeMap::new();
    for child in deaths.survivors("worker") {
        let said = hear(child, "history");
        for (round, values) in said.split(' ').filter_map(|one| one.split_once('=')) {
            let first = sums.entry(round.to_owned()).or_insert_with(|| values.to_owned());
            assert_eq!(*first, values, "round {round} of {}", child.name());
        }
    }
    assert!(!sums.is_empty(), "no round was told");
}

fn all_fail(deaths: &Deaths) {
    for child in deaths.survivors("worker") {
        deaths.fails(child, "failed");
        let said = hear(child, "again");
        deaths.blames(child.name(), &said);
    }
}

/// Whether the survivors went on without those who died.
fn kill_amid_rounds(transport: Transport, loss: &str, victims: &[&str]) -> bool {
    let mut deaths = job(transport, ("traffic", "dist_sync", loss), victims);
    deaths.kill();
    let needs_all = loss == "fail" || victims.iter().any(|victim| victim.starts_with("server"));
    let outcomes: Vec<String> = deaths.survivors("worker").map(|child| hear(child, "outcome")).collect();
    assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "{outcomes:?}");
    // A push that has reached some servers and not others ends a store that shrinks too.
    let has_failed = outcomes[0] == "failed";
    assert!(has_failed || !needs_all, "{outcomes:?}");
    if has_failed {
        all_fail(&deaths);
    } else {
        deaths.survivors("worker").for_each(|child| deaths.is_in_time(child.name(), &hear(child, "goes-on")));
    }
    have_one_history(&deaths);
    for child in deaths.survivors("server") {
        match has_failed && victims.iter().any(|victim| victim.starts_with("worker")) {
            true if loss == "fail" => deaths.fails(child, "served"),
            true => drop(hear(child, "served")),
            false => assert_eq!(hear(child, "served"), "", "the store bears it"),
        }
    }
    deaths.all_end();
    !has_failed
}

#[test]
fn f42_several_that_die_amid_pushes_and_pulls_are_named() {
    for transport in TRANSPORTS {
        for victims in WORKERS_DIE.into_iter().chain(BOTH_DIE) {
            assert!(!kill_amid_rounds(transport, "fail", victims), "it needs everybody");
        }
    }
}

#[test]
fn f42_a_store_that_shrinks_does_without_several_or_says_why_not() {
    for transport in TRANSPORTS {
        let went_on = WORKERS_DIE.map(|victims| kill_amid_rounds(transport, "shrink", victims));
        // The moment in which a push has reached one server and not the other is short.
        assert!(went_on.contains(&true), "it never goes on");
        let went_on = BOTH_DIE.map(|victims| kill_amid_rounds(transport, "shrink", victims));
        assert!(!went_on.contains(&true), "no store bears the loss of a server");
    }
}

#[test]
fn f42_a_store_without_rounds_goes_on_without_several() {
    for transport in TRANSPORTS {
        for victims in WORKERS_DIE.into_iter().chain(BOTH_DIE) {
            let mut deaths = job(transport, ("traffic", "dist_async", "fail"), victims);
            deaths.kill();
            let server_dies = victims.iter().any(|victim| victim.starts_with("server"));
            for child in deaths.survivors("worker") {
                deaths.is_in_time(child.name(), &hear(child, "goes-on"));
                assert_eq!(hear(child, "outcome"), if server_dies { "failed in part" } else { "went on" });
                if server_dies {
                    deaths.fails(child, "failed");
                }
            }
            deaths.survivors("server").for_each(|child| assert_eq!(hear(child, "served"), ""));
            deaths.all_end();
        }
    }
}

#[test]
fn f42_several_that_die_while_keys_are_initialised_are_named() {
    for transport in TRANSPORTS {
        for kind in ["dist_sync", "dist_async"] {
            for victims in WORKERS_DIE.into_iter().chain(BOTH_DIE) {
                let mut deaths = job(transport, ("init", kind, "fail"), victims);
                deaths.kill();
                all_fail(&deaths);
                deaths.all_end();
            }
        }
    }
}

#[test]
fn f42_a_worker_that_dies_when_half_of_a_key_is_initialised_is_named() {
    for transport in TRANSPORTS {
        for kind in ["dist_sync", "dist_async"] {
            let mut deaths = job(transport, ("half an init", kind, "fail"), &["worker-0"]);
            deaths.kill();
            all_fail(&deaths);
            deaths.all_end();
        }
    }
}

#[test]
fn f42_a_store_that_shrinks_initialises_a_key_whole_when_the_first_worker_dies_amid_it() {
    for transport in TRANSPORTS {
        for kind in ["dist_sync", "dist_async"] {
            let mut deaths = job(transport, ("half an init", kind, "shrink"), &["worker-0"]);
            deaths.kill();
            deaths.survivors("worker").for_each(|child| deaths.is_in_time(child.name(), &hear(child, "goes-on")));
            deaths.survivors("server").for_each(|child| assert_eq!(hear(child, "served"), "", "the store bears it"));
            deaths.all_end();
        }
    }
}

#[test]
fn f42_several_that_die_at_the_end_of_a_job_keep_nobody() {
    for transport in TRANSPORTS {
        for victims in WORKERS_DIE {
            for loss in ["fail", "shrink"] {
                // The others wait for the victims, which have not closed the store.
                let mut deaths = job(transport, ("close", "dist_sync", loss), victims);
                deaths.kill();
                for child in deaths.survivors("worker") {
                    if loss == "fail" {
                        deaths.fails(child, "closed");
                    } else {
                        assert_eq!(hear(child, "closed"), "", "the store does without them");
                    }
                    deaths.fails(child, "ended");
                    hear(child, "left");
                }
                deaths.all_end();
                // They wait for them, to finish together.
                let mut deaths = job(transport, ("finish", "dist_sync", loss), victims);
                deaths.kill();
                for child in deaths.survivors("worker") {
                    assert_eq!(hear(child, "closed"), "", "all have closed it");
                    deaths.fails(child, "ended");
                }
                // No store was open: the others are served first.
                deaths.survivors("server").for_each(|child| deaths.blames(child.name(), &hear(child, "served")));
                deaths.all_end();
            }
        }
    }
}

#[test]
fn f42_several_that_die_while_all_leave_keep_nobody() {
    for transport in TRANSPORTS {
        for victims in WORKERS_DIE.into_iter().chain(BOTH_DIE) {
            let mut deaths = job(transport, ("leave", "dist_sync", "fail"), victims);
            deaths.kill();
            for child in deaths.survivors("worker") {
                let closed = hear(child, "closed");
                if !closed.is_empty() {
                    deaths.blames(child.name(), &closed);
                }
                assert_eq!(hear(child, "ended"), "", "{}", child.name());
                hear(child, "left");
            }
            deaths.all_end();
        }
    }
}
