//! Which workers an operation is about.

use sheave_base::{Error, ErrorKind, Result};

/// Which workers an operation joins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Those of each group, in one operation for each group. Its first worker is the group's first.
    #[default]
    Group,
    /// All, in one operation. Its first worker is worker 0.
    World,
}

impl Scope {
    /// Returns the name by which built-in functions take it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::World => "world",
        }
    }

    /// Returns the scope of that name.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for any other.
    pub fn from_name(name: &str) -> Result<Self> {
        [Self::Group, Self::World].into_iter().find(|scope| scope.name() == name).ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument, format!("scope \"{name}\"; expected \"group\" or \"world\""))
        })
    }

    /// Returns where what comes from the controller goes: to the first worker of each operation.
    #[must_use]
    pub const fn firsts(self) -> Placement {
        match self {
            Self::Group => Placement::Leaders,
            Self::World => Placement::First,
        }
    }
}

/// Which workers have a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// All of them.
    #[default]
    All,
    /// The first of each group.
    Leaders,
    /// Worker 0.
    First,
}

impl Placement {
    /// Returns the name by which built-in functions take it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Leaders => "leaders",
            Self::First => "first",
        }
    }

    /// Returns the placement of that name.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for any other.
    pub fn from_name(name: &str) -> Result<Self> {
        [Self::All, Self::Leaders, Self::First].into_iter().find(|placement| placement.name() == name).ok_or_else(
            || {
                let what = format!("placement \"{name}\"; expected \"all\", \"leaders\" or \"first\"");
                Error::new(ErrorKind::InvalidArgument, what)
            },
        )
    }

    /// Returns whether a worker is one of them.
    #[must_use]
    pub const fn holds(self, worker: u32, group_size: u32) -> bool {
        match self {
            Self::All => true,
            Self::Leaders => worker.is_multiple_of(group_size),
            Self::First => worker == 0,
        }
    }
}
