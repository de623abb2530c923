//! The numbers under which a mesh takes messages from its node. `docs/design` lists those of all services.
//!
//! All of them are one endpoint, so that what one node says to another is taken in the order in which it was said.

/// Words from one engine to another.
pub(crate) const ENGINE: u8 = 1;

/// Words about references.
pub(crate) const REFERENCES: u8 = 2;

/// Requests to services. Aux is for how many milliseconds the caller waits, or 0 where that has no end.
pub(crate) const REQUESTS: u8 = 3;

/// Answers to requests. Aux is how many requests of the caller to the service have begun, modulo 2³².
pub(crate) const ANSWERS: u8 = 4;

/// Words about calls: that one is cancelled, or that so many have begun; and the last word of a host or a guest. The
/// context says which.
pub(crate) const CALLS: u8 = 5;

/// All of them.
pub(crate) const ALL: [u8; 5] = [ENGINE, REFERENCES, REQUESTS, ANSWERS, CALLS];
