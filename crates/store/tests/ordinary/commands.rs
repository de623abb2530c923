//! Commands to the user's controller, and what nodes say of themselves by the names of ps-lite.

use crate::common::{job_of, roles, together, wait};
use parking_lot::Mutex;
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, NodeId};
use sheave_mesh::{Mesh, Method, Role};
use sheave_store::{Environment, Kind, KvStore, Server, ServerConfig, Updater, num_dead_node, run_server};
use sheave_tensor::Tensor;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// A command's number and text.
type Heard = (i32, Vec<u8>);

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn every_number_reaches_the_controller_of_every_server() {
    // 0 to 5 mean something to other stores.
    const NUMBERS: [i32; 11] = [0, 1, 2, 3, 4, 5, 7, 9, -1, i32::MAX, i32::MIN];
    let heard: Arc<Mutex<Vec<Heard>>> = Arc::default();
    let note = Arc::clone(&heard);
    let controller = move |number: i32, body: &[u8]| {
        note.lock().push((number, body.to_vec()));
        Ok([body, b" heard"].concat())
    };
    job_of(3, 2, Transport::Shm, ServerConfig::default().controller(controller), |mesh| {
        let store = KvStore::open(mesh, Kind::DistSync).expect("all servers serve");
        store.init(&[("w".into(), Tensor::from_slice(&[0.0f32; 4], [4]).expect("it fits"))]).expect("it is new");
        if store.rank() == 0 {
            for number in NUMBERS {
                let answers = store.send_command_to_servers(number, format!("text {number}")).expect("all hear it");
                assert_eq!(answers, vec![format!("text {number} heard").into_bytes(); 3]);
            }
            assert_eq!(store.send_command_to_servers(1, b"").expect("all hear it"), vec![b" heard".to_vec(); 3]);
        }
        store.barrier().expect("all are there");
        let place = [("w".into(), Tensor::from_slice(&[0.0f32; 4], [4]).expect("it fits"))];
        wait(&store.pull(&place).expect("it is sent")).expect("the store is as it was");
    });
    let heard = heard.lock();
    assert_eq!(heard.len(), 3 * (NUMBERS.len() + 1));
    for number in NUMBERS {
        let count = heard.iter().filter(|(is, body)| *is == number && *body == format!("text {number}").into_bytes());
        assert_eq!(count.count(), 3, "{number}");
    }
}

#[test]
fn commands_run_one_at_a_time() {
    let running = Arc::new(AtomicUsize::new(0));
    let controller = move |_: i32, _: &[u8]| {
        let others = running.fetch_add(1, SeqCst);
        std::thread::yield_now();
        running.fetch_sub(1, SeqCst);
        Ok(vec![others as u8])
    };
    job_of(1, 3, Transport::Shm, ServerConfig::default().controller(controller), |mesh| {
        let store = KvStore::open(mesh, Kind::DistAsync).expect("all servers serve");
        for number in 0..200 {
            let answers = store.send_command_to_servers(number, b"").expect("it is heard");
            assert_eq!(answers, [vec![0u8]], "another command ran beside it");
        }
        store.barrier().expect("all are through");
    });
}

struct Open;
struct Update;
struct SetUpdater;
struct Settle;
struct Norms;
struct Command;

// As the store has them, but for their arguments: these cannot be read there.
sheave_mesh::methods! {
    service "store";
    1, "open": Open[()] -> (), Workers;
    7, "update": Update[()] -> (), Workers;
    10, "set_updater": SetUpdater[()] -> (), Workers;
    14, "settle": Settle[()] -> (), Servers;
    15, "norms": Norms[()] -> (), Servers;
}

sheave_mesh::methods! {
    service "store.command";
    1, "command": Command[()] -> (), Workers;
}

fn refused<M: Method<Args = (), Answer = ()>>(mesh: &Mesh, to: NodeId) {
    let called = mesh.ask::<M>(to, &()).and_then(|work| work.wait_timeout(PATIENCE));
    let error = called.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::NotPermitted, "{}: {error}", M::NAME);
    assert_eq!(error.operation_name(), Some(M::NAME), "{error}");
    assert!(error.what().starts_with(&format!("\"{}\" is for ", M::NAME)), "{error}");
}

/// The scheduler is a member, and neither trains nor holds keys.
#[test]
fn f28_what_is_for_workers_or_servers_is_refused_to_others() {
    let heard = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&heard);
    let controller = move |_: i32, _: &[u8]| {
        count.fetch_add(1, SeqCst);
        Ok(Vec::new())
    };
    let config = ServerConfig::default().controller(controller);
    together(roles(1, 1), Transport::Shm, move |mesh| {
        let role = mesh.me().introduction.role;
        let server = (role == Role::Server).then(|| Server::start(&mesh, config.clone()).expect("it is the first"));
        mesh.world().barrier().expect("all are there");
        let to = mesh.of_role(Role::Server).next().expect("there is one").node;
        // Nobody looks at what they say.
        match role {
            Role::Worker => {
                refused::<Settle>(&mesh, to);
                refused::<Norms>(&mesh, to);
            }
            _ => {
                refused::<Open>(&mesh, to);
                refused::<Update>(&mesh, to);
                refused::<SetUpdater>(&mesh, to);
                refused::<Command>(&mesh, to);
            }
        }
        mesh.world().barrier().expect("all have asked");
        drop(server);
        mesh.finish().expect("all are well");
    });
    assert_eq!(heard.load(SeqCst), 0, "a command was heard");
}

