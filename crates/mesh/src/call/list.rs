//! Arguments that are written as they come.

use super::asking::Asking;
use super::form::named_list;
use super::name::{ServiceName, Text};
use super::{Answer, answer};
use crate::Mesh;
use crate::reference::{Mention, Ref, Refs};
use sheave_base::{Error, ErrorKind, NodeId, Result, Work};
use sheave_wire::{Value, codec};
use std::time::Duration;

/// Room for most items.
const USUAL_ITEM_BYTES: usize = 8;

/// Memory that a list keeps for the next message.
const KEPT_BYTES_MAX: usize = 64 << 10;

/// Refuses what has more in it than its own bytes.
fn check_plain(value: &Value) -> Result<()> {
    match value {
        Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str(_) | Value::Bytes(_) => Ok(()),
        other => {
            let what = format!("a {} in a list of arguments; expected a number, a text or bytes", other.kind_name());
            Err(Error::new(ErrorKind::InvalidArgument, what))
        }
    }
}

/// The arguments of a call that are a [`Value::List`], written item by item: for those who send many small things in
/// one message, and many such messages. No values are made of them, and its references are not looked up.
///
/// ```
/// # use sheave_mesh::{Config, Expected, Mesh, Request, Role};
/// # use sheave_base::config::Endpoint;
/// # use std::sync::mpsc::channel;
/// use sheave_mesh::ArgList;
/// use sheave_wire::Value;
///
/// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
/// # let root = Endpoint { host: "127.0.0.1".into(), port };
/// # let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
/// let (told, hears) = channel();
/// mesh.serve("it", move |request: Request| told.send(request.args).expect("somebody listens"))?;
/// let mut list = ArgList::default();
/// list.push(&Value::Int(7))?;
/// list.push(&Value::from("text"))?;
/// mesh.cast_list(mesh.me().node, "it", "do", &mut list)?;
/// assert!(list.is_empty());
/// assert_eq!(hears.recv().expect("it comes"), Value::List(vec![Value::Int(7), Value::from("text")]));
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Default)]
pub struct ArgList {
    count: usize,
    items: Vec<u8>,
    names: Vec<Mention>,
    refs: Vec<Ref>,
}

impl ArgList {
    /// Returns how many items it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Makes room for so many more items, of which so many are references.
    pub fn reserve(&mut self, items: usize, refs: usize) {
        self.items.reserve(items * USUAL_ITEM_BYTES);
        self.names.reserve(refs);
        self.refs.reserve(refs);
    }

    /// Adds an item that is a number, a text or another value without values, tensors or references in it.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for any other value, and as [`codec::encode`].
    pub fn push(&mut self, value: &Value) -> Result<()> {
        check_plain(value)?;
        self.write(value)
    }

    /// Adds the items between two places, the second of which is not before the first one.
    pub fn push_written(&mut self, written: &Written, from: Mark, to: Mark) {
        self.items.extend_from_slice(&written.items[from.bytes..to.bytes]);
        self.count += to.count - from.count;
    }

    /// Adds the name of an object, as [`Ref::value`]; the list keeps the reference.
    ///
    /// # Errors
    ///
    /// As [`codec::encode`].
    pub fn push_ref(&mut self, held: &Ref) -> Result<()> {
        self.mention(held, held.mention())
    }

    /// Adds the name of a promised object that the call is to fill, as [`Ref::to_fill`].
    ///
    /// # Errors
    ///
    /// As [`codec::encode`].
    pub fn push_to_fill(&mut self, held: &Ref) -> Result<()> {
        self.mention(held, held.mention_to_fill())
    }

    fn mention(&mut self, held: &Ref, mention: Mention) -> Result<()> {
        self.write(&Value::Ref { node: mention.name.owner, id: mention.id() })?;
        self.names.push(mention);
        self.refs.push(held.clone());
        Ok(())
    }

    fn write(&mut self, value: &Value) -> Result<()> {
        codec::encode_to(value, &mut self.items)?;
        self.count += 1;
        Ok(())
    }

    /// Becomes the arguments of a call, and is empty.
    fn take(&mut self, service: ServiceName, method: &str) -> Result<Asking> {
        let control = named_list(method, std::mem::take(&mut self.count), &self.items);
        self.items.clear();
        // A long one is an exception.
        self.items.shrink_to(KEPT_BYTES_MAX);
        let (names, refs) = (std::mem::take(&mut self.names), Refs::from(std::mem::take(&mut self.refs)));
        let mut asking = Asking::of_list(service, Text::Shared(method.into()), control?, names);
        asking.held = Some(refs);
        Ok(asking)
    }
}

