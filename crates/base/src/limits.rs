//! Every bound in sheave, with its reason. Nothing grows without one of these in its way.

use std::time::Duration;

/// Longest control part of a message. Arguments of calls live here; tensors do not.
pub const CONTROL_BYTES_MAX: usize = 16 << 20;

/// Most tensor parts of one message. A batch of thousands of small keys travels as one packed part.
pub const PARTS_MAX: usize = 4096;

/// Largest single tensor part. Larger ones are a length field gone wrong, not a model.
pub const PART_BYTES_MAX: u64 = 1 << 40;

/// Most dimensions of a tensor, as DLPack users and NumPy know it.
pub const DIMENSIONS_MAX: usize = 64;

/// Deepest nesting of a `Value`. Deeper input is an attack on the decoder's stack.
pub const VALUE_DEPTH_MAX: usize = 32;

/// Most items of one list or map in a `Value`.
pub const VALUE_ITEMS_MAX: usize = 1 << 20;

/// Longest handshake message. It is read before anybody is authenticated, so it is small.
pub const HANDSHAKE_BYTES_MAX: usize = 4096;

/// Longest text of a handshake message (a name, a host, where a secret came from): what one line of an error can show.
pub const HANDSHAKE_TEXT_BYTES_MAX: usize = 256;

/// Longest text of what happened or of a hint in one error; a longer one is cut. More is no line that anybody reads.
pub const ERROR_TEXT_BYTES_MAX: usize = 4 << 10;

/// Longest name in an error: of an operation, a group, a peer, a host, a class.
pub const ERROR_NAME_BYTES_MAX: usize = HANDSHAKE_TEXT_BYTES_MAX;

/// Causes of one error. Programs that wrap what they catch are three or four deep; of deeper ones the first and the
/// last are what is read.
pub const ERROR_CAUSES_MAX: usize = 8;

/// Longest traceback, or last lines of a process, in one error: hundreds of calls. Of a longer one the end is kept.
pub const ERROR_LONG_TEXT_BYTES_MAX: usize = 32 << 10;

/// Longest pickled exception in one error: of its class and arguments. One that holds data is told without it.
pub const ERROR_PICKLED_BYTES_MAX: usize = 64 << 10;

/// Tracebacks, last lines and pickled exceptions of one error and all its causes together.
pub const ERROR_DETAILS_BYTES_MAX: usize = 128 << 10;

/// Longest error as it is written, with all its causes: each has two texts, seven names, some numbers and the note of a
/// text that is left out. It follows from the limits above, and is small beside a control part.
pub const ERROR_BYTES_MAX: usize =
    ERROR_DETAILS_BYTES_MAX + (1 + ERROR_CAUSES_MAX) * (2 * ERROR_TEXT_BYTES_MAX + 7 * ERROR_NAME_BYTES_MAX + 256);

/// Longest job secret. Longer input is not a secret but the wrong file.
pub const SECRET_BYTES_MAX: usize = 1024;

/// Shortest job secret. A stranger can make a node answer with a code over the secret and then guess at leisure, so a
/// secret must be too long to guess.
pub const SECRET_BYTES_MIN: usize = 16;

/// How long a stranger may take to prove who it is.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Handshakes in progress on one listener; one more evicts the oldest.
pub const HANDSHAKES_PENDING_MAX: usize = 256;

/// Messages that arrived before anybody asked for them, per node; one more pushes back on its sender.
pub const UNEXPECTED_MESSAGES_MAX: usize = 65_536;

/// Bytes of such messages, per node. A single larger message is let in when nothing else waits.
pub const UNEXPECTED_BYTES_MAX: u64 = 1 << 30;

/// Bytes of messages, per node, that have begun to arrive and for which nobody has named a place; one more stays on its
/// link. A single larger message is let in when there is no other.
pub const ANNOUNCED_BYTES_MAX: u64 = 1 << 30;

/// Bytes of data that a sender may be ahead of what its peer has used of a stream between hosts: somewhat more than
/// kernels hold of one, so that they decide how fast it is. A receiver without room keeps as much for each link, beside
/// which urgent messages come through.
pub const LINK_WINDOW_BYTES: u64 = 8 << 20;

/// Messages with fewer bytes are not counted so: a link carries one at a time, and all links of a node together carry
/// no more than the limit.
pub const ANNOUNCED_BYTES_MIN: u64 = ANNOUNCED_BYTES_MAX / LINKS_MAX as u64;

