//! Rings: reduce-scatter, all-gather, and both in turn as an all-reduce (Patarasu and Yuan 2009).
//!
//! The tensor is cut into n pieces, one for each rank. **Reduce-scatter**: in step s = 0 … n−2 rank r sends piece
//! r−1−s to its successor and receives piece r−2−s from its predecessor, to which it adds its own; after the last step
//! piece r is whole at rank r. **All-gather**: in step s rank r sends piece r−s and receives piece r−1−s. Pieces travel
//! in segments of at most 256 KiB; a segment is passed on as soon as it has been combined, so that the steps
//! overlap.
//!
//! * **Cost** for B bytes on each rank: reduce-scatter and all-gather send (n−1)/n · B bytes from each rank, in n−1
//!   steps; all-reduce twice that in 2(n−1) steps, which no algorithm can better in bytes. Messages: one for each
//!   segment of each piece, and one entry. Of f16 and bf16 sums, f32 travels in the first half and 16 bits in the
//!   second.
//! * **Chosen** for long tensors.
//! * **The same bits**: piece r is reduced in the order of the ranks r+1, r+2, …, r, whatever the timing; it is
//!   finished by rank r alone and passed on as it is.
//! * **Everybody entered**: what a rank receives in its last step was begun by its successor and has passed all others,
//!   each of which had to enter and agree before it passed anything on.
//! * **Memory**: receives of the first half land in scratch memory; the combined piece is written once and then sent.
//!   Before the second half receives into pieces that the first has sent, these sends are waited for.

use super::SEGMENT_BYTES;
use crate::exchange::{Exchange, Receiving};
use crate::memory::Region;
use crate::numbers::{Numbers, piece, segments};
use sheave_base::Result;
use std::collections::VecDeque;
use std::ops::Range;

/// Receives that are posted ahead: one is combined while the next one lands.
const AHEAD: usize = 2;

