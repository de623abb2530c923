//! A process of a store that lacks descriptors, memory, a thread or room on a disk says so, and what raises it. The
//! others lose it for that reason, and nobody else is accused or harmed.

use crate::common::{PART, ended_well, hear, job, note, part, roles, say, start_all, until, wait};
use crate::shortages::{
    LACKS, LACKS_A_THREAD, LACKS_SOMETHING, NO_DESCRIPTOR, NO_MEMORY, NO_THREAD, SHORT, WHEN, be_short, leave_files_of,
    small_disk, variable,
};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Result};
use sheave_mesh::{Death, Member, Mesh, Role};
use sheave_process::Child;
use sheave_store::{Config, Key, Kind, KvStore, Server, ServerConfig, Updater};
use sheave_tensor::{Op, Tensor, file};
use std::path::{Path, PathBuf};
use std::time::Duration;

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];
const SERVERS: u32 = 2;
const WORKERS: u32 = 3;
const CUT_ELEMENTS: u64 = 100;
const SMALL: usize = 2000;
/// Of which a server has 16 MiB.
const BIG: usize = 8 << 20;
/// Of a server whose arena is full: the big tensor is elsewhere.
const ARENA_BYTES: u64 = 1 << 20;

/// The first segment of each process, which one of little memory gets back from each other one that leaves: enough for
/// a thread and for what that does, and not for the first of the two alone, with which it would not come far.
const SEGMENT_BYTES: u64 = 8 << 20;

/// After so long a silence a member is dead: no test waits for that.
const SILENCE: Duration = Duration::from_secs(30);

/// Before there are links to it.
const LINKS: &str = "links";
/// When a store is in use.
const USE: &str = "use";

/// Of a file system that has room for one checkpoint and not for two: eight pages and what the file system needs.
const DISK_BYTES: u64 = 16 << 10;

fn filled(key: &str, elements: usize, value: f32) -> [(Key, Tensor); 1] {
    [(Key::from(key), Tensor::from_slice(&vec![value; elements], [elements as u64]).expect("it fits"))]
}

fn is_short() -> bool {
    variable(SHORT) == variable(PART)
}

fn is_worker(member: &Member) -> bool {
    member.introduction.role == Role::Worker
}

#[test]
fn actor() {
    let Some(mut config) = part() else { return };
    config.node.liveness.timeout = SILENCE;
    config.node.arena.first_segment_bytes = SEGMENT_BYTES;
    if variable(LACKS) == "arena" && is_short() {
        config.node.arena.capacity_bytes = ARENA_BYTES;
    }
    let mesh = Mesh::join(config).expect("everybody comes");
    let add = |_: &Key, sum: &Tensor, value: &mut Tensor| value.reduce_from(Op::Sum, sum);
    let outcome = match mesh.me().introduction.role {
        Role::Worker => {
            mesh.world().barrier().expect("all are there");
            be_short(&mesh, LINKS, is_short()).and_then(|()| use_store(&mesh))
        }
        Role::Server => {
            let server = Server::start(&mesh, ServerConfig::default().function("add", add)).expect("it is the first");
            mesh.world().barrier().expect("all are there");
            [LINKS, USE].iter().try_for_each(|when| be_short(&mesh, when, is_short())).and_then(|()| server.run())
        }
        _ => {
            mesh.world().barrier().expect("all are there");
            let met = [LINKS, USE].iter().try_for_each(|when| be_short(&mesh, when, is_short()));
            met.and_then(|()| mesh.until_gone_tolerating(is_worker, |_| true, None))
        }
    };
    match (variable(LACKS).as_str(), is_short()) {
        ("arena" | "disk" | "files", _) => outcome.expect("nobody is lost"),
        (LACKS_A_THREAD, _) => hear_of_a_thread(&mesh, outcome),
        (_, true) => return say_what_is_lacking(&mesh),
        (_, false) => lose_it(&mesh, outcome),
    }
    let left = mesh.leave();
    // To ask everybody takes links, and a link takes a thread.
    let lacks_a_thread = is_short() && variable(LACKS) == LACKS_A_THREAD;
    assert!(left.is_ok() || lacks_a_thread, "{left:?}");
    say("left");
}

/// A small tensor that is pushed to, and a big one that comes later.
fn use_store(mesh: &Mesh) -> Result<()> {
    let store = KvStore::open(mesh, Config { cut_elements: CUT_ELEMENTS, ..Kind::DistSync.into() })?;
    store.init(&filled("small", SMALL, 0.0))?;
    store.set_updater(Updater::Sum)?;
    store.barrier()?;
    // So that what carries it is there.
    let place = filled("small", SMALL, -1.0);
    wait(&store.push_pull(&filled("small", SMALL, 1.0), &place)?)?;
    // What it runs on is made when it is first needed.
    store.set_updater(Updater::Named("add".into()))?;
    store.barrier()?;
    if variable(LACKS) == "disk" || variable(LACKS) == "files" {
        return save_without_room(&store);
    }
    let (ones, big) = (filled("big", BIG, 1.0), filled("big", BIG, -1.0));
    be_short(mesh, USE, is_short())?;
    if variable(LACKS) != LACKS_A_THREAD {
        store.init(&big)?;
        wait(&store.push_pull(&ones, &big)?)?;
        assert!(big[0].1.to_vec::<f32>()?.iter().all(|value| *value == WORKERS as f32 - 1.0), "a wrong sum");
    }
    wait(&store.push_pull(&filled("small", SMALL, 1.0), &place)?)?;
    assert_eq!(place[0].1.to_vec::<f32>()?, [2.0 * WORKERS as f32; SMALL]);
    store.close()
}