/// Memory that a node maps and pre-faults for a tensor because of its header alone: some milliseconds. Larger ones get
/// pages as their bytes come, until one as large has come whole.
pub const UNPROVEN_BYTES_MAX: u64 = 16 << 20;

/// Contexts of groups that are broken, of which a node throws messages away: a group has a few for each member. Beyond
/// it messages of more broken groups wait for nobody.
pub const REFUSED_CONTEXTS_MAX: usize = 1 << 18;

/// Calls of one node that are not answered: what a burst of asynchronous pushes of every key of a model may be.
pub const CALLS_PENDING_MAX: usize = 65_536;

/// Requests that one service of a node has let in and not begun, of all members together: each has its share of them.
pub const REQUESTS_PENDING_MAX: usize = if cfg!(feature = "simulated") { 24 } else { 16_384 };

/// The least share of a member: what keeps a link busy while the word of room is under way.
pub const WINDOW_REQUESTS_MIN: usize = if cfg!(feature = "simulated") { 3 } else { 64 };

/// The least share of a member in bytes.
pub const WINDOW_BYTES_MIN: u64 = if cfg!(feature = "simulated") { 16 << 10 } else { 1 << 20 };

/// Bytes of such requests. One of each member is always let in.
pub const REQUEST_BYTES_MAX: u64 = if cfg!(feature = "simulated") { 256 << 10 } else { 1 << 30 };

/// Waits of one node for room at those that it calls: one for each task or handler that calls others.
pub const ROOM_WAITS_MAX: usize = CALLS_PENDING_MAX;

/// Guests of one node, those that are invited and have not come included: some for each core of a large host. Each has
/// a window of [`WINDOW_REQUESTS_MIN`] requests, so that all of them together have as many as all members.
pub const GUESTS_MAX: usize = REQUESTS_PENDING_MAX / WINDOW_REQUESTS_MIN;

/// Longest label of a guest, which is part of its name: a word or two of a program's own.
pub const GUEST_LABEL_BYTES_MAX: usize = 64;

/// Methods of one service that have numbers: they are parts of a program, found by their place in a table.
pub const METHODS_MAX: usize = 256;

/// Services of one node, and those that one node calls over one link while it lasts: each has a window there. Programs
/// have some dozens; those whose users register their own by name have thousands.
pub const SERVICES_MAX: usize = 1 << 16;

/// Versions of one key of versioned objects: more is a log, which a table is not.
pub const VERSIONS_DEPTH_MAX: usize = 1 << 16;

/// Keys of one table of versioned objects: those of a program's models and their parts.
pub const VERSIONS_KEYS_MAX: usize = 1 << 20;

/// Keys of a table of versioned objects for which nobody has said how many there may be.
pub const VERSIONS_KEYS: usize = 4096;

/// Bytes of the values of a table of versioned objects for which nobody has said how many there may be: a large model
/// twice, or many small ones.
pub const VERSIONS_BYTES: u64 = if cfg!(feature = "simulated") { 64 << 10 } else { 16 << 30 };

/// Those who wait at one table of versioned objects for a newer version: some for each node that can be.
pub const VERSIONS_WATCHERS_MAX: usize = if cfg!(feature = "simulated") { 64 } else { 1 << 16 };

/// Pins of one table of versioned objects: some for each node that can be.
pub const VERSIONS_PINS_MAX: usize = if cfg!(feature = "simulated") { 64 } else { 1 << 16 };

/// Longest lease of a pin: whoever reads for longer than that pins again.
pub const VERSIONS_LEASE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A push of more bytes is copied on a thread of its own: copying less takes as long as handing it over.
pub const VERSIONS_INLINE_BYTES_MAX: u64 = if cfg!(feature = "simulated") { 1 << 10 } else { 256 << 10 };

/// Groups of rpc that one node is in, or that are in the making at it: they are parts of a program.
pub const RPC_GROUPS_MAX: usize = 4096;

/// Services and values of one node in one group of rpc, and those that one handle of a group remembers.
pub const RPC_ENTRIES_MAX: usize = 1 << 16;

/// Keys of one group of rpc that its index remembers as lost with their owners: a dead member's services, not all that
/// ever died.
pub const RPC_LOST_MAX: usize = 4096;

/// Longest name of a group of rpc, and longest key in it as it is written: a path, or a tuple of some numbers.
pub const RPC_KEY_BYTES_MAX: usize = 4096;

