//! Queues of real processes: what becomes of items whose takers, putters or homes are killed or stopped.

use crate::common::{PART, PATIENCE, SIGKILL, host, playing, say, until};
use sheave_base::ErrorKind;
use sheave_fleet::{GuestFleet, GuestFleetBuilder, Restarts};
use sheave_mesh::{Guest, GuestConfig, Invitation};
use sheave_net::{Part, Parts};
use sheave_pool::{Packet, Queue};
use sheave_process::{Job, Output};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::Value;
use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The bound of the design for the loss of a process that was killed.
const BOUND: Duration = Duration::from_secs(1);
const LONG: Option<Duration> = Some(PATIENCE);
/// As `host` has it.
const SECRET: &str = "known to this test alone";
const FOLDER: &str = "SHEAVE_TEST_FOLDER";

/// The part of a process that a test has started.
#[test]
fn actor() {
    match std::env::var(PART).unwrap_or_default().as_str() {
        "" => {}
        "takes" => be_taker(Duration::ZERO),
        "takes slowly" => be_taker(Duration::from_micros(200)),
        "puts" => be_putter(),
        "echoes" => be_echo(),
        "holds" => be_holder(),
        "host" => be_host(),
        other => panic!("no part {other}"),
    }
}

fn attached() -> Guest {
    let config = GuestConfig::from_env().expect("it makes sense").expect("it is invited");
    Guest::attach(config).expect("it is invited")
}

fn end(guest: &Guest, name: &str) -> Queue {
    Queue::attach_guest(guest, name, None).expect("it is there")
}

fn packet(number: i64) -> Packet {
    Packet::new(&Value::Int(number), Default::default()).expect("it is short")
}

fn number(packet: &Packet) -> i64 {
    match packet.value() {
        Ok(Value::Int(number)) => number,
        other => panic!("{other:?}"),
    }
}

fn put(queue: &Queue, number: i64) {
    queue.put(packet(number), LONG, None).expect("there is room");
}

fn taken(queue: &Queue) -> i64 {
    number(&queue.get(LONG, None).expect("one comes"))
}

/// Writes down each item that it takes, before it takes another one.
fn be_taker(spell: Duration) {
    let guest = attached();
    let queue = end(&guest, "jobs");
    let mut book = book(&std::env::var(FOLDER).expect("a folder"), std::process::id());
    say("attached");
    let error = loop {
        match queue.get(None, None) {
            Ok(item) => book.write_all(&number(&item).to_le_bytes()).expect("there is room"),
            Err(error) => break error,
        }
        if !spell.is_zero() {
            std::thread::sleep(spell);
        }
    };
    say(&format!("ended {error}"));
    let _ = guest.leave();
}

fn book(folder: &str, pid: u32) -> File {
    let path = Path::new(folder).join(pid.to_string());
    OpenOptions::new().append(true).create(true).open(path).expect("there is room")
}

/// What was written down, by process.
fn books(folder: &Path) -> HashMap<String, Vec<i64>> {
    let files = std::fs::read_dir(folder).expect("it is there").map(|file| file.expect("it is there"));
    let read = |path: PathBuf| {
        let bytes = std::fs::read(path).expect("it is there");
        bytes.chunks_exact(8).map(|number| i64::from_le_bytes(number.try_into().expect("eight"))).collect()
    };
    files.map(|file| (file.file_name().to_string_lossy().into_owned(), read(file.path()))).collect()
}

/// Puts numbers, each only when the one before was put, and says which were.
fn be_putter() {
    let guest = attached();
    let queue = end(&guest, "jobs");
    let mut book = book(&std::env::var(FOLDER).expect("a folder"), std::process::id());
    for number in 0.. {
        let number = i64::from(std::process::id()) << 32 | number;
        put(&queue, number);
        book.write_all(&number.to_le_bytes()).expect("there is room");
    }
}

fn be_echo() {
    let guest = attached();
    let (questions, answers) = (end(&guest, "questions"), end(&guest, "answers"));
    while let Ok(item) = questions.get(None, None) {
        answers.put(item.into_packet(), LONG, None).expect("there is room");
    }
    guest.leave().expect("the host is there");
}

/// Takes one item, says so, and holds it.
fn be_holder() {
    let guest = attached();
    let queue = end(&guest, "jobs");
    let mut book = book(&std::env::var(FOLDER).expect("a folder"), std::process::id());
    let item = queue.get(LONG, None).expect("one comes");
    book.write_all(&number(&item).to_le_bytes()).expect("there is room");
    std::thread::sleep(PATIENCE);
    drop(item);
}

