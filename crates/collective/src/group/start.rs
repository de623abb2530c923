//! How collectives begin: over shared memory where all ranks have it, there on the caller's thread if the others are
//! as quick; as tasks, over links, else.

use super::{Reserved, SET_UP, State, Terms, is_echo};
use crate::algorithm::barrier;
use crate::carrier::{Carrier, Way};
use crate::exchange::{Exchange, entered};
use crate::hosts::{self, Hosts};
use crate::hub::{Hub, Watch};
use crate::job::Job;
use crate::links;
use crate::long;
use crate::operation::Header;
use crate::shared::board::Board;
use crate::shared::run::Run;
use crate::shared::setup;
use crate::table::{Algorithm, Topology};
use crate::task::Awaited;
use crate::turns::Place;
use sheave_base::{Error, ErrorKind, Rank, Result, Work};
use std::future::{Future, poll_fn, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Work that a rank does itself, beside a collective.
pub(crate) type Aside = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// What a caller wants of the collectives that it begins.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conditions {
    /// How long one may take.
    pub(crate) limit: Option<Duration>,
    /// The caller sees to the order in which threads begin them.
    pub(crate) is_ordered: bool,
}

impl Conditions {
    /// Of an operation's own steps, which begin in one order.
    pub(crate) const STEPS: Self = Self { limit: None, is_ordered: true };

    pub(super) fn terms(self, header: &Header) -> Terms {
        let Self { limit, is_ordered } = self;
        Terms { operation: header.name(), limit, is_collective: true, is_ordered, message: None }
    }
}

impl State {
    /// Begins a collective.
    pub(crate) fn start(self: &Arc<Self>, header: Header, job: Job, conditions: Conditions) -> Work<()> {
        let terms = conditions.terms(&header);
        let reserved = match self.reserve(&terms, 1) {
            Ok(reserved) => reserved,
            Err(error) => return Work::ready(terms.operation, Err(error)),
        };
        let _call = self.callers.until_dropped(reserved.begun);
        let sequence = reserved.number;
        let known = if self.size() == 1 { Some(&None) } else { self.lasting.board.get() };
        match known {
            Some(Some(board)) => {
                let run = self.on_board(board, header, sequence, job);
                self.start_on_board(terms, run, reserved)
            }
            Some(None) => {
                let (state, place) = (Arc::clone(self), self.turns.place(sequence));
                self.begin_reserved(terms, reserved, drop, move |awaited| {
                    Box::pin(over_links(state, header, sequence, job, awaited, Some(place)))
                })
            }
            None => {
                let (state, place) = (Arc::clone(self), self.turns.place(sequence));
                self.begin_reserved(terms, reserved, drop, move |awaited| {
                    Box::pin(after_setup(state, header, sequence, job, awaited, place))
                })
            }
        }
    }

    /// Begins a collective that this rank enters after `before`, and whose work completes, if it has ended well, after
    /// `after`.
    pub(crate) fn start_between(
        self: &Arc<Self>,
        header: Header,
        job: Job,
        conditions: Conditions,
        before: Aside,
        after: Aside,
    ) -> Work<()> {
        let terms = conditions.terms(&header);
        let reserved = match self.reserve(&terms, 1) {
            Ok(reserved) => reserved,
            Err(error) => return Work::ready(terms.operation, Err(error)),
        };
        let _call = self.callers.until_dropped(reserved.begun);
        let (state, sequence) = (Arc::clone(self), reserved.number);
        let place = self.turns.place(sequence);
        self.begin_reserved(terms, reserved, drop, move |awaited| {
            Box::pin(async move {
                before.await?;
                let rank = match state.size() {
                    1 => over_links(state, header, sequence, job, awaited, Some(place)).await,
                    _ => after_setup(state, header, sequence, job, awaited, place).await,
                }?;
                after.await.map(|()| rank)
            })
        })
    }