fn folder_of(pid: u32) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("short-{pid}"))
}

/// The first worker writes checkpoints where there is room for the first one and not for the second.
fn save_without_room(store: &KvStore) -> Result<()> {
    let folder = folder_of(std::process::id());
    store.barrier()?;
    let saved = if store.rank() == 0 { Some(save_twice(store, &folder)?) } else { None };
    // The store goes on.
    store.barrier()?;
    wait(&store.push(&filled("small", SMALL, 1.0))?)?;
    store.barrier()?;
    if let Some(saved) = saved {
        let path = folder.join("checkpoint");
        std::fs::remove_file(&path)?;
        store.save(&path)?;
        assert!(std::fs::read(&path)? != saved, "all have pushed since");
        std::fs::remove_file(&path)?;
    }
    store.barrier()?;
    store.close()
}

/// Returns what is in the first checkpoint.
fn save_twice(store: &KvStore, folder: &Path) -> Result<Vec<u8>> {
    std::fs::create_dir_all(folder)?;
    let is_small = variable(LACKS) == "disk" && small_disk(folder, DISK_BYTES);
    let path = folder.join("checkpoint");
    store.save(&path)?;
    let before = std::fs::read(&path)?;
    if !is_small {
        leave_files_of(Some(before.len() as u64 / 2));
    }
    let error = store.save(&path).expect_err("there is no room");
    leave_files_of(None);
    let (text, full) = (error.to_string(), if is_small { "No space left" } else { "File too large" });
    assert!(error.kind() == ErrorKind::Io && text.contains(full), "{text}");
    assert!(text.contains(path.to_str().expect("a text")) && error.advice().is_some(), "{text}");
    assert!(std::fs::read(&path)? == before && file::load(&path).is_ok(), "the first one is not what it was");
    assert_eq!(std::fs::read_dir(folder)?.count(), 1, "something is left of the second one");
    say(&format!("full {text}"));
    Ok(before)
}

/// Who has pushed what the server cannot merge hears of that, and nobody else is lost. The server itself may lack a
/// thread once more when all leave, for which it needs links.
fn hear_of_a_thread(mesh: &Mesh, outcome: Result<()>) {
    let (short, is_worker) = (variable(SHORT), mesh.me().introduction.role == Role::Worker);
    match outcome {
        Err(error) => {
            let text = error.to_string();
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{text}");
            assert!(text.contains(NO_THREAD) && (text.contains(&short) || is_short()), "{text}");
            assert!(error.advice().is_some_and(|hint| hint.contains("raise the limit")), "{text}");
        }
        Ok(()) => assert!(!is_worker, "there is no thread"),
    }
    let is_other = |node| mesh.member(node).is_none_or(|member| member.introduction.name != short);
    let died = |death: &Death| !death.left && (is_worker || is_other(death.node));
    assert!(!mesh.deaths().iter().any(died), "{:?}", mesh.deaths());
    if is_worker {
        // Nobody leaves while another one has not pushed yet.
        let workers: Vec<_> = mesh.of_role(Role::Worker).map(|member| member.node).collect();
        mesh.group("workers", &workers).expect("all live").barrier().expect("all come");
    }
}

/// It is a member no more, for a reason of its own.
fn say_what_is_lacking(mesh: &Mesh) {
    until("the end of this membership", || !mesh.is_member());
    let error = mesh.world().barrier().expect_err("this node is no member any more");
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    assert!(error.advice().is_some_and(|hint| hint.contains("raise the limit")), "{error}");
    say(&format!("failed {error}"));
}

/// The others lose it and nobody else.
fn lose_it(mesh: &Mesh, outcome: Result<()>) {
    let died = || mesh.deaths().into_iter().filter(|death| !death.left).collect::<Vec<_>>();
    until("the news of the death", || !died().is_empty());
    let short = variable(SHORT);
    // A worker that has heard of it may have left, and this one waits for that at a barrier of the first server.
    let names = |text: &str| text.contains(&short) || text.contains("left the mesh");
    match outcome {
        Err(error) => assert!(error.kind() == ErrorKind::PeerLost && names(&error.to_string()), "{error}"),
        Ok(()) => assert_ne!(mesh.me().introduction.role, Role::Worker, "it needs {short}"),
    }
    let [death] = &died()[..] else { panic!("more than one: {:?}", mesh.deaths()) };
    assert_eq!(mesh.member(death.node).expect("it was one").introduction.name, short, "{death:?}");
    say(&format!("lost {}", death.reason));
    if mesh.me().introduction.role != Role::Worker {
        mesh.until_gone_tolerating(is_worker, |_| true, None).expect("the others leave");
    }
    assert!(mesh.is_member(), "{:?}", mesh.deaths());
}