/// Reduces; this rank's piece ends up whole, and not finished, in `partial`, which may be `input`.
async fn reduce_pieces(
    exchange: &Exchange,
    numbers: Numbers,
    input: &Region,
    partial: &Region,
    pieces: &[Range<usize>],
) -> Result<()> {
    let size = exchange.size();
    if size == 1 {
        return partial.copy_from(input);
    }
    let most = SEGMENT_BYTES / numbers.work_bytes(1);
    let (next, previous) = (exchange.after(1), exchange.before(1));
    let cut = |step: u32| segments(pieces[exchange.before(step) as usize].clone(), most);
    let mut coming = (2..=size).flat_map(|step| cut(step).map(move |segment| (step, segment)));
    let slots: Vec<_> =
        (0..AHEAD).map(|_| exchange.scratch(numbers.work_bytes(most.min(longest(pieces))))).collect::<Result<_>>()?;
    let mut free: VecDeque<Region> = slots.into();
    let mut posted: VecDeque<(u32, Range<usize>, Region, Receiving<'_>)> = VecDeque::new();
    let mut first = cut(1);
    loop {
        while let Some(slot) = free.pop_front() {
            let Some((step, segment)) = coming.next() else { break };
            let place = slot.part(0..numbers.work_bytes(segment.len()));
            let receiving = exchange.post(previous, Some(&place))?;
            posted.push_back((step, segment, slot, receiving));
        }
        // What this rank begins with goes out before anything is waited for.
        for segment in first.by_ref() {
            exchange.send(next, Some(&input.part(numbers.work_bytes_of(&segment)))).await?;
        }
        let Some((step, segment, slot, receiving)) = posted.pop_front() else { return Ok(()) };
        receiving.await?;
        let bytes = numbers.work_bytes_of(&segment);
        let (theirs, target) = (slot.part(0..bytes.len()), partial.part(bytes.clone()));
        numbers.combine(&target, &theirs, &input.part(bytes))?;
        free.push_back(slot);
        if step < size {
            exchange.send(next, Some(&target)).await?;
        }
    }
}

fn longest(pieces: &[Range<usize>]) -> usize {
    pieces.iter().map(ExactSizeIterator::len).max().unwrap_or(0)
}

/// Passes pieces round; `pieces` are in bytes of `output`, where this rank's own is already.
async fn gather_pieces(exchange: &Exchange, output: &Region, pieces: &[Range<usize>]) -> Result<()> {
    let size = exchange.size();
    if size == 1 {
        return Ok(());
    }
    let (next, previous) = (exchange.after(1), exchange.before(1));
    let cut = |step: u32| segments(pieces[exchange.before(step) as usize].clone(), SEGMENT_BYTES);
    let mut coming = (1..size).flat_map(|step| cut(step).map(move |segment| (step, segment)));
    let mut posted: VecDeque<(u32, Region, Receiving<'_>)> = VecDeque::new();
    let mut first = cut(0);
    loop {
        while posted.len() < AHEAD {
            let Some((step, segment)) = coming.next() else { break };
            let place = output.part(segment);
            let receiving = exchange.post(previous, Some(&place))?;
            posted.push_back((step, place, receiving));
        }
        for segment in first.by_ref() {
            exchange.send(next, Some(&output.part(segment))).await?;
        }
        let Some((step, place, receiving)) = posted.pop_front() else { return Ok(()) };
        receiving.await?;
        if step + 1 < size {
            exchange.send(next, Some(&place)).await?;
        }
    }
}

fn even(count: usize, size: u32) -> Vec<Range<usize>> {
    (0..size).map(|index| piece(count, size, index)).collect()
}

/// Where partial results are combined, and from where the input is read, in their dtype.
fn working(
    exchange: &Exchange,
    numbers: Numbers,
    input: &Region,
    count: usize,
    own: Option<&Region>,
) -> Result<[Region; 2]> {
    if numbers.are_widened() {
        let wide = exchange.scratch(numbers.work_bytes(count))?;
        numbers.load(&wide, input)?;
        return Ok([wide.clone(), wide]);
    }
    let partial = match own {
        Some(output) => output.clone(),
        None => exchange.scratch(numbers.work_bytes(count))?,
    };
    Ok([input.clone(), partial])
}

pub(crate) async fn all_reduce(exchange: &Exchange, numbers: Numbers, input: &Region, output: &Region) -> Result<()> {
    let count = numbers.elements(input);
    let pieces = even(count, exchange.size());
    let own = &pieces[exchange.rank() as usize];
    let [source, partial] = working(exchange, numbers, input, count, Some(output))?;
    reduce_pieces(exchange, numbers, &source, &partial, &pieces).await?;
    numbers.finish(&output.part(numbers.bytes_of(own)), &partial.part(numbers.work_bytes_of(own)))?;
    exchange.flush().await?;
    let pieces: Vec<_> = pieces.iter().map(|piece| numbers.bytes_of(piece)).collect();
    gather_pieces(exchange, output, &pieces).await
}

/// `count` elements in the input of each rank for every rank.
pub(crate) async fn reduce_scatter(
    exchange: &Exchange,
    numbers: Numbers,
    input: &Region,
    output: &Region,
) -> Result<()> {
    let (count, size) = (numbers.elements(output), exchange.size());
    let pieces = even(count * size as usize, size);
    let own = &pieces[exchange.rank() as usize];
    let [source, partial] = working(exchange, numbers, input, count * size as usize, None)?;
    reduce_pieces(exchange, numbers, &source, &partial, &pieces).await?;
    // The output may be a part of the input that was sent.
    exchange.flush().await?;
    numbers.finish(output, &partial.part(numbers.work_bytes_of(own)))
}

/// `pieces` are the bytes of each rank's tensor in the output.
pub(crate) async fn all_gather(
    exchange: &Exchange,
    input: &Region,
    output: &Region,
    pieces: &[Range<usize>],
) -> Result<()> {
    let own = pieces.get(exchange.rank() as usize).cloned().unwrap_or(0..0);
    output.part(own).copy_from(input)?;
    gather_pieces(exchange, output, pieces).await
}
