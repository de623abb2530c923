//! Several media at once.

use super::content::{anywhere, check, message, only, private, wanted};
use super::pairs::{Inproc, Pairs, Shm, Tcp};
use super::watch::{limited, soon};
use sheave_net::{Node, NodeConfig};
use sheave_tensor::Mode;
use std::collections::HashMap;
use std::thread;

#[test]
fn any_source_is_fed_by_all_media_at_once() {
    limited("mixed::any_source_is_fed_by_all_media_at_once", 60, || {
        const COUNT: u64 = 2000;
        let media: [&dyn Pairs; 3] = [&Inproc, &Shm, &Tcp];
        let middle = Node::start(Tcp.adjust(NodeConfig::named("middle"))).unwrap();
        let mut next = HashMap::new();
        thread::scope(|scope| {
            for pairs in media {
                let node = Node::start(pairs.adjust(NodeConfig::named(pairs.medium().to_string()))).unwrap();
                let (to_middle, from_middle) = pairs.link(&node, &middle);
                next.insert(from_middle, 0);
                scope.spawn(move || {
                    for seed in 0..COUNT {
                        let outgoing = message(1, private(seed as usize * 10, seed), Mode::Copy);
                        node.send(to_middle, outgoing, soon(), None).unwrap();
                    }
                    let done = node.recv(wanted(Some(to_middle), 2), anywhere(), soon(), None);
                    assert!(done.unwrap().parts.is_empty());
                });
            }
            for _ in 0..COUNT * media.len() as u64 {
                let got = middle.recv(wanted(None, 1), anywhere(), soon(), None).unwrap();
                let seed = next.get_mut(&got.source).expect("one of the links");
                check(only(&got), *seed as usize * 10, *seed);
                *seed += 1;
            }
            for (link, count) in &next {
                assert_eq!(*count, COUNT);
                middle.send(*link, super::content::message_of(2, [], Vec::new()), soon(), None).unwrap();
            }
        });
    });
}
