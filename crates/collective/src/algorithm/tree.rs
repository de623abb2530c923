//! Binomial trees: broadcast, reduce, gather and scatter.
//!
//! Ranks are counted from the root: v = (rank − root) mod n. The parent of v is v with its lowest set bit cleared; its
//! children are v + 2^k for all 2^k below that bit. So the subtree of v is the ranks v … v + 2^k, and no path is longer
//! than ⌈log2 n⌉. Every operation goes up the tree and down again, once with the tensors and once with headers alone:
//!
//! | operation | up | down |
//! |---|---|---|
//! | broadcast | headers | the tensor |
//! | scatter | headers | the pieces of the subtree |
//! | reduce | the partial result of the subtree | headers |
//! | gather | the tensors of the subtree | headers |
//!
//! * **Cost**: 2(n−1) messages on all ranks (those with tensors count once for each segment), and n for the entry; 2
//!   ⌈log2 n⌉ steps. A rank with c children sends c·B bytes of a broadcast of B bytes, at most ⌈log2 n⌉·B; of a reduce,
//!   B bytes of partial results. Of a gather or scatter of B bytes a rank, it passes on B bytes for each rank of its
//!   subtree.
//! * **Chosen** for all four over links.
//! * **The same bits**: a rank adds its children's partial results in the order of their ranks, its own first, so each
//!   element is reduced in the order of the tree alone.
//! * **Everybody entered**: a rank says something upwards after its whole subtree has, so the root hears of all ranks
//!   before it says anything downwards; every other rank ends after it has heard from above.
//! * **Memory**: what is received is combined and passed on after it is whole; partial results are sent from memory
//!   that is not written again.

use super::SEGMENT_BYTES;
use crate::exchange::{Exchange, Receiving};
use crate::memory::Region;
use crate::numbers::{Numbers, segments};
use sheave_base::Result;
use std::ops::Range;

/// A rank's place in the tree.
struct Place {
    root: u32,
    size: u32,
    /// Counted from the root.
    own: u32,
    /// Every power of two below this one leads to a child.
    bit: u32,
}

impl Place {
    fn of(exchange: &Exchange) -> Self {
        let (root, size) = (exchange.header.root, exchange.size());
        let own = (exchange.rank() + size - root) % size;
        let bit = if own == 0 { size.next_power_of_two() } else { own & own.wrapping_neg() };
        Self { root, size, own, bit }
    }

    fn rank(&self, counted: u32) -> u32 {
        (counted + self.root) % self.size
    }

    fn parent(&self) -> Option<u32> {
        (self.own != 0).then(|| self.rank(self.own - self.bit))
    }

    /// The children, nearest first, counted from the root, with the number of ranks in their subtrees.
    fn subtrees(&self) -> impl DoubleEndedIterator<Item = (u32, u32)> {
        let (own, size) = (self.own, self.size);
        let below = self.bit.trailing_zeros();
        (0..below).map(move |k| own + (1 << k)).filter(move |child| *child < size).map(move |child| {
            let span = 1 << (child - own).trailing_zeros();
            (child, span.min(size - child))
        })
    }

    fn children(&self) -> Vec<u32> {
        self.subtrees().map(|(child, _)| self.rank(child)).collect()
    }

    /// Ranks in the subtree of this one, itself included.
    fn span(&self) -> u32 {
        self.bit.min(self.size - self.own)
    }
}

/// Every rank of the subtree has entered, and the parent knows it.
async fn gather_headers(exchange: &Exchange, place: &Place) -> Result<()> {
    for child in place.children() {
        exchange.receive(child, None).await?;
    }
    match place.parent() {
        Some(parent) => exchange.send(parent, None).await,
        None => Ok(()),
    }
}

/// The root has heard of everybody.
async fn spread_headers(exchange: &Exchange, place: &Place) -> Result<()> {
    if let Some(parent) = place.parent() {
        exchange.receive(parent, None).await?;
    }
    for child in place.children().into_iter().rev() {
        exchange.send(child, None).await?;
    }
    Ok(())
}

