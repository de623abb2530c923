//! Requests to a store by number, with any bytes in place of the arguments: what a broken peer may send, and what a
//! test of the wire says for itself.

use serde::de::{DeserializeOwned, Error as _};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use sheave_base::{NodeId, Result, Work};
use sheave_mesh::{Answer, CallOptions, Mesh, Method};
use sheave_net::Parts;
use sheave_store::Key;

/// The number of a key of this name, by the documented hash.
pub(crate) fn number_of(name: &str) -> u64 {
    let digest = Sha256::new().chain_update([1]).chain_update(name).finalize();
    u64::from_be_bytes(digest[..8].try_into().expect("eight bytes"))
}

/// A name that begins like this, of a key that lives on this one of so many servers.
pub(crate) fn name_on(server: u64, servers: u64, seed: &str) -> String {
    let mut names = (0..).map(|number| format!("{seed} {number}"));
    names.find(|name| number_of(name) % servers == server).expect("some number fits")
}

/// The bytes of arguments, as they are.
pub(crate) struct Raw(Vec<u8>);

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(self.0.len())?;
        self.0.iter().try_for_each(|byte| tuple.serialize_element(byte))?;
        tuple.end()
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(_: D) -> std::result::Result<Self, D::Error> {
        Err(D::Error::custom("nobody reads it"))
    }
}

/// A method of this number, whose arguments are any bytes and whose answer is an `A`.
struct Of<const ID: u32, A>(std::marker::PhantomData<A>);

impl<const ID: u32, A: Serialize + DeserializeOwned + Clone + Send + 'static> Method for Of<ID, A> {
    const SERVICE: &'static str = "store";
    const ID: u32 = ID;
    const NAME: &'static str = "raw";
    const CALLERS: sheave_mesh::Callers = sheave_mesh::Callers::Members;
    type Args = Raw;
    type Answer = A;
}

/// Ranks of workers that a store does without.
type Gone = Vec<usize>;

/// A key, a dtype, a shape, and how it is stored.
type Described = (Key, u8, Vec<u64>, u32);

/// Asks for the method of this name; one that no server has is asked for by a number of none. The answer must be of the
/// right type, and is left out.
pub(crate) fn ask_raw(
    mesh: &Mesh,
    server: NodeId,
    method: &str,
    head: Vec<u8>,
    tensors: Parts,
) -> Result<Work<Answer<()>>> {
    let ask = Ask { mesh, server, args: Raw(head), options: CallOptions { tensors, ..CallOptions::default() } };
    match method {
        "open" => ask.send::<1, ()>(),
        "close" => ask.send::<3, ()>(),
        "init" => ask.send::<4, ()>(),
        "delete" => ask.send::<5, ()>(),
        "describe" => ask.send::<6, Vec<Option<Described>>>(),
        "update" => ask.send::<7, Gone>(),
        "begin" => ask.send::<8, Gone>(),
        "slices" => ask.send::<9, ()>(),
        "set_updater" => ask.send::<10, ()>(),
        "barrier" => ask.send::<12, Gone>(),
        "done" => ask.send::<13, Gone>(),
        "settle" => ask.send::<14, ()>(),
        _ => ask.send::<99, ()>(),
    }
}

struct Ask<'a> {
    mesh: &'a Mesh,
    server: NodeId,
    args: Raw,
    options: CallOptions,
}

impl Ask<'_> {
    fn send<const ID: u32, A: Serialize + DeserializeOwned + Clone + Send + 'static>(self) -> Result<Work<Answer<()>>> {
        let work = self.mesh.ask_with::<Of<ID, A>>(self.server, &self.args, self.options)?;
        let (completer, outcome) = self.mesh.node().pair("raw", None);
        work.on_complete(move |answer| {
            let answer = answer.clone();
            completer.complete(answer.map(|Answer { tensors, refs, .. }| Answer { value: (), tensors, refs }));
        });
        Ok(outcome)
    }
}
