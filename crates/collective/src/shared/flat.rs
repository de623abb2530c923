//! Flat operations: all inputs stand on the desks, and every rank takes from there what it needs.
//!
//! A slot's bytes do not change before every rank has finished the operation, and this rank's output is its own; so
//! nothing is waited for after the agreement, and nobody waits for this rank.

use super::block::{Operands, reduce_all};
use super::desk::{BRIEF_BYTES, PAYLOAD_BYTES};
use super::run::Run;
use super::span;
use crate::memory::Region;
use crate::operation::Kind;
use sheave_base::{Error, ErrorKind, Result};
use smallvec::SmallVec;

pub(super) fn run(run: &mut Run) -> Result<()> {
    let job = run.job()?;
    let Some(output) = &job.output else { return Ok(()) };
    match run.header.kind {
        Kind::Barrier => Ok(()),
        Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter => reduce(run, output),
        _ => take(run, output),
    }
}

/// The input of a rank, as it stands on its desk.
fn input(run: &Run, seat: usize, length: usize) -> Result<*const u8> {
    if length <= BRIEF_BYTES {
        return Ok(run.entries[seat].words.as_ptr().cast());
    }
    if length > PAYLOAD_BYTES {
        return Err(Error::new(ErrorKind::Internal, format!("an input of {length} bytes on a desk")));
    }
    Ok(run.board().seats[seat].desk.words().payload(run.sequence))
}

/// Bytes of a rank's whole input.
fn input_bytes(run: &Run, seat: usize) -> Result<usize> {
    let job = run.job()?;
    match (run.header.kind, &job.pieces) {
        (Kind::AllGatherV, Some(pieces)) => Ok(pieces.received.get(seat).map_or(0, ExactSizeIterator::len)),
        _ => Ok(job.input_bytes_max.unwrap_or_default()),
    }
}

fn reduce(run: &Run, output: &Region) -> Result<()> {
    let job = run.job()?;
    let numbers = job.numbers.ok_or_else(|| Error::new(ErrorKind::Internal, "a reduction without its operator"))?;
    let whole = input_bytes(run, 0)?;
    let at = if run.header.kind == Kind::ReduceScatter { run.board().index * output.len_bytes() } else { 0 };
    let mut sources = SmallVec::new();
    for seat in 0..run.size() {
        sources.push(input(run, seat, whole)?.wrapping_add(at));
    }
    let elements = output.len_bytes() / numbers.dtype().size_bytes();
    let operands = Operands { sources, target: Some(output.start()), copies: SmallVec::new() };
    // SAFETY: every source holds the agreed bytes, which nobody changes before this rank finishes; the output is
    // leased, that long, and no desk.
    unsafe { reduce_all(numbers, &operands, elements) }
}

fn take(run: &Run, output: &Region) -> Result<()> {
    let index = run.board().index;
    for seat in 0..run.size() {
        let span = span(run, seat, index, &[])?;
        if span.length == 0 {
            continue;
        }
        let source = input(run, seat, input_bytes(run, seat)?)?.wrapping_add(span.source);
        let target = output.part(span.target..span.target + span.length);
        // SAFETY: as above; the part is inside the output.
        unsafe { std::ptr::copy_nonoverlapping(source, target.start(), target.len_bytes()) };
    }
    Ok(())
}
