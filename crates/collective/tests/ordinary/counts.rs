//! What each algorithm's documentation says it sends, counted. Ranks are threads with a node each.

use crate::common::{together, together_with, wait};
use sheave_base::{Rank, Work};
use sheave_collective::{Communicator, Operator, Table};
use sheave_mesh::Config;
use sheave_net::Medium;
use sheave_tensor::{Dtype, Tensor};
use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};
use std::time::Duration;

const SEGMENT_BYTES: usize = 256 << 10;

const BEAT: Duration = Duration::from_secs(120);

fn bytes(count: usize) -> Tensor {
    Tensor::private(Dtype::U8, [count as u64]).expect("memory")
}

/// Messages that each rank has sent for one operation. Links stand already, and nothing else goes on: no member is
/// asked for a sign of life before the first beat, which is long after the test.
fn sent(ranks: u32, table: &str, act: impl Fn(&Communicator) -> Work<()> + Clone + Send + 'static) -> Vec<u64> {
    let table: Table = table.parse().expect("a table");
    let quiet = Arc::new(Barrier::new(ranks as usize));
    let body = move |mesh: &sheave_mesh::Mesh, world: &Communicator| {
        // The first time makes links.
        wait(&act(world)).expect("all come");
        wait(&world.barrier()).expect("all come");
        // Words of the join that another thread of this node is about to say, or has said and not counted yet, are
        // counted before this ends: all are said with the engine held.
        mesh.world().barrier().expect("all live");
        quiet.wait();
        let before = mesh.node().counts().messages_sent;
        quiet.wait();
        wait(&act(world)).expect("all come");
        quiet.wait();
        let sent = mesh.node().counts().messages_sent - before;
        quiet.wait();
        sent
    };
    let rest = |_, config: &mut Config| {
        (config.node.liveness.beat, config.node.liveness.timeout) = (BEAT, 5 * BEAT);
    };
    together_with(ranks, Medium::Tcp, rest, move |_| table.clone(), body)
}

#[test]
fn a_barrier_is_one_message_a_round() {
    for (ranks, rounds) in [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3)] {
        assert_eq!(sent(ranks, "", Communicator::barrier), vec![rounds; ranks as usize]);
    }
}

#[test]
fn doubling_is_one_message_a_step_and_an_entry() {
    let reduce = |world: &Communicator| {
        let tensor = bytes(1000);
        world.all_reduce(&tensor, &tensor, Operator::Max)
    };
    let table = "all_reduce doubling";
    assert_eq!(sent(2, table, reduce), [1, 1]);
    assert_eq!(sent(4, table, reduce), [3; 4]);
    assert_eq!(sent(8, table, reduce), [4; 8]);
    // Ranks 0 and 2 of 6 step aside; 1 and 3 give them the result.
    assert_eq!(sent(6, table, reduce), [2, 4, 2, 4, 3, 3]);
}

#[test]
fn a_ring_sends_each_piece_once_round_in_segments() {
    for (ranks, segments) in [(2, 1), (3, 3), (5, 2)] {
        let piece = segments * SEGMENT_BYTES;
        let n = u64::from(ranks);
        let once = (n - 1) * segments as u64 + 1;
        let whole = piece * ranks as usize;
        let twice = sent(ranks, "all_reduce ring", move |world| {
            let tensor = bytes(whole);
            world.all_reduce(&tensor, &tensor, Operator::Max)
        });
        assert_eq!(twice, vec![2 * (n - 1) * segments as u64 + 1; ranks as usize]);
        let scattered = sent(ranks, "", move |world| world.reduce_scatter(&bytes(whole), &bytes(piece), Operator::Max));
        assert_eq!(scattered, vec![once; ranks as usize]);
        let gathered = sent(ranks, "", move |world| world.all_gather(&bytes(piece), &bytes(whole)));
        assert_eq!(gathered, vec![once; ranks as usize]);
    }
}

#[test]
fn a_tree_goes_up_and_down_once() {
    for ranks in [2, 3, 5, 8] {
        let n = u64::from(ranks);
        for segments in [1, 3] {
            let count = segments * SEGMENT_BYTES;
            let with_tensor = (n - 1) * segments as u64;
            let total = with_tensor + (n - 1) + n;
            let broadcast = sent(ranks, "", move |world| world.broadcast(&bytes(count), Rank(1)));
            assert_eq!(broadcast.iter().sum::<u64>(), total, "broadcast among {ranks}");
            let reduced = sent(ranks, "", move |world| {
                let output = (world.rank() == Rank(1)).then(|| bytes(count));
                world.reduce(&bytes(count), output.as_ref(), Operator::Max, Rank(1))
            });
            assert_eq!(reduced.iter().sum::<u64>(), total, "reduce among {ranks}");
        }
        let small = sent(ranks, "", |world| {
            let output = (world.rank() == Rank(0)).then(|| bytes(8 * world.size() as usize));
            world.gather(&bytes(8), output.as_ref(), Rank(0))
        });
        assert_eq!(small.iter().sum::<u64>(), 3 * n - 2, "gather among {ranks}");
        let spread = sent(ranks, "", |world| {
            let input = (world.rank() == Rank(0)).then(|| bytes(8 * world.size() as usize));
            world.scatter(input.as_ref(), &bytes(8), Rank(0))
        });
        assert_eq!(spread.iter().sum::<u64>(), 3 * n - 2, "scatter among {ranks}");
    }
}

#[test]
fn an_all_to_all_sends_each_piece_straight() {
    for ranks in [2, 3, 5] {
        let others = u64::from(ranks) - 1;
        let even = sent(ranks, "", |world| {
            let count = 8 * world.size() as usize;
            world.all_to_all(&bytes(count), &bytes(count))
        });
        assert_eq!(even, vec![others + 1; ranks as usize]);
        let told = sent(ranks, "", |world| {
            let lengths = vec![8; world.size() as usize];
            let count = 8 * world.size() as usize;
            world.all_to_all_v(&bytes(count), &lengths, &bytes(count), &lengths)
        });
        assert_eq!(told, vec![2 * others + 1; ranks as usize]);
    }
}

/// Whether members share memory is known before they are linked, so an operation over TCP links those who talk in it.
#[test]
fn f92_the_first_operation_over_tcp_links_few() {
    const RANKS: u32 = 16;
    let peers = together(RANKS, Medium::Tcp, |mesh, world| {
        wait(&world.all_reduce(&bytes(8), &bytes(8), Operator::Sum)).expect("all live");
        let links = mesh.node().links().into_iter().filter_map(|link| mesh.node().link(link).ok());
        links.map(|link| link.peer().name.clone()).collect::<BTreeSet<_>>().len()
    });
    // One for each step of the doubling, one for the entry, and the mesh's centre, which is rank 0.
    assert!(peers[1..].iter().all(|peers| *peers <= 6), "{peers:?}");
}
