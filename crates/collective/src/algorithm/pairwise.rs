//! All-to-all by pairs (Thakur, Rabenseifner and Gropp 2005).
//!
//! In step s = 1 … n−1 rank r sends what is for rank r+s and receives what rank r−s has for it. Receives are posted a
//! few steps ahead.
//!
//! * **Cost**: n−1 steps; each rank sends n−1 pieces, each once and straight to its receiver, and one entry. Where
//!   lengths differ a message without payload goes ahead of each piece and says how many elements follow.
//! * **Chosen** for every all-to-all over links.
//! * **Everybody entered**: a rank receives a message from every other one.
//! * **Memory**: every piece of the input is sent from where it lies, every piece of the output lands where it belongs;
//!   if both are the same memory the input is copied first.

use super::SEGMENT_BYTES;
use crate::exchange::{Exchange, Receiving};
use crate::job::Pieces;
use crate::memory::Region;
use crate::numbers::segments;
use sheave_base::{Error, ErrorKind, Result};
use std::ops::Range;

pub(crate) async fn run(exchange: &Exchange, input: &Region, output: &Region, pieces: &Pieces) -> Result<()> {
    let rank = exchange.rank() as usize;
    let input = if input.overlaps(output) {
        let copy = exchange.scratch(input.len_bytes())?;
        copy.copy_from(input)?;
        copy
    } else {
        input.clone()
    };
    output.part(pieces.received[rank].clone()).copy_from(&input.part(pieces.sent[rank].clone()))?;
    for step in 1..exchange.size() {
        let (to, from) = (exchange.after(step), exchange.before(step));
        if pieces.differ {
            compare(exchange, to, from, pieces).await?;
        }
        let mut posted: Vec<Receiving<'_>> = Vec::new();
        for segment in segments(pieces.received[from as usize].clone(), SEGMENT_BYTES) {
            posted.push(exchange.post(from, Some(&output.part(segment)))?);
        }
        for segment in segments(pieces.sent[to as usize].clone(), SEGMENT_BYTES) {
            exchange.send(to, Some(&input.part(segment))).await?;
        }
        for receiving in posted {
            receiving.await?;
        }
    }
    Ok(())
}

/// Says how much goes to one rank, and hears how much comes from the other.
async fn compare(exchange: &Exchange, to: u32, from: u32, pieces: &Pieces) -> Result<()> {
    let size = exchange.header.dtype.size_bytes();
    let elements = |range: &Range<usize>| (range.len() / size) as u64;
    exchange.send_counted(to, None, elements(&pieces.sent[to as usize])).await?;
    let (theirs, _) = exchange.post(from, None)?.await?;
    let expected = elements(&pieces.received[from as usize]);
    if theirs.part == expected {
        return Ok(());
    }
    let (dtype, rank) = (exchange.header.dtype, exchange.rank());
    let what = format!(
        "rank {from} sends {dtype}[{}] to rank {rank}, which expects {dtype}[{expected}], sequence {}",
        theirs.part, exchange.sequence
    );
    Err(Error::new(ErrorKind::Mismatch, what).operation("all_to_all_v"))
}
