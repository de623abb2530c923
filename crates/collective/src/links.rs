//! Operations over links: which algorithm runs what.

use crate::algorithm::{barrier, doubling, pairwise, ring, tree};
use crate::exchange::{Exchange, entered};
use crate::job::{Job, Pieces};
use crate::memory::Region;
use crate::numbers::Numbers;
use crate::operation::Kind;
use crate::table::Algorithm;
use sheave_base::{Error, ErrorKind, Result};

/// Runs this rank's part. If all have agreed already, no entry is made.
pub(crate) async fn run(exchange: &Exchange, job: &Job, algorithm: Algorithm, have_agreed: bool) -> Result<()> {
    let kind = exchange.header.kind;
    let doubles = algorithm == Algorithm::Doubling;
    // These begin just as an entry does.
    let opens = kind == Kind::Barrier || (doubles && exchange.size() == 2);
    entered(exchange, opens || have_agreed, steps(exchange, job, doubles)).await
}

async fn steps(exchange: &Exchange, job: &Job, doubles: bool) -> Result<()> {
    match exchange.header.kind {
        Kind::Barrier => barrier::run(exchange).await,
        Kind::Broadcast => tree::broadcast(exchange, either(job)?).await,
        Kind::Reduce => tree::reduce(exchange, numbers(job)?, input(job)?, job.output.as_ref()).await,
        Kind::AllReduce if doubles => doubling::all_reduce(exchange, numbers(job)?, input(job)?, output(job)?).await,
        Kind::AllReduce => ring::all_reduce(exchange, numbers(job)?, input(job)?, output(job)?).await,
        Kind::Gather => tree::gather(exchange, input(job)?, job.output.as_ref()).await,
        Kind::AllGather | Kind::AllGatherV => {
            ring::all_gather(exchange, input(job)?, output(job)?, &pieces(job)?.received).await
        }
        Kind::Scatter => tree::scatter(exchange, job.input.as_ref(), output(job)?).await,
        Kind::ReduceScatter => ring::reduce_scatter(exchange, numbers(job)?, input(job)?, output(job)?).await,
        Kind::AllToAll | Kind::AllToAllV => pairwise::run(exchange, input(job)?, output(job)?, pieces(job)?).await,
    }
}

fn incomplete(what: &'static str) -> Error {
    Error::new(ErrorKind::Internal, format!("an operation was begun without its {what}"))
}

fn input(job: &Job) -> Result<&Region> {
    job.input.as_ref().ok_or_else(|| incomplete("input"))
}

fn output(job: &Job) -> Result<&Region> {
    job.output.as_ref().ok_or_else(|| incomplete("output"))
}

fn either(job: &Job) -> Result<&Region> {
    job.input.as_ref().or(job.output.as_ref()).ok_or_else(|| incomplete("tensor"))
}

fn numbers(job: &Job) -> Result<Numbers> {
    job.numbers.ok_or_else(|| incomplete("operator"))
}

fn pieces(job: &Job) -> Result<&Pieces> {
    job.pieces.as_ref().ok_or_else(|| incomplete("pieces"))
}