/// Objects of one node that others can hold references to: registers of a session, of which a program has thousands.
pub const REFERENCES_OWNED_MAX: usize = 1 << 20;

/// Objects of other nodes that one node holds references to.
pub const REFERENCES_HELD_MAX: usize = 1 << 20;

/// References that one node has passed from a second to a third and that are not confirmed: as many as calls, for
/// most calls pass few.
pub const REFERENCES_PASSING_MAX: usize = CALLS_PENDING_MAX;

/// Names that one node has drawn for one owner and that are not filled, and as many at the owner of each member: the
/// calls that are to fill them have that limit.
pub const REFERENCES_PROMISED_MAX: usize = CALLS_PENDING_MAX;

/// Waits of one node for objects that are promised: more than handlers can be, which wait for a few each.
pub const REFERENCE_WAITS_MAX: usize = CALLS_PENDING_MAX;

/// How long a word about references may wait for a message that goes to its node anyway. Until then the owner of what
/// was dropped keeps it; and a thousand drops in a loop are over in less.
pub const REFERENCE_FLUSH: Duration = Duration::from_millis(5);

/// How often a link is tried to be made because there are words for a node: with the pauses between, and the time that
/// a try may take, longer than it takes to agree that a member is dead.
pub const REFERENCE_LINK_TRIES: u32 = 12;

/// Tasks of a pool that wait and run: whoever submits more waits first, and is refused at twice as many.
pub const POOL_TASKS_MAX: usize = if cfg!(feature = "simulated") { 24 } else { 1 << 16 };

/// Items of a queue that nobody has, where nobody has said how many there may be: whoever puts more waits first.
pub const QUEUE_ITEMS_MAX: usize = if cfg!(feature = "simulated") { 24 } else { 1 << 16 };

/// Bytes of such items. One that is larger goes when there is no other.
pub const QUEUE_BYTES_MAX: u64 = if cfg!(feature = "simulated") { 256 << 10 } else { 1 << 30 };

/// Ends of one queue: some for each node that can be.
pub const QUEUE_ENDS_MAX: usize = 4096;

/// Lost items of which a queue remembers what became of them; all are counted.
pub const QUEUE_LOST_MAX: usize = 1024;

/// Parameters of a model whose gradients are reduced: its description fits into one message.
pub const LEARNER_PARAMETERS_MAX: usize = 1 << 16;

/// Gradients of one batch: its numbers fit into one message many times.
pub const LEARNER_BATCH_MAX: usize = 4096;

/// Particles of one name that live on a node.
pub const PARTICLES_MAX: usize = 1 << 20;

/// Messages to one particle that have not begun.
pub const PARTICLE_MESSAGES_MAX: usize = if cfg!(feature = "simulated") { 64 } else { 1 << 16 };

/// Messages that are handled in one turn of a particle, and particles that are started in one turn of a node.
pub const PARTICLE_TURN_MESSAGES: usize = 64;

/// Waits of one thread that run what they wait for, one within the other. Handlers of Python have some kilobytes of the
/// stack each.
pub const PARTICLE_NESTED_MAX: usize = 32;

/// Answers of particles whose errors nobody has looked at, of which a node tells. Enough to see what goes wrong, and
/// few enough for a terminal.
pub const PARTICLE_UNSEEN_TOLD: u64 = 100;

/// Answers of one answer of another, and so on, that a wait follows: one that is its own would go on for ever.
pub const PARTICLE_ANSWERS_NESTED_MAX: usize = 1 << 10;

/// The time after which a message to a particle is started, if nobody waits for it before; but see
/// [`PARTICLE_START_AFTER_FACTOR_MAX`].
pub const PARTICLE_START_AFTER: Duration = Duration::from_micros(200);

/// The same where those that were sent of late have all been waited for: as many times as long.
pub const PARTICLE_START_AFTER_FACTOR_MAX: u32 = 32;

/// Gradients in the queue of one gradient server.
pub const LEARNER_QUEUE_MAX: usize = 1 << 16;

/// Gradients that wait for room in such a queue, whose memory is their learners': whoever pushes more is refused.
pub const LEARNER_WAITING_MAX: usize = 1024;

/// Clients that push to the gradient servers of one name.
pub const LEARNER_CLIENTS_MAX: usize = 4096;

