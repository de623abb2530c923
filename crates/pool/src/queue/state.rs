//! What the home of a queue knows: the items that nobody has, and which end has which.
//!
//! Items have numbers in the order in which they came. An end is given some, under numbers of its own (those of its
//! [`Turn`](crate::Turn)), and *leases* them: it takes one after the other by the [`Words`], without a message, and as
//! long as it has not taken one, that can be taken back. So an item that one end has been given ahead of need is not
//! kept from another end, whose user waits; and when an end dies, the words say which items it had taken. Those that
//! it held then, for its user had not come back for another, are lost and reported; all others go on.
//!
//! An end that reaches no memory of the home, over TCP, is given items that somebody waits for alone: all that it was
//! given counts as taken, until it says which it holds no more. Nor is any end of a queue with a capacity given items
//! ahead of need: they would be in the queue, and not.
//!
//! A closed queue is *over* once each of its items is known to be taken. While one is with an end that may give it
//! back, nobody who waits is told that there is nothing any more: it would come back to nobody. So ends say when they
//! have taken the last of what they were given, once they have heard that the queue is closed.

use super::protocol::{Shown, Want};
use super::words::Words;
use crate::packet::Packet;
use crate::turn::is_begun;
use sheave_base::planted::{self, Bug};
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, NodeId, Peer, Result, limits};
use sheave_mesh::Reply;
use std::collections::{BTreeMap, VecDeque};

/// Items that one end is given ahead at most, and bytes of them.
pub(super) const AHEAD_MAX: usize = 64;
const AHEAD_BYTES_MAX: usize = 256 << 10;
const AHEAD_TENSORS_MAX: usize = 256;

/// An item that was lost.
#[derive(Clone, Debug)]
pub struct Lost {
    /// Its number: how many were put before it.
    pub number: u64,
    /// The peer that had it.
    pub holder: Peer,
    /// The error that says what became of that.
    pub error: Error,
}

pub(super) struct Queued {
    pub(super) number: u64,
    pub(super) packet: Packet,
}

/// An item that an end has been given.
struct Lease {
    /// The end's own number for it.
    at: u32,
    number: u64,
    /// The item itself, until it is taken.
    packet: Option<Packet>,
}

impl Lease {
    fn into_item(self) -> Option<Queued> {
        Some(Queued { number: self.number, packet: self.packet? })
    }
}

/// A process that has attached itself.
pub(super) struct End {
    pub(super) node: NodeId,
    pub(super) service: String,
    words: Option<Words>,
    leased: VecDeque<Lease>,
    next: u32,
    /// How many more it wants.
    want: usize,
    is_waiting: bool,
    /// What it was given first when it last waited: that is not taken back, for somebody takes it soon.
    kept: Option<u32>,
    /// Without words: the number below which it holds nothing, and the one behind the last that it has taken, as it has
    /// said.
    settled: u32,
    taken: u32,
    /// The turn in which it has said last what it wants.
    turn: u64,
    /// Somebody sends to it.
    pub(super) is_served: bool,
    /// Asks when the queue is closed.
    closed: Option<Reply>,
}

impl End {
    /// The number of the first item that it has not taken.
    fn begun(&self) -> u32 {
        self.words.as_ref().map_or(self.next, |words| words.turn().begun())
    }

    /// Forgets what it has taken and holds no more, and the contents of what it has taken.
    fn settle(&mut self) {
        let (begun, settled) = (self.begun(), self.words.as_ref().map_or(self.settled, Words::settled));
        while self.leased.front().is_some_and(|lease| is_begun(lease.at, settled) && is_begun(lease.at, begun)) {
            self.leased.pop_front();
        }
        // Without words it may give back what it was given.
        let kept = if self.words.is_some() { begun } else { settled };
        let taken = self.leased.partition_point(|lease| is_begun(lease.at, kept));
        self.leased.range_mut(..taken).for_each(|lease| lease.packet = None);
    }

