//! The home of a queue.
//!
//! One lock guards the items and who has which ([`State`]). It is held for as long as items are moved about, and never
//! while somebody is told something: works are completed and messages sent without it. Messages to one end leave in
//! the order of their numbers, for one thread at a time sends to it.

use super::protocol::{self, ATTACH, BACK, CLOSED, DETACH, ENTER, ITEMS, Items, LENGTH, OFFER, PUT, STATE, WANT, Want};
use super::state::{End, Lost, Putter, Queued, State, Told};
use super::words::{Words, reaches};
use crate::packet::{Packet, leaving};
use parking_lot::Mutex;
use sheave_base::planted::{self, Bug};
use sheave_base::work::awaited::{Account, Awaited, Describe, Which};
use sheave_base::{Error, ErrorKind, NodeId, Peer, Result, Work};
use sheave_mesh::{AttachedGuest, Call, Callers, Lane, Member, Mesh, Reply, Request, Service, WeakMesh};
use sheave_net::Parts;
use sheave_wire::Value;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// How long until what could not be sent, for want of memory say, is tried again.
pub(super) const RETRY: Duration = Duration::from_millis(10);

/// The waits of those who get, and of those who put.
const GETS: Which = [0, 0];
const PUTS: Which = [1, 0];

/// The service of a queue of this name.
pub(super) fn service_of(name: &str) -> String {
    format!("sheave.queue.{name}")
}

pub(super) struct Home {
    mesh: WeakMesh,
    pub(super) name: String,
    state: Mutex<State>,
    own: Weak<Self>,
    /// Refuses nodes that this one does not trust.
    is_for_trusted: bool,
    /// A task of the node's, which ends with it.
    membership: OnceLock<sheave_mesh::Task>,
}

impl Home {
    pub(super) fn new(mesh: &Mesh, name: &str, capacity: Option<usize>, is_for_trusted: bool) -> Result<Arc<Self>> {
        let home = Arc::new_cyclic(|own| Self {
            mesh: mesh.downgrade(),
            name: name.to_owned(),
            state: Mutex::new(State::new(capacity)),
            own: own.clone(),
            is_for_trusted,
            membership: OnceLock::new(),
        });
        mesh.serve(&service_of(name), Desk(Arc::downgrade(&home)))?;
        let membership = Membership(Arc::downgrade(&home));
        let task = mesh.runtime().spawn(async move {
            let _membership = membership;
            std::future::pending::<()>().await;
        });
        let _ = home.membership.set(task?);
        Ok(home)
    }

    pub(super) fn mesh(&self) -> Result<Mesh> {
        self.mesh.upgrade().ok_or_else(|| Error::new(ErrorKind::Closed, "the node of the queue has left"))
    }

    /// Changes the state, tells whoever is to hear of it, and gives items to those who want some.
    fn change<T>(&self, change: impl FnOnce(&mut State, &mut Told) -> T) -> T {
        let mut told = Told::default();
        let (changed, has_turned) = {
            let mut state = self.state.lock();
            let changed = change(&mut state, &mut told);
            state.finish(&mut told);
            (changed, state.has_turned())
        };
        if has_turned {
            self.show();
        }
        told.tell();
        self.serve();
        changed
    }

    fn show(&self) {
        let ends: Vec<u64> = self.state.lock().ends.keys().copied().collect();
        ends.into_iter().for_each(|end| self.show_to(end));
    }

