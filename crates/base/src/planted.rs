//! Bugs that a simulation plants in the product, to prove that it would find them, and what it must never see.
//!
//! In a build without the feature `simulated` there is nothing to plant, nothing is, and nobody listens.

/// A bug, by what goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A caller does not hear that a request has begun, and keeps its place in the window.
    CreditForgotten,
    /// A caller takes a request that has begun for two.
    CreditTwice,
    /// An answer is not sent.
    AnswerLost,
    /// A request that was cancelled before it began is run.
    CancelIgnored,
    /// A callee does not hear that a call is cancelled.
    CancelUnsaid,
    /// A timer that is due is forgotten.
    TimerLost,
    /// A timer runs when half of its time is over.
    TimerEarly,
    /// A handler that waits keeps its permit.
    PermitKept,
    /// The last request of a mailbox is run before the others.
    MailboxTurned,
    /// The last request of a service on a thread of its own is run before the others.
    DeskTurned,
    /// A request that comes while such a thread waits is lost, if others wait too.
    DeskLost,
    /// A worker of a session forgets what commands have failed with.
    FailureKept,
    /// A register is filled with nothing where its command has failed.
    PoisonLost,
    /// A register that somebody holds has no name when its command leaves.
    NameUndrawn,
    /// A worker of a session that has not what an operation needs does not tell the others.
    MissingUntold,
    /// A request is run beside another one of its mailbox.
    MailboxShared,
    /// An object is freed when the first of its holders gives it back.
    FreedEarly,
    /// A reference is not given back.
    ReleaseLost,
    /// A promise that is filled can be filled again.
    PromiseTwice,
    /// A promise that its request has not filled stays open.
    PromiseOpen,
    /// The last word of a member overtakes what it has sent before.
    LastWordEarly,
    /// A member whose links have ended is not taken for dead.
    EndUnheard,
    /// The end of a link ends no calls that were made over it.
    CallsOutlive,
    /// A guest whose link has ended stays attached.
    GuestStays,
    /// Guests may call what is for members alone.
    GateOpen,
    /// A caller forgets that one of its one-way calls has failed.
    FailureLost,
    /// A one-way call that has come is not run.
    OneWayLost,
    /// The end of a task is told and its future is kept.
    TaskKept,
    /// A task that is woken is not polled.
    WakeLost,
    /// A new index of a group says that nobody has a key before all members have reported.
    ReportUnheard,
    /// A member does not tell a new index of what it has.
    EntryUntold,
    /// Entries of a member stay in the index when it is gone.
    EntryOutlives,
    /// An index takes a member that leaves a group for one that has died with its keys.
    LeaverBlamed,
    /// An index says of a key that was lost with its owner that nobody has it.
    LostUnknown,
    /// A key is granted to a second owner.
    EntryTwice,
    /// Members that make a group take the lowest generation that one of them has proposed.
    GenerationOld,
    /// A group is made though one of its members has not entered.
    EnteredEarly,
    /// The outcome of a task of a pool is counted for the one behind it.
    OutcomeTurned,
    /// The outcome of one task of an ordered job of a pool takes the place of another.
    PlaceTurned,
    /// A worker of a pool keeps an outcome until the last task of its message has ended.
    OutcomeKept,
    /// A worker of a pool begins with a task that was taken back.
    RevokedBegun,
    /// A task that was taken back from a worker is given to nobody.
    RevokedLost,
    /// Nobody looks whether tasks lie behind a long one.
    LongUnseen,
    /// A worker from which tasks were taken back gets none any more.
    PassedOver,
    /// The death of a worker fails a task that it had not begun.
    UnbegunFailed,
    /// A task that a worker had not begun is lost with it.
    OrphanLost,
    /// Outcomes that a worker has noted are not read when it has died.
    NotesUnread,
    /// A pool does not hear that its node leaves.
    LeaveUnheard,
    /// A function is not sent to a worker that has not got it.
    FunctionUnsent,
    /// How the process of a worker ended is forgotten if the node has not lost it yet.
    EndForgotten,
    /// A task is tried again however many workers have died of it.
    TriesUncounted,
    /// Whoever waits for room in a pool is not told of it.
    RoomUntold,
    /// Whoever waits for the end of all tasks of a pool is not told of it.
    PoolEndUntold,
    /// Whoever waits for an item of a queue is not told of one.
    GetterUntold,
    /// Items that one end of a queue was given ahead of need are not taken back for another one.
    AheadKept,
    /// An end of a queue takes an item that was taken back.
    RevokedTaken,
    /// Items that an end of a queue does not take are lost.
    BackLost,
    /// Items that were lost with an end of a queue are not reported.
    LossUntold,
    /// A push to a versioned object is accepted whatever version it was made from.
    CompareSkipped,
    /// A push to a versioned object is accepted and forgotten.
    PushLost,
    /// The newest version of an object is not the one that is pulled.
    PullStale,
    /// Whoever watches an object is not told of a newer version.
    WatchForgotten,
    /// A watch goes on when its caller is gone.
    WatchOutlives,
    /// A version is dropped though somebody has pinned it.
    PinIgnored,
    /// A pin goes on when its holder is gone.
    PinOutlives,
    /// An entry that is to be removed from a map stays in its next version.
    DeltaMisapplied,
    /// A reader is not sent an entry that has changed.
    ChangeOmitted,
    /// A sum of gradients is in the queue of the primary twice.
    SumTwice,
    /// A primary has answered for a sum that is not in its queue.
    SumLost,
    /// A mean is divided by how many sums it is made of.
    MeanOfSums,
    /// Gradients of a step are not noted as applied.
    StepUncounted,
    /// A flush leaves a batch of the primary that is not full.
    FlushForgotten,
    /// A secondary answers a flush while a sum is on its way.
    FlushEarly,
    /// A batch that has waited for long enough does not go on.
    BatchOverdue,
    /// A step raises the version by two.
    VersionTwice,
    /// A primary does not note which gradients its secondaries have dropped.
    DropUncounted,
    /// A secondary does not tell which gradient a full queue has dropped.
    DropUntold,
    /// A primary does not say that a gradient was lost with its secondary.
    LossUnsaid,
    /// The last message of a particle is handled before the others.
    ParticleTurned,
    /// A particle begins a message beside another one.
    ParticleShared,
    /// Two messages of a particle are answered with each other's answers.
    ParticleAnswersSwapped,
    /// A particle that is to be started is forgotten.
    ParticleForgotten,
    /// Nobody looks for the next message of a particle when a handler has ended.
    ParticleUnseen,
    /// A message that was cancelled before it began is handled.
    ParticleCancelIgnored,
    /// The sender of a message is not told that its particle was removed.
    ParticleRemovalUntold,
    /// A circle of waits is not found.
    CycleUnseen,
    /// A wait that is over is taken for one that is not.
    CycleOutlives,
    /// A re-entrant particle takes no message when its handlers wait.
    ReentryLost,
    /// A re-entrant particle takes a message when a handler of it has waited.
    ReentryOutlives,
    /// A cache of particles forgets that a guard was dropped.
    CachePinKept,
    /// A cache of particles parks one that is pinned.
    CachePinIgnored,
    /// Whoever waits for room in a cache of particles is not told that there is some.
    CacheRoomUntold,
    /// A cache of particles gives away the room of one that has not been parked yet.
    CacheRoomTwice,
}

/// Whether this bug is planted here, and it is time for it.
#[cfg(feature = "simulated")]
#[must_use]
pub fn strikes(bug: Bug) -> bool {
    crate::simulated::current().is_some_and(|system| system.strikes(bug))
}

/// Whether this bug is planted here, and it is time for it.
#[cfg(not(feature = "simulated"))]
#[must_use]
#[inline(always)]
pub const fn strikes(_: Bug) -> bool {
    false
}

/// Tells a simulation of something that must never be.
#[inline(always)]
pub fn must_not_be(what: &str) {
    #[cfg(feature = "simulated")]
    if let Some(system) = crate::simulated::current() {
        system.must_not_be(what);
    }
    let _ = what;
}