#[test]
fn errors_and_panics_of_a_controller_come_back() {
    let controller = |number: i32, _: &[u8]| match number {
        1 => Err(Error::new(ErrorKind::InvalidArgument, "no such profile")),
        2 => panic!("the controller is broken"),
        _ => Ok(Vec::new()),
    };
    job_of(2, 1, Transport::Tcp, ServerConfig::default().controller(controller), |mesh| {
        let store = KvStore::open(mesh, Kind::DistAsync).expect("all servers serve");
        let error = store.send_command_to_servers(1, b"").expect_err("it refuses");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let text = error.to_string();
        assert!(text.contains("command 1") && text.contains("no such profile") && text.contains("server-0"), "{text}");
        let error = store.send_command_to_servers(2, b"").expect_err("it panics");
        assert_eq!(error.kind(), ErrorKind::Remote);
        // F59: its text arrives, and so does where it was.
        let cause = error.causes().last().expect("it says why");
        assert_eq!(cause.what(), "the controller is broken");
        assert!(cause.happened_on().is_some_and(|peer| peer.name == "server-0"), "{cause}");
        store.send_command_to_servers(3, b"").expect("the servers live");
    });
    job_of(1, 1, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = KvStore::open(mesh, Kind::DistAsync).expect("all servers serve");
        let error = store.send_command_to_servers(8, b"").expect_err("nobody takes it");
        assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("controller"), "{error}");
    });
    let local = KvStore::local("local").expect("it is known");
    assert!(local.send_command_to_servers(1, b"nobody").expect("there are none").is_empty());
}

#[test]
fn run_server_is_for_all_but_workers_and_numbers_name_nodes() {
    together(roles(2, 2), Transport::Shm, |mesh| {
        let is_worker = mesh.me().introduction.role == Role::Worker;
        for mask in 1..8 {
            assert_eq!(num_dead_node(&mesh, mask, PATIENCE).expect("it names groups"), 0);
        }
        for node in 8..12 {
            assert_eq!(num_dead_node(&mesh, node, PATIENCE).expect("it names a node"), 0);
        }
        for nobody in [0, -1, 12, 13, i32::MAX, i32::MIN] {
            let error = num_dead_node(&mesh, nobody, PATIENCE).expect_err("it names nobody");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        if !is_worker {
            run_server(&mesh, ServerConfig::default()).expect("no worker dies");
            return mesh.leave().expect("the others agree");
        }
        let error = run_server(&mesh, ServerConfig::default()).expect_err("it is a worker");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let store = KvStore::open(&mesh, Kind::DistSync).expect("all servers serve");
        store.init(&[("w".into(), Tensor::from_slice(&[1.0f32], [1]).expect("it fits"))]).expect("it is new");
        store.set_updater(Updater::Sum).expect("servers add");
        assert_eq!((store.kind(), store.group_size()), (Kind::DistSync, 2));
        assert_eq!(store.num_dead_node(7, PATIENCE).expect("everybody"), 0);
        store.close().expect("both come");
        mesh.leave().expect("the others agree");
    });
    let local = KvStore::local("device").expect("it is known");
    assert_eq!((local.rank(), local.group_size(), local.num_dead_node(7, PATIENCE).expect("nobody")), (0, 1, 0));
}

#[test]
fn roles_are_read_from_what_is_given_first_and_then_from_the_process() {
    let of = |role: &str| Environment::init_ps_env([("DMLC_ROLE", role)]);
    let is = |environment: &Environment| {
        (environment.is_worker_node(), environment.is_server_node(), environment.is_scheduler_node())
    };
    assert_eq!(is(&of("worker")), (true, false, false));
    assert_eq!(is(&of("server")), (false, true, false));
    assert_eq!(is(&of("scheduler")), (false, false, true));
    // Unset and empty is a worker; what is not known is nothing, and says so.
    assert_eq!(is(&of("")), (true, false, false));
    assert_eq!(is(&of("boss")), (false, false, false));
    let error = of("boss").role().expect_err("it is not known");
    assert!(error.kind() == ErrorKind::InvalidArgument && error.to_string().contains("boss"), "{error}");
    // Another variable of that sort counts first.
    let both = Environment::init_ps_env([("DMLC_ROLE", "worker"), ("SHEAVE_ROLE", "server")]);
    assert!(both.is_server_node());
    let error = Environment::process().join().map(drop).expect_err("a test is no job");
    assert!(error.to_string().contains("DMLC_ROLE"), "{error}");
}
