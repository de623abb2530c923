//! Traffic over real TCP connections: sizes, order, back-pressure and ends.

use crate::support::*;
use sheave_base::{ErrorKind, Tag};
use sheave_net::{Envelope, Medium, Outgoing, Part, Transport};
use sheave_tensor::{Dtype, Mode, Tensor};
use smallvec::{SmallVec, smallvec};
use std::time::Instant;

#[test]
fn the_medium_follows_the_transport() {
    for (transport, medium) in [(Transport::Auto, Medium::SharedMemory), (Transport::Tcp, Medium::Tcp)] {
        let (worker, forth, server, back) = linked(transport);
        assert_eq!(worker.link(forth).unwrap().medium(), medium);
        assert_eq!(server.link(back).unwrap().medium(), medium);
        assert_eq!(server.link(back).unwrap().peer().name, "worker");
        assert_eq!(worker.link(forth).unwrap().peer().name, "server");
    }
}

#[test]
fn sizes_in_place_and_not() {
    for transport in [Transport::Tcp, Transport::Shm] {
        let (worker, forth, server, back) = linked(transport);
        let echo = std::thread::spawn(move || {
            for _ in 0..8 {
                let tensor = receive(&server, back, 1, SmallVec::new()).unwrap();
                server.send(back, copied(2, &tensor), Some(soon()), None).unwrap();
            }
            server
        });
        for length_bytes in [0, 8, 1 << 20, 64 << 20] {
            let sent = bytes_tensor(length_bytes, 7);
            for in_place in [false, true] {
                let place = Tensor::private(Dtype::U8, [length_bytes as u64]).unwrap();
                let places = if in_place { smallvec![place.clone()] } else { SmallVec::new() };
                let before = worker.counts();
                worker.send(forth, copied(1, &sent), Some(soon()), None).unwrap();
                let got = receive(&worker, forth, 2, places).unwrap();
                assert!(got.bytes().unwrap()[..] == sent.bytes().unwrap()[..], "{length_bytes} bytes changed");
                assert!(!in_place || got.ptr() == place.ptr(), "not in place");
                if transport == Transport::Tcp {
                    let counts = worker.counts() - before;
                    assert_eq!(counts.bytes_streamed, 2 * length_bytes as u64);
                    // A place that was named late costs a copy; the read-ahead costs one of at most its own size.
                    assert!(length_bytes < 64 || counts.bytes_copied <= 16 << 10, "{}", counts.bytes_copied);
                }
            }
        }
        drop(echo.join().unwrap());
    }
}

#[test]
fn many_parts_and_a_long_control() {
    let (worker, forth, server, back) = linked(Transport::Tcp);
    let parts: Vec<Tensor> = (0..700).map(|at| bytes_tensor(at * 13 % 997, at as u8)).collect();
    let control: Vec<u8> = (0..300_000u32).map(|at| at as u8).collect();
    let message = Outgoing {
        envelope: Envelope { correlation: 9, aux: 3, ..Envelope::data(5, Tag(1)) },
        control: control.clone(),
        parts: parts.iter().map(|part| Part::new(part.clone(), Mode::Copy)).collect(),
    };
    let sender = std::thread::spawn(move || {
        worker.send(forth, message, Some(soon()), None).unwrap();
        worker
    });
    let wanted = sheave_net::Wanted { source: Some(back), context: 5, tag: Tag(1) };
    let message = server.recv(wanted, SmallVec::new(), Some(soon()), None).unwrap();
    assert_eq!((message.envelope.correlation, message.envelope.aux), (9, 3));
    assert!(message.control == control);
    assert_eq!(message.parts.len(), parts.len());
    for (got, sent) in message.parts.iter().zip(&parts) {
        assert_eq!(got.bytes().unwrap()[..], sent.bytes().unwrap()[..]);
    }
    drop(sender.join().unwrap());
}

#[test]
fn ten_thousand_mixed_messages_stay_in_order() {
    let (worker, forth, server, back) = linked(Transport::Tcp);
    let size_of = |at: u64| match at % 50 {
        0 => 300_000,
        1 => 0,
        other => (at * 37 % (other * 97)) as usize,
    };
    let sender = std::thread::spawn(move || {
        for at in 0..10_000 {
            let mut message = copied(1, &bytes_tensor(size_of(at), at as u8));
            message.control = at.to_le_bytes().to_vec();
            if at % 3 == 0 {
                drop(worker.isend(forth, message).unwrap());
            } else {
                worker.send(forth, message, Some(soon()), None).unwrap();
            }
        }
        worker
    });
    for at in 0..10_000u64 {
        let message = server.recv(wanted(back, 1), SmallVec::new(), Some(soon()), None).unwrap();
        assert_eq!(message.control, at.to_le_bytes(), "out of order");
        let expected = bytes_tensor(size_of(at), at as u8);
        assert!(message.parts[0].bytes().unwrap()[..] == expected.bytes().unwrap()[..], "message {at} changed");
    }
    drop(sender.join().unwrap());
}

