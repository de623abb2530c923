//! The part of a learner: it pushes gradients to secondaries and knows what became of them.
//!
//! **At most once.** A push that its secondary has answered is never sent again. One whose secondary is gone before it
//! has answered is sent to another one when the primary says that it neither has the gradient nor will take it from the
//! one that is gone ([`ledger`](crate::ledger)). Until then its tensors are borrowed: who writes them is refused.
//!
//! **Reported.** Each gradient has a number. Those of which it is not known what became of them are kept, and the
//! primary is asked for them, each [`LEARNER_SETTLE_EACH`](limits::LEARNER_SETTLE_EACH) pushes and by a report. So what
//! a secondary had taken and not sent on when it died is reported as lost, by its number.

use crate::model::{Model, Tensors};
use crate::protocol::{Asked, BYE, FLUSH, HELLO, Outcome, PUSH, Push, SETTLE, STEP, Settle, number, unreadable};
use crate::servers::{Servers, name_of};
use parking_lot::Mutex;
use sheave_base::{Error, ErrorKind, NodeId, Result, Work, limits};
use sheave_mesh::{Answer, Call, Mesh, ServiceName, WeakMesh};
use sheave_net::Part;
use sheave_rpc::RpcGroup;
use sheave_tensor::{Mode, ReadLease, Tensor};
use sheave_wire::Value;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The secondary that gets a gradient, among those that live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one of this place among [`Servers::secondaries`], and while it is gone the next that lives.
    Fixed(usize),
}

/// A push that went to another secondary than first, because that was gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The client's number of the gradient.
    pub number: u64,
    /// The name of the member that is gone.
    pub from: String,
    /// The name of the member that it went to then.
    pub to: String,
}

/// The report of a client: what became of its gradients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientReport {
    /// Pushes so far.
    pub pushed: u64,
    /// Those that a secondary has taken.
    pub acknowledged: u64,
    /// Those that are in the parameters.
    pub applied: u64,
    /// Those that a full queue has dropped, or a server that has ended; also of pushes that had failed before.
    pub dropped: u64,
    /// Those that a secondary had taken, and that died with it.
    pub lost: u64,
    /// Their numbers: the latest [`LEARNER_REPORTED_MAX`](limits::LEARNER_REPORTED_MAX).
    pub lost_numbers: VecDeque<u64>,
    /// Those that are on their way, or wait for their batch to be full, and those that wait for room.
    pub pending: u64,
    /// Pushes that went to another secondary than first: all of them, and the latest.
    pub moved: u64,
    /// The latest of them, as many as of what is lost.
    pub moves: VecDeque<Moved>,
    /// The names of secondaries that are gone, as far as this client has noticed.
    pub gone: Vec<String>,
}

/// A learner's access to the gradient servers of one name; a handle, cheap to clone. See
/// [`GradientServer`](crate::GradientServer) for an example.
#[derive(Clone)]
pub struct GradientClient(Arc<Client>);

struct Client {
    mesh: WeakMesh,
    servers: Servers,
    /// Of each secondary how the mesh calls it, and its name.
    secondaries: Vec<(ServiceName, String)>,
    notes: Notes,
    model: Model,
    choice: Choice,
    state: Mutex<State>,
}

/// That the primary takes notes of a client, until this is dropped.
struct Notes {
    mesh: WeakMesh,
    node: NodeId,
    primary: ServiceName,
    client: u32,
}

#[derive(Default)]
struct State {
    /// Pushes of which it is not known what became of them.
    unsettled: BTreeMap<u64, Sent>,
    next: u64,
    turn: usize,
    is_gone: Vec<bool>,
    is_settling: bool,
    /// A secondary has told that the primary is gone, of which this node need not have heard yet.
    without_primary: Option<Error>,
    report: ClientReport,
}

#[derive(Clone, Copy)]
struct Sent {
    secondary: usize,
    was_taken: bool,
    /// Somebody waits for its answer, and sends it again if need be.
    is_awaited: bool,
}

impl State {
    fn settled(&mut self, number: u64, outcome: Outcome) {
        let was_taken = self.unsettled.get(&number).is_some_and(|sent| sent.was_taken);
        match outcome {
            Outcome::Pending | Outcome::Queued => return,
            Outcome::Applied => self.report.applied += 1,
            Outcome::Dropped => self.report.dropped += 1,
            Outcome::Lost if was_taken => {
                self.report.lost += 1;
                self.report.lost_numbers.push_back(number);
                if self.report.lost_numbers.len() > limits::LEARNER_REPORTED_MAX {
                    self.report.lost_numbers.pop_front();
                }
            }
            // Its push has failed, and nobody has it.
            Outcome::Lost => {}
        }
        self.unsettled.remove(&number);
    }

