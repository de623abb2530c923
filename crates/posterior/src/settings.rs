//! What a member is told when it is made.
//!
//! Settings travel as bytes that keep every bit of a number (`postcard`), so that a member is the same on every node.

use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, Result};
use sheave_bayes::langevin::{Cyclical, Sghmc, Sgld};
use sheave_bayes::prior::Normal;
use sheave_optim::Optimizer;
use sheave_wire::Value;

/// The most deviations, or samples of a chain, that a member keeps: each is as large as its parameters.
pub const KEPT_MAX: usize = 1024;

/// Which data the members of a posterior see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Batches {
    /// All members see the same batches. They differ by their start.
    #[default]
    Shared,
    /// Each member goes through all data in an order of its own.
    Own,
    /// Each member goes through a bootstrap sample of its own: as many rows as there are, drawn with replacement.
    Bootstrap,
}

/// How a chain moves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Sampler {
    /// Stochastic gradient Langevin dynamics.
    Sgld(Sgld),
    /// Stochastic gradient Hamiltonian Monte Carlo.
    Sghmc(Sghmc),
    /// Langevin dynamics with cyclical step sizes, whose samples are those of the end of each cycle.
    Cyclical(Cyclical),
}

impl Sampler {
    /// Checks the settings.
    ///
    /// # Errors
    /// `InvalidArgument` for those that are outside their range.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Sgld(sgld) => sgld.check(),
            Self::Sghmc(sghmc) => sghmc.check(),
            Self::Cyclical(cyclical) => cyclical.check(),
        }
    }
}

/// How the parameters of a member move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Method {
    /// Along the gradient of the mean loss; at most `rank` deviations of snapshots are kept.
    Optimize { optimizer: Optimizer, rank: usize },
    /// As a chain in the posterior.
    Sample { sampler: Sampler, prior: Option<Normal>, burn_in: u64, thin: u64, capacity: usize },
    /// By whoever tells them where to go.
    Follow { prior: Option<Normal> },
}

/// Everything that decides about a member, but network and data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MemberSettings {
    pub(crate) seed: u64,
    pub(crate) member: u64,
    pub(crate) batches: Batches,
    pub(crate) batch_rows: usize,
    pub(crate) method: Method,
}

impl MemberSettings {
    pub(crate) fn check(&self) -> Result<()> {
        let kept = |field: &str, value: usize, least: usize| {
            if (least..=KEPT_MAX).contains(&value) {
                return Ok(());
            }
            let what = format!("{field} is {value}; expected {least} to {KEPT_MAX}");
            Err(Error::new(ErrorKind::InvalidArgument, what).operation("posterior"))
        };
        match &self.method {
            Method::Optimize { optimizer, rank } => {
                kept("rank", *rank, 0)?;
                optimizer.check()
            }
            Method::Sample { sampler, prior, capacity, .. } => {
                kept("capacity", *capacity, 1)?;
                sampler.check()?;
                prior.as_ref().map_or(Ok(()), Normal::check)
            }
            Method::Follow { prior } => prior.as_ref().map_or(Ok(()), Normal::check),
        }
    }

    pub(crate) fn write(&self) -> Result<Value> {
        let bytes = postcard::to_allocvec(self);
        bytes.map(Value::Bytes).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("settings of a member do not become bytes: {error}"))
        })
    }

    pub(crate) fn read(value: &Value) -> Result<Self> {
        let read = if let Value::Bytes(bytes) = value { postcard::from_bytes(bytes).ok() } else { None };
        read.ok_or_else(|| {
            let what = format!("a {}; expected the settings of a member", value.kind_name());
            Error::new(ErrorKind::Mismatch, what).hint("all nodes run one version of the library")
        })
    }
}
