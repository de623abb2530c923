//! All-reduce by recursive doubling (Thakur, Rabenseifner and Gropp 2005).
//!
//! Let p be the largest power of two that is not larger than the number of ranks n. The first 2(n − p) ranks pair up,
//! and the even one of each pair gives its tensor to the odd one and steps aside; p ranks are left, numbered anew in
//! their order. In step k these exchange their partial results with the one whose new number differs in bit k and
//! combine both, the lower number's on the left. At the end the odd ones of the pairs give the result to the even ones.
//!
//! * **Cost** for B bytes of partial results: a rank that takes part in all steps sends log2 p messages of B bytes; one
//!   that stepped aside sends one. log2 p steps, and two more if n is no power of two.
//! * **Chosen** for short tensors, where messages cost more than bytes.
//! * **The same bits**: both of a pair combine the same two partial results in the same order, so after step k all
//!   2^(k+1) ranks that differ in the low bits only have the same bits.
//! * **Everybody entered**: the partial result after step k contains the tensors of 2^(k+1) ranks (with those that
//!   stepped aside), each passed on by ranks that checked its header; the last contains all. A rank that stepped aside
//!   receives it last.
//! * **Memory**: each step writes its result over what it received, in memory of its own, so no send is overtaken.
//! * Of two ranks each begins with a message to the other, which serves as its entry.

use crate::exchange::Exchange;
use crate::memory::Region;
use crate::numbers::Numbers;
use sheave_base::Result;

pub(crate) async fn all_reduce(exchange: &Exchange, numbers: Numbers, input: &Region, output: &Region) -> Result<()> {
    let (rank, size) = (exchange.rank(), exchange.size());
    let bytes = numbers.work_bytes(numbers.elements(input));
    let power = if size.is_power_of_two() { size } else { size.next_power_of_two() / 2 };
    let aside = size - power;
    let mut partial = exchange.scratch(bytes)?;
    numbers.load(&partial, input)?;
    if rank < 2 * aside && rank % 2 == 0 {
        exchange.send(rank + 1, Some(&partial)).await?;
        let whole = take(exchange, rank + 1, bytes).await?;
        return numbers.finish(output, &whole);
    }
    if rank < 2 * aside {
        let lower = take(exchange, rank - 1, bytes).await?;
        numbers.combine(&partial, &lower, &partial)?;
    }
    let number = if rank < 2 * aside { rank / 2 } else { rank - aside };
    let mut bit = 1;
    while bit < power {
        let other = number ^ bit;
        let partner = if other < aside { other * 2 + 1 } else { other + aside };
        exchange.send(partner, Some(&partial)).await?;
        let theirs = take(exchange, partner, bytes).await?;
        let (left, right) = if number < other { (&partial, &theirs) } else { (&theirs, &partial) };
        numbers.combine(&theirs, left, right)?;
        partial = theirs;
        bit *= 2;
    }
    if rank < 2 * aside {
        exchange.send(rank - 1, Some(&partial)).await?;
        exchange.flush().await?;
    }
    numbers.finish(output, &partial)
}

/// The next partial result of a rank, in memory of its own. Its header is looked at before its bytes are.
async fn take(exchange: &Exchange, from: u32, bytes: usize) -> Result<Region> {
    let (_, parts) = exchange.post(from, None)?.await?;
    let memory = exchange.scratch(bytes)?;
    match parts.first() {
        Some(part) => memory.fill(&part.bytes()?)?,
        None => memory.fill(&[])?,
    }
    Ok(memory)
}
