//! The kinds of stores and their names.

use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, Result};
use std::fmt;

/// How a store works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Within one process.
    Local,
    /// Within one process, whose values have devices ([`sheave_tensor::Tensor::on`]). Each key's sum lives on one of
    /// them, the largest keys first on the least loaded one; the values of one device are added as they are given, and
    /// those of several devices by a binary tree over the devices in their order, which is the same in every run.
    /// Gradients may be compressed, each value with a residual of its own.
    Device,
    /// On servers; an update happens when all workers have pushed, on the sum in the order of their ranks.
    DistSync,
    /// On servers; every push is an update of its own, in the order of arrival.
    DistAsync,
    /// On servers; every push is an update of its own, and a pull waits until no worker is too far behind
    /// ([`crate::Config::staleness`]): stale synchronous parallel (Ho et al. 2013).
    DistSsp,
}

/// Every name that is known, with its kind; the first one of a kind is its own.
const NAMES: [(&str, Kind); 12] = [
    ("local", Kind::Local),
    ("local_update_cpu", Kind::Local),
    ("local_allreduce_cpu", Kind::Local),
    ("device", Kind::Device),
    ("local_allreduce_device", Kind::Device),
    ("dist_sync", Kind::DistSync),
    ("dist", Kind::DistSync),
    ("dist_device_sync", Kind::DistSync),
    ("dist_sync_device", Kind::DistSync),
    ("dist_async", Kind::DistAsync),
    ("dist_async_device", Kind::DistAsync),
    ("dist_ssp", Kind::DistSsp),
];

impl Kind {
    /// The kind of this name, in letters of either case.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for any other name, with the names that there are.
    pub fn parse(name: &str) -> Result<Self> {
        let lower = name.to_ascii_lowercase();
        NAMES.iter().find(|(known, _)| *known == lower).map(|(_, kind)| *kind).ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            let shown: String = name.chars().take(80).flat_map(char::escape_debug).collect();
            Error::new(ErrorKind::InvalidArgument, format!("there is no kind of store \"{shown}\""))
                .hint(format!("kinds are {}", names.join(", ")))
        })
    }

    /// Whether it needs servers.
    #[must_use]
    pub fn is_distributed(self) -> bool {
        matches!(self, Self::DistSync | Self::DistAsync | Self::DistSsp)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = NAMES.iter().find(|(_, kind)| kind == self).map_or("", |(name, _)| name);
        f.write_str(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_names_are_known_in_any_case_and_nothing_else_is() {
        for (name, kind) in NAMES {
            assert_eq!(Kind::parse(name).unwrap(), kind);
            assert_eq!(Kind::parse(&name.to_uppercase()).unwrap(), kind);
        }
        assert_eq!(Kind::DistSync.to_string(), "dist_sync");
        for name in ["", "foo", "dist_", "horovod", "p3", " local", "local\n"] {
            let error = Kind::parse(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}");
            assert!(error.advice().unwrap().contains("dist_sync"));
        }
    }
}