    fn floor(&self) -> u64 {
        self.unsettled.keys().next().copied().unwrap_or(self.next + 1)
    }
}

impl GradientClient {
    /// Connects this node to servers, all of which must have been started, as a barrier of the group can say. The work
    /// fails with `NotFound` where one has not, and with `PeerLost` where one is gone already. Does not block.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for servers that cannot be, and for a choice of a secondary that there is not.
    pub fn connect(
        mesh: &Mesh,
        group: &RpcGroup,
        servers: &Servers,
        choice: Choice,
        timeout: Option<Duration>,
    ) -> Result<Work<Self>> {
        let begin = || {
            servers.check(group)?;
            if let Choice::Fixed(at) = choice
                && at >= servers.secondaries.len()
            {
                let what = format!("secondary {at} of {}", servers.secondaries.len());
                return Err(Error::new(ErrorKind::InvalidArgument, what).hint("secondaries are counted from 0"));
            }
            let id = mesh.next_number("sheave.learner.client");
            let (weak, group, servers) = (mesh.downgrade(), group.clone(), servers.clone());
            mesh.spawn("connect to gradient servers", async move {
                let connected = Client::connect(weak, group, servers, choice, id, timeout).await;
                connected.map_err(|error| error.asked_for("connect to gradient servers"))
            })
        };
        begin().map_err(|error: Error| error.asked_for("connect to gradient servers"))
    }

    /// Returns the model whose gradients the servers take.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.0.model
    }

    /// Pushes one gradient for each parameter. The work ends with the gradient's number when a secondary has taken it,
    /// which waits where that has no room. Does not block, but for a copy of the tensors, which are borrowed until the
    /// work ends: they can be read, and who writes them is refused with `BufferInUse`. Cancelling the work does not
    /// take the gradient back; a report says what became of it.
    ///
    /// The work fails with the error that has stopped a server; with `PeerLost` that names the primary once that is
    /// gone, or the last of the secondaries.
    ///
    /// # Errors
    ///
    /// `Mismatch` that names the parameter for a gradient that does not fit; `LimitExceeded` where it is not known of
    /// [`LEARNER_UNSETTLED_MAX`](limits::LEARNER_UNSETTLED_MAX) pushes what became of them, and where there is no
    /// memory; `BufferInUse` for a tensor that is being written; `PeerLost` as above; `Closed` once the node has left.
    pub fn push(&self, gradient: &Tensors) -> Result<Work<u64>> {
        self.push_within(gradient, None)
    }

    /// Pushes as [`GradientClient::push`] does; the work fails with `DeadlineExceeded` after `timeout`. The gradient is
    /// not taken then, unless that happened in the last moment: a report says so.
    ///
    /// # Errors
    ///
    /// As [`GradientClient::push`].
    pub fn push_within(&self, gradient: &Tensors, timeout: Option<Duration>) -> Result<Work<u64>> {
        self.begin_push(gradient, timeout).map_err(|error| error.asked_for("push gradient"))
    }

    fn begin_push(&self, gradient: &Tensors, timeout: Option<Duration>) -> Result<Work<u64>> {
        let (client, mesh) = (&self.0, self.0.mesh()?);
        let leases = gradient.values().map(|tensor| tensor.read_lease("push gradient")).collect::<Result<Vec<_>>>()?;
        let segments = client.model.pack(gradient, mesh.node().arena())?;
        let (number, is_time) = client.number()?;
        if is_time && mesh.spawn("settle", Arc::clone(client).settle_now()).is_err() {
            // A later push asks.
            client.state.lock().is_settling = false;
        }
        let sent = client.send(&mesh, number, segments, timeout);
        let pushing = Pushing { gradient: gradient.clone(), _leases: leases, number, timeout };
        mesh.spawn("push gradient", Arc::clone(client).see_through(pushing, sent))
    }

    /// Has everything applied that was taken before, though no batch is full. The work ends with the version of the
    /// parameters then. Does not block.
    ///
    /// # Errors
    ///
    /// As [`GradientClient::push`].
    pub fn flush(&self) -> Result<Work<u64>> {
        let (client, mesh) = (Arc::clone(&self.0), self.0.mesh()?);
        mesh.spawn("flush gradients", async move {
            client.flush().await.map_err(|error| error.asked_for("flush gradients"))
        })
    }

    /// Asks the primary what became of all gradients. Does not block.
    ///
    /// # Errors
    ///
    /// `Closed` once the node has left. The work fails with `PeerLost` once the primary is gone.
    pub fn report(&self) -> Result<Work<ClientReport>> {
        let (client, mesh) = (Arc::clone(&self.0), self.0.mesh()?);
        mesh.spawn("report gradients", async move {
            let settled = client.settle().await;
            settled.map_err(|error| error.asked_for("report gradients"))?;
            Ok(client.told())
        })
    }

    /// Returns what is known without asking anybody: since the last report gradients may have been applied or lost.
    #[must_use]
    pub fn known(&self) -> ClientReport {
        self.0.told()
    }
}