    /// Tells an end whether it may put, and whether the queue is closed. One that does not hear of it waits for ever,
    /// lets others wait, or puts without end; so where the word could not be sent it is sent later, as it is then.
    fn show_to(&self, number: u64) {
        let Some(mesh) = self.mesh.upgrade() else { return };
        let (node, service, word) = {
            let state = self.state.lock();
            let Some(end) = state.ends.get(&number) else { return };
            (end.node, end.service.clone(), state.shown.to_call())
        };
        let told = mesh.cast(node, service, STATE, word);
        // Of an end that is gone the node tells.
        if told.is_err_and(|error| !matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Closed)) {
            self.later(move |home| home.show_to(number));
        }
    }

    /// Gives items to those who want some.
    fn serve(&self) {
        let mut told = Told::default();
        while let Some((end, node, service, first, call)) = self.drawn(&mut told) {
            // There is room where these were.
            std::mem::take(&mut told).tell();
            let sent = self.mesh().and_then(|mesh| mesh.cast(node, service, ITEMS, call));
            let has_turned = {
                let mut state = self.state.lock();
                if sent.is_err() {
                    state.undo(end, first, &mut told);
                }
                if let Some(end) = state.ends.get_mut(&end) {
                    end.is_served = false;
                }
                state.has_turned()
            };
            if has_turned {
                self.show();
            }
            std::mem::take(&mut told).tell();
            // Of an end that is gone the node tells.
            if sent.is_err_and(|error| !matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Closed)) {
                self.serve_later(end);
            }
        }
    }

    /// The next message to an end that nobody else sends to, who looks again when it has.
    fn drawn(&self, told: &mut Told) -> Option<(u64, NodeId, String, u32, Call)> {
        let mesh = self.mesh.upgrade()?;
        let mut state = self.state.lock();
        loop {
            let number = state.needy()?;
            let Some((first, count)) = state.draw(number) else { continue };
            state.let_in(told);
            let end = state.ends.get(&number)?;
            let (node, service) = (end.node, end.service.clone());
            let reaches = reaches(&mesh, node);
            let (items, is_kept) = (state.last(number, count), state.keeps(number, first));
            let call = Items { first, is_kept, items }.to_call(|tensor| leaving(mesh.node(), tensor, reaches));
            return Some((number, node, service, first, call));
        }
    }

    /// Tries again to give an end what it had wanted.
    fn serve_later(&self, end: u64) {
        self.later(move |home| home.change(|state, _| state.ends.get_mut(&end).into_iter().for_each(End::wants_one)));
    }

    /// Has this done a while later, if the queue is there then.
    fn later(&self, act: impl FnOnce(&Self) + Send + 'static) {
        let Some(mesh) = self.mesh.upgrade() else { return };
        let (runtime, own) = (mesh.runtime().clone(), self.own.clone());
        let spawned = mesh.spawn("queue", async move {
            runtime.sleep_until(runtime.after(RETRY))?.await;
            if let Some(home) = own.upgrade() {
                act(&home);
            }
            Ok(())
        });
        // The node ends.
        drop(spawned);
    }

    pub(super) fn put(&self, packet: Packet) -> Result<Option<Packet>> {
        let refused = self.change(|state, told| state.put(packet, false, told));
        refused.map_err(|error| error.asked_for("put"))
    }

    pub(super) fn room(&self, bytes: usize) -> Result<Work<()>> {
        let (completer, work) = self.mesh()?.node().described("put", None, self.awaited(PUTS));
        self.change(|state, told| {
            state.await_room(Putter::Here(completer, bytes), told);
            state.let_in(told);
        });
        Ok(work)
    }

    pub(super) fn get(&self) -> Result<Option<Queued>> {
        let item = self.change(State::get);
        match item {
            Some(item) => Ok(Some(item)),
            None => self.state.lock().check().map(|()| None).map_err(|error| error.asked_for("get")),
        }
    }

    /// A work that ends when there may be an item, or there will be none.
    pub(super) fn available(&self) -> Result<Work<()>> {
        let mesh = self.mesh()?;
        let mut state = self.state.lock();
        if state.has_some() || state.check().is_err() {
            return Ok(Work::ready("get", Ok(())));
        }
        let (completer, work) = mesh.node().described("get", None, self.awaited(GETS));
        state.await_item(completer);
        Ok(work)
    }

    pub(super) fn length(&self) -> usize {
        self.state.lock().length()
    }

    pub(super) fn lost(&self) -> (u64, Vec<Lost>) {
        self.state.lock().lost()
    }

    pub(super) fn close(&self, error: &Error) {
        self.change(|state, told| state.close(error, told));
    }

    fn awaited(&self, which: Which) -> Awaited {
        let knows: Weak<dyn Describe> = self.own.clone();
        Awaited::new(knows, which)
    }

    fn attach(&self, from: NodeId, args: &Value) -> Result<(Value, Parts)> {
        let Value::Str(service) = args else { return Err(protocol::unreadable()) };
        let (words, part) = Words::of(&self.mesh()?, from)?.unzip();
        let mut state = self.state.lock();
        let end = state.attach(from, service.clone(), words)?;
        let value = protocol::attached(end, state.capacity.is_some(), part.is_some());
        Ok((value, part.into_iter().collect()))
    }

    /// An end has seen what it shares with this node.
    fn enter(&self, from: NodeId, args: &Value) -> Result<(Value, Parts)> {
        let end = protocol::number(args)?;
        let mut state = self.state.lock();
        let (is_heard, shown) = (state.enter(from, end)?, state.shown);
        drop(state);
        if shown.is_full || shown.is_closed {
            self.show_to(end);
        }
        Ok((Value::Bool(is_heard), Parts::new()))
    }

    /// An item of another process. If nobody has said how many there may be it is taken in: its sender waits before the
    /// next one.
    fn take_in(&self, reply: Reply, args: Value, tensors: sheave_net::Tensors) {
        let packet = match protocol::read_put(args, tensors) {
            Ok(packet) => packet,
            Err(error) => return reply.error(error),
        };
        self.change(|state, told| {
            let must = state.capacity.is_none();
            match state.put(packet, must, told) {
                Ok(None) => told.answer(reply, Ok(())),
                Ok(Some(packet)) => state.await_room(Putter::There(Box::new((reply, packet))), told),
                Err(error) => told.answer(reply, Err(error)),
            }
        });
    }

    /// A node is gone, and this is how.
    fn lose(&self, node: NodeId, peer: &Peer, error: &Error) {
        self.change(|state, told| {
            for end in state.ends_of(node) {
                state.lose(end, peer, error, told);
            }
        });
    }

    /// Takes in an item of another process if there is room.
    fn take_offer(&self, reply: Reply, args: Value, tensors: sheave_net::Tensors) {
        let put = protocol::read_put(args, tensors)
            .and_then(|packet| self.change(|state, told| state.put(packet, false, told)));
        match put {
            Ok(refused) => reply.value(Value::Bool(refused.is_none())),
            Err(error) => reply.error(error),
        }
    }

    /// Fails for a node that may not use this queue.
    fn admits(&self, from: NodeId) -> Result<()> {
        let mesh = self.mesh()?;
        if !self.is_for_trusted || mesh.trusts(from) {
            return Ok(());
        }
        let what = format!("queue {} is for nodes that its home trusts", self.name);
        let error = Error::new(ErrorKind::NotPermitted, what);
        Err(error.hint("guests that the home has not started itself are none of those"))
    }

    fn hear(&self, request: Request) -> Result<()> {
        let Request { from, method, args, tensors, reply, .. } = request;
        if let Err(error) = self.admits(from) {
            reply.error(error);
            return Ok(());
        }
        match method.as_str() {
            PUT => self.take_in(reply, args, tensors),
            OFFER => self.take_offer(reply, args, tensors),
            WANT => {
                let want = Want::read(args)?;
                self.change(|state, told| state.want(from, want, told));
            }
            BACK => {
                let back = protocol::read_about(args)?;
                self.change(|state, told| {
                    if !planted::strikes(Bug::BackLost) {
                        state.back(from, back, told);
                    }
                });
            }
            DETACH => {
                let (end, first, _) = protocol::read_about(args)?;
                self.change(|state, told| state.leave(from, end, first, told));
            }
            CLOSED => {
                let end = protocol::number(&args)?;
                self.change(|state, told| state.await_close(from, end, reply, told));
            }
            ATTACH => reply.send(self.attach(from, &args)),
            ENTER => reply.send(self.enter(from, &args)),
            LENGTH => reply.value(Value::Int(self.length() as i64)),
            _ => reply.error(protocol::unreadable()),
        }
        Ok(())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let mut told = Told::default();
        let state = self.state.get_mut();
        state.abandon(&gone(&self.name), &mut told);
        state.end_all(&gone(&self.name), &mut told);
        told.tell();
        if let Some(mesh) = self.mesh.upgrade() {
            mesh.serve_no_more(&service_of(&self.name));
        }
    }
}