pub(crate) async fn broadcast(exchange: &Exchange, tensor: &Region) -> Result<()> {
    let place = Place::of(exchange);
    gather_headers(exchange, &place).await?;
    let mut posted: Vec<(Region, Option<Receiving<'_>>)> = Vec::new();
    for segment in segments(0..tensor.len_bytes(), SEGMENT_BYTES) {
        let part = tensor.part(segment);
        let receiving = place.parent().map(|parent| exchange.post(parent, Some(&part))).transpose()?;
        posted.push((part, receiving));
    }
    for (part, receiving) in posted {
        if let Some(receiving) = receiving {
            receiving.await?;
        }
        for child in place.children().into_iter().rev() {
            exchange.send(child, Some(&part)).await?;
        }
    }
    Ok(())
}

pub(crate) async fn reduce(
    exchange: &Exchange,
    numbers: Numbers,
    input: &Region,
    output: Option<&Region>,
) -> Result<()> {
    let place = Place::of(exchange);
    let count = numbers.elements(input);
    let partial = match output.filter(|_| !numbers.are_widened()) {
        Some(output) => output.clone(),
        None => exchange.scratch(numbers.work_bytes(count))?,
    };
    numbers.load(&partial, input)?;
    let most = SEGMENT_BYTES / numbers.work_bytes(1);
    let children = place.children();
    let slots: Vec<_> =
        (children.iter()).map(|_| exchange.scratch(numbers.work_bytes(most.min(count)))).collect::<Result<_>>()?;
    for segment in segments(0..count, most) {
        let target = partial.part(numbers.work_bytes_of(&segment));
        let mut posted = Vec::with_capacity(children.len());
        for (child, slot) in children.iter().zip(&slots) {
            let theirs = slot.part(0..target.len_bytes());
            let receiving = exchange.post(*child, Some(&theirs))?;
            posted.push((theirs, receiving));
        }
        for (theirs, receiving) in posted {
            receiving.await?;
            numbers.combine(&target, &target, &theirs)?;
        }
        if let Some(parent) = place.parent() {
            exchange.send(parent, Some(&target)).await?;
        }
    }
    if let Some(output) = output {
        numbers.finish(output, &partial)?;
    }
    spread_headers(exchange, &place).await
}

/// The bytes of some ranks, counted from the root, in memory that holds `block` bytes for each from rank `first` on.
fn blocks(first: u32, ranks: Range<u32>, block: usize) -> Range<usize> {
    (ranks.start - first) as usize * block..(ranks.end - first) as usize * block
}

/// `output` is the root's, in the order of the ranks.
pub(crate) async fn gather(exchange: &Exchange, input: &Region, output: Option<&Region>) -> Result<()> {
    let place = Place::of(exchange);
    let block = input.len_bytes();
    let held = match place.span() {
        1 => input.clone(),
        span => {
            let held = exchange.scratch(block * span as usize)?;
            held.part(0..block).copy_from(input)?;
            held
        }
    };
    for (child, span) in place.subtrees() {
        for segment in segments(blocks(place.own, child..child + span, block), SEGMENT_BYTES) {
            exchange.receive(place.rank(child), Some(&held.part(segment))).await?;
        }
    }
    if let Some(parent) = place.parent() {
        for segment in segments(0..held.len_bytes(), SEGMENT_BYTES) {
            exchange.send(parent, Some(&held.part(segment))).await?;
        }
    } else if let Some(output) = output {
        for counted in 0..place.size {
            let rank = place.rank(counted);
            output.part(blocks(0, rank..rank + 1, block)).copy_from(&held.part(blocks(
                0,
                counted..counted + 1,
                block,
            )))?;
        }
    }
    spread_headers(exchange, &place).await
}

/// `input` is the root's, in the order of the ranks.
pub(crate) async fn scatter(exchange: &Exchange, input: Option<&Region>, output: &Region) -> Result<()> {
    let place = Place::of(exchange);
    let block = output.len_bytes();
    gather_headers(exchange, &place).await?;
    let held = match place.span() {
        1 if place.parent().is_some() => output.clone(),
        span => exchange.scratch(block * span as usize)?,
    };
    if let Some(parent) = place.parent() {
        for segment in segments(0..held.len_bytes(), SEGMENT_BYTES) {
            exchange.receive(parent, Some(&held.part(segment))).await?;
        }
    } else if let Some(input) = input {
        for counted in 0..place.size {
            let rank = place.rank(counted);
            held.part(blocks(0, counted..counted + 1, block)).copy_from(&input.part(blocks(
                0,
                rank..rank + 1,
                block,
            )))?;
        }
    }
    for (child, span) in place.subtrees().rev() {
        for segment in segments(blocks(place.own, child..child + span, block), SEGMENT_BYTES) {
            exchange.send(place.rank(child), Some(&held.part(segment))).await?;
        }
    }
    if block > 0 {
        output.copy_from(&held.part(0..block))?;
    }
    Ok(())
}
