//! Which message completes which receive.
//!
//! A receive names a context, a tag and perhaps a source. Messages meet receives in the order of arrival and of
//! posting: the oldest receive that fits takes the message, and a new receive takes the oldest message that fits. A
//! message that nobody asked for waits here, within two limits; beyond them it stays on its link and pushes back on its
//! sender.
//!
//! A receive leaves the table when a message is found for it, before the tensors have moved; from then on it belongs to
//! the link that carries them, which completes it with the message or with the reason of its own end.

use crate::link::{Arrival, Landing, Verdict};
use crate::message::{Message, Tensors, WriteLeases};
use parking_lot::{Mutex, MutexGuard};
use sheave_base::collections::{HashMap, HashSet};
use sheave_base::limits::{REFUSED_CONTEXTS_MAX, UNEXPECTED_BYTES_MAX, UNEXPECTED_MESSAGES_MAX};
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, LinkId, Result, Tag};
use sheave_tensor::{Dtype, Tensor};
use sheave_wire::Part;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

/// What a receive asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The link, or any.
    pub source: Option<LinkId>,
    /// The group or service.
    pub context: u64,
    /// The tag.
    pub tag: Tag,
}

impl Wanted {
    pub(crate) fn fits(&self, source: LinkId, context: u64, tag: Tag) -> bool {
        self.context == context && self.tag == tag && self.source.is_none_or(|wanted| wanted == source)
    }
}

/// A receive that waits.
pub(crate) struct Posted {
    pub(crate) wanted: Wanted,
    pub(crate) places: Tensors,
    pub(crate) leases: WriteLeases,
    pub(crate) completer: Completer<Message>,
}

impl Posted {
    /// Frees the places, then tells whoever waits.
    pub(crate) fn finish(self, outcome: Result<Message>) {
        let Self { leases, completer, places, .. } = self;
        drop(leases);
        drop(places);
        completer.complete(outcome);
    }
}

impl std::fmt::Debug for Posted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Posted").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

/// All receives and all messages of a node that have not met. Callers serialise access.
#[derive(Default)]
pub(crate) struct Matcher {
    posted: VecDeque<(u64, Box<Posted>)>,
    unexpected: HashMap<(u64, Tag), VecDeque<Message>>,
    unexpected_messages: usize,
    unexpected_bytes: u64,
    /// Contexts in which nobody will ask for anything any more.
    refused: HashSet<u64>,
    next_ticket: u64,
}

/// The matcher behind its lock. Whether anything waits in it is known without the lock too.
#[derive(Default)]
pub(crate) struct Matching {
    matcher: Mutex<Matcher>,
    /// Written under the lock.
    waits: AtomicBool,
}

/// The matcher, locked.
pub(crate) struct Locked<'a> {
    matcher: MutexGuard<'a, Matcher>,
    waits: &'a AtomicBool,
}

impl Matching {
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked { matcher: self.matcher.lock(), waits: &self.waits }
    }

    /// True when no receive and no message waits.
    pub(crate) fn is_empty(&self) -> bool {
        !self.waits.load(Acquire)
    }
}

impl Deref for Locked<'_> {
    type Target = Matcher;

    fn deref(&self) -> &Matcher {
        &self.matcher
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Matcher {
        &mut self.matcher
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Still under the lock, which is dropped afterwards.
        self.waits.store(!self.matcher.posted.is_empty() || self.matcher.unexpected_messages > 0, Release);
    }
}

/// What became of a receive that was just posted.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each message")]
pub(crate) enum PostOutcome {
    /// It waits under this ticket.
    Waits(u64),
    /// A message was there already. The caller completes it with no lock held.
    Meets(Box<Posted>, Message),
}

impl Matcher {
    /// Posts a receive.
    pub(crate) fn post(&mut self, posted: Box<Posted>) -> PostOutcome {
        if let Some(message) = self.take_unexpected(&posted.wanted) {
            return PostOutcome::Meets(posted, message);
        }
        self.next_ticket += 1;
        self.posted.push_back((self.next_ticket, posted));
        PostOutcome::Waits(self.next_ticket)
    }

    fn take_unexpected(&mut self, wanted: &Wanted) -> Option<Message> {
        let key = (wanted.context, wanted.tag);
        let queue = self.unexpected.get_mut(&key)?;
        let at = queue.iter().position(|message| wanted.source.is_none_or(|source| source == message.source))?;
        let message = queue.remove(at)?;
        if queue.is_empty() {
            self.unexpected.remove(&key);
        }
        self.unexpected_messages -= 1;
        self.unexpected_bytes -= bytes_of(&message);
        Some(message)
    }