#[test]
fn both_ways_at_once() {
    let (worker, forth, server, back) = linked(Transport::Tcp);
    let busy = |node: sheave_net::Node, link| {
        std::thread::spawn(move || {
            for round in 0..20 {
                let sending = node.isend(link, copied(1, &bytes_tensor(3 << 20, round))).unwrap();
                let got = receive(&node, link, 1, SmallVec::new()).unwrap();
                assert!(got.bytes().unwrap()[..] == bytes_tensor(3 << 20, round).bytes().unwrap()[..]);
                sending.wait_timeout(LIMIT).unwrap();
            }
            node
        })
    };
    let (one, other) = (busy(worker, forth), busy(server, back));
    let nodes = (one.join().unwrap(), other.join().unwrap());
    drop(nodes);
}

#[test]
fn a_receiver_that_takes_nothing_stops_the_sender() {
    let (worker, forth, server, back) = linked(Transport::Tcp);
    // Nobody asks for these: they fill what a node takes in unasked, then the sockets, then the sender waits.
    let tensor = bytes_tensor(64 << 20, 1);
    let patience = std::time::Duration::from_secs(3);
    let mut sent = 0;
    let error = loop {
        match worker.send(forth, copied(1, &tensor), Some(Instant::now() + patience), None) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 40, "the sender is never stopped");
    };
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    let (_, held_bytes) = server.unexpected();
    assert!(held_bytes <= sheave_base::limits::UNEXPECTED_BYTES_MAX, "{held_bytes} bytes held");
    assert!(worker.link(forth).is_ok() && server.link(back).is_ok(), "neither side takes the other for dead");
    for _ in 0..=sent {
        let got = receive(&server, back, 1, SmallVec::new()).unwrap();
        assert_eq!(got.len_bytes(), tensor.len_bytes());
    }
}

#[test]
fn sharing_is_refused_with_a_hint() {
    let (worker, forth, _server, _back) = linked(Transport::Tcp);
    let message = Outgoing::tensor(Envelope::data(0, Tag(1)), bytes_tensor(8, 1), Mode::Share);
    let error = worker.send(forth, message, None, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.advice().is_some());
}

#[test]
fn what_was_sent_before_a_close_arrives() {
    let (worker, forth, server, back) = linked(Transport::Tcp);
    for round in 0..100 {
        worker.send(forth, copied(1, &bytes_tensor(5000, round)), Some(soon()), None).unwrap();
    }
    worker.close(forth).unwrap();
    for round in 0..100 {
        let got = receive(&server, back, 1, SmallVec::new()).unwrap();
        assert_eq!(got.bytes().unwrap()[..], bytes_tensor(5000, round).bytes().unwrap()[..]);
    }
    let error = receive(&server, back, 1, SmallVec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PeerLost);
    assert!(error.to_string().contains("worker"), "{error}");
}

#[test]
fn a_node_that_goes_away_is_missed_at_once() {
    let (worker, forth, server, _back) = linked(Transport::Tcp);
    let waiting = worker.irecv(wanted(forth, 1), SmallVec::new()).unwrap();
    drop(server);
    let begun = Instant::now();
    assert_eq!(waiting.join_timeout(LIMIT).unwrap_err().kind(), ErrorKind::PeerLost);
    assert!(begun.elapsed().as_secs() < 1);
}

#[test]
fn idle_links_live_on() {
    let (server, address) = {
        let node = sheave_net::Node::start(fast("server")).unwrap();
        let address = node.listen(sheave_net::ListenConfig::default()).unwrap();
        (node, address)
    };
    let worker = sheave_net::Node::start(fast("worker")).unwrap();
    let forth = worker.connect(&address, soon()).unwrap();
    let back = server.accept().wait_timeout(LIMIT).unwrap();
    // Much longer than the liveness timeout: only beats keep the link alive.
    let nothing = server.recv(wanted(back, 1), SmallVec::new(), Some(Instant::now() + 3 * FAST_TIMEOUT), None);
    assert_eq!(nothing.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    worker.send(forth, copied(1, &bytes_tensor(8, 1)), Some(soon()), None).unwrap();
    receive(&server, back, 1, SmallVec::new()).unwrap();
}

const FAST_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);

fn fast(name: &str) -> sheave_net::NodeConfig {
    let beat = FAST_TIMEOUT / 8;
    let liveness = sheave_net::Liveness { beat, timeout: FAST_TIMEOUT, kill_silent: false };
    sheave_net::NodeConfig { liveness, transport: Transport::Tcp, ..config(name) }
}