impl std::fmt::Debug for GradientClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GradientClient").field("servers", &self.0.servers).finish_non_exhaustive()
    }
}

/// A push that is to be seen through.
struct Pushing {
    gradient: Tensors,
    _leases: Vec<ReadLease>,
    number: u64,
    timeout: Option<Duration>,
}

/// Where a gradient went, and the answer that is to come.
type Sending = Result<(usize, Result<Work<Answer>>)>;

impl Client {
    async fn connect(
        mesh: WeakMesh,
        group: RpcGroup,
        servers: Servers,
        choice: Choice,
        id: u32,
        timeout: Option<Duration>,
    ) -> Result<GradientClient> {
        let here = || mesh.upgrade().ok_or_else(left);
        let mut secondaries = Vec::with_capacity(servers.secondaries.len());
        for node in &servers.secondaries {
            let (key, name) = (servers.key(&here()?, *node)?, name_of(&here()?, *node)?.to_owned());
            let (_, service) = group.find(key, timeout)?.await?;
            secondaries.push((service, name));
        }
        let (_, primary) = group.find(servers.key(&here()?, servers.primary)?, timeout)?.await?;
        let hello = Call { deadline: timeout, ..Call::of(Value::Int(id.into())) };
        let hello = here()?.call(servers.primary, primary.clone(), HELLO, hello)?;
        // It may take some though nobody waits for its answer any more.
        let notes = Notes { mesh: mesh.clone(), node: servers.primary, primary, client: id };
        let answer = hello.await?;
        let model = Model::read(answer.value).ok_or_else(unreadable)?;
        let state = Mutex::new(State { is_gone: vec![false; secondaries.len()], ..State::default() });
        Ok(GradientClient(Arc::new(Self { mesh, servers, secondaries, notes, model, choice, state })))
    }

    fn mesh(&self) -> Result<Mesh> {
        self.mesh.upgrade().ok_or_else(left)
    }

