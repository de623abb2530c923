//! Tables and sets whose keys others may choose, so that their order is not to be guessed; in a simulation it is the
//! same in every run.

#[cfg(not(feature = "simulated"))]
type Hashing = ahash::RandomState;
#[cfg(feature = "simulated")]
type Hashing = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// The standard table, with hashes that cost a few nanoseconds.
pub type HashMap<K, V> = std::collections::HashMap<K, V, Hashing>;
/// The standard set, as that.
pub type HashSet<T> = std::collections::HashSet<T, Hashing>;