    /// How many of its items it has not taken.
    fn untaken(&self) -> usize {
        let begun = self.begun();
        self.leased.len() - self.leased.partition_point(|lease| is_begun(lease.at, begun))
    }

    /// How many of its items may come back, as far as is known.
    fn outstanding(&self) -> usize {
        let begun = if self.words.is_some() { self.begun() } else { self.taken };
        self.leased.len() - self.leased.partition_point(|lease| is_begun(lease.at, begun))
    }

    /// How many of its items may be taken back for somebody who waits.
    fn spare(&self) -> usize {
        let Some(words) = &self.words else { return 0 };
        let keeps = self.kept.is_some_and(|kept| !is_begun(kept, words.turn().begun()));
        self.untaken().saturating_sub(usize::from(keeps))
    }

    /// Takes back the later half of what it has to spare.
    fn take_back_half(&mut self) -> Vec<Queued> {
        let (Some(words), Some(last)) = (&self.words, self.leased.back()) else { return Vec::new() };
        let count = self.spare().div_ceil(2) as u32;
        let first = words.turn().take_back_behind(last.at.wrapping_sub(count));
        self.from(first)
    }

    /// Takes back all that it has not taken.
    fn take_back(&mut self) -> Vec<Queued> {
        let Some(words) = &self.words else { return Vec::new() };
        let first = words.turn().take_back();
        self.from(first)
    }

    /// Takes away what it has under the numbers from this one on.
    fn leases_from(&mut self, first: u32) -> VecDeque<Lease> {
        let at = self.leased.partition_point(|lease| is_begun(lease.at, first));
        self.leased.split_off(at)
    }

    /// Takes away the items from this number of its own on.
    fn from(&mut self, first: u32) -> Vec<Queued> {
        self.leases_from(first).into_iter().filter_map(Lease::into_item).collect()
    }

    /// What it had wanted could not be sent.
    pub(super) fn wants_one(&mut self) {
        (self.want, self.is_waiting) = (1, true);
    }

    /// Whether it may be given more: behind items that were taken back there is nothing that it could take. And without
    /// words, one is on its way at most, for none can be taken back.
    fn may_have_more(&self) -> bool {
        if self.words.is_none() {
            return self.leased.back().is_none_or(|last| is_begun(last.at, self.taken));
        }
        let is_last = |last: &Lease| last.at.wrapping_add(1) == self.next;
        self.untaken() == 0 || self.leased.back().is_some_and(is_last)
    }
}

/// Somebody who waits for room.
pub(super) enum Putter {
    /// With the size of its item.
    Here(Completer<()>, usize),
    There(Box<(Reply, Packet)>),
}

/// Those who are told something, once no lock is held.
#[derive(Default)]
pub(super) struct Told {
    works: Vec<Completer<()>>,
    replies: Vec<(Reply, Result<()>)>,
}

impl Told {
    /// Somebody waits for room no more.
    fn refuse(&mut self, putter: Putter) {
        if let Putter::There(there) = putter {
            self.replies.push((there.0, Err(Error::new(ErrorKind::DeadlineExceeded, "there was no room"))));
        }
    }

    pub(super) fn answer(&mut self, reply: Reply, outcome: Result<()>) {
        self.replies.push((reply, outcome));
    }

    pub(super) fn tell(self) {
        self.works.into_iter().for_each(|work| work.complete(Ok(())));
        for (reply, outcome) in self.replies {
            match outcome {
                Ok(()) => reply.value(()),
                Err(error) => reply.error(error),
            }
        }
    }
}

pub(super) struct State {
    waiting: VecDeque<Queued>,
    bytes: u64,
    next: u64,
    /// So many items are there at most, if each put waits for that.
    pub(super) capacity: Option<usize>,
    pub(super) ends: BTreeMap<u64, End>,
    next_end: u64,
    putters: VecDeque<Putter>,
    getters: Vec<Completer<()>>,
    /// The state that ends are told of.
    pub(super) shown: Shown,
    /// Why nothing can be put any more.
    closed: Option<Error>,
    /// The node of the queue leaves: nothing comes back.
    has_left: bool,
    lost: VecDeque<Lost>,
    lost_count: u64,
}

