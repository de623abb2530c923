//! An end of a queue: the part of a node that is not its home.
//!
//! What the home has given lies here until somebody takes it, which [`Words`] decide: one that was taken back
//! meanwhile is dropped. Where half of what was given is taken, more is asked for, so that who takes one after the
//! other waits for none; how much grows as long as all of it is taken, and begins anew where some was taken back.

use super::Put;
use super::home::{RETRY, service_of};
use super::protocol::{
    self, ATTACH, BACK, CLOSED, DETACH, ENTER, ITEMS, Items, LENGTH, OFFER, PUT, STATE, Shown, WANT, Want,
};
use super::state::AHEAD_MAX;
use super::words::Words;
use crate::packet::Packet;
use parking_lot::Mutex;
use sheave_base::planted::{self, Bug};
use sheave_base::work::awaited::{Account, Awaited, Describe, Which};
use sheave_base::work::{Completer, Interrupt, reborrowed};
use sheave_base::{Error, ErrorKind, NodeId, Result, Work};
use sheave_mesh::{Answer, Call, Lane, Mesh, Request, Service, WeakMesh};
use sheave_net::Part;
use sheave_tensor::Mode;
use sheave_wire::Value;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

const GETS: Which = [0, 0];
const PUTS: Which = [1, 0];

/// So often something is told where each time an earlier put is told to have failed.
const TELLS_MAX: usize = 4;

/// What the home has told, once it has answered.
struct Place {
    /// As [`End::number`].
    number: u64,
    /// Each put waits until its item was taken in.
    is_strict: bool,
    words: Option<Words>,
}

impl Place {
    /// Whether items are given ahead of need.
    fn has_ahead(&self) -> bool {
        self.words.is_some() && !self.is_strict
    }
}

#[derive(Default)]
struct State {
    /// What was given and not taken: own number, number of the queue, item.
    given: VecDeque<(u32, u64, Packet)>,
    /// The item that was given for somebody who waited, as long as it is not taken.
    kept: Option<u32>,
    /// The number behind the last that was taken.
    begun: u32,
    /// What users have not come back for another from.
    held: BTreeSet<u32>,
    /// How many are asked for at a time.
    most: usize,
    /// How often the home was told what is wanted.
    turn: u64,
    /// Some were asked for and have not come; for somebody who waits.
    is_asked: bool,
    is_waiting: bool,
    getters: Vec<Completer<()>>,
    putters: Vec<Completer<()>>,
    /// The state of the home, as it has told last.
    home: Shown,
    /// What a put has failed with that had returned.
    failed: Option<Error>,
    /// Why there is nothing any more.
    over: Option<Error>,
    is_detached: bool,
}

impl State {
    /// Below which number nothing is held.
    fn settled(&self) -> u32 {
        // Of numbers that have wrapped the order is another one, and then less is settled than could be.
        self.held.first().copied().unwrap_or(self.begun)
    }

    fn want(&mut self, place: &Place, most: usize, is_waiting: bool) -> Want {
        self.turn += 1;
        Want { end: place.number, settled: self.settled(), begun: self.begun, most, is_waiting, turn: self.turn }
    }

    /// The same again, as it is now.
    fn want_still(&mut self, place: &Place) -> Want {
        let most = if self.is_asked { self.most } else { 0 };
        self.want(place, most, self.is_waiting)
    }

    fn has_getter(&mut self) -> bool {
        self.getters.retain(Completer::is_awaited);
        !self.getters.is_empty()
    }
}

pub(super) struct End {
    mesh: WeakMesh,
    home: NodeId,
    pub(super) name: String,
    /// The home's service, and the one here.
    service: sheave_mesh::ServiceName,
    own_service: String,
    /// The number that the home has given it.
    number: OnceLock<u64>,
    place: OnceLock<Place>,
    state: Mutex<State>,
    own: Weak<Self>,
}

/// What is done once no lock is held.
#[derive(Clone, Copy)]
enum Then {
    Nothing,
    Want(Want),
    /// So many items from this number on are not taken.
    Back(u32, u32),
}