/// Items of lists that are the same in several of them, and are written once: numbers, texts and other values without
/// values, tensors or references in them.
///
/// ```
/// use sheave_mesh::{ArgList, Mark, Written};
/// use sheave_wire::Value;
///
/// let (mut written, mut lists) = (Written::default(), [ArgList::default(), ArgList::default()]);
/// written.push(&Value::from("the same"))?;
/// for list in &mut lists {
///     list.push_written(&written, Mark::default(), written.end());
///     assert_eq!(list.len(), 1);
/// }
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Written {
    count: usize,
    items: Vec<u8>,
}

/// A place between two items of a [`Written`]; the default one is in front of all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mark {
    count: usize,
    bytes: usize,
}

impl Written {
    /// Adds an item, as [`ArgList::push`].
    ///
    /// # Errors
    ///
    /// As [`ArgList::push`]; then nothing is added.
    pub fn push(&mut self, value: &Value) -> Result<()> {
        check_plain(value)?;
        let end = self.end();
        codec::encode_to(value, &mut self.items).inspect_err(|_| self.items.truncate(end.bytes))?;
        self.count += 1;
        Ok(())
    }

    /// Returns the place behind the last item.
    #[must_use]
    pub fn end(&self) -> Mark {
        Mark { count: self.count, bytes: self.items.len() }
    }

    /// Takes away what is behind a place.
    pub fn truncate(&mut self, end: Mark) {
        self.count = self.count.min(end.count);
        self.items.truncate(end.bytes);
    }
}

impl Drop for ArgList {
    fn drop(&mut self) {
        Ref::drop_all(std::mem::take(&mut self.refs));
    }
}

impl std::fmt::Debug for ArgList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArgList").field("items", &self.count).field("refs", &self.refs).finish_non_exhaustive()
    }
}

impl Mesh {
    /// As [`Mesh::cast`], with arguments that are written already. Leaves the list empty, with its memory for the next.
    ///
    /// # Errors
    ///
    /// As [`Mesh::cast`].
    pub fn cast_list(
        &self,
        to: NodeId,
        service: impl Into<ServiceName>,
        method: &str,
        list: &mut ArgList,
    ) -> Result<()> {
        self.shared.send_one_way(to, list.take(service.into(), method)?)
    }

    /// As [`Mesh::call`], with arguments that are written already: a call that [runs anyway](crate::Call::runs_anyway)
    /// and ends after `deadline` at the latest. Leaves the list empty, with its memory for the next.
    ///
    /// # Errors
    ///
    /// As [`Mesh::call`].
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Request, Role};
    /// # use sheave_base::config::Endpoint;
    /// use sheave_mesh::ArgList;
    /// use sheave_wire::Value;
    ///
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = Endpoint { host: "127.0.0.1".into(), port };
    /// # let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    /// mesh.serve("it", |request: Request| request.reply.value(request.args))?;
    /// let mut list = ArgList::default();
    /// list.push(&Value::Int(7))?;
    /// let answered = mesh.call_list(mesh.me().node, "it", "do", &mut list, None)?;
    /// assert_eq!(answered.join()?.value, Value::List(vec![Value::Int(7)]));
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    pub fn call_list(
        &self,
        to: NodeId,
        service: impl Into<ServiceName>,
        method: &str,
        list: &mut ArgList,
        deadline: Option<Duration>,
    ) -> Result<Work<Answer>> {
        let mut asking = list.take(service.into(), method)?;
        (asking.deadline, asking.runs_anyway) = (deadline, true);
        self.shared.ask(to, asking, answer::decode)
    }

    /// Whether so many objects of each of these nodes can be promised, by the limits of this one.
    #[must_use]
    pub fn can_promise(&self, owners: &[NodeId], count: usize) -> bool {
        self.shared.references.can_promise(owners, count)
    }

    /// As [`Mesh::promise`], of one object of each of these nodes: one look at the tables for all of them. There is
    /// none of those that are named behind them, each with why.
    pub fn promise_each(&self, owners: &[NodeId]) -> (Vec<Option<Ref>>, Vec<(NodeId, Error)>) {
        let (drawn, mut refusals) = self.shared.references.promise_each(owners);
        for (owner, error) in &mut refusals {
            // A guest is no member, and there is more to say of it.
            if let Err(more) = self.shared.check_promising(*owner) {
                *error = more;
            }
        }
        (drawn, refusals)
    }
}
