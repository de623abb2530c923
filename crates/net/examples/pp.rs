//! scratch
use sheave_base::Tag;
use sheave_net::*;
use sheave_tensor::{Dtype, Mode, Tensor};
use smallvec::{SmallVec, smallvec};
use std::time::Instant;
fn main() {
    let only = std::env::args().nth(1);
    for medium in ["inproc", "shm"] {
        if only.as_deref().is_some_and(|only| only != medium) {
            continue;
        }
        let (one, other) =
            (Node::start(NodeConfig::named("one")).unwrap(), Node::start(NodeConfig::named("other")).unwrap());
        let (link, back) =
            if medium == "shm" { shm::connect(&one, &other) } else { inproc::connect(&one, &other) }.unwrap();
        for size in if std::env::args().nth(2).is_some() {
            vec![8usize]
        } else {
            vec![8usize, 1024, 65536, 1 << 20, 16 << 20, 64 << 20]
        } {
            for mode in [Mode::Copy, Mode::Move] {
                let n = if mode == Mode::Move {
                    2000
                } else if size <= 1024 {
                    200_000
                } else if size <= 65536 {
                    20000
                } else if size <= 1 << 20 {
                    1000
                } else {
                    30
                };
                let run = move |node: Node, link, first: bool| {
                    let mk = || Tensor::empty(node.arena(), Dtype::U8, [size as u64]).unwrap();
                    let src = mk();
                    let dst = mk();
                    let wanted = Wanted { source: Some(link), context: 0, tag: Tag(7) };
                    let mut times = Vec::with_capacity(n);
                    let mut hot = Some(mk());
                    for i in 0..n {
                        let t = Instant::now();
                        let send = |node: &Node, hot: &mut Option<Tensor>| {
                            let t = if mode == Mode::Move { hot.take().unwrap() } else { src.clone() };
                            node.send(link, Outgoing::tensor(Envelope::data(0, Tag(7)), t, mode), None, None).unwrap()
                        };
                        let recv = |node: &Node, hot: &mut Option<Tensor>| {
                            if mode == Mode::Move {
                                *hot = Some(
                                    node.recv(wanted, SmallVec::new(), None, None).unwrap().into_tensor().unwrap(),
                                );
                            } else {
                                node.recv(wanted, smallvec![dst.clone()], None, None).unwrap();
                            }
                        };
                        if first {
                            if i == 0 && mode == Mode::Move {}
                            send(&node, &mut hot);
                            recv(&node, &mut hot);
                        } else {
                            if i == 0 {
                                hot = None;
                            }
                            recv(&node, &mut hot);
                            send(&node, &mut hot);
                        }
                        times.push(t.elapsed().as_nanos() as f64 / 1e3);
                    }
                    times.sort_by(|a, b| a.total_cmp(b));
                    if first {
                        println!(
                            "{medium} {mode:?} {size}: p50 {:.2} p99 {:.2} max {:.1} us  {:?}",
                            times[n / 2],
                            times[n * 99 / 100],
                            times[n - 1],
                            node.counts()
                        );
                    }
                };
                let o = other.clone();
                let h = std::thread::spawn(move || run(o, back, false));
                run(one.clone(), link, true);
                h.join().unwrap();
            }
        }
    }
}