/// Who is short ends in order, says what it lacks, and all others read one of these reasons.
fn is_short_alone(transport: Transport, (short, when, lacks): (&str, &str, &str), says: &[&str], others_read: &[&str]) {
    let job = job();
    let variables = [(SHORT, short), (WHEN, when), (LACKS, lacks)];
    let children = start_all(&job, roles(SERVERS, WORKERS), transport, &variables);
    let what = format!("{transport:?}, {short}, {when}, {lacks}");
    for child in &children {
        let (word, expected) = if child.name() == short { ("failed", says) } else { ("lost", others_read) };
        let said = hear(child, word);
        note(&format!("{what}: {} {word}: {said}", child.name()));
        assert!(expected.iter().any(|reason| said.contains(reason)), "{what}: {} {word}: {said}", child.name());
    }
    // Nobody has killed it either.
    ended_well(&children);
}

fn all_end_well(transport: Transport, (short, when, lacks): (&str, &str, &str)) -> Vec<Child> {
    let job = job();
    let variables = [(SHORT, short), (WHEN, when), (LACKS, lacks)];
    let children = start_all(&job, roles(SERVERS, WORKERS), transport, &variables);
    until("all have ended", || children.iter().all(|child| child.exit().is_some()));
    // All of them: the first to fail takes others along.
    let failed = children.iter().filter(|child| !child.exit().is_some_and(|exit| exit.status.success()));
    let texts: Vec<_> = failed.map(|child| format!("{}: {}", child.name(), child.stderr_lines().join("\n"))).collect();
    assert!(texts.is_empty(), "{}", texts.join("\n"));
    children.iter().for_each(|child| drop(hear(child, "left")));
    children
}

#[test]
fn f86_who_has_no_descriptors_for_links_to_servers_says_so() {
    for (transport, free) in [(Transport::Shm, 0), (Transport::Shm, 3), (Transport::Tcp, 0), (Transport::Tcp, 1)] {
        let lacks = format!("descriptors {free}");
        is_short_alone(transport, ("worker-1", LINKS, &lacks), &[NO_DESCRIPTOR], &[NO_DESCRIPTOR]);
    }
}

#[test]
fn f86_a_server_that_has_no_descriptors_for_links_to_workers_says_so() {
    for (transport, free) in [(Transport::Shm, 0), (Transport::Shm, 4), (Transport::Tcp, 0), (Transport::Tcp, 1)] {
        let lacks = format!("descriptors {free}");
        is_short_alone(transport, ("server-1", LINKS, &lacks), &[NO_DESCRIPTOR], &[NO_DESCRIPTOR, LACKS_SOMETHING]);
    }
}

#[test]
fn f21_a_worker_that_has_no_memory_for_a_thread_says_so() {
    for transport in TRANSPORTS {
        is_short_alone(transport, ("worker-1", LINKS, "memory"), &[NO_THREAD], &[NO_THREAD]);
    }
}

#[test]
fn f21_a_server_that_has_no_memory_for_what_it_is_sent_says_so() {
    for transport in TRANSPORTS {
        // What it lacks first is a thread, where it has to link to a peer behind what has come.
        let says = [NO_MEMORY, NO_THREAD];
        is_short_alone(transport, ("server-1", USE, "MiB 4"), &says, &[NO_MEMORY, NO_THREAD, LACKS_SOMETHING]);
    }
}

#[test]
fn f21_a_server_that_has_no_memory_for_the_thread_of_an_updater_says_so_to_who_pushes() {
    for transport in TRANSPORTS {
        all_end_well(transport, ("server-1", USE, LACKS_A_THREAD));
    }
}

#[test]
fn f21_who_has_no_room_in_its_arena_takes_other_memory() {
    for transport in TRANSPORTS {
        all_end_well(transport, ("server-1", "never", "arena"));
        all_end_well(transport, ("worker-1", "never", "arena"));
    }
}

#[test]
fn f42_a_full_disk_costs_the_checkpoint_that_is_written_and_nothing_else() {
    for (transport, lacks) in TRANSPORTS.into_iter().flat_map(|transport| [(transport, "disk"), (transport, "files")]) {
        let children = all_end_well(transport, ("worker-0", "never", lacks));
        let saver = children.iter().find(|child| child.name() == "worker-0").expect("it is one of them");
        note(&format!("{transport:?}, {lacks}: {}", hear(saver, "full")));
        std::fs::remove_dir(folder_of(saver.pid())).expect("it is empty");
    }
}
