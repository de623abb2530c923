//! Nodes of one process that find each other without sockets.

use crate::common::{accepted, config, failure, listening, number, number_in, receive, send, soon};
use sheave_base::secret::Resolved;
use sheave_base::{ErrorKind, Secret};
use sheave_net::{Address, ListenConfig, Medium, Neighbourhood, Node, NodeConfig, Transport};
use sheave_tensor::Mode;
use std::time::{Duration, Instant};

fn member(name: &str, neighbourhood: &Neighbourhood) -> NodeConfig {
    NodeConfig { neighbourhood: Some(neighbourhood.clone()), ..config(name, Transport::Auto) }
}

/// The address as those know it who were told a socket, but not who listens there.
fn anonymous(address: &Address) -> [Address; 2] {
    let unix = Address { boot_id: address.boot_id.clone(), unix: address.unix.clone(), ..Address::default() };
    [Address::of_socket(address.tcp.expect("it listens there")), unix]
}

fn exchange(one: &Node, there: sheave_base::LinkId, other: &Node, back: sheave_base::LinkId) {
    send(one, there, 1, number(one, 7), Mode::Copy).expect("it goes");
    assert_eq!(number_in(&receive(other, Some(back), 1).expect("it comes")), 7);
    send(other, back, 2, number(other, 8), Mode::Copy).expect("it goes");
    assert_eq!(number_in(&receive(one, Some(there), 2).expect("it comes")), 8);
}

#[test]
fn neighbours_have_one_link_however_they_know_each_other() {
    let neighbourhood = Neighbourhood::default();
    let (server, address) = listening(member("server", &neighbourhood));
    for address in anonymous(&address).into_iter().chain([address.clone()]) {
        let worker = Node::start(member("worker", &neighbourhood)).expect("a node");
        let link = worker.connect(&address, soon()).expect("it listens");
        let back = accepted(&server);
        assert_eq!(worker.link(link).expect("it stands").medium(), Medium::InProcess, "{address}");
        assert_eq!(server.link(back).expect("it stands").medium(), Medium::InProcess, "{address}");
        assert_eq!(server.link(back).expect("it stands").peer().node, Some(worker.id()));
        exchange(&worker, link, &server, back);
        assert_eq!((worker.links(), server.links()), (vec![link], vec![back]), "{address}");
        assert_eq!(neighbourhood.len(), 2);
        drop(worker);
        assert_eq!(neighbourhood.len(), 1);
        let (error, after) = failure(|| receive(&server, Some(back), 3));
        assert!(error.kind() == ErrorKind::PeerLost && after < Duration::from_secs(1), "{error}");
    }
    assert!(server.links().is_empty() && server.refusals().count == 0, "{:?}", server.refusals());
    assert!(!server.accept().is_done(), "nobody else came");
    let end = soon();
    while server.handshakes_pending() > 0 {
        assert!(Instant::now() < end, "a handshake is left");
        std::thread::yield_now();
    }
}

#[test]
fn a_neighbour_that_ends_at_once_is_met_once() {
    let neighbourhood = Neighbourhood::default();
    let (server, address) = listening(member("server", &neighbourhood));
    for address in anonymous(&address) {
        for _ in 0..200 {
            let worker = Node::start(member("worker", &neighbourhood)).expect("a node");
            worker.connect(&address, soon()).expect("it listens");
            drop(worker);
            let back = accepted(&server);
            let (error, _) = failure(|| receive(&server, Some(back), 1));
            assert!(error.to_string().contains("the peer closed the link"), "{address}: {error}");
        }
    }
    let end = soon();
    while server.handshakes_pending() > 0 {
        assert!(Instant::now() < end, "a handshake is left");
        std::thread::yield_now();
    }
    assert!(!server.accept().is_done(), "nobody else came");
}

#[test]
fn another_transport_or_neighbourhood_is_linked_as_without_one() {
    let neighbourhood = Neighbourhood::default();
    let (server, address) = listening(member("server", &neighbourhood));
    let others = [
        (member("shm", &neighbourhood), Transport::Shm, Medium::SharedMemory),
        (member("tcp", &neighbourhood), Transport::Tcp, Medium::Tcp),
        (member("elsewhere", &Neighbourhood::default()), Transport::Auto, Medium::SharedMemory),
        (config("nowhere", Transport::Auto), Transport::Auto, Medium::SharedMemory),
    ];
    for (config, transport, medium) in others {
        let worker = Node::start(NodeConfig { transport, ..config }).expect("a node");
        let unix = transport != Transport::Tcp;
        let its_address = worker.listen(ListenConfig { unix, ..ListenConfig::default() }).expect("a free port");
        assert_eq!(neighbourhood.len(), 1, "{transport:?}");
        let there = worker.connect(&address, soon()).expect("it listens");
        let back = accepted(&server);
        assert_eq!(server.link(back).expect("it stands").medium(), medium);
        exchange(&worker, there, &server, back);
        let there = server.connect(&its_address, soon()).expect("it listens");
        let back = accepted(&worker);
        assert_eq!(worker.link(back).expect("it stands").medium(), medium);
        exchange(&server, there, &worker, back);
    }
}