/// Pushes of one client of which it does not know yet what became of them; more are refused.
pub const LEARNER_UNSETTLED_MAX: usize = 1 << 16;

/// Pushes after which a client asks what became of them, and of how many it asks in one message.
pub const LEARNER_SETTLE_EACH: usize = 1024;

/// Gradients that were lost or dropped, and pushes that went to another server, of which a report has the numbers, the
/// latest of them; all are counted.
pub const LEARNER_REPORTED_MAX: usize = 1024;

/// Handlers of one service that may run at the same time, those that wait not counted, unless the service says
/// otherwise.
pub const LANE_PERMITS: usize = if cfg!(feature = "simulated") { 2 } else { 8 };

/// Threads on which handlers of one service run or wait. Nodes that call each other in circles need one for each turn,
/// each of them some 30 KiB.
pub const LANE_THREADS_MAX: usize = 1024;

/// How long all threads of a service may wait, where it may have no more, before what is queued for it is refused:
/// longer than calls take that come back at all, also where other programs have the cores.
pub const LANE_STUCK: Duration = Duration::from_secs(5);

/// Threads of one node on which handlers run or wait. A service that has fewer than it has permits gets more.
pub const EXECUTOR_THREADS_MAX: usize = 2048;

/// Threads of one node that wait for handlers to run; more of them end when they have nothing to do.
pub const EXECUTOR_IDLE_MAX: usize = 16;

/// Tasks of one node that have not ended: what waits on behalf of the calls that one node has begun and of those that
/// it has let in.
pub const TASKS_MAX: usize = 2 * CALLS_PENDING_MAX;

/// Timers of one node: a deadline for each call, and as many for tasks and operations.
pub const TIMERS_MAX: usize = CALLS_PENDING_MAX + TASKS_MAX;

/// Messages queued on one link because the other side has no room; one more is refused.
pub const OUTBOUND_MESSAGES_MAX: usize = 16_384;

/// Bytes that such messages keep, tensors that were captured or given away and control parts: as much as an arena
/// holds. A single larger message is let in when no other waits. The same for requests that wait for room at one
/// service.
pub const OUTBOUND_BYTES_MAX: u64 = ARENA_BYTES_MAX;

/// Bytes of urgent messages queued on one link: two of the longest.
pub const OUTBOUND_URGENT_BYTES_MAX: u64 = 2 * CONTROL_BYTES_MAX as u64;

/// Bytes of messages on their way from one node of a process to another; more wait with their sender. Enough for one of
/// the sizes that are sent in pieces elsewhere.
pub const INPROC_BYTES_MAX: u64 = 256 << 20;

/// Words that wait for the engine of a mesh; more stay on their links. It handles thousands in a millisecond.
pub const ENGINE_WORDS_MAX: usize = 65_536;

/// Bytes of such words: four of the longest. Most have some dozens.
pub const ENGINE_WORDS_BYTES_MAX: usize = 4 * CONTROL_BYTES_MAX;

/// Bytes of words to one node that wait for a link to it, or of words that have come before the table of members: two
/// of the longest. More are forgotten, for engines repeat all that matters.
pub const ENGINE_BACKLOG_BYTES_MAX: usize = 2 * CONTROL_BYTES_MAX;

/// Tensors of one list of a collective operation, as its header counts them: models have thousands.
pub const LIST_TENSORS_MAX: usize = u16::MAX as usize;

/// Tensors of a list up to this size are packed together: to copy so much twice costs about what a message costs.
pub const LIST_SMALL_BYTES_MAX: usize = 64 << 10;

/// Memory of one bucket of packed tensors. The parts that eight ranks cut it into are still long messages, one copy of
/// it stays in a core's cache, and a node has one for each list in flight.
pub const LIST_BUCKET_BYTES_MAX: usize = 2 << 20;

/// The longest collective operation, in bytes of a rank's tensors, that is worked on by the call that begins it: some
/// 50 µs. Longer ones are left to whoever polls the node.
pub const COLLECTIVE_CALL_BYTES_MAX: usize = 2 << 20;

/// Bytes that a longer one reads or writes before the links are looked at again: some 50 µs.
pub const COLLECTIVE_TURN_BYTES: usize = 1 << 20;

/// Links of one node.
pub const LINKS_MAX: usize = 16_384;

/// Numbers of endpoints of a node, 0 included, which is that of matched receives. Each costs some words of memory, and
/// a set of them fits into half a machine word; more services than that share endpoints, as calls do.
pub const ENDPOINTS_MAX: usize = 16;

