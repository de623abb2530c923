//! Names of particles.

use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_wire::Value;
use std::fmt;

/// A particle, wherever it lives: the node that it lives on, and its number there. It is a value, so that handlers tell
/// each other of particles.
///
/// ```
/// use sheave_base::NodeId;
/// use sheave_particle::ParticleId;
/// use sheave_wire::Value;
///
/// let id = ParticleId { node: NodeId(7), number: 3 };
/// assert_eq!(ParticleId::from_value(&Value::from(id))?, id);
/// assert_eq!(id.to_string(), "particle 3");
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParticleId {
    /// The node that it lives on.
    pub node: NodeId,
    /// Its number there: 0, 1, 2 and so on, in the order in which particles were made. No number is used twice.
    pub number: u64,
}

impl ParticleId {
    /// Reads one from a value.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for anything else.
    pub fn from_value(value: &Value) -> Result<Self> {
        if let Value::Tuple(items) | Value::List(items) = value
            && let [Value::Int(node), Value::Int(number)] = items[..]
            && number >= 0
        {
            return Ok(Self { node: NodeId(node.cast_unsigned()), number: number.unsigned_abs() });
        }
        let what = format!("a {}; expected a particle, which is a node and a number", value.kind_name());
        Err(Error::new(ErrorKind::InvalidArgument, what))
    }
}

impl From<ParticleId> for Value {
    fn from(id: ParticleId) -> Self {
        Self::Tuple(vec![Self::Int(id.node.0.cast_signed()), Self::Int(id.number.cast_signed())])
    }
}

impl fmt::Display for ParticleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "particle {}", self.number)
    }
}