impl End {
    /// Attaches this node to the queue of this name on another one. Blocks for as long as that takes to answer.
    pub(super) fn attach(
        mesh: &Mesh,
        home: NodeId,
        name: &str,
        mut interrupt: Option<Interrupt<'_>>,
    ) -> Result<Arc<Self>> {
        let own_service = format!("sheave.queue.end.{}", mesh.next_number("queue end"));
        let end = Arc::new_cyclic(|own| Self {
            mesh: mesh.downgrade(),
            home,
            name: name.to_owned(),
            service: service_of(name).into(),
            own_service,
            number: OnceLock::new(),
            place: OnceLock::new(),
            state: Mutex::new(State { most: 1, ..State::default() }),
            own: own.clone(),
        });
        mesh.serve(&end.own_service, Desk(Arc::downgrade(&end)))?;
        let own = Call::of(Value::from(end.own_service.as_str()));
        let attached = mesh.call(home, end.service.clone(), ATTACH, own)?;
        // Keeps the end until the home has answered, for that has an end then, though nobody waits for it here any
        // more: when this one is dropped, it says so.
        let kept = Arc::clone(&end);
        attached.on_complete(move |answer| answer.iter().for_each(|answer| kept.has_number(answer)));
        let answer = end.answered(&attached, &mut interrupt)?;
        end.has_number(&answer);
        let (number, is_strict, words) = protocol::read_attached(answer.value, &answer.tensors)?;
        let words = words.map(|words| Words::arrived(&words)).transpose()?;
        words.iter().for_each(Words::knock);
        let entered = mesh.call(home, end.service.clone(), ENTER, about(number))?;
        let is_heard = protocol::truth(&end.answered(&entered, &mut interrupt)?.value)?;
        let _ = end.place.set(Place { number, is_strict, words: words.filter(|_| is_heard) });
        let (closed, own) = (mesh.call(home, end.service.clone(), CLOSED, about(number))?, end.own.clone());
        closed.on_complete(move |outcome| {
            let Some(end) = own.upgrade() else { return };
            let name = &end.name;
            let closed = || Error::new(ErrorKind::Closed, format!("queue {name} was closed"));
            end.over(outcome.as_ref().err().cloned().unwrap_or_else(closed));
        });
        Ok(end)
    }

    fn answered(&self, work: &Work<Answer>, interrupt: &mut Option<Interrupt<'_>>) -> Result<Answer> {
        work.wait_until(None, reborrowed(interrupt))?;
        work.wait().map_err(|error| error.asked_for("attach to queue"))
    }

    fn has_number(&self, attached: &Answer) {
        if let Ok(number) = protocol::read_number(&attached.value) {
            let _ = self.number.set(number);
        }
    }

    fn mesh(&self) -> Result<Mesh> {
        self.mesh.upgrade().ok_or_else(|| Error::new(ErrorKind::Closed, "the node has left"))
    }

    fn place(&self) -> Result<&Place> {
        self.place.get().ok_or_else(|| Error::new(ErrorKind::Internal, "an end of a queue that was not attached"))
    }

    /// The queue was closed, or its home is gone.
    fn over(&self, error: Error) {
        let (getters, putters) = {
            let mut state = self.state.lock();
            state.over.get_or_insert(error);
            (std::mem::take(&mut state.getters), std::mem::take(&mut state.putters))
        };
        getters.into_iter().chain(putters).for_each(|completer| completer.complete(Ok(())));
    }

    /// Nothing is put or taken here any more.
    pub(super) fn close(&self) {
        self.over(Error::new(ErrorKind::Closed, format!("this end of queue {} was closed", self.name)));
        let given = std::mem::take(&mut self.state.lock().given);
        drop(given);
        self.detach();
    }