/// Time without a sign of life after which a peer is declared dead.
pub const LIVENESS_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between two signs of life.
pub const LIVENESS_BEAT: Duration = Duration::from_secs(1);

/// After this long, a blocking wait says whom it waits for: longer than what is done every day takes, and soon enough
/// for whoever looks on.
pub const WAIT_NOTICE: Duration = Duration::from_secs(10);

/// When a blocking wait says so, and from then on each time the last of them has passed again: whoever looks at a job
/// that is stuck finds it among the last lines, and nobody's output is flooded.
pub const WAIT_NOTICES: [Duration; 3] = [WAIT_NOTICE, Duration::from_secs(60), Duration::from_secs(600)];

/// How long a notice waits for what other nodes know of the reason.
pub const WAIT_ANSWER: Duration = Duration::from_secs(1);

/// Longest time for a join, unless the user says otherwise.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest reason that a member gives for its failure: it is repeated in the errors of all others.
pub const FAILURE_CHARACTERS_MAX: usize = 1024;

/// Longest reason for turning a stranger away that the error of a join repeats: it must stay one line.
pub const JOIN_EVIDENCE_BYTES_MAX: usize = 256;

/// Nodes that the error of a join names as joined; of the others it says how many, so that it stays one line.
pub const JOINED_NAMED_MAX: usize = 8;

/// Fraction of an arena that may be lent to peers; beyond it receivers get private copies.
pub const ARENA_LENT_FRACTION: f64 = 0.5;

/// Default capacity of a node's arena.
pub const ARENA_BYTES_MAX: u64 = 4 << 30;

/// Events in a node's trace ring; later ones are dropped and counted.
pub const TRACE_EVENTS_MAX: usize = 65_536;

/// Names of events in one trace. They stand in the program's text, so more of them are a leak; the rest is one name.
pub const TRACE_NAMES_MAX: usize = 4096;

/// Lanes of one trace: a screen shows some dozens. Later ones share one lane.
pub const TRACE_LANES_MAX: usize = 1024;

/// Memory of one node for the slots of streams between processes: 256 streams at once.
pub const STREAM_SLOT_BYTES_MAX: u64 = 256 << 20;

/// Segments of shared memory that a node has mapped of one peer at a time. An arena has some dozens, and each is a
/// descriptor on both sides.
pub const SEGMENTS_SHOWN_MAX: usize = 4096;

/// Memory that a node sets aside block by block for one peer process whose links have ended while it goes on; beyond it
/// whole segments are taken out of use, which cost nothing once they are empty.
pub const SET_ASIDE_BYTES_MAX: u64 = 64 << 20;

/// Ended links to one peer process whose memory is set aside so.
pub const SET_ASIDE_LINKS_MAX: usize = 256;

/// Children of one job that live at the same time. Each holds two pipes, so that a default of 1,024 open files ends
/// some way below; the guard keeps its table of them on its stack.
pub const JOB_CHILDREN_MAX: usize = 1024;

/// Ends of children that a job remembers for its report; older ones are forgotten, the first failure never.
pub const JOB_EXITS_MAX: usize = 4096;

/// Notes of a job's processes about each other that its launcher keeps: who has failed for whom is in the first ones.
pub const JOB_LOSSES_MAX: usize = 1 << 16;

/// How long the servers and the scheduler of a launched job may take to end by themselves once all workers have ended,
/// unless the user says otherwise: time to write the largest checkpoint to a slow disk.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(3600);

/// Longest piece of a child's output that is held back while its line has no end; then it is passed on as it is.
pub const OUTPUT_LINE_BYTES_MAX: usize = 16 << 10;

/// Bytes of one stream that are kept when a child's output is captured; beyond it the oldest lines are dropped.
pub const OUTPUT_CAPTURED_BYTES_MAX: usize = 4 << 20;

/// Last lines of a child's standard error that are kept for the report about its failure.
pub const OUTPUT_LAST_LINES_MAX: usize = 20;

/// Longest time from asking for a child to its program being loaded. A slow network disk is the reason for so much.
pub const SPAWN_TIMEOUT: Duration = Duration::from_secs(20);

/// Longest time for the killed processes of a job to be gone. The kernel needs milliseconds, unless a disk hangs.
pub const KILL_TIMEOUT: Duration = Duration::from_secs(10);
