//! An operation among two ranks of one host, of which the other one writes whatever an input says.
//!
//! This rank is real: its board, its links, its memory. Of the other rank there is its control block, the memory that
//! it has shown, and what it writes: into its own block, and into this rank's, which it can write as well.

use crate::job::{Job, Pieces};
use crate::memory::Region;
use crate::numbers::Numbers;
use crate::operation::{Form, Header, Kind, Operator};
use crate::shared::board::{Board, Seat, TensorWords};
use crate::shared::deferred::DeferredRelease;
use crate::shared::desk::{Counter, DESK_BYTES, Entry, PAYLOAD_BYTES, WORDS, Words};
use crate::shared::run::Run;
use crate::table::Algorithm;
use sheave_base::fuzz::Input;
use sheave_base::{ErrorKind, Result};
use sheave_net::{Neighbour, Node, NodeConfig, shm};
use sheave_tensor::{ArenaConfig, Dtype, Tensor};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Bytes of memory that the other rank has shown, enough for a window of two ranks.
const SHOWN_BYTES: u64 = 2 << 20;

/// What guards the memory around what an operation may touch.
const CANARY: u8 = 0xa5;

/// Elements of a short tensor, which fits into a control block, and how many times that a long one has.
const ELEMENTS_MAX: usize = 255;
const LONG: usize = 64;

thread_local! {
    static WORLD: World = World::new();
}

/// Runs one operation. The first bytes say which, of how much memory, and by which algorithm; the others what the other
/// rank does, a step at a time. It ends well or with an error that tells of the peer, and touches no other memory.
pub fn control_block(data: &[u8]) {
    WORLD.with(|world| world.run(&mut Input::new(data)));
}

struct World {
    node: Node,
    _other: Node,
    neighbour: Neighbour,
    shown: Tensor,
    /// Of this rank's arena, and not of the operation.
    canary: Tensor,
}

/// What an operation is made from.
struct Plan {
    kind: Kind,
    root: u32,
    elements: usize,
    is_mapped: bool,
}

impl World {
    fn new() -> Self {
        let arena = ArenaConfig { capacity_bytes: 32 << 20, ..ArenaConfig::default() };
        let node = |name| Node::start(NodeConfig { arena, ..NodeConfig::named(name) }).expect("a node");
        let (node, other) = (node("this"), node("other"));
        let (link, back) = shm::connect(&node, &other).expect("a link");
        let neighbour = |node: &Node, link| node.neighbour(link).expect("it stands").expect("it is of this host");
        let shown = Tensor::empty(other.arena(), Dtype::U8, [SHOWN_BYTES]).expect("memory");
        let segment = shown.buffer().location().expect("it is of the arena").segment;
        assert!(neighbour(&other, back).introduce(&segment).expect("it stands"), "its socket is empty");
        let mut canary = Tensor::empty(node.arena(), Dtype::U8, [4096]).expect("memory");
        canary.bytes_mut().expect("nobody else has it").fill(CANARY);
        Self { neighbour: neighbour(&node, link), node, _other: other, shown, canary }
    }

    fn memory(&self, is_mapped: bool, elements: usize) -> Tensor {
        let shape = [elements as u64];
        let made = if is_mapped {
            Tensor::empty(self.node.arena(), Dtype::F32, shape)
        } else {
            Tensor::private(Dtype::F32, shape)
        };
        let mut tensor = made.expect("there is memory");
        tensor.bytes_mut().expect("nobody else has it").fill(1);
        tensor
    }