fn gone(name: &str) -> Error {
    Error::new(ErrorKind::Closed, format!("queue {name} is not there any more: its home has dropped it"))
}

impl Describe for Home {
    fn describe(&self, which: Which) -> Option<Account> {
        let whom = match which {
            GETS => "somebody to put an item",
            _ => "somebody to take an item",
        };
        let what = format!("{} queue {}", super::end::verb(which), self.name);
        Some(Account { what: Some(what), whom: Some(format!("{whom} ({})", self.state.lock().describe())) })
    }
}

/// That the node is there. It drops this when it leaves.
struct Membership(Weak<Home>);

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(home) = self.0.upgrade() {
            let error = Error::new(ErrorKind::Closed, "the node of the queue has left");
            home.change(|state, told| state.abandon(&error, told));
        }
    }
}

/// What ends call.
struct Desk(Weak<Home>);

impl Service for Desk {
    fn handle(&self, request: Request) {
        // Without the home a request is dropped, which is answered.
        if let Some(home) = self.0.upgrade() {
            // Whoever writes nonsense learns of it by the end of its own waits.
            let _ = home.hear(request);
        }
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }

    fn callers(&self, _: &str) -> Callers {
        Callers::MembersAndGuests
    }

    fn lost(&self, member: &Member, error: &Error) {
        if let Some(home) = self.0.upgrade() {
            home.lose(member.node, &member.peer(), error);
        }
    }

    fn guest_lost(&self, guest: &AttachedGuest, error: &Error) {
        if let Some(home) = self.0.upgrade() {
            let peer = home.mesh().ok().and_then(|mesh| mesh.peer_of(guest.node));
            home.lose(guest.node, &peer.unwrap_or_else(|| Peer::named(&guest.name).node(guest.node)), error);
        }
    }

    fn awaited(&self, _: NodeId, _: u64) -> Option<String> {
        let home = self.0.upgrade()?;
        let there = home.state.lock().describe();
        Some(format!("queue {}: {there}", home.name))
    }
}
