//! Operations among ranks of one host, directly in shared memory.
//!
//! Every rank has a desk in shared memory that all others read (`desk`, `board`). It is made when a group of one
//! host runs its first operation (`setup`). An operation (`run`) begins with an entry on each rank's desk, which is
//! the agreement, and goes on in one of two ways, by the table:
//!
//! **flat** (`flat`): the inputs stand on the desks, up to 8 KiB each, and every rank computes its own result from
//! them. One step; each rank writes its input once and reads what it needs of the others'. The same bits everywhere,
//! because everybody reduces the same bytes in the order of the ranks. Chosen for short tensors, where a line that
//! crosses the cores costs more than its bytes.
//!
//! **direct** (`reduction`, `movement`): ranks read and write each other's tensors where they are. A reduction is
//! cut into as many pieces as there are ranks, and each rank reduces its piece of all inputs, in the order of the
//! ranks, block by block, and writes it into everybody's output: for B bytes on each of n ranks, each rank reads B
//! bytes and writes B bytes, in one step. What only moves is copied once, by its reader, or by its owner where that
//! spreads the work better. Chosen for everything longer.
//!
//! Memory that others cannot map (private to its process) passes through a *window* in the arena, in rounds of at most
//! 256 KiB that stay in cache: one copy more on the way in, and, for outputs, one more on the way out. Where a rank's
//! memory is travels in its entry, so any mixture works. `process_vm_readv` would save that copy, but needs a
//! permission that many systems refuse, and costs a system call and a page walk for each piece.
//!
//! **Everybody entered**: nobody goes past the agreement before every entry is there, and nobody ends a direct
//! operation before all have said that they are through.

pub(crate) mod block;
pub(crate) mod board;
pub(crate) mod deferred;
pub(crate) mod desk;
mod flat;
mod movement;
mod reduction;
pub(crate) mod run;
pub(crate) mod setup;

use crate::operation::{Header, Kind};
use run::Run;
use sheave_base::{Error, ErrorKind, Result};

/// Bytes of a window's round: what one rank fills while the others work on the round before.
const ROUND_BYTES: usize = 256 << 10;
/// Rounds that a window holds.
const ROUNDS: u64 = 2;

/// Bytes of one reader's part of a round.
fn part_bytes(size: usize) -> usize {
    (ROUND_BYTES / (size - 1).max(1) / 4096).max(1) * 4096
}

/// Bytes of a window: rounds of input, and rounds of results.
fn window_bytes(size: usize) -> usize {
    let parts = part_bytes(size) * (size - 1).max(1);
    ROUNDS as usize * (parts.max(ROUND_BYTES) + part_bytes(size))
}

/// Where a round's results begin in a window.
fn results_at(size: usize, round: u64) -> usize {
    let parts = part_bytes(size) * (size - 1).max(1);
    ROUNDS as usize * parts.max(ROUND_BYTES) + (round % ROUNDS) as usize * part_bytes(size)
}

/// Where a round's input begins in a window.
fn input_at(size: usize, round: u64) -> usize {
    let parts = part_bytes(size) * (size - 1).max(1);
    (round % ROUNDS) as usize * parts.max(ROUND_BYTES)
}

/// Which part of `from`'s round is for `by`: parts stand in the order of the readers.
fn part_of(from: usize, by: usize) -> usize {
    if by < from { by } else { by - 1 }
}

/// What one rank gets of another one's input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    /// In the input of the one, in bytes.
    source: usize,
    /// In the output of the other.
    target: usize,
    length: usize,
}

/// What `by` gets of `from`'s input in an operation that only moves bytes. Of an all-to-all with differing lengths,
/// `sent` are the bytes that `from` sends to each, and `by` is this rank.
fn span(run: &Run, from: usize, by: usize, sent: &[usize]) -> Result<Span> {
    let Header { kind, root, .. } = run.header;
    let bytes = run.header.count as usize * run.header.dtype.size_bytes();
    let root = root as usize;
    let received = || -> Result<_> {
        let pieces = run.job()?.pieces.as_ref();
        let piece = pieces.and_then(|pieces| pieces.received.get(from)).cloned();
        piece.ok_or_else(|| Error::new(ErrorKind::Internal, "a rank without its piece"))
    };
    let nothing = Span::default();
    Ok(match kind {
        Kind::Broadcast if from == root && by != root => Span { length: bytes, ..nothing },
        Kind::Gather if by == root => Span { target: from * bytes, length: bytes, ..nothing },
        Kind::Scatter if from == root => Span { source: by * bytes, length: bytes, ..nothing },
        Kind::AllGather | Kind::AllGatherV => {
            let piece = received()?;
            Span { source: 0, target: piece.start, length: piece.len() }
        }
        Kind::AllToAll => Span { source: by * bytes, target: from * bytes, length: bytes },
        Kind::AllToAllV => {
            let source = sent.iter().take(by).sum();
            let target = if by == run.board().index { received()?.start } else { 0 };
            Span { source, target, length: sent.get(by).copied().unwrap_or_default() }
        }
        _ => nothing,
    })
}
