//! Dissemination barrier (Hensgen, Finkel and Manber 1988).
//!
//! In round k = 0, 1, … every rank sends its header to the rank 2^k places further on and receives that of the rank 2^k
//! places before it. There are ⌈log2(ranks)⌉ rounds.
//!
//! * **Cost**: ⌈log2 n⌉ messages without payload sent and received by each rank, as many steps.
//! * **Chosen** for every barrier over links.
//! * **Everybody entered**: a message of round k is sent after the rounds before it, so it says that the 2^k ranks up
//!   to its sender have entered and agree. After the last round that is all of them.
//! * It begins with a message to the successor on every rank, which serves as its entry.

use crate::exchange::Exchange;
use sheave_base::Result;

pub(crate) async fn run(exchange: &Exchange) -> Result<()> {
    let mut distance = 1;
    while distance < exchange.size() {
        let message = exchange.post(exchange.before(distance), None)?;
        exchange.send(exchange.after(distance), None).await?;
        message.await?;
        distance *= 2;
    }
    Ok(())
}