    /// Begins a collective of so many parts.
    pub(crate) fn start_parts<F>(
        self: &Arc<Self>,
        header: Header,
        parts: usize,
        conditions: Conditions,
        carry: impl FnOnce(Carrier) -> F + Send + 'static,
    ) -> Work<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let terms = conditions.terms(&header);
        let reserved = match self.reserve(&terms, 1 + parts as u64) {
            Ok(reserved) => reserved,
            Err(error) => return Work::ready(terms.operation, Err(error)),
        };
        let _call = self.callers.until_dropped(reserved.begun);
        let (state, sequence) = (Arc::clone(self), reserved.number);
        self.begin_reserved(terms, reserved, drop, move |awaited| {
            Box::pin(async move {
                if state.size() > 1 && state.lasting.board.get().is_none() {
                    state.setup().await?;
                }
                let rank = state.group.rank();
                if let Some(board) = state.lasting.board().cloned() {
                    let agreement = Run::new(Arc::clone(&board), sequence, header, Job::nothing(), Algorithm::Flat);
                    go_on(Arc::clone(&state), agreement, Arc::clone(&awaited)).await?;
                    let way = Way::Board { board, next: sequence + 1, awaited };
                    return carry(Carrier { state, header, way }).await.map(|()| rank);
                }
                let exchange = Arc::new(Exchange::new(Arc::clone(&state), header, sequence, awaited));
                if parts == 0 {
                    return entered(&exchange, true, barrier::run(&exchange)).await.map(|()| rank);
                }
                let way = Way::Links(Arc::clone(&exchange));
                entered(&exchange, false, carry(Carrier { state, header, way })).await.map(|()| rank)
            })
        })
    }

    /// Begins it where all ranks share memory, and ends it here and now if the others are as quick.
    #[inline]
    fn start_on_board(self: &Arc<Self>, terms: Terms, mut run: Run, reserved: Reserved) -> Work<()> {
        if reserved.is_alone && !reserved.is_too_late && !run.ends_in_links() {
            let mut begun = None;
            // What takes long is entered, and left to others.
            let polled = match run.is_long() {
                true => poll_in_call(&mut run),
                false => spin(&self.hub, &mut run, &mut begun),
            };
            match polled {
                Poll::Ready(Ok(())) if run.ends_in_links() => {}
                Poll::Ready(Ok(())) => return Work::ready(terms.operation, self.in_order(reserved.number)),
                // The verdict may be another one, and comes later.
                Poll::Ready(Err(error)) if is_echo(&error) => {
                    drop(run);
                    return self.begin_steps(terms, reserved.number, drop, |_| Box::pin(ready(Err(error))));
                }
                Poll::Ready(Err(error)) => {
                    drop(run);
                    let elapsed = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
                    let error = self.failed(error, terms.operation, reserved.number, elapsed);
                    return Work::ready(terms.operation, Err(error));
                }
                Poll::Pending => {}
            }
        }
        let state = Arc::clone(self);
        self.begin_reserved(terms, reserved, drop, move |awaited| Box::pin(go_on(state, run, awaited)))
    }

    #[inline]
    pub(crate) fn on_board(&self, board: &Arc<Board>, header: Header, sequence: u64, job: Job) -> Run {
        let bytes = job.chosen_by_bytes(&header);
        let algorithm = self.hub.table.choose(header.kind, Topology::Host, self.size(), bytes);
        Run::new(Arc::clone(board), sequence, header, job, algorithm)
    }

    /// The groups by which this rank takes part, if there are several hosts, and several ranks on one.
    async fn hosts(&self) -> Result<Option<Arc<Hosts>>> {
        let known = self.hosts.lock().clone();
        let hosts = match known {
            Some(known) => known,
            // Operations that begin together find the same groups.
            None => {
                let found = Hosts::of(self).await?.map(Arc::new);
                self.hosts.lock().get_or_insert(found).clone()
            }
        };
        // A death before has not seen them.
        if let Some((error, hosts)) = self.broken.get().filter(|error| self.is_death(error)).zip(hosts.as_ref()) {
            hosts.break_because(error);
        }
        Ok(hosts)
    }

    /// Finds out, once in the life of a group, whether its ranks share memory.
    fn setup(self: &Arc<Self>) -> Work<()> {
        let mut setup = self.lasting.setup.lock();
        if let Some(setup) = &*setup {
            return setup.clone();
        }
        let terms = Terms::aside(SET_UP);
        let state = Arc::clone(self);
        let work = self.begin(terms, drop, move |_, _| {
            Box::pin(async move {
                let board = setup::board(&state).await.map_err(Error::unnamed)?;
                let _ = state.lasting.board.set(board);
                // What broke the group meanwhile has not seen it.
                if let (Some(board), Some(_)) = (state.lasting.board(), state.broken.get()) {
                    board.break_up();
                }
                Ok(state.group.rank())
            })
        });
        setup.insert(work).clone()
    }
}

