//! Identities: small, typed, cheap to copy.

use std::fmt;

macro_rules! identity {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

identity! {
    /// A node: drawn at random when the node starts, so that a restarted process is never mistaken for its predecessor.
    NodeId(u64)
}
identity! {
    /// A link as its own end knows it; never sent to the other side.
    LinkId(u32)
}
identity! {
    /// A rank in the mesh or in a group.
    Rank(u32)
}
identity! {
    /// The version of a mesh's membership; it grows with every death.
    Epoch(u32)
}
identity! {
    /// What a tagged message is matched by, besides its source.
    Tag(u64)
}