    fn detach(&self) {
        let first = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.is_detached, true) {
                return;
            }
            state.begun
        };
        let Some(mesh) = self.mesh.upgrade() else { return };
        if let Some(number) = self.number.get() {
            // A home that is gone needs no word.
            let _ = self.tell(DETACH, || protocol::about(*number, first, 0));
        }
        mesh.serve_no_more(&self.own_service);
    }

    /// Tells the home something. Where a one-way call is told that an earlier one has failed, a put that is, that is
    /// kept for the next put, and what is to be told is told again.
    fn tell(&self, method: &str, call: impl Fn() -> Call) -> Result<()> {
        let mesh = self.mesh()?;
        let mut told = mesh.check_one_way(self.home, self.service.clone());
        for _ in 0..TELLS_MAX {
            if let Err(error) = told {
                self.state.lock().failed.get_or_insert(error);
            }
            told = mesh.cast(self.home, self.service.clone(), method, call());
            // A queue that was closed is no reason: an end may take what is left.
            let is_over = |error: &Error| error.kind() == ErrorKind::PeerLost || !mesh.is_member();
            if told.as_ref().err().is_none_or(is_over) {
                break;
            }
        }
        told
    }

    /// The same a while later: what is wanted may have changed.
    fn renewed(&self, then: Then) -> Then {
        let (Then::Want(_), Some(place)) = (then, self.place.get()) else { return then };
        Then::Want(self.state.lock().want_still(place))
    }

    fn after(&self, then: Then) {
        let told = match then {
            Then::Nothing => Ok(()),
            Then::Want(want) => self.tell(WANT, || want.to_call()),
            Then::Back(first, count) => {
                self.place().and_then(|place| self.tell(BACK, || protocol::about(place.number, first, count)))
            }
        };
        let Ok(mesh) = self.mesh() else { return };
        // That the home is gone is heard by the call that says when the queue is closed.
        if told.is_ok() || !mesh.is_member() || mesh.link_to(self.home).is_err() {
            return;
        }
        // There was no memory for it, say. Where the node ends nobody waits.
        let (runtime, own) = (mesh.runtime().clone(), self.own.clone());
        drop(mesh.spawn("queue", async move {
            runtime.sleep_until(runtime.after(RETRY))?.await;
            own.upgrade().into_iter().for_each(|end| end.after(end.renewed(then)));
            Ok(())
        }));
    }

    /// Takes an item that is here.
    pub(super) fn get(&self) -> Result<Option<(u32, u64, Packet)>> {
        let place = self.place()?;
        let mut dropped = Vec::new();
        let (item, then) = {
            let mut state = self.state.lock();
            let mut taken = None;
            while let Some((number, of_queue, packet)) = state.given.pop_front() {
                let is_taken = place.words.as_ref().is_none_or(|words| words.turn().begin(number));
                if is_taken || planted::strikes(Bug::RevokedTaken) {
                    taken = Some((number, of_queue, packet));
                    break;
                }
                state.most = 1;
                dropped.push(packet);
            }
            if let Some((number, ..)) = &taken {
                state.begun = number.wrapping_add(1);
                state.held.insert(*number);
                state.kept.take_if(|kept| *kept == *number);
                Self::publish(place, &state);
            }
            let then = if taken.is_some() { self.after_take(place, &mut state) } else { Then::Nothing };
            let over = state.over.clone().filter(|_| taken.is_none());
            (over.map_or(Ok(taken), Err), then)
        };
        self.after(then);
        // Memory of others is given back without the lock.
        drop(dropped);
        item.map_err(|error| error.asked_for("get"))
    }

    /// Asks for more before the last is taken, and says that all is taken where somebody may wait to hear it.
    fn after_take(&self, place: &Place, state: &mut State) -> Then {
        let is_enough = state.is_asked || state.given.len() > state.most / 2;
        if state.over.is_some() {
            return Then::Nothing;
        }
        if place.has_ahead() && !is_enough {
            state.is_asked = true;
            let most = state.most;
            return Then::Want(state.want(place, most, false));
        }
        Self::unless_given(place, state)
    }

    /// Says that all that was given is taken, of a queue that is closed.
    fn unless_given(place: &Place, state: &mut State) -> Then {
        match state.home.is_closed && state.given.is_empty() {
            true => Then::Want(state.want_still(place)),
            false => Then::Nothing,
        }
    }

    fn publish(place: &Place, state: &State) {
        if let Some(words) = &place.words {
            words.settle(state.settled());
        }
    }

    /// An item is not held any more.
    pub(super) fn settle(&self, number: u32) {
        let Some(place) = self.place.get() else { return };
        let mut state = self.state.lock();
        state.held.remove(&number);
        Self::publish(place, &state);
    }

    /// A work that ends when there may be an item, or there will be none.
    pub(super) fn available(&self) -> Result<Work<()>> {
        let (mesh, place) = (self.mesh()?, self.place()?);
        let link = mesh.link_to(self.home).ok();
        let (work, then) = {
            let mut state = self.state.lock();
            if !state.given.is_empty() || state.over.is_some() {
                return Ok(Work::ready("get", Ok(())));
            }
            let (completer, work) = mesh.node().described("get", link, self.awaited(GETS));
            state.getters.retain(Completer::is_awaited);
            state.getters.push(completer);
            let mut then = Then::Nothing;
            if !state.is_waiting {
                (state.is_waiting, state.is_asked) = (true, true);
                let most = if place.has_ahead() { state.most } else { 1 };
                then = Then::Want(state.want(place, most, true));
            }
            (work, then)
        };
        self.after(then);
        Ok(work)
    }

    /// Says so if nobody waits for an item any more. What has come for those who did is kept from nobody.
    pub(super) fn give_up(&self) {
        let Some(place) = self.place.get() else { return };
        let (then, _back) = {
            let mut state = self.state.lock();
            let is_for_somebody = state.is_waiting || state.kept.is_some();
            if !is_for_somebody || state.has_getter() {
                return;
            }
            match (state.kept.take(), &place.words) {
                (Some(first), None) => {
                    let (back, given) = state.given.drain(..).partition(|(number, ..)| *number == first);
                    state.given = given;
                    (Then::Back(first, 1), back)
                }
                _ => {
                    (state.is_waiting, state.is_asked) = (false, false);
                    (Then::Want(state.want(place, 0, false)), VecDeque::new())
                }
            }
        };
        self.after(then);
    }

    /// Puts an item; returns it if there is no room. The work ends when it was taken in, or after `deadline`, by which
    /// the home lets it in no more.
    pub(super) fn put(&self, packet: Packet, deadline: Option<Duration>) -> Result<Put> {
        let place = self.place()?;
        {
            let mut state = self.state.lock();
            if let Some(error) = state.failed.take().or_else(|| state.over.clone()) {
                return Err(error.asked_for("put"));
            }
            if state.home.is_full && !place.is_strict {
                return Ok(Put::Refused(packet));
            }
        }
        let mesh = self.mesh()?;
        if !place.is_strict && !mesh.room(self.home, self.service.clone(), None).is_done() {
            return Ok(Put::Refused(packet));
        }
        let call = protocol::put(packet, |tensor| Part::new(tensor, Mode::Copy));
        if place.is_strict {
            let work = mesh.call(self.home, self.service.clone(), PUT, Call { deadline, ..call })?;
            return Ok(Put::Begun(work.map(|_| Ok(()))));
        }
        mesh.cast(self.home, self.service.clone(), PUT, call).map_err(|error| error.asked_for("put"))?;
        Ok(Put::Begun(Work::ready("put", Ok(()))))
    }

    pub(super) fn is_strict(&self) -> bool {
        self.place.get().is_some_and(|place| place.is_strict)
    }

    /// Puts an item if the home has room. The work says whether it has.
    pub(super) fn offer(&self, packet: Packet) -> Result<Work<bool>> {
        if let Some(error) = &self.state.lock().over {
            return Err(error.clone().asked_for("put"));
        }
        let call = protocol::put(packet, |tensor| Part::new(tensor, Mode::Copy));
        let work = self.mesh()?.call(self.home, self.service.clone(), OFFER, call)?;
        Ok(work.map(|answer| protocol::truth(&answer.value)))
    }

    /// A work that ends when there may be room.
    pub(super) fn room(&self) -> Result<Work<()>> {
        let mesh = self.mesh()?;
        let mut state = self.state.lock();
        if state.over.is_some() {
            return Ok(Work::ready("put", Ok(())));
        }
        if !state.home.is_full {
            drop(state);
            return Ok(mesh.room(self.home, self.service.clone(), None));
        }
        let (completer, work) = mesh.node().described("put", mesh.link_to(self.home).ok(), self.awaited(PUTS));
        state.putters.retain(Completer::is_awaited);
        state.putters.push(completer);
        Ok(work)
    }

    pub(super) fn length(&self) -> Result<Work<usize>> {
        let mesh = self.mesh()?;
        let work = mesh.call(self.home, self.service.clone(), LENGTH, Call::default())?;
        Ok(work.map(|answer| Ok(protocol::number(&answer.value)? as usize)))
    }

    fn awaited(&self, which: Which) -> Awaited {
        let knows: Weak<dyn Describe> = self.own.clone();
        Awaited::new(knows, which)
    }

    fn items(&self, request: Request) -> Result<()> {
        let Items { first, is_kept, items } = Items::read(request.args, request.tensors)?;
        let place = self.place()?;
        let has_words = place.words.is_some();
        let (getters, then) = {
            let mut state = self.state.lock();
            let count = items.len();
            (state.is_asked, state.is_waiting) = (false, false);
            if state.is_detached {
                // What was not taken goes to others.
                return Ok(());
            }
            let is_wanted = state.has_getter();
            if !has_words && !is_wanted {
                (Vec::new(), Then::Back(first, count as u32))
            } else {
                // All that was asked for was there: more may be.
                let grows = has_words && count >= state.most;
                state.most = if grows { (2 * count).min(AHEAD_MAX) } else { state.most };
                let numbered = (0..).map(|at: u32| first.wrapping_add(at)).zip(items);
                state.given.extend(numbered.map(|(at, (number, packet))| (at, number, packet)));
                let kept_no_more = state.want(place, 0, false);
                let then = if is_kept && !is_wanted { Then::Want(kept_no_more) } else { Then::Nothing };
                state.kept = (is_kept && is_wanted).then_some(first).or(state.kept);
                (std::mem::take(&mut state.getters), then)
            }
        };
        getters.into_iter().for_each(|getter| getter.complete(Ok(())));
        self.after(then);
        Ok(())
    }

    fn shown(&self, args: Value) -> Result<()> {
        let shown = Shown::read(args)?;
        let (putters, then) = {
            let mut state = self.state.lock();
            if shown.turn < state.home.turn {
                return Ok(());
            }
            state.home = shown;
            let putters = if shown.is_full { Vec::new() } else { std::mem::take(&mut state.putters) };
            // An end that is not attached yet was given nothing.
            let then = self.place.get().map(|place| Self::unless_given(place, &mut state));
            (putters, then.unwrap_or(Then::Nothing))
        };
        putters.into_iter().for_each(|putter| putter.complete(Ok(())));
        self.after(then);
        Ok(())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.detach();
    }
}

fn about(end: u64) -> Call {
    Call::of(Value::Int(end.cast_signed()))
}

impl Describe for End {
    fn describe(&self, which: Which) -> Option<Account> {
        let peer = self.mesh.upgrade().and_then(|mesh| mesh.peer_of(self.home));
        let home = peer.map_or_else(|| format!("node {}", self.home), |peer| peer.to_string());
        let whom = match which {
            GETS => format!("an item from its home, {home}"),
            _ => format!("room at its home, {home}"),
        };
        Some(Account { what: Some(format!("{} queue {}", verb(which), self.name)), whom: Some(whom) })
    }
}

pub(super) fn verb(which: Which) -> &'static str {
    if which == GETS { "get from" } else { "put to" }
}

/// What the home calls.
struct Desk(Weak<End>);

impl Service for Desk {
    fn handle(&self, request: Request) {
        let Some(end) = self.0.upgrade() else { return };
        let heard = match request.method.as_str() {
            ITEMS => end.items(request),
            STATE => end.shown(request.args),
            _ => Err(protocol::unreadable()),
        };
        if let Err(error) = heard {
            // Its home is of another release, or worse.
            end.over(error);
        }
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }
}