    fn run(&self, input: &mut Input<'_>) {
        let kind = Kind::ALL[usize::from(input.byte()) % Kind::ALL.len()];
        let (flags, elements) = (input.byte(), 1 + usize::from(input.byte()) % ELEMENTS_MAX);
        let (root, is_mapped, is_long, is_flat) = (flags & 1, flags & 2 != 0, flags & 4 != 0, flags & 8 != 0);
        let elements = if is_long { elements * LONG } else { elements };
        let plan = Plan { kind, root: root.into(), elements, is_mapped };
        let algorithm = if is_flat && kind != Kind::AllToAllV { Algorithm::Flat } else { Algorithm::Direct };
        let (header, job) = self.job(&plan).expect("nobody else has this memory");
        let block = || TensorWords::memory(self.node.arena()).expect("there is memory");
        let (own, theirs) = (block(), block());
        let seats = vec![
            Seat::new(0, own.clone(), None).expect("a block"),
            Seat::new(1, theirs.clone(), Some(self.neighbour.clone())).expect("a block"),
        ];
        let deferred = Arc::new(DeferredRelease::default());
        let board = Arc::new(Board::new(0, seats, self.node.arena().clone(), Arc::clone(&deferred)));
        let mut run = Run::new(Arc::clone(&board), 0, header, job, algorithm);
        let other = Other { own: TensorWords::of(own).expect("a block"), board: &board, shown: &self.shown, theirs };
        while !input.is_empty() {
            other.act(input);
            match run.poll(&mut false) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => break,
                Poll::Ready(Err(error)) => {
                    let of_a_peer = [ErrorKind::Protocol, ErrorKind::Mismatch];
                    assert!(of_a_peer.contains(&error.kind()), "{error}");
                    break;
                }
            }
        }
        drop(run);
        // Then its memory is free again.
        board.seats[1].desk.quit();
        assert!(deferred.await_release(&self.node, &board, Instant::now() + Duration::from_secs(20)));
        assert!(self.canary.bytes().expect("nobody writes it").iter().all(|byte| *byte == CANARY));
    }

    fn job(&self, plan: &Plan) -> Result<(Header, Job)> {
        let Plan { kind, root, elements, .. } = *plan;
        let bytes = elements * Dtype::F32.size_bytes();
        let is_root = root == 0;
        // How many times what one rank gives or gets.
        let (given, got) = match kind {
            Kind::Barrier => (0, 0),
            Kind::Broadcast => (usize::from(is_root), usize::from(!is_root)),
            Kind::Reduce => (1, usize::from(is_root)),
            Kind::AllReduce => (1, 1),
            Kind::Gather => (1, 2 * usize::from(is_root)),
            Kind::AllGather | Kind::AllGatherV => (1, 2),
            Kind::Scatter => (2 * usize::from(is_root), 1),
            Kind::ReduceScatter => (2, 1),
            Kind::AllToAll | Kind::AllToAllV => (2, 2),
        };
        let memory = |times: usize| (times > 0).then(|| self.memory(plan.is_mapped, times * elements));
        let read = memory(given).map(|tensor| Region::reading(&tensor, "fuzz")).transpose()?;
        let written = memory(got).map(|tensor| Region::writing(&tensor, "fuzz")).transpose()?;
        let operator = matches!(kind, Kind::Reduce | Kind::AllReduce | Kind::ReduceScatter).then_some(Operator::Sum);
        let numbers = operator.map(|operator| Numbers::new(Dtype::F32, operator, 2));
        let halves: Vec<Range<usize>> = vec![0..bytes, bytes..2 * bytes];
        let pieces = match kind {
            Kind::AllGather | Kind::AllGatherV => Some((Vec::new(), halves)),
            Kind::AllToAll | Kind::AllToAllV => Some((halves.clone(), halves)),
            _ => None,
        };
        let differ = kind == Kind::AllToAllV;
        let pieces = pieces.map(|(sent, received)| Pieces { sent, received, differ });
        let most = if differ { None } else { Some(bytes * if kind == Kind::Scatter { 2 } else { given.max(1) }) };
        let job = Job { pieces, ..Job::of(read.as_ref(), written.as_ref(), numbers, most) };
        let has_count = !matches!(kind, Kind::Barrier | Kind::AllGatherV | Kind::AllToAllV);
        let header = Header {
            kind,
            operator,
            dtype: Dtype::F32,
            root,
            form: Form::One,
            tensors: 0,
            count: if has_count { elements as u64 } else { 0 },
            digest: 0,
            table: 0,
            rank: 0,
            part: 0,
        };
        Ok((header, job))
    }
}

/// The rank that breaks the protocol.
struct Other<'a> {
    board: &'a Board,
    own: TensorWords,
    theirs: Tensor,
    shown: &'a Tensor,
}