impl State {
    pub(super) fn new(capacity: Option<usize>) -> Self {
        Self {
            waiting: VecDeque::new(),
            bytes: 0,
            next: 0,
            capacity,
            ends: BTreeMap::new(),
            next_end: 0,
            putters: VecDeque::new(),
            getters: Vec::new(),
            shown: Shown::default(),
            closed: None,
            has_left: false,
            lost: VecDeque::new(),
            lost_count: 0,
        }
    }

    fn check_open(&self) -> Result<()> {
        self.closed.clone().map_or(Ok(()), Err)
    }

    /// Fails if there will be no item any more.
    pub(super) fn check(&self) -> Result<()> {
        if self.is_over() { self.check_open() } else { Ok(()) }
    }

    fn is_over(&self) -> bool {
        let is_taken = || self.waiting.is_empty() && self.ends.values().all(|end| end.outstanding() == 0);
        self.closed.is_some() && (self.has_left || is_taken())
    }

    /// Whether there is room for an item of this size. What was given to somebody counts no more.
    fn has_room(&self, bytes: usize) -> bool {
        let has_place = self.waiting.len() < self.capacity.unwrap_or(limits::QUEUE_ITEMS_MAX);
        has_place && (self.bytes == 0 || self.bytes + bytes as u64 <= limits::QUEUE_BYTES_MAX)
    }

    /// Items that nobody has taken.
    pub(super) fn length(&self) -> usize {
        self.waiting.len() + self.ends.values().map(End::untaken).sum::<usize>()
    }

    /// Whether ends are to be told something: that it was closed; or that it has become too full, or has become half
    /// empty since, where ends put without waiting for each item.
    pub(super) fn has_turned(&mut self) -> bool {
        let is_half = || self.waiting.len() <= limits::QUEUE_ITEMS_MAX / 2 && self.bytes <= limits::QUEUE_BYTES_MAX / 2;
        let is_full = if self.shown.is_full { !is_half() } else { self.capacity.is_none() && !self.has_room(1) };
        let Shown { turn, .. } = self.shown;
        let shown = Shown { is_full, is_closed: self.closed.is_some(), turn };
        let has_turned = shown != self.shown;
        self.shown = Shown { turn: turn + u64::from(has_turned), ..shown };
        has_turned
    }

    /// Adds an item, if there is room. One of another process, which did not wait, is always added.
    pub(super) fn put(&mut self, packet: Packet, must: bool, told: &mut Told) -> Result<Option<Packet>> {
        self.check_open()?;
        if !must && !self.has_room(packet.weight_bytes()) {
            return Ok(Some(packet));
        }
        self.add(packet, told);
        Ok(None)
    }

    fn add(&mut self, packet: Packet, told: &mut Told) {
        self.bytes += packet.weight_bytes() as u64;
        self.waiting.push_back(Queued { number: self.next, packet });
        self.next += 1;
        self.tell_getters(told);
    }

    fn tell_getters(&mut self, told: &mut Told) {
        if !self.waiting.is_empty() && !planted::strikes(Bug::GetterUntold) {
            told.works.append(&mut self.getters);
        }
    }

    pub(super) fn await_room(&mut self, putter: Putter, told: &mut Told) {
        let is_gone = |putter: &Putter| match putter {
            Putter::Here(work, _) => !work.is_awaited(),
            Putter::There(there) => !there.0.is_wanted(),
        };
        for other in std::mem::take(&mut self.putters) {
            if is_gone(&other) {
                told.refuse(other);
            } else {
                self.putters.push_back(other);
            }
        }
        self.putters.push_back(putter);
    }