fn be_host() {
    let mesh = host();
    let queue = Queue::new(&mesh, "jobs", None).expect("the name is free");
    (0..10).for_each(|number| put(&queue, number));
    for number in 0..2 {
        say(&format!("invitation-{number} {}", mesh.invite("taker").expect("there is room").to_text()));
    }
    std::thread::sleep(PATIENCE);
}

fn fleet(count: usize, part: &'static str, folder: &Path) -> GuestFleetBuilder {
    let folder = folder.to_owned();
    let endless = Restarts { most: 1_000_000, within: Duration::ZERO };
    GuestFleet::builder(count, move |_| playing(part).env(FOLDER, &folder)).restarts(endless).output(Output::Quiet)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn count(folder: &Path) -> usize {
    books(folder).values().map(Vec::len).sum()
}

#[test]
fn items_go_through_other_processes() {
    let mesh = host();
    let [questions, answers] =
        ["questions", "answers"].map(|name| Queue::new(&mesh, name, None).expect("the name is free"));
    let folder = folder();
    let fleet = fleet(1, "echoes", folder.path()).start(&mesh).expect("it comes");
    for number in 0..200 {
        put(&questions, number);
        assert_eq!(taken(&answers), number);
    }
    (0..20_000).for_each(|number| put(&questions, number));
    (0..20_000).for_each(|number| assert_eq!(taken(&answers), number));
    for elements in [1_u64 << 10, 1 << 20, 4 << 20] {
        let tensor = Tensor::from_slice(&vec![0.5_f32; elements as usize], [elements]).expect("memory");
        let parts: Parts = [Part::new(tensor, Mode::Copy)].into_iter().collect();
        let packet = questions.packet(&Value::Tensor(0), parts).expect("memory");
        questions.put(packet, LONG, None).expect("there is room");
        let item = answers.get(LONG, None).expect("it comes back");
        assert!(item.tensors()[0].to_vec::<f32>().expect("floats").iter().all(|value| *value == 0.5));
    }
    questions.close();
    until("it has ended", || fleet.guests().is_empty());
}

/// Takers are killed again and again: nothing is taken twice, and what nobody has written down is reported.
#[test]
fn a_thousand_killed_takers_lose_what_they_held_alone() {
    const KILLS: usize = 1_000;
    const TAKERS: usize = 3;
    let (mesh, folder) = (host(), folder());
    let queue = Queue::new(&mesh, "jobs", None).expect("the name is free");
    let fleet = fleet(TAKERS, "takes slowly", folder.path()).start(&mesh).expect("they come");
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut total = 0;
    for _ in 0..KILLS {
        let slot = random(TAKERS as u64) as usize;
        let taker = fleet.guest(slot).expect("a slot").wait_timeout(PATIENCE).expect("another one comes");
        for _ in 0..random(60) {
            put(&queue, total);
            total += 1;
        }
        let begun = Instant::now();
        let spell = Duration::from_micros(random(8_000));
        while begun.elapsed() < spell {
            std::thread::sleep(Duration::from_micros(100));
        }
        let child = fleet.children().swap_remove(slot);
        child.kill(SIGKILL).expect("it runs, or has ended");
        drop(taker);
    }
    // Those that are left take the rest.
    until("all is taken", || queue.is_empty().expect("it is here"));
    queue.close();
    until("all have ended", || fleet.guests().is_empty());
    let (lost, last) = queue.lost().expect("it is here");
    let mut seen = BTreeSet::new();
    for number in books(folder.path()).into_values().flatten() {
        assert!(seen.insert(number), "item {number} was taken twice");
    }
    let reported: BTreeSet<i64> = last.iter().map(|lost| lost.number as i64).collect();
    assert!((1..=KILLS).contains(&(lost as usize)) && lost as usize == last.len(), "{lost} lost");
    let missing: Vec<i64> = (0..total).filter(|number| !seen.contains(number) && !reported.contains(number)).collect();
    assert!(missing.is_empty(), "{missing:?} of {total} are nowhere; {lost} are reported");
    assert!(last.iter().all(|lost| lost.error.kind() == ErrorKind::PeerLost), "{last:?}");
}

#[test]
fn what_a_killed_putter_has_put_is_there() {
    let (mesh, folder) = (host(), folder());
    let queue = Queue::new(&mesh, "jobs", None).expect("the name is free");
    let fleet = fleet(2, "puts", folder.path()).start(&mesh).expect("they come");
    let mut came: HashMap<i64, Vec<i64>> = HashMap::new();
    for round in 0..20 {
        let child = fleet.children().swap_remove(round % 2);
        fleet.guest(round % 2).expect("a slot").wait_timeout(PATIENCE).expect("it comes");
        for _ in 0..100 {
            let number = taken(&queue);
            came.entry(number >> 32).or_default().push(number);
        }
        child.kill(SIGKILL).expect("it runs, or has ended");
    }
    fleet.replace_no_more();
    for child in fleet.children() {
        let _ = child.kill(SIGKILL);
    }
    until("all have ended", || fleet.guests().is_empty());
    while let Ok(item) = queue.get(Some(Duration::from_millis(500)), None) {
        let number = number(&item);
        came.entry(number >> 32).or_default().push(number);
    }
    for (pid, put) in books(folder.path()) {
        let came = came.get(&pid.parse().expect("a number")).cloned().unwrap_or_default();
        assert!(came.len() == put.len() || came.len() == put.len() + 1, "{} of {}", came.len(), put.len());
        assert!(came.iter().take(put.len()).eq(&put), "in their order");
    }
    assert_eq!(queue.lost().expect("it is here").0, 0);
}

#[test]
fn an_item_that_was_held_is_reported_with_who_held_it() {
    let (mesh, folder) = (host(), folder());
    let queue = Queue::new(&mesh, "jobs", None).expect("the name is free");
    let fleet = fleet(1, "holds", folder.path()).restarts(Restarts::NEVER).start(&mesh).expect("it comes");
    (0..5).for_each(|number| put(&queue, number));
    until("one is taken", || count(folder.path()) == 1);
    let killed = Instant::now();
    fleet.children()[0].kill(SIGKILL).expect("it runs");
    put(&queue, 5);
    until("it is reported", || queue.lost().expect("it is here").0 == 1);
    // The others are back, before those that are put later.
    (1..6).for_each(|number| assert_eq!(taken(&queue), number));
    assert!(killed.elapsed() < BOUND, "{:?}", killed.elapsed());
    let (_, lost) = queue.lost().expect("it is here");
    let holder = lost[0].holder.to_string();
    assert_eq!((lost[0].number, lost[0].error.kind()), (0, ErrorKind::PeerLost));
    assert!(holder.contains("rank-0.") && holder.contains("pid"), "{holder}");
}

/// A taker that is stopped holds one item; the others go to those that run.
#[test]
fn a_stopped_taker_stops_nobody_else() {
    let (mesh, folder) = (host(), folder());
    let queue = Queue::new(&mesh, "jobs", None).expect("the name is free");
    let fleet = fleet(1, "takes slowly", folder.path()).start(&mesh).expect("it comes");
    (0..2_000).for_each(|number| put(&queue, number));
    until("it takes many at a time", || count(folder.path()) > 200);
    let child = fleet.children().swap_remove(0);
    child.kill(19).expect("it runs");
    until("it is stopped", || {
        std::fs::read_to_string(format!("/proc/{}/stat", child.pid())).is_ok_and(|stat| stat.contains(") T "))
    });
    let begun = Instant::now();
    let mut rest = Vec::new();
    while let Ok(item) = queue.get(Some(Duration::from_millis(200)), None) {
        rest.push(number(&item));
    }
    assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
    let had = count(folder.path());
    assert!(rest.len() + had >= 1_999, "{} and {had}", rest.len());
    child.kill(18).expect("it is stopped");
    queue.close();
    until("it ends", || fleet.guests().is_empty());
    let all: BTreeSet<i64> = books(folder.path()).into_values().flatten().chain(rest.iter().copied()).collect();
    assert_eq!((all.len(), count(folder.path()) + rest.len()), (2_000, 2_000), "each is taken once");
}

#[test]
fn takers_hear_that_their_home_was_killed() {
    let (job, folder) = (Job::builder().output(Output::Capture).start().expect("processes"), folder());
    let home = job.spawn(playing("host")).expect("it starts");
    let mut takers = Vec::new();
    for number in 0..2 {
        let line =
            home.wait_for_stdout(&format!("invitation-{number}"), Instant::now() + PATIENCE).expect("it says so");
        let invitation = line.split(' ').next_back().expect("a word");
        let taker = playing("takes")
            .env(Invitation::VARIABLE, invitation)
            .env("SHEAVE_SECRET", SECRET)
            .env(FOLDER, folder.path());
        takers.push(job.spawn(taker).expect("it starts"));
    }
    for taker in &takers {
        taker.wait_for_stdout("attached", Instant::now() + PATIENCE).expect("it says so");
    }
    until("all is taken", || count(folder.path()) == 10);
    home.kill(SIGKILL).expect("it runs");
    let killed = Instant::now();
    for taker in takers {
        let line = taker.wait_for_stdout("ended", Instant::now() + PATIENCE).expect("it says so");
        assert!(line.contains("get: peer rank-0") && line.contains("was lost"), "{line}");
        assert!(killed.elapsed() < BOUND, "{:?}", killed.elapsed());
    }
}