#[test]
fn a_neighbour_with_another_secret_is_a_stranger() {
    let neighbourhood = Neighbourhood::default();
    let (server, address) = listening(member("server", &neighbourhood));
    let secret = Secret::new(b"of somebody else's job").expect("long enough");
    let secret = Some(Resolved { secret, source: "another test".into() });
    let worker = Node::start(NodeConfig { secret, ..member("worker", &neighbourhood) }).expect("a node");
    for address in anonymous(&address).into_iter().chain([address.clone()]) {
        let (error, _) = failure(|| worker.connect(&address, soon()));
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
        assert!(error.to_string().contains("another test"), "{error}");
    }
    assert!(worker.links().is_empty() && server.links().is_empty());
}

#[test]
fn who_has_ended_is_not_found() {
    let neighbourhood = Neighbourhood::default();
    let (server, address) = listening(member("server", &neighbourhood));
    let worker = Node::start(member("worker", &neighbourhood)).expect("a node");
    server.shut_down();
    assert_eq!(neighbourhood.len(), 1);
    let (error, after) = failure(|| worker.connect_known(&address, soon(), None));
    assert!(error.kind() == ErrorKind::NotFound && after < Duration::from_secs(1), "{error}");
    let (error, _) = failure(|| worker.connect(&address, Instant::now() + Duration::from_millis(50)));
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
}

#[test]
fn a_link_to_a_node_that_ends_meanwhile_ends_too() {
    let neighbourhood = Neighbourhood::default();
    let worker = Node::start(member("worker", &neighbourhood)).expect("a node");
    let mut made = 0;
    for round in 0..300_u64 {
        let (server, address) = listening(member("server", &neighbourhood));
        let ending = std::thread::spawn(move || {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(round % 30) {
                std::hint::spin_loop();
            }
            drop(server);
        });
        match worker.connect_known(&address, soon(), None) {
            Ok(link) => {
                made += 1;
                let (error, after) = failure(|| receive(&worker, Some(link), 1));
                assert!(error.kind() == ErrorKind::PeerLost && after < Duration::from_secs(1), "{error}");
            }
            // Or the server's sockets, once it is no neighbour any more, were found and then lost.
            Err(error) => assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PeerLost), "{error}"),
        }
        ending.join().expect("no panic");
    }
    assert!(made > 0, "no link was made in time");
    assert!(worker.links().is_empty());
    assert_eq!(neighbourhood.len(), 1);
}

#[test]
fn neighbours_show_each_other_memory_by_its_segments() {
    let neighbourhood = Neighbourhood::default();
    let (server, address) = listening(member("server", &neighbourhood));
    let worker = Node::start(member("worker", &neighbourhood)).expect("a node");
    let link = worker.connect(&address, soon()).expect("it listens");
    let back = accepted(&server);
    let tensor = number(&worker, 77);
    let segment = tensor.buffer().location().expect("it is in the arena").segment;
    let (to_server, to_worker) = (
        worker.neighbour(link).expect("it stands").expect("it is near"),
        server.neighbour(back).expect("it stands").expect("it is near"),
    );
    assert!(to_server.shares_process() && to_worker.shares_process());
    assert!(to_worker.segment(segment.id()).is_none());
    assert!(to_server.introduce(&segment).expect("it stands"));
    let seen = to_worker.segment(segment.id()).expect("it was shown");
    assert_eq!((seen.id(), seen.start()), (segment.id(), segment.start()));
    assert!(to_server.segment(segment.id()).is_none(), "it was shown the other way");
}

#[test]
fn who_begins_to_listen_while_another_looks_is_not_linked_over_tcp() {
    let server = Node::start(config("server", Transport::Auto)).expect("a node");
    let tcp = ListenConfig { unix: false, ..ListenConfig::default() };
    let mut address = server.listen(tcp.clone()).expect("a free port");
    let name = format!("sheave-test-{:x}", server.id().0);
    address.unix = Some(name.clone());
    let worker = Node::start(config("worker", Transport::Auto)).expect("a node");
    // The worker has found no Unix socket and waits for the TCP socket when it is interrupted first.
    let mut begun = false;
    let mut interrupt = || {
        if !std::mem::replace(&mut begun, true) {
            let unix = ListenConfig { tcp: None, unix: true, unix_name: Some(name.clone()), ..tcp.clone() };
            server.listen(unix)?;
        }
        Ok(())
    };
    let there = worker.connect_interruptible(&address, soon(), Some(&mut interrupt)).expect("it listens");
    assert!(begun);
    assert_eq!(worker.link(there).expect("it stands").medium(), Medium::SharedMemory);
    exchange(&worker, there, &server, accepted(&server));
}
