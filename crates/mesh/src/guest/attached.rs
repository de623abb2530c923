//! What a node knows of those that are attached to it: a host of its guests, a guest of its host.
//!
//! An entry is made by an attach and belongs to the link of that attach. It is *over* when the link has ended, which
//! whoever sees the end first says once. It leaves the table in its turn of the queue of requests, and then stands
//! among the last ones that are gone, so that a call to it, or a reference to its object, still says who it was.
//!
//! A node that has never had such a peer looks at one word.

use super::AttachedGuest;
use crate::engine::FAILED;
use parking_lot::RwLock;
use sha2::{Digest, Sha256};
use sheave_base::collections::HashMap;
use sheave_base::config::Role;
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Peer, Result, Work, limits};
use sheave_net::was_closed_in_order;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Who an attached node is to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// A guest of this node.
    Guest,
    /// The host of this node, a member with this role of its mesh.
    Host(Role),
}

/// What an attached node has said before it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Farewell {
    Left,
    /// This node has said it for the guest.
    Dismissed,
    Failed(String),
}

/// The nodes that are attached to one.
#[derive(Default)]
pub(crate) struct Attached {
    /// There has been an invitation, or a host. Never unset.
    is_used: AtomicBool,
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    /// By the names of the guests.
    open: HashMap<String, Open>,
    peers: HashMap<NodeId, Entry>,
    /// The last ones that are gone; the oldest first.
    gone: VecDeque<Gone>,
    last_number: u64,
    /// What ended this node: nobody comes any more.
    ended: Option<Error>,
}

/// An invitation that nobody has shown yet.
struct Open {
    /// Of the token, so that a comparison tells nothing about it.
    digest: [u8; 32],
    /// For a process that this one starts itself.
    is_own: bool,
    arrival: (Completer<AttachedGuest>, Work<AttachedGuest>),
}

struct Entry {
    peer: Peer,
    link: LinkId,
    standing: Standing,
    /// A guest that this process has started itself.
    is_own: bool,
    farewell: Option<Farewell>,
    /// Its link has ended, and what that means.
    over: Option<Error>,
    /// Ends when it has left or died.
    end: (Completer<()>, Work<()>),
    /// Ends when it has said that it is ready, which it may do once.
    ready: (Option<Completer<()>>, Work<()>),
}

struct Gone {
    peer: Peer,
    standing: Standing,
    is_own: bool,
    is_left: bool,
    error: Error,
}

/// An attached node whose end was taken note of.
pub(crate) struct Departed {
    pub(crate) peer: Peer,
    pub(crate) standing: Standing,
    /// Ends with how it ended.
    end: Completer<()>,
    /// Ends with an error, if it has never said that it was ready.
    ready: Option<Completer<()>>,
    outcome: Result<()>,
    /// Of whom nothing is known any more, because too many have gone since.
    pub(crate) forgotten: Option<NodeId>,
}

impl Departed {
    /// Tells those who wait for it.
    pub(crate) fn tell(self, error: &Error) {
        if let Some(ready) = self.ready {
            ready.complete(Err(error.clone()));
        }
        self.end.complete(self.outcome);
    }
}