    /// Lets in those who wait for room, as there is some.
    pub(super) fn let_in(&mut self, told: &mut Told) {
        while let Some(putter) = self.putters.front() {
            let bytes = match putter {
                Putter::Here(_, bytes) => *bytes,
                Putter::There(there) => there.1.weight_bytes(),
            };
            if !self.has_room(bytes) {
                return;
            }
            match self.putters.pop_front() {
                // It tries again, and the others after it.
                Some(Putter::Here(work, _)) => told.works.push(work),
                Some(Putter::There(there)) if there.0.is_wanted() => {
                    self.add(there.1, told);
                    told.replies.push((there.0, Ok(())));
                }
                Some(late) => told.refuse(late),
                None => {}
            }
        }
    }

    /// An item for somebody on this node.
    pub(super) fn get(&mut self, told: &mut Told) -> Option<Queued> {
        if self.waiting.is_empty() {
            self.take_back(None);
        }
        let item = self.waiting.pop_front()?;
        self.bytes -= item.packet.weight_bytes() as u64;
        self.let_in(told);
        Some(item)
    }

    /// Whether somebody on this node may find an item.
    pub(super) fn has_some(&self) -> bool {
        !self.waiting.is_empty() || self.ends.values().any(|end| end.spare() > 0)
    }

    pub(super) fn await_item(&mut self, getter: Completer<()>) {
        self.getters.retain(Completer::is_awaited);
        self.getters.push(getter);
    }

    pub(super) fn attach(&mut self, node: NodeId, service: String, words: Option<Words>) -> Result<u64> {
        if self.ends.len() >= limits::QUEUE_ENDS_MAX {
            let what = format!("{} ends of this queue already; expected fewer", self.ends.len());
            return Err(Error::new(ErrorKind::LimitExceeded, what));
        }
        let end = End {
            node,
            service,
            words,
            leased: VecDeque::new(),
            next: 0,
            want: 0,
            is_waiting: false,
            kept: None,
            settled: 0,
            taken: 0,
            turn: 0,
            is_served: false,
            closed: None,
        };
        self.next_end += 1;
        self.ends.insert(self.next_end, end);
        Ok(self.next_end)
    }

    /// An end of this node's. One that is not there has gone, or never was.
    fn end_of(&mut self, node: NodeId, end: u64) -> Option<&mut End> {
        self.ends.get_mut(&end).filter(|end| end.node == node)
    }

    /// An end has knocked. Without being heard it is served without words.
    pub(super) fn enter(&mut self, node: NodeId, end: u64) -> Result<bool> {
        let end = self.end_of(node, end).ok_or_else(unknown)?;
        end.words = end.words.take().filter(Words::answer_knock);
        Ok(end.words.is_some())
    }

    pub(super) fn await_close(&mut self, node: NodeId, end: u64, reply: Reply, told: &mut Told) {
        match self.end_of(node, end) {
            Some(end) => end.closed = Some(reply),
            None => told.replies.push((reply, Err(unknown()))),
        }
    }

    /// An end says what it wants. If there is nothing for one that waits, what others have not taken is taken back.
    pub(super) fn want(&mut self, node: NodeId, want: Want, told: &mut Told) {
        let is_empty = self.waiting.is_empty();
        let Some(end) = self.end_of(node, want.end) else { return };
        if want.turn < end.turn {
            return;
        }
        end.turn = want.turn;
        (end.settled, end.taken) = (want.settled, want.begun);
        end.settle();
        end.want = want.most.min(AHEAD_MAX);
        end.is_waiting = want.is_waiting;
        let had_kept = !want.is_waiting && end.kept.take().is_some();
        if want.is_waiting && is_empty {
            self.take_back(Some(want.end));
        } else if had_kept && is_empty && self.somebody_waits() {
            // Nothing was taken from it while it waited.
            self.take_back(None);
            self.tell_getters(told);
        }
        // What it has taken has left room.
        self.let_in(told);
    }

    fn somebody_waits(&self) -> bool {
        self.getters.iter().any(Completer::is_awaited) || self.ends.values().any(|end| end.is_waiting)
    }