    /// The number of the next gradient, and whether it is time to ask for those before.
    fn number(&self) -> Result<(u64, bool)> {
        let mut state = self.state.lock();
        if state.unsettled.len() >= limits::LEARNER_UNSETTLED_MAX {
            let what = format!("it is not known what became of {} gradients", state.unsettled.len());
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("await pushes, and flush"));
        }
        state.next += 1;
        let number = state.next;
        // Before anybody is told that nothing below it is asked for any more.
        state.unsettled.insert(number, Sent { secondary: 0, was_taken: false, is_awaited: true });
        state.report.pushed += 1;
        let is_time = number.is_multiple_of(limits::LEARNER_SETTLE_EACH as u64) && !state.is_settling;
        state.is_settling |= is_time;
        Ok((number, is_time))
    }

    /// The secondary whose turn it is.
    fn choose(&self, mesh: &Mesh) -> Result<usize> {
        let (deaths, told) = (mesh.deaths(), self.state.lock().without_primary.clone());
        if let Some(error) = told {
            return Err(error);
        }
        if let Some(death) = deaths.iter().find(|death| death.node == self.servers.primary) {
            let what = format!("the primary of {} is gone: {}", self.servers.name, death.reason);
            let error = Error::new(ErrorKind::PeerLost, what).hint("connect to servers that live");
            return Err(mesh.member(death.node).map_or(error.clone(), |member| error.peer(member.peer())));
        }
        let mut state = self.state.lock();
        for death in deaths {
            if let Some(at) = self.servers.secondaries.iter().position(|node| *node == death.node) {
                state.is_gone[at] = true;
            }
        }
        let first = match self.choice {
            Choice::Fixed(at) => at,
            Choice::RoundRobin => state.turn,
        };
        let count = self.secondaries.len();
        let chosen = (0..count).map(|step| (first + step) % count).find(|at| !state.is_gone[*at]);
        let Some(chosen) = chosen else {
            let last = self.servers.secondaries[first % count];
            let what = format!("no secondary of {} lives any more", self.servers.name);
            let error = Error::new(ErrorKind::PeerLost, what).hint("connect to servers that live");
            return Err(mesh.member(last).map_or(error.clone(), |member| error.peer(member.peer())));
        };
        state.turn = chosen + 1;
        Ok(chosen)
    }

    /// Sends a gradient to the secondary whose turn it is. The segments go away with it.
    fn send(&self, mesh: &Mesh, number: u64, segments: Vec<Tensor>, timeout: Option<Duration>) -> Sending {
        let secondary = self.choose(mesh)?;
        if let Some(sent) = self.state.lock().unsettled.get_mut(&number) {
            sent.secondary = secondary;
        }
        let fingerprint = self.model.fingerprint();
        let push = Push { client: self.notes.client, number, fingerprint, patience: timeout };
        let tensors = segments.into_iter().map(|segment| Part::new(segment, Mode::Move)).collect();
        let call = Call { tensors, deadline: timeout, runs_anyway: true, ..Call::of(push.to_value()) };
        let (service, _) = &self.secondaries[secondary];
        Ok((secondary, mesh.call(self.servers.secondaries[secondary], service, PUSH, call)))
    }

    /// Waits for the answer, and sends the gradient to another secondary for as long as one is gone before it answers.
    async fn see_through(self: Arc<Self>, pushing: Pushing, sent: Sending) -> Result<u64> {
        let _awaits = Awaits { client: Arc::clone(&self), number: pushing.number };
        let outcome = self.try_through(&pushing, sent).await;
        outcome.map_err(|error| error.asked_for("push gradient"))
    }

    async fn try_through(self: &Arc<Self>, pushing: &Pushing, mut sent: Sending) -> Result<u64> {
        let number = pushing.number;
        loop {
            let (secondary, answer) = sent.inspect_err(|_| {
                self.state.lock().unsettled.remove(&number);
            })?;
            let answer = match answer {
                Ok(work) => work.await,
                Err(error) => Err(error),
            };
            let error = match answer {
                Ok(_) => {
                    self.taken(number);
                    return Ok(number);
                }
                Err(error) if self.is_gone(secondary, &error) => error,
                Err(error) => {
                    // After any other error than these it was not taken.
                    let may_be = matches!(error.kind(), ErrorKind::DeadlineExceeded | ErrorKind::Cancelled);
                    let is_about = error.about().and_then(|peer| peer.node) == Some(self.servers.primary);
                    let mut state = self.state.lock();
                    if error.kind().is_loss() && is_about {
                        state.without_primary.get_or_insert(error.clone());
                    }
                    if !may_be {
                        state.unsettled.remove(&number);
                    }
                    return Err(error);
                }
            };
            let asked = Asked { number, gone: Some(self.servers.secondaries[secondary]), was_taken: false };
            let outcome = match self.ask(vec![asked]).await {
                Ok(outcomes) => outcomes.first().copied().ok_or_else(unreadable)?,
                Err(primary) => return Err(primary.cause(error)),
            };
            if outcome != Outcome::Lost {
                self.taken(number);
                return Ok(number);
            }
            let mesh = self.mesh()?;
            let segments = self.model.pack(&pushing.gradient, mesh.node().arena())?;
            sent = self.send(&mesh, number, segments, pushing.timeout);
            if let Ok((to, _)) = &sent {
                self.note_move(number, secondary, *to);
            }
        }
    }

    fn taken(&self, number: u64) {
        let mut state = self.state.lock();
        state.report.acknowledged += 1;
        if let Some(sent) = state.unsettled.get_mut(&number) {
            sent.was_taken = true;
        }
    }

    fn note_move(&self, number: u64, from: usize, to: usize) {
        let [from, to] = [from, to].map(|at| self.secondaries[at].1.clone());
        let mut state = self.state.lock();
        state.report.moved += 1;
        state.report.moves.push_back(Moved { number, from, to });
        if state.report.moves.len() > limits::LEARNER_REPORTED_MAX {
            state.report.moves.pop_front();
        }
    }

    /// Whether the secondary itself is gone, and not what it needs.
    fn is_gone(&self, secondary: usize, error: &Error) -> bool {
        let node = self.servers.secondaries[secondary];
        let is_about = error.about().and_then(|peer| peer.node) == Some(node);
        let is_gone = error.kind().is_loss() && is_about && node != self.servers.primary;
        if is_gone {
            self.state.lock().is_gone[secondary] = true;
        }
        is_gone
    }

    async fn ask(&self, asked: Vec<Asked>) -> Result<Vec<Outcome>> {
        let settle = Settle { client: self.notes.client, floor: self.state.lock().floor(), asked };
        let work = self.mesh()?.call(self.servers.primary, &self.notes.primary, SETTLE, settle.to_value())?;
        let outcomes = Outcome::read(work.await?.value)?;
        if outcomes.len() == settle.asked.len() { Ok(outcomes) } else { Err(unreadable()) }
    }

    async fn settle_now(self: Arc<Self>) -> Result<()> {
        let settled = self.settle().await;
        self.state.lock().is_settling = false;
        settled
    }

    /// Asks for all gradients that nobody waits for.
    async fn settle(&self) -> Result<()> {
        let asked: Vec<Asked> = {
            let (deaths, mut state) = (self.mesh()?.deaths(), self.state.lock());
            for (at, node) in self.servers.secondaries.iter().enumerate() {
                state.is_gone[at] |= deaths.iter().any(|death| death.node == *node);
            }
            let question = |(number, sent): (&u64, &Sent)| {
                let gone = state.is_gone[sent.secondary].then(|| self.servers.secondaries[sent.secondary]);
                Asked { number: *number, gone, was_taken: sent.was_taken }
            };
            let is_left = |(_, sent): &(&u64, &Sent)| sent.was_taken || !sent.is_awaited;
            state.unsettled.iter().filter(is_left).map(question).collect()
        };
        let mut pieces: Vec<&[Asked]> = asked.chunks(limits::LEARNER_SETTLE_EACH).collect();
        if pieces.is_empty() {
            // The primary is there, and hears what need not be remembered.
            pieces.push(&[]);
        }
        for piece in pieces {
            let outcomes = self.ask(piece.to_vec()).await?;
            let mut state = self.state.lock();
            for (asked, outcome) in piece.iter().zip(outcomes) {
                if state.unsettled.contains_key(&asked.number) {
                    state.settled(asked.number, outcome);
                }
            }
        }
        Ok(())
    }

    async fn flush(&self) -> Result<u64> {
        let mut works = Vec::new();
        for (at, (service, _)) in self.secondaries.iter().enumerate() {
            let mesh = self.mesh()?;
            if !mesh.deaths().iter().any(|death| death.node == self.servers.secondaries[at]) {
                works.push((at, mesh.call(self.servers.secondaries[at], service, FLUSH, Call::default())));
            }
        }
        for (at, work) in works {
            let answer = match work {
                Ok(work) => work.await,
                Err(error) => Err(error),
            };
            match answer {
                Err(error) if !self.is_gone(at, &error) => return Err(error),
                _ => {}
            }
        }
        let work = self.mesh()?.call(self.servers.primary, &self.notes.primary, STEP, Call::default())?;
        number(&work.await?.value)
    }

    fn told(&self) -> ClientReport {
        let state = self.state.lock();
        let gone = self.secondaries.iter().zip(&state.is_gone).filter(|(_, is_gone)| **is_gone);
        ClientReport {
            pending: state.unsettled.len() as u64,
            gone: gone.map(|((_, name), _)| name.clone()).collect(),
            ..state.report.clone()
        }
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        if let Some(mesh) = self.mesh.upgrade() {
            // An earlier farewell that has failed is no reason to keep this one.
            let _ = mesh.check_one_way(self.node, &self.primary);
            // A primary that is gone remembers nobody.
            let _ = mesh.cast(self.node, &self.primary, BYE, Value::Int(self.client.into()));
        }
    }
}

/// That somebody waits for the answer to a push.
struct Awaits {
    client: Arc<Client>,
    number: u64,
}

impl Drop for Awaits {
    fn drop(&mut self) {
        if let Some(sent) = self.client.state.lock().unsettled.get_mut(&self.number) {
            sent.is_awaited = false;
        }
    }
}

fn left() -> Error {
    Error::new(ErrorKind::Closed, "the node of this client of gradient servers has left")
}