    /// A message arrives: finds its receive. Shapes are checked here, before anything moves. Without `has_room` the
    /// message waits unless its receive has named places for it.
    pub(crate) fn begin(&mut self, link: LinkId, arrival: &Arrival<'_>, has_room: bool) -> Verdict {
        let envelope = &arrival.envelope;
        let found = self.posted.iter().position(|(_, posted)| posted.wanted.fits(link, envelope.context, envelope.tag));
        let has_place = |at: usize| {
            self.posted
                .get(at)
                .is_some_and(|(_, posted)| !posted.places.is_empty() && check_places(&posted.places, arrival).is_ok())
        };
        if !has_room && !found.is_some_and(has_place) {
            return Verdict::Pause;
        }
        let Some((_, posted)) = found.and_then(|at| self.posted.remove(at)) else {
            return self.admit_unexpected(arrival);
        };
        // A message that does not fit is received elsewhere and dropped, so that the link stays in step.
        let refusal = check_places(&posted.places, arrival).err();
        Verdict::Land(Landing::of(Some(posted), refusal))
    }

    fn admit_unexpected(&self, arrival: &Arrival<'_>) -> Verdict {
        let bytes = self.unexpected_bytes.saturating_add(arrival.payload_bytes + arrival.control_bytes as u64);
        let full = self.unexpected_messages >= UNEXPECTED_MESSAGES_MAX
            || (bytes > UNEXPECTED_BYTES_MAX && self.unexpected_messages > 0);
        if full && !arrival.ending {
            return Verdict::Pause;
        }
        Verdict::Land(Landing::default())
    }

    /// A whole message that nobody had asked for when it began to arrive. Returns it with its receive if there is one
    /// by now; the caller completes it with no lock held.
    pub(crate) fn deliver(&mut self, message: Message) -> Option<(Box<Posted>, Message)> {
        self.find_or_keep(message, VecDeque::push_back)
    }

    /// Finds the receive of a message whose own was interrupted, or puts it in front of those that nobody has asked
    /// for. As [`Matcher::deliver`] in all else.
    pub(crate) fn put_back(&mut self, message: Message) -> Option<(Box<Posted>, Message)> {
        self.find_or_keep(message, VecDeque::push_front)
    }

    fn find_or_keep(
        &mut self,
        message: Message,
        keep: impl FnOnce(&mut VecDeque<Message>, Message),
    ) -> Option<(Box<Posted>, Message)> {
        let envelope = &message.envelope;
        let found = self
            .posted
            .iter()
            .position(|(_, posted)| posted.wanted.fits(message.source, envelope.context, envelope.tag));
        if let Some((_, posted)) = found.and_then(|at| self.posted.remove(at)) {
            return Some((posted, message));
        }
        if self.refused.contains(&envelope.context) {
            return None;
        }
        self.unexpected_messages += 1;
        self.unexpected_bytes += bytes_of(&message);
        let key = (envelope.context, envelope.tag);
        keep(self.unexpected.entry(key).or_default(), message);
        None
    }

    /// All receives that wait, for a node that ends.
    pub(crate) fn drain(&mut self) -> Vec<Posted> {
        std::mem::take(&mut self.posted).into_iter().map(|(_, posted)| *posted).collect()
    }

    /// Says what cancelling the receive does.
    pub(crate) fn on_cancel(&self, ticket: u64, cancel: impl FnOnce() + Send + 'static) {
        if let Some((_, posted)) = self.posted.iter().find(|(posted, _)| *posted == ticket) {
            posted.completer.on_cancel(cancel);
        }
    }

    /// Takes a receive back; `None` when a message was found for it already.
    pub(crate) fn withdraw(&mut self, ticket: u64) -> Option<Box<Posted>> {
        let at = self.posted.iter().position(|(posted, _)| *posted == ticket)?;
        self.posted.remove(at).map(|(_, posted)| posted)
    }

    /// A link has ended: returns every receive that only it could complete. With `none_left`, those of any source too.
    pub(crate) fn link_ended(&mut self, link: LinkId, none_left: bool) -> Vec<Posted> {
        let hopeless = |wanted: &Wanted| wanted.source.map_or(none_left, |source| source == link);
        let (gone, kept): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.posted).into_iter().partition(|(_, posted)| hopeless(&posted.wanted));
        self.posted = kept;
        gone.into_iter().map(|(_, posted)| *posted).collect()
    }

    /// From now on no message of these contexts waits for a receive. Returns those that do; the caller drops them with
    /// no lock held.
    pub(crate) fn refuse(&mut self, contexts: impl IntoIterator<Item = u64>) -> Vec<Message> {
        let room = REFUSED_CONTEXTS_MAX.saturating_sub(self.refused.len());
        self.refused.extend(contexts.into_iter().take(room));
        let refused = &self.refused;
        let unwanted = self.unexpected.extract_if(|(context, _), _| refused.contains(context));
        let messages: Vec<Message> = unwanted.flat_map(|(_, queue)| queue).collect();
        self.unexpected_messages -= messages.len();
        self.unexpected_bytes -= messages.iter().map(bytes_of).sum::<u64>();
        messages
    }

    /// Messages and bytes that wait for a receive.
    pub(crate) fn unexpected(&self) -> (usize, u64) {
        (self.unexpected_messages, self.unexpected_bytes)
    }
}

