//! Talks with the index, whichever member that is meanwhile.
//!
//! An index that is gone, has left the group, or does not know yet that it is the index, is asked again or left for the
//! next one. Each talk is a task of the node; it ends with an answer, with the end of the group or of this node, or
//! at its deadline.

use crate::directory::Directory;
use crate::entry::{EntryName, GroupName};
use crate::group::Shared;
use crate::protocol::{Announce, Announced, Find, Found, OfEntry, Ownership, Paired, Report, Withdraw};
use sheave_base::collections::HashSet;
use sheave_base::work::awaited::{Account, Awaited, Describe, Which};
use sheave_base::{Error, ErrorKind, NodeId, Result, Work};
use sheave_mesh::engine::Death;
use sheave_mesh::{AnswerOf, CallOptions, Mesh, Method, Ref};
use std::sync::Arc;
use std::time::Duration;

/// Pauses between questions, each twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Pauses of one talk.
struct Pauses(Duration);

impl Pauses {
    async fn pause(&mut self, mesh: &Mesh) -> Result<()> {
        let runtime = mesh.runtime();
        runtime.sleep_until(runtime.after(self.0))?.await;
        self.0 = (self.0 * 2).min(PAUSE_MAX);
        Ok(())
    }
}

/// Answer of an index.
struct Heard<T> {
    index: NodeId,
    answer: T,
    /// Why the index before it did not answer.
    lost: Option<Error>,
}

/// What an index says of a key.
pub(crate) enum Sought {
    Owner(NodeId),
    /// Its owner has died with it.
    LostWith(NodeId),
    Nobody {
        says: NodeId,
        /// As [`Heard::lost`].
        lost: Option<Error>,
    },
}

/// The death of a node, if it is dead and has not left in order.
pub(crate) fn death_of(mesh: &Mesh, node: NodeId) -> Option<Death> {
    mesh.deaths().into_iter().find(|death| death.node == node && !death.left)
}

/// Who looks for an entry is told that its owner has died.
fn lost_with(mesh: &Mesh, owner: NodeId, entry: &EntryName, had: String) -> Error {
    // The index may have heard of it a moment before this node.
    let reason = death_of(mesh, owner).map_or_else(|| "it died".to_owned(), |death| death.reason);
    let error = Error::new(ErrorKind::PeerLost, reason).context(had);
    let error = mesh.member(owner).into_iter().fold(error, |error, member| error.peer(member.peer()));
    error.hint(format!("no member has {entry} now; register it on one that lives"))
}

/// Meaning of an index's answer.
enum Said<T> {
    Answer(T),
    Again,
    Gone,
}

impl Shared {
    /// The index as this node knows it.
    fn index(&self, mesh: &Mesh) -> Result<NodeId> {
        let dead: HashSet<NodeId> = mesh.deaths().iter().map(|death| death.node).collect();
        let left = self.left.lock();
        let found = self.members.iter().copied().find(|member| !dead.contains(member) && !left.contains(member));
        found.ok_or_else(|| {
            let what = "no member is in the group any more";
            Error::new(ErrorKind::NotFound, what).group(&self.group.name)
        })
    }

    /// A member has left the group.
    fn note_left(&self, member: NodeId) {
        self.left.lock().insert(member);
        self.directory.lose(&self.group, member);
    }