    /// Takes back half of what the end has to spare that has most, for somebody who waits.
    fn take_back(&mut self, waits: Option<u64>) {
        if planted::strikes(Bug::AheadKept) {
            return;
        }
        let others = self.ends.iter_mut().filter(|(number, _)| Some(**number) != waits);
        let Some((_, richest)) = others.max_by_key(|(_, end)| end.spare()) else { return };
        if richest.spare() > 0 {
            let items = richest.take_back_half();
            self.give_back(items);
        }
    }

    /// Items are there again, where they were.
    fn give_back(&mut self, mut items: Vec<Queued>) {
        items.sort_unstable_by_key(|item| item.number);
        for item in items.into_iter().rev() {
            self.bytes += item.packet.weight_bytes() as u64;
            self.waiting.push_front(item);
        }
    }

    /// An end does not take so many items from this number of its own on.
    pub(super) fn back(&mut self, node: NodeId, (end, first, count): (u64, u32, u32), told: &mut Told) {
        let Some(end) = self.end_of(node, end) else { return };
        let mut items = end.leases_from(first);
        // Others have been given it meanwhile.
        end.leased.extend(items.drain((count as usize).min(items.len())..));
        let items = items.into_iter().filter_map(Lease::into_item).collect();
        self.give_back(items);
        self.tell_getters(told);
    }

    /// Who is to be given items, those that wait first.
    pub(super) fn needy(&self) -> Option<u64> {
        if self.waiting.is_empty() {
            return None;
        }
        let may_have = |end: &End| end.want > 0 && !end.is_served && end.may_have_more();
        let waits = self.ends.iter().find(|(_, end)| end.is_waiting && may_have(end));
        // Whoever waits here takes one as soon as it can.
        let are_here = || self.getters.iter().filter(|getter| getter.is_awaited()).count();
        let ahead = || self.ends.iter().find(|(_, end)| end.words.is_some() && may_have(end));
        let found = waits.or_else(|| if self.waiting.len() > are_here() { ahead() } else { None });
        found.map(|(number, _)| *number)
    }

    /// Gives this end items, and returns the first number and how many.
    pub(super) fn draw(&mut self, number: u64) -> Option<(u32, usize)> {
        let others = self.ends.values().filter(|end| end.want > 0).count();
        let share = self.waiting.len().div_ceil(others.max(1));
        let end = self.ends.get_mut(&number)?;
        end.settle();
        let count_max = if end.words.is_some() { share.min(end.want) } else { 1 };
        let (first, mut bytes, mut tensors, mut count) = (end.next, 0, 0, 0);
        while count < count_max {
            let Some(packet) = self.waiting.front().map(|item| &item.packet) else { break };
            (bytes, tensors) = (bytes + packet.weight_bytes(), tensors + packet.tensors.len());
            if count > 0 && (bytes > AHEAD_BYTES_MAX || tensors > AHEAD_TENSORS_MAX) {
                break;
            }
            let Some(item) = self.waiting.pop_front() else { break };
            self.bytes -= item.packet.weight_bytes() as u64;
            end.leased.push_back(Lease { at: end.next, number: item.number, packet: Some(item.packet) });
            end.next = end.next.wrapping_add(1);
            count += 1;
        }
        if let Some(words) = &end.words {
            words.turn().give(first, count as u32);
        }
        end.kept = end.is_waiting.then_some(first).or(end.kept);
        end.want -= count;
        end.is_waiting = false;
        end.is_served = count > 0;
        (count > 0).then_some((first, count))
    }

    /// Whether an end is to keep what was given it under this number.
    pub(super) fn keeps(&self, end: u64, first: u32) -> bool {
        self.ends.get(&end).is_some_and(|end| end.kept == Some(first))
    }

    /// The last items of an end.
    pub(super) fn last(&self, end: u64, count: usize) -> Vec<(u64, &Packet)> {
        let Some(end) = self.ends.get(&end) else { return Vec::new() };
        let last = end.leased.range(end.leased.len() - count.min(end.leased.len())..);
        last.filter_map(|lease| Some((lease.number, lease.packet.as_ref()?))).collect()
    }