impl Other<'_> {
    /// Does the next thing that the input says.
    fn act(&self, input: &mut Input<'_>) {
        let desk = &self.board.seats[1].desk;
        match input.byte() % 8 {
            0 => {}
            // What this rank has entered with is what the other one should: perhaps but for where its memory is.
            1 => {
                if let Ok(Some((entry, _))) = self.board.own().entered(0) {
                    let location = self.shown.buffer().location().expect("it is of the arena");
                    let at = |offset: u64| location.offset_bytes.wrapping_add(offset);
                    let words = [location.segment.id().0, at(0), location.segment.id().0, at(SHOWN_BYTES / 2)];
                    desk.enter(0, 0, &Entry { words, ..entry });
                }
            }
            2 => {
                if let Ok(Some((mut entry, _))) = self.board.own().entered(0) {
                    let location = self.shown.buffer().location().expect("it is of the arena");
                    entry.header[0] ^= input.word();
                    let ids = [location.segment.id().0, input.byte().into()];
                    let second = location.offset_bytes.wrapping_add(input.word());
                    entry.words = [ids[0], second, ids[usize::from(input.byte() & 1)], input.word()];
                    desk.enter(0, 0, &entry);
                }
            }
            3 => {
                let counter = [Counter::Filled, Counter::Reduced, Counter::Taken][usize::from(input.byte()) % 3];
                desk.count(0, counter, input.word());
            }
            4 => {
                let (index, value) = (usize::from(input.short()) % WORDS, input.word());
                desk.words().word(index).store(value, Relaxed);
            }
            5 => {
                let (index, value) = (usize::from(input.short()) % WORDS, input.word());
                self.own.word(index).store(value, Relaxed);
            }
            6 => write(desk.words().payload(0), input),
            _ => write(self.own.payload(0), input),
        }
        assert!(self.theirs.len_bytes() == DESK_BYTES);
    }
}

/// Writes into a slot's payload.
fn write(payload: *mut u8, input: &mut Input<'_>) {
    let at = usize::from(input.short()) % PAYLOAD_BYTES;
    let bytes = input.counted();
    let length = bytes.len().min(PAYLOAD_BYTES - at);
    // SAFETY: the payload is that long, and this thread does one thing at a time.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), payload.add(at), length) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::replay::Target;
    use super::*;

    /// The memory of the tensors comes from the system, and that of errors is short.
    const TARGET: Target = Target { name: "control_block", run: control_block, fixed_bytes: 1 << 20, ratio: 4 << 10 };

    const WAIT: u8 = 0;
    const ENTER: u8 = 1;

    fn count(counter: Counter, count: u64) -> Vec<u8> {
        [&[3, counter as u8][..], &count.to_le_bytes()].concat()
    }

    fn seed(kind: Kind, flags: u8, steps: &[Vec<u8>]) -> Vec<u8> {
        // The first poll is this rank's entry, and the second one needs the other's.
        let begin = [kind as u8 - 1, flags, 15, WAIT, ENTER];
        [&begin[..], &steps.concat(), &[WAIT, WAIT]].concat()
    }

    /// The lengths of an all-to-all that this rank expects.
    fn lengths(bytes: u64) -> Vec<u8> {
        let table = [bytes; 4].map(u64::to_le_bytes).concat();
        [&[6, 0, 0, table.len() as u8, 0][..], &table].concat()
    }

    #[test]
    fn f43_control_blocks_replay() {
        let (mapped, long, flat) = (2, 4, 8);
        let through = |rounds| count(Counter::Taken, rounds);
        let [reduced, filled] = [Counter::Reduced, Counter::Filled].map(|counter| count(counter, 1));
        let moved = || vec![filled.clone(), through(1), through((1 << 24) - 1)];
        let pairs = [0, long, mapped, mapped | long];
        let mut seeds = vec![
            ("barrier_flat", seed(Kind::Barrier, flat, &[])),
            ("all_reduce_flat", seed(Kind::AllReduce, flat, &[])),
            ("all_gather_flat", seed(Kind::AllGather, flat, &[])),
            ("reduce_scatter", seed(Kind::ReduceScatter, mapped, &[reduced.clone(), through(2)])),
            ("all_to_all_v_mapped", [seed(Kind::AllToAllV, mapped, &[]), lengths(64), moved().concat()].concat()),
            ("all_to_all_v", {
                let begin = [Kind::AllToAllV as u8 - 1, 0, 15];
                [&begin[..], &lengths(64), &[WAIT, ENTER], &moved().concat(), &[WAIT]].concat()
            }),
        ];
        for (name, flags) in
            ["all_reduce", "all_reduce_long", "all_reduce_mapped", "all_reduce_all"].into_iter().zip(pairs)
        {
            let steps = [filled.clone(), reduced.clone(), through(2), WAIT.to_le_bytes().to_vec()];
            seeds.push((name, seed(Kind::AllReduce, flags, &steps)));
        }
        for (name, flags) in
            ["all_gather", "all_gather_long", "all_gather_mapped", "all_gather_all"].into_iter().zip(pairs)
        {
            seeds.push((name, seed(Kind::AllGather, flags, &moved())));
        }
        for (name, kind) in [("broadcast", Kind::Broadcast), ("gather", Kind::Gather), ("scatter", Kind::Scatter)] {
            seeds.push((name, seed(kind, 1, &moved())));
        }
        TARGET.seeds_are_current(&seeds);
        TARGET.replay();
    }
}
