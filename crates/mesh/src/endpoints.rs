//! The numbers under which a mesh takes messages from its node. `docs/design` lists those of all services.
//!
//! All of them are one endpoint, so that what one node says to another is taken in the order in which it was said, but
//! for what overtakes: words of the engine ([`ENGINE`]) and of room for requests ([`ROOM`]) are urgent. They are about
//! third nodes, or counts that only grow, and whoever hears them drops nothing that is still on its way. Where that is
//! not so, the word stays behind what was said before it:
//!
//! * Words of an engine by which something ends ([`ENGINE_IN_ORDER`]). A member asks to **leave**, or enters the
//!   barrier before all leave, behind its data: whoever it asks is about to go too, and takes nothing any more then.
//!   One that **fails** says so behind what it did before. And the words about **handles** of groups follow the
//!   messages of these groups, for a group that is made again after them must not meet an old message
//!   ([`crate::engine`]).
//! * A cancellation follows its request, and the last word of a host or guest what it has asked for ([`CALLS`]).
//! * Words about references are counted against those in requests and answers ([`REFERENCES`]).
//! * Answers carry tensors.
//!
//! So a barrier says nothing about messages: those that were sent before it was entered may come after it was left.

/// Words from one engine to another that overtake data.
pub(crate) const ENGINE: u8 = 1;

/// Words about references.
pub(crate) const REFERENCES: u8 = 2;

/// Requests to services; one-way ones have the number 0. Aux is for how many milliseconds the caller waits, or 0 where
/// that has no end.
pub(crate) const REQUESTS: u8 = 3;

/// Answers to requests. Aux is how many requests of the caller to the service have begun, modulo 2³². One of number 0
/// says that one-way calls have failed.
pub(crate) const ANSWERS: u8 = 4;

/// Words about calls: that one is cancelled; and the last word of a host or a guest. The context says which.
pub(crate) const CALLS: u8 = 5;

/// Words from one engine to another that stay behind what was sent before.
pub(crate) const ENGINE_IN_ORDER: u8 = 8;

/// Words that so many requests to a service have begun, which overtake data. The tag is the service's number, aux the
/// count as in an answer.
pub(crate) const ROOM: u8 = 9;

/// All of them.
pub(crate) const ALL: [u8; 7] = [ENGINE, REFERENCES, REQUESTS, ANSWERS, CALLS, ENGINE_IN_ORDER, ROOM];

/// Whether messages of this number overtake others.
pub(crate) fn is_urgent(number: u8) -> bool {
    matches!(number, ENGINE | ROOM)
}