    /// Says something to the index until it answers.
    async fn talk<M: Method, T>(
        &self,
        mesh: &Mesh,
        args: &M::Args,
        hear: impl Fn(M::Answer) -> Said<T>,
    ) -> Result<Heard<T>> {
        let (mut pauses, mut lost) = (Pauses(PAUSE_MIN), None);
        loop {
            let index = self.index(mesh)?;
            let asked = match mesh.ask::<M>(index, args) {
                Ok(work) => work.await,
                Err(error) => Err(error),
            };
            match asked.map(|answer| hear(answer.value)) {
                Ok(Said::Answer(answer)) => return Ok(Heard { index, answer, lost }),
                Ok(Said::Gone) => self.note_left(index),
                Ok(Said::Again) => pauses.pause(mesh).await?,
                // It may take a moment until all agree that it is gone; or it is this node that is.
                Err(error) if error.kind() == ErrorKind::PeerLost && mesh.is_member() => {
                    lost = Some(error);
                    pauses.pause(mesh).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn of(&self, entry: &EntryName) -> OfEntry {
        OfEntry { group: self.group.clone(), entry: entry.clone() }
    }

    fn ownership(&self, entry: &EntryName, number: u64) -> Ownership {
        Ownership { group: self.group.clone(), entry: entry.clone(), number }
    }

    /// What the index says of an entry.
    pub(crate) async fn find(&self, mesh: &Mesh, entry: &EntryName) -> Result<Sought> {
        let hear = |found| match found {
            Found::NotNow => Said::Again,
            Found::Gone => Said::Gone,
            found => Said::Answer(found),
        };
        let Heard { index, answer, lost } = self.talk::<Find, _>(mesh, &self.of(entry), hear).await?;
        Ok(match answer {
            Found::Owner(owner) => Sought::Owner(owner),
            Found::LostWith(owner) => Sought::LostWith(owner),
            _ => Sought::Nobody { says: index, lost },
        })
    }

    /// The owner of an entry. Where it has none it may have had one that has died: the index knows, or this handle. If
    /// neither does and an index was lost meanwhile, that may have been it.
    pub(crate) async fn owner_of(&self, mesh: &Mesh, entry: &EntryName) -> Result<NodeId> {
        let (says, lost) = match self.find(mesh, entry).await? {
            Sought::Owner(owner) => return Ok(owner),
            Sought::LostWith(owner) => return Err(lost_with(mesh, owner, entry, format!("it had {entry}"))),
            Sought::Nobody { says, lost } => (says, lost),
        };
        // The first index has heard of all that was taken away; a later one knows neither that nor who has died.
        let is_later = self.members.first() != Some(&says);
        let found = self.owner(entry).filter(|owner| is_later && death_of(mesh, *owner).is_some());
        Err(match (found, lost) {
            (Some(owner), _) => lost_with(mesh, owner, entry, format!("it had {entry} when it was found")),
            (None, Some(error)) => error.hint(format!("no member has {entry} now; is it to be registered again?")),
            (None, None) => Error::new(ErrorKind::NotFound, format!("no member has {entry}"))
                .hint("is the key right, and does its owner still live?"),
        })
    }

    /// Has an entry of this node granted, which has this number.
    pub(crate) async fn announce(&self, mesh: &Mesh, entry: &EntryName, number: u64) -> Result<()> {
        let hear = |announced| match announced {
            Announced::Done => Said::Answer(None),
            Announced::Taken(by) => Said::Answer(Some(by)),
            Announced::NotNow => Said::Again,
            Announced::Gone => Said::Gone,
        };
        let own = self.ownership(entry, number);
        loop {
            let Heard { index, answer: taken, .. } = self.talk::<Announce, _>(mesh, &own, hear).await?;
            if let Some(by) = taken {
                let who = mesh.member(by).map(|member| member.introduction.name.as_str()).unwrap_or("another member");
                let error = Error::new(ErrorKind::AlreadyExists, format!("{who} has {entry} already"));
                return Err(error.hint("choose another key, or have it taken away there first"));
            }
            let mut state = self.directory.state.lock();
            let group = state.group(&self.group).ok_or_else(|| self.destroyed())?;
            if group.grant(entry, number, index) {
                return Ok(());
            }
        }
    }

    /// Has the index forget an entry of this number that this node has no more.
    pub(crate) async fn withdraw(&self, mesh: &Mesh, entry: &EntryName, number: u64) -> Result<()> {
        let hear = |announced| match announced {
            Announced::Done | Announced::Taken(_) => Said::Answer(()),
            Announced::NotNow => Said::Again,
            Announced::Gone => Said::Gone,
        };
        self.talk::<Withdraw, _>(mesh, &self.ownership(entry, number), hear).await.map(drop)
    }

    /// The value under a key, from whoever has it.
    pub(crate) async fn value(&self, mesh: &Mesh, entry: &EntryName, timeout: Option<Duration>) -> Result<Ref> {
        let mut pauses = Pauses(PAUSE_MIN);
        loop {
            let owner = self.owner_of(mesh, entry).await?;
            let options = CallOptions { deadline: timeout, ..CallOptions::default() };
            let asked = match mesh.ask_with::<Paired>(owner, &self.of(entry), options) {
                Ok(work) => work.await,
                Err(error) => Err(error),
            };
            match asked {
                // Without one it was taken away since, of which the index hears.
                Ok(mut answer) => {
                    if let Some(value) = answer.refs.pop() {
                        self.remember(entry.clone(), owner, None);
                        return Ok(value);
                    }
                }
                Err(error) if error.kind() == ErrorKind::PeerLost && mesh.is_member() => {}
                Err(error) => return Err(error),
            }
            pauses.pause(mesh).await?;
        }
    }

    pub(crate) fn destroyed(&self) -> Error {
        let what = format!("this node is not in the group \"{}\"", self.group.name);
        Error::new(ErrorKind::NotPermitted, what)
            .hint("members alone register and pair, and none that has destroyed it")
    }

    /// Runs a talk as a task, to its deadline.
    pub(crate) fn run<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        self: &Arc<Self>,
        operation: &'static str,
        timeout: Option<Duration>,
        about: String,
        act: impl FnOnce(Arc<Self>, Mesh) -> F,
    ) -> Result<Work<T>> {
        let mesh = self.directory.mesh()?;
        let talk = Arc::new(Talk { shared: Arc::clone(self), operation, about });
        let (words, own, knows) = (act(Arc::clone(self), mesh.clone()), mesh.clone(), Arc::downgrade(&talk));
        let work = mesh.spawn(operation, async move {
            let outcome = match timeout {
                None => words.await,
                Some(span) => {
                    let runtime = own.runtime();
                    let ended = runtime.until(runtime.after(span), words).await?;
                    ended.unwrap_or_else(|| Err(talk.shared.late(&own, &talk.about, span)))
                }
            };
            outcome.map_err(|error| error.operation(operation).group(&talk.shared.group.name))
        })?;
        work.awaits(Awaited::new(knows, Which::default()));
        Ok(work)
    }

    /// The time of a talk is up.
    fn late(&self, mesh: &Mesh, about: &str, span: Duration) -> Error {
        let index = self.index(mesh).ok().and_then(|index| mesh.member(index));
        let error = Error::new(ErrorKind::DeadlineExceeded, format!("{about} was not answered for")).elapsed(span);
        index.into_iter().fold(error, |error, member| error.peer(member.peer()))
    }
}

/// A talk that lasts, for those who look on.
struct Talk {
    shared: Arc<Shared>,
    operation: &'static str,
    about: String,
}

impl Describe for Talk {
    fn describe(&self, _: Which) -> Option<Account> {
        let mesh = self.shared.directory.mesh().ok()?;
        let index = self.shared.index(&mesh).ok().and_then(|index| mesh.member(index));
        let name = index.map_or("a member", |member| member.introduction.name.as_str());
        let what = format!("{} of {} on group {}", self.operation, self.about, self.shared.group.name);
        Some(Account { what: Some(what), whom: Some(format!("{name}, which knows the owners of its keys")) })
    }
}

impl Directory {
    /// Tells a new index all that this node has, until that has heard it or is gone too.
    pub(crate) fn report_to(self: &Arc<Self>, index: NodeId, group: &GroupName) {
        let Ok(mesh) = self.mesh() else { return };
        let (directory, own, of) = (Arc::clone(self), mesh.clone(), group.clone());
        let begun = mesh.spawn("report entries", async move { directory.send_reports(&own, index, &of).await });
        if begun.is_err() {
            // Without a task it is said once, for others wait for it.
            drop(self.say_all(&mesh, index, group));
        }
    }

    /// Begins to tell an index all that this node has; nothing if that is not the index.
    fn say_all(&self, mesh: &Mesh, index: NodeId, group: &GroupName) -> Option<Result<Vec<Work<AnswerOf<Report>>>>> {
        let reports = self.state.lock().group(group).filter(|state| state.index() == index)?.reports();
        let asked = reports.iter().map(|report| mesh.ask::<Report>(index, report)).collect();
        // The word that one of them is taken away may have gone before.
        let disowned = self.state.lock().group(group).map(|group| group.disowned(&reports)).unwrap_or_default();
        disowned.into_iter().for_each(|of| self.withdraw_from(mesh, index, group, of));
        Some(asked)
    }

    /// Others get no answer from the index until it has heard this node, so nothing but its end ends this.
    async fn send_reports(&self, mesh: &Mesh, mut index: NodeId, group: &GroupName) -> Result<()> {
        let mut pauses = Pauses(PAUSE_MIN);
        while let Some(asked) = self.say_all(mesh, index, group) {
            let mut heard = Vec::new();
            for work in asked.unwrap_or_default() {
                heard.push(work.await.map(|answer| answer.value));
            }
            // Of those that could not be asked there is no answer.
            if !heard.is_empty() && heard.iter().all(|heard| matches!(heard, Ok(Announced::Done))) {
                return Ok(());
            }
            if heard.iter().any(|heard| matches!(heard, Ok(Announced::Gone))) {
                let is_dead = self.is_dead(index);
                let next = self.state.lock().group(group).and_then(|state| state.lose(index, is_dead));
                let Some(next) = next else { return Ok(()) };
                index = next;
            } else if mesh.is_member() {
                pauses.pause(mesh).await?;
            } else {
                return Ok(());
            }
        }
        Ok(())
    }
}