pub(super) fn digest_of(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

fn uninvited(name: &str) -> Error {
    let what = format!("this host has no open invitation for {name}");
    Error::new(ErrorKind::NotPermitted, what)
        .hint("each invitation is good for one attach, with its own name and token, until it is withdrawn")
}

impl Table {
    fn is_name_taken(&self, name: &str) -> bool {
        self.open.contains_key(name) || self.peers.values().any(|entry| entry.peer.name == name)
    }

    fn gone(&self, node: NodeId) -> Option<&Gone> {
        self.gone.iter().find(|gone| gone.peer.node == Some(node))
    }
}

impl Attached {
    /// Looks into the table of a node that has one.
    fn look<T>(&self, look: impl FnOnce(&Table) -> Option<T>) -> Option<T> {
        if self.is_used.load(SeqCst) { look(&self.table.read()) } else { None }
    }

    /// Opens an invitation. `named` makes names of numbers, and `make` the pair that tells of the arrival.
    pub(super) fn invite<T>(
        &self,
        named: impl Fn(u64) -> String,
        is_taken: impl Fn(&str) -> bool,
        draw: impl FnOnce(String) -> Result<(T, [u8; 32])>,
        arrival: (Completer<AttachedGuest>, Work<AttachedGuest>),
        is_own: bool,
    ) -> Result<T> {
        self.is_used.store(true, SeqCst);
        let mut table = self.table.write();
        if let Some(error) = &table.ended {
            return Err(error.clone());
        }
        let guests = table.peers.values().filter(|entry| entry.standing == Standing::Guest).count();
        if guests + table.open.len() >= limits::GUESTS_MAX {
            let what = format!("this node has {guests} guests and {} open invitations", table.open.len());
            let hint = format!(
                "a node has at most {} guests; withdraw invitations of those that never came",
                limits::GUESTS_MAX
            );
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint(hint));
        }
        let name = loop {
            table.last_number += 1;
            let name = named(table.last_number);
            if !is_taken(&name) && !table.is_name_taken(&name) {
                break name;
            }
        };
        let (drawn, digest) = draw(name.clone())?;
        table.open.insert(name, Open { digest, is_own, arrival });
        Ok(drawn)
    }

    /// Closes an invitation that nobody has shown. Returns who hears of that.
    pub(super) fn uninvite(&self, name: &str) -> Option<Completer<AttachedGuest>> {
        self.table.write().open.remove(name).map(|open| open.arrival.0)
    }

    /// Takes a guest in by its invitation. Returns who waits for it.
    pub(super) fn admit(
        &self,
        (peer, link): (Peer, LinkId),
        token: &[u8],
        end: (Completer<()>, Work<()>),
        (readying, ready): (Completer<()>, Work<()>),
    ) -> Result<Completer<AttachedGuest>> {
        let node = peer.node.unwrap_or_default();
        let mut table = self.table.write();
        if let Some(error) = &table.ended {
            return Err(error.clone());
        }
        if table.peers.contains_key(&node) {
            let what = format!("{} is attached already, as one guest over one link", peer.name);
            return Err(Error::new(ErrorKind::AlreadyExists, what));
        }
        let is_right = table.open.get(&peer.name).map(|open| open.digest == digest_of(token));
        match is_right {
            None => return Err(uninvited(&peer.name)),
            Some(false) => {
                let what = format!("the token is not that of the invitation of {}", peer.name);
                let hint = "hand on the invitation as the host has written it, unchanged";
                return Err(Error::new(ErrorKind::Unauthenticated, what).hint(hint));
            }
            Some(true) => {}
        }
        let open = table.open.remove(&peer.name).ok_or_else(|| uninvited(&peer.name))?;
        let (standing, is_own) = (Standing::Guest, open.is_own);
        let ready = (Some(readying), ready);
        let entry = Entry { peer, link, standing, is_own, farewell: None, over: None, end, ready };
        table.peers.insert(node, entry);
        Ok(open.arrival.0)
    }

    /// Notes the host of this node.
    pub(super) fn attach_host(&self, peer: Peer, link: LinkId, role: Role, end: (Completer<()>, Work<()>)) {
        let node = peer.node.unwrap_or_default();
        let (standing, is_own) = (Standing::Host(role), false);
        let ready = (None, Work::ready("guest_ready", Ok(())));
        let entry = Entry { peer, link, standing, is_own, farewell: None, over: None, end, ready };
        self.table.write().peers.insert(node, entry);
        self.is_used.store(true, SeqCst);
    }

    /// Notes which rank the host has.
    pub(super) fn host_has_rank(&self, node: NodeId, rank: u32) {
        if let Some(entry) = self.table.write().peers.get_mut(&node) {
            entry.peer.rank = Some(rank);
        }
    }

    /// The guests that are there, by name.
    pub(super) fn guests(&self) -> Vec<AttachedGuest> {
        let guests = self.look(|table| {
            let guests = table.peers.values().filter(|entry| entry.standing == Standing::Guest && entry.over.is_none());
            Some(guests.map(|entry| AttachedGuest::of(&entry.peer)).collect::<Vec<_>>())
        });
        let mut guests = guests.unwrap_or_default();
        guests.sort_by(|one, other| one.name.cmp(&other.name));
        guests
    }

    /// A work that ends when the guest of this name comes.
    pub(super) fn arrival(&self, name: &str) -> Result<Work<AttachedGuest>> {
        let found = self.look(|table| match table.open.get(name) {
            Some(open) => Some(open.arrival.1.clone()),
            None => {
                let entry = table.peers.values().find(|entry| entry.peer.name == name);
                entry.map(|entry| Work::ready("guest_arrival", Ok(AttachedGuest::of(&entry.peer))))
            }
        });
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("no guest named {name} is invited or there")))
    }

    /// A work that ends when this node is gone.
    pub(super) fn end_of(&self, node: NodeId) -> Result<Work<()>> {
        let found = self.look(|table| match table.peers.get(&node) {
            Some(entry) => Some(entry.end.1.clone()),
            None => table.gone(node).map(|gone| Work::ready("guest_end", gone.outcome())),
        });
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("node {node} is not attached to this one")))
    }

    /// A work that ends when this guest has said that it is ready.
    pub(super) fn ready_of(&self, node: NodeId) -> Result<Work<()>> {
        let found = self.look(|table| match table.peers.get(&node) {
            Some(entry) => Some(entry.ready.1.clone()),
            None => table.gone(node).map(|gone| Work::ready("guest_ready", Err(gone.error.clone()))),
        });
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("node {node} is not attached to this one")))
    }

    /// A guest says that it is ready. Returns who waits for that, the first time.
    pub(super) fn says_ready(&self, node: NodeId) -> Option<Completer<()>> {
        self.table.write().peers.get_mut(&node).and_then(|entry| entry.ready.0.take())
    }

    /// Whether the engine must not hear of this node.
    pub(crate) fn has(&self, node: NodeId) -> bool {
        self.look(|table| (table.peers.contains_key(&node) || table.gone(node).is_some()).then_some(())).is_some()
    }

    /// Who speaks over that link in the name of `node`, if it is attached by this very link.
    pub(crate) fn speaks(&self, node: NodeId, link: LinkId) -> Option<Standing> {
        self.look(|table| table.peers.get(&node).filter(|entry| entry.link == link).map(|entry| entry.standing))
    }

    /// Whether `node` is attached by another link than that.
    pub(crate) fn is_foreign(&self, node: NodeId, link: LinkId) -> bool {
        self.look(|table| table.peers.get(&node).map(|entry| entry.link != link)).unwrap_or(false)
    }

    /// The link to an attached node.
    pub(crate) fn link_of(&self, node: NodeId) -> Option<LinkId> {
        self.look(|table| table.peers.get(&node).filter(|entry| entry.over.is_none()).map(|entry| entry.link))
    }

    /// The links to all that are attached.
    pub(crate) fn links(&self) -> Vec<LinkId> {
        let links = self.look(|table| {
            let there = table.peers.values().filter(|entry| entry.over.is_none());
            Some(there.map(|entry| entry.link).collect())
        });
        links.unwrap_or_default()
    }

    /// An attached node, or one that was, as errors name it.
    pub(crate) fn peer(&self, node: NodeId) -> Option<Peer> {
        self.look(|table| match table.peers.get(&node) {
            Some(entry) => Some(entry.peer.clone()),
            None => table.gone(node).map(|gone| gone.peer.clone()),
        })
    }

    /// Why an attached node cannot be reached any more, if so.
    pub(crate) fn loss(&self, node: NodeId) -> Option<Error> {
        self.look(|table| match table.peers.get(&node) {
            Some(entry) => entry.over.clone(),
            None => table.gone(node).map(|gone| gone.error.clone()),
        })
    }

    /// Whether this node is a guest, or was one.
    pub(crate) fn is_guest(&self) -> bool {
        let is_host = |standing| matches!(standing, Standing::Host(_));
        self.look(|table| {
            let there = table.peers.values().map(|entry| entry.standing);
            there.chain(table.gone.iter().map(|gone| gone.standing)).any(is_host).then_some(())
        })
        .is_some()
    }

    /// Whether this guest is, or was, a process that this one has started itself.
    pub(super) fn is_own(&self, node: NodeId) -> bool {
        self.look(|table| match table.peers.get(&node) {
            Some(entry) => Some(entry.is_own),
            None => table.gone(node).map(|gone| gone.is_own),
        })
        .unwrap_or(false)
    }

    /// Whether this node is, or was, the host of this one.
    pub(super) fn is_host(&self, node: NodeId) -> bool {
        let is_host = |standing| matches!(standing, Standing::Host(_));
        self.look(|table| match table.peers.get(&node) {
            Some(entry) => Some(is_host(entry.standing)),
            None => table.gone(node).map(|gone| is_host(gone.standing)),
        })
        .unwrap_or(false)
    }

    /// How the host of this node has ended, if it has: who it was, whether it left, and the error.
    pub(crate) fn end_of_host(&self) -> Option<(NodeId, bool, Error)> {
        self.look(|table| {
            let gone = table.gone.iter().find(|gone| matches!(gone.standing, Standing::Host(_)))?;
            Some((gone.peer.node?, gone.is_left, gone.error.clone()))
        })
    }

    /// An attached node says that it ends. The first word counts: what follows comes of that.
    pub(crate) fn says_farewell(&self, node: NodeId, link: LinkId, farewell: Farewell) {
        if !self.is_used.load(SeqCst) {
            return;
        }
        if let Some(entry) = self.table.write().peers.get_mut(&node).filter(|entry| entry.link == link) {
            entry.farewell.get_or_insert(farewell);
        }
    }

    /// What the end of a link for this reason means, if it is that of an attached node.
    pub(crate) fn meaning(&self, node: NodeId, reason: &Error) -> Option<Error> {
        self.look(|table| table.peers.get(&node).map(|entry| entry.meaning(reason)))
    }

    /// The link of an attached node has ended. Returns what that means, to the first who says so.
    pub(crate) fn ended(&self, node: NodeId, link: LinkId, reason: &Error) -> Option<Error> {
        let mut table = self.table.write();
        let entry = table.peers.get_mut(&node).filter(|entry| entry.link == link && entry.over.is_none())?;
        let error = entry.meaning(reason);
        entry.over = Some(error.clone());
        Some(error)
    }

    /// An attached node that is over leaves the table.
    pub(crate) fn departs(&self, node: NodeId, error: &Error) -> Option<Departed> {
        let mut table = self.table.write();
        let Entry { peer, standing, is_own, farewell, end: (end, _), ready: (ready, _), .. } =
            table.peers.remove(&node)?;
        let is_left = matches!(farewell, Some(Farewell::Left | Farewell::Dismissed));
        let gone = Gone { peer: peer.clone(), standing, is_own, is_left, error: error.clone() };
        let outcome = gone.outcome();
        table.gone.push_back(gone);
        let is_full = table.gone.len() > limits::GUESTS_MAX;
        let forgotten = if is_full { table.gone.pop_front().and_then(|gone| gone.peer.node) } else { None };
        Some(Departed { peer, standing, end, ready, outcome, forgotten })
    }

    /// Nobody comes any more.
    pub(crate) fn close_door(&self, error: &Error) {
        let open = {
            let mut table = self.table.write();
            table.ended.get_or_insert_with(|| error.clone());
            std::mem::take(&mut table.open)
        };
        open.into_values().for_each(|open| open.arrival.0.complete(Err(error.clone())));
    }

    /// This node is none that others are attached to any more: nobody comes, and nobody's end is told.
    pub(crate) fn stop(&self, error: &Error) {
        self.close_door(error);
        let peers = std::mem::take(&mut self.table.write().peers);
        peers.into_values().for_each(|entry| entry.end.0.complete(Err(error.clone())));
    }
}

impl Entry {
    /// What the end of its link means.
    fn meaning(&self, reason: &Error) -> Error {
        let who = match self.standing {
            Standing::Guest => "the guest",
            Standing::Host(_) => "the host of this guest",
        };
        let lost = |what: String| Error::new(ErrorKind::PeerLost, what);
        let error = match (&self.over, &self.farewell) {
            (Some(error), _) => return error.clone(),
            (None, Some(Farewell::Left)) => lost(format!("{who} has left")),
            (None, Some(Farewell::Dismissed)) => lost("this node has let the guest go".to_owned()),
            (None, Some(Farewell::Failed(text))) => lost(format!("{FAILED}{text}")),
            (None, None) if was_closed_in_order(reason) => lost(format!("{who} closed its link without a word")),
            (None, None) => reason.clone(),
        };
        error.peer(self.peer.clone())
    }
}

impl Gone {
    fn outcome(&self) -> Result<()> {
        if self.is_left { Ok(()) } else { Err(self.error.clone()) }
    }
}