/// Completes a receive with a message that was received elsewhere: copies into the named places, if it has some.
pub(crate) fn meet(posted: Posted, mut message: Message) {
    if posted.places.is_empty() {
        return posted.finish(Ok(message));
    }
    let specs = message.parts.iter().map(|part| (part.dtype(), part.len_bytes()));
    if let Err(error) = check_against(&posted.places, specs) {
        return posted.finish(Err(error));
    }
    for (place, part) in posted.places.iter().zip(&mut message.parts) {
        // SAFETY: the lengths were checked to be equal, the receive holds the write lease of the place, and the
        // message is the only owner of its part's bytes or shares them by the sender's explicit wish.
        unsafe { sheave_tensor::copy_bytes(place.ptr(), part.ptr(), part.len_bytes()) };
        *part = place.clone();
    }
    posted.finish(Ok(message));
}

/// Whether the tensors that arrive fit into `places`: as many, each of the same dtype and size. No places fit anything.
///
/// # Errors
///
/// `Mismatch` that says what was given and what comes; `Protocol` for a dtype that this version does not know.
pub fn check_places(places: &[Tensor], arrival: &Arrival<'_>) -> Result<()> {
    if places.is_empty() {
        return Ok(());
    }
    let mut known: SmallVec<[(Dtype, usize); 2]> = SmallVec::new();
    for Part { spec, .. } in arrival.parts {
        let dtype = Dtype::from_code(spec.dtype)
            .ok_or_else(|| Error::new(ErrorKind::Protocol, format!("a tensor of unknown dtype {}", spec.dtype)))?;
        known.push((dtype, spec.length_bytes()? as usize));
    }
    check_against(places, known.into_iter())
}

fn check_against(places: &[Tensor], specs: impl ExactSizeIterator<Item = (Dtype, usize)>) -> Result<()> {
    if places.len() != specs.len() {
        let what = format!("{} buffers were given for a message of {} tensors", places.len(), specs.len());
        return Err(Error::new(ErrorKind::Mismatch, what));
    }
    for (place, (dtype, length_bytes)) in places.iter().zip(specs) {
        if place.dtype() != dtype || place.len_bytes() != length_bytes {
            let what = format!(
                "a buffer of {} bytes of {} was given for a tensor of {length_bytes} bytes of {}",
                place.len_bytes(),
                place.dtype().name(),
                dtype.name(),
            );
            return Err(Error::new(ErrorKind::Mismatch, what)
                .hint("give a buffer of the sender's dtype and size, or receive without a buffer"));
        }
    }
    Ok(())
}

/// Bytes of a message, tensors and control part.
pub(crate) fn bytes_of(message: &Message) -> u64 {
    message.parts.iter().map(|part| part.len_bytes() as u64).sum::<u64>() + message.control.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Envelope;
    use sheave_base::work::pair;

    fn message(sequence: u64) -> Message {
        let (envelope, source) = (Envelope::of(0, Tag(1), 2), LinkId(1));
        Message { envelope, source, sequence, control: Vec::new(), parts: Tensors::new() }
    }

    fn receive() -> Box<Posted> {
        let (completer, _) = pair("recv");
        let wanted = Wanted { source: None, context: 2, tag: Tag(1) };
        Box::new(Posted { wanted, places: Tensors::new(), leases: WriteLeases::default(), completer })
    }

    /// The receive of the first message is interrupted after the next one has been posted.
    #[test]
    fn a_message_that_is_put_back_meets_a_receive_that_waits_by_then() {
        let mut matcher = Matcher::default();
        assert!(matches!(matcher.post(receive()), PostOutcome::Waits(_)));
        let met = matcher.put_back(message(1)).map(|(_, message)| message.sequence);
        assert_eq!((met, matcher.unexpected_messages), (Some(1), 0));
        // Without one it is the first of those that wait.
        assert!(matcher.deliver(message(3)).is_none() && matcher.put_back(message(2)).is_none());
        let next = |matcher: &mut Matcher| match matcher.post(receive()) {
            PostOutcome::Meets(_, message) => message.sequence,
            PostOutcome::Waits(_) => 0,
        };
        assert_eq!([next(&mut matcher), next(&mut matcher), next(&mut matcher)], [2, 3, 0]);
    }
}