    /// What an end was given last did not leave. It wants nothing until it says so again.
    pub(super) fn undo(&mut self, end: u64, first: u32, told: &mut Told) {
        let Some(end) = self.ends.get_mut(&end) else { return };
        if let Some(words) = &end.words {
            words.turn().take_back_from(first);
        }
        (end.next, end.want) = (first, 0);
        let items = end.from(first);
        self.give_back(items);
        self.tell_getters(told);
    }

    /// An end has left in order, and has taken nothing from this number of its own on.
    pub(super) fn leave(&mut self, node: NodeId, end: u64, first: u32, told: &mut Told) {
        if self.end_of(node, end).is_none() {
            return;
        }
        let Some(mut end) = self.ends.remove(&end) else { return };
        let items = if end.words.is_some() { end.take_back() } else { end.from(first) };
        self.come_back(items, told);
    }

    /// An end is not there any more, and has not said so. What it may hold is lost.
    pub(super) fn lose(&mut self, end: u64, holder: &Peer, error: &Error, told: &mut Told) {
        let Some(mut end) = self.ends.remove(&end) else { return };
        let items = end.take_back();
        end.settle();
        // With words, who leaves in order holds nothing any more.
        let is_in_order = error.kind() == ErrorKind::Closed && end.words.is_some();
        if !is_in_order && !planted::strikes(Bug::LossUntold) {
            for lease in end.leased.drain(..) {
                self.report(Lost { number: lease.number, holder: holder.clone(), error: error.clone() });
            }
        }
        self.come_back(items, told);
    }

    fn come_back(&mut self, items: Vec<Queued>, told: &mut Told) {
        self.give_back(items);
        self.tell_getters(told);
        self.let_in(told);
    }

    fn report(&mut self, lost: Lost) {
        self.lost_count += 1;
        if self.lost.len() == limits::QUEUE_LOST_MAX {
            self.lost.pop_front();
        }
        self.lost.push_back(lost);
    }

    pub(super) fn lost(&self) -> (u64, Vec<Lost>) {
        (self.lost_count, self.lost.iter().cloned().collect())
    }

    /// All ends of a node that is gone.
    pub(super) fn ends_of(&self, node: NodeId) -> Vec<u64> {
        self.ends.iter().filter(|(_, end)| end.node == node).map(|(number, _)| *number).collect()
    }

    /// Nothing can be put any more.
    pub(super) fn close(&mut self, error: &Error, told: &mut Told) {
        if self.closed.is_some() {
            return;
        }
        self.closed = Some(error.clone());
        for putter in self.putters.drain(..) {
            match putter {
                Putter::Here(work, _) => told.works.push(work),
                Putter::There(there) => told.replies.push((there.0, Err(error.clone()))),
            }
        }
    }

    /// The node of the queue leaves it.
    pub(super) fn abandon(&mut self, error: &Error, told: &mut Told) {
        self.has_left = true;
        self.close(error, told);
    }

    /// Tells everybody if there will be nothing any more.
    pub(super) fn finish(&mut self, told: &mut Told) {
        if self.is_over() {
            told.works.append(&mut self.getters);
            let closed = self.ends.values_mut().filter_map(|end| end.closed.take());
            told.replies.extend(closed.map(|reply| (reply, Ok(()))));
        }
    }

    /// Tells all ends that there is nothing any more.
    pub(super) fn end_all(&mut self, error: &Error, told: &mut Told) {
        let closed = self.ends.values_mut().filter_map(|end| end.closed.take());
        told.replies.extend(closed.map(|reply| (reply, Err(error.clone()))));
    }

    /// What there is, in words.
    pub(super) fn describe(&self) -> String {
        let taken: usize = self.ends.values().map(|end| end.leased.len()).sum();
        format!("{} items wait, {taken} are with {} ends", self.waiting.len(), self.ends.len())
    }
}

fn unknown() -> Error {
    Error::new(ErrorKind::NotFound, "the queue has no such end")
}