/// The rest of an operation that must first know whether its ranks share memory.
async fn after_setup(
    state: Arc<State>,
    header: Header,
    sequence: u64,
    job: Job,
    awaited: Arc<Awaited>,
    place: Place,
) -> Result<Rank> {
    state.setup().await?;
    match state.lasting.board().cloned() {
        Some(board) => {
            drop(place);
            let run = state.on_board(&board, header, sequence, job);
            go_on(state, run, awaited).await
        }
        None => over_links(state, header, sequence, job, awaited, Some(place)).await,
    }
}

/// The rest of an operation on a board, as a task.
pub(crate) async fn go_on(state: Arc<State>, mut run: Run, awaited: Arc<Awaited>) -> Result<Rank> {
    let mut watch: Option<Watch> = None;
    poll_fn(|context| {
        let mut moved = false;
        // Asked first: what a member has done that has left is seen by the poll.
        let leavers = state.leavers();
        let polled = run.poll(&mut moved);
        if let (Poll::Pending, Some(leaver)) = (&polled, run.deserter(&leavers)) {
            let left = || Error::new(ErrorKind::PeerLost, format!("rank {leaver} left the mesh"));
            return Poll::Ready(Err(state.group.why_lost(Rank(leaver)).unwrap_or_else(left)));
        }
        if moved || polled.is_ready() {
            state.hub.note_move();
        }
        if polled.is_pending() {
            run.awaited().into_iter().for_each(|rank| awaited.set(rank));
            let has_work = run.has_work();
            if let (None, Some(waker)) = (&watch, awaited.waker()) {
                watch = Some(state.hub.watch(waker, run.board()));
                // What changed before that was not armed for.
                if !has_work {
                    context.waker().wake_by_ref();
                }
            }
            if has_work {
                state.hub.leave_work();
            }
        }
        polled
    })
    .await?;
    drop(watch);
    if !run.ends_in_links() {
        return Ok(state.group.rank());
    }
    let (header, sequence) = (run.header, run.sequence);
    let job = run.take_job().ok_or_else(|| Error::new(ErrorKind::Internal, "an operation lost its memory"))?;
    over_links(state, header, sequence, job, awaited, None).await
}

/// What ranks of one host have agreed about in shared memory has no `place`: it is made of no other operations.
async fn over_links(
    state: Arc<State>,
    header: Header,
    sequence: u64,
    job: Job,
    awaited: Arc<Awaited>,
    place: Option<Place>,
) -> Result<Rank> {
    let (rank, have_agreed) = (state.group.rank(), place.is_none());
    let hosts = if have_agreed || state.size() == 1 { None } else { state.hosts().await? };
    let topology = match (have_agreed, &hosts) {
        (true, _) => Topology::Host,
        (false, Some(_)) => Topology::Hosts,
        (false, None) => Topology::Links,
    };
    let algorithm = state.hub.table.choose(header.kind, topology, state.size(), job.chosen_by_bytes(&header));
    let exchange = Exchange::new(state, header, sequence, awaited);
    if let (Algorithm::Hierarchical, Some(hosts), Some(place)) = (algorithm, hosts, &place) {
        return entered(&exchange, false, hosts::run(&exchange, &hosts, &job, place)).await.map(|()| rank);
    }
    drop(place);
    links::run(&exchange, &job, algorithm, have_agreed).await?;
    Ok(rank)
}

/// Polls an operation once within the call that begins it.
fn poll_in_call(run: &mut Run) -> Poll<Result<()>> {
    let _call = long::calls();
    run.poll(&mut false)
}

/// Runs an operation on this thread for as long as a wait spins after the last move.
///
/// Where a rank that is waited for comes only after the core was given away, it may well need this very core; so the
/// next operations of the board spin half as long each, and twice as long again when spinning was enough.
fn spin(hub: &Hub, run: &mut Run, begun: &mut Option<Instant>) -> Poll<Result<()>> {
    let mut course = hub.node.poll_for().keeping_for(run.board().patience());
    loop {
        let mut moved = false;
        let polled = run.poll(&mut moved);
        if polled.is_ready() {
            if let Some(was_needed) = course.is_over() {
                run.board().learn_patience(hub.node.spin_most(), was_needed);
            }
            return polled;
        }
        if !course.goes_on(moved) {
            *begun = begun.or(course.begun());
            return Poll::Pending;
        }
    }
}
