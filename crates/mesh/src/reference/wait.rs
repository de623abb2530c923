//! Waits for objects of this node that others have promised.
//!
//! A wait stands in the entry of what it waits for, and keeps that, but is no handle: a promise of this node to itself
//! that nobody holds any more will not be filled, and whoever waits for it must be told so. It is taken out once, by
//! whoever settles the promise, by its deadline or by its cancellation.

use super::name::Name;
use super::owner::{Content, Owned};
use super::table::{References, full, not_found};
use super::{Object, Ref, downcast};
use crate::awaited::Sort;
use crate::runtime::Timer;
use sheave_base::work::awaited::Account;
use sheave_base::work::{Completer, pair};
use sheave_base::{Error, ErrorKind, Result, Work};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// What a wait does with its outcome.
type Ending = Box<dyn FnOnce(Result<Object>) + Send>;

/// One wait.
pub(super) struct Wait {
    number: u64,
    ending: Ending,
    timer: Option<Timer>,
}

impl Wait {
    pub(super) fn end(self, outcome: Result<Object>) {
        let Self { ending, timer, .. } = self;
        drop(timer);
        ending(outcome);
    }
}

impl References {
    /// The object, once it is there.
    pub(crate) fn object<T: Any + Send + Sync>(
        self: &Arc<Self>,
        held: &Ref,
        deadline: Option<Duration>,
    ) -> Work<Arc<T>> {
        let name = held.0.name;
        let typed = |outcome: Result<Object>| {
            outcome.and_then(|object| downcast(&object)).map_err(|error| error.operation("object"))
        };
        let settled = held.0.object.get();
        if let Some(settled) = settled {
            let outcome = match settled {
                Ok(object) => Ok(Arc::clone(object)),
                Err(error) => Err(error.clone()),
            };
            return Work::ready("object", typed(outcome));
        }
        if name.owner != self.me {
            return Work::ready("object", Err(held.0.elsewhere().operation("object")));
        }
        let (completer, work): (Completer<Arc<T>>, _) = match self.shared.upgrade() {
            Some(shared) => shared.node.described("object", None, shared.awaited(Sort::Object, name.id)),
            None => pair("object"),
        };
        let number = self.last_wait.fetch_add(1, SeqCst) + 1;
        let weak = Arc::downgrade(self);
        completer.on_cancel(move || {
            let Some(references) = weak.upgrade() else { return };
            let error = Error::new(ErrorKind::Cancelled, "the wait for the object was cancelled");
            references.end_wait(name, number, error.operation("object"));
        });
        let ending = Box::new(move |outcome| completer.complete(typed(outcome)));
        if self.note_wait(name, Wait { number, ending, timer: None }) {
            self.bound_wait(name, number, deadline);
        }
        work
    }

    /// Notes a wait, unless it is over already. True if it was noted.
    fn note_wait(&self, name: Name, wait: Wait) -> bool {
        let mut tables = self.tables.lock();
        let has_room = tables.waits < self.bounds.waits;
        let outcome = match tables.owned.get_mut(&name.id).map(|owned| &mut owned.content) {
            Some(Content::Promised(promised)) if has_room => {
                promised.waits.push(wait);
                tables.waits += 1;
                return true;
            }
            Some(Content::Promised(_)) => {
                let hint = "wait for some of them before waiting for more";
                Err(full("waits for promised objects", self.bounds.waits, hint))
            }
            Some(Content::There(object)) => Ok(Arc::clone(object)),
            Some(Content::Poisoned(error)) => Err(error.clone()),
            None => Err(not_found(name)),
        };
        drop(tables);
        wait.end(outcome);
        false
    }

    fn bound_wait(self: &Arc<Self>, name: Name, number: u64, deadline: Option<Duration>) {
        let (Some(deadline), Some(shared)) = (deadline, self.shared.upgrade()) else { return };
        let weak = Arc::downgrade(self);
        let timer = shared.ticker.at(shared.deadline(deadline), move || {
            let Some(references) = weak.upgrade() else { return };
            let whom = references.awaited_object(name.id).and_then(|account| account.whom);
            let what = format!("{name} was not there in time: waiting for {}", whom.unwrap_or_default());
            let hint = "give it more time, or look at what the node does that was to send the call";
            let error = Error::new(ErrorKind::DeadlineExceeded, what).hint(hint);
            references.end_wait(name, number, error.operation("object").elapsed(deadline));
        });
        match timer {
            Ok(timer) => {
                let mut tables = self.tables.lock();
                let waits = tables.owned.get_mut(&name.id).and_then(Owned::promise).map(|promised| &mut promised.waits);
                let wait = waits.and_then(|waits| waits.iter_mut().find(|wait| wait.number == number));
                let unneeded = match wait {
                    Some(wait) => wait.timer.replace(timer),
                    None => Some(timer),
                };
                drop(tables);
                drop(unneeded);
            }
            Err(error) => self.end_wait(name, number, error.operation("object")),
        }
    }

    fn end_wait(&self, name: Name, number: u64, error: Error) {
        let mut tables = self.tables.lock();
        let waits = tables.owned.get_mut(&name.id).and_then(Owned::promise).map(|promised| &mut promised.waits);
        let ended = waits.and_then(|waits| {
            let at = waits.iter().position(|wait| wait.number == number)?;
            Some(waits.swap_remove(at))
        });
        tables.waits -= usize::from(ended.is_some());
        tables.free(name.id);
        self.let_go(tables);
        if let Some(wait) = ended {
            wait.end(Err(error));
        }
    }

    /// What a wait for that object of this node waits for.
    pub(crate) fn awaited_object(&self, id: u64) -> Option<Account> {
        let name = Name { owner: self.me, id };
        let (asking, drawer) = {
            let mut tables = self.tables.lock();
            let promised = tables.owned.get_mut(&id).and_then(Owned::promise)?;
            (promised.asking.clone(), self.drawer(name)?)
        };
        let ((drawer, count), whom) = (drawer, asking.map(|asking| format!("{} to fill it", self.title(&asking))));
        let drawer = self.name_of(drawer);
        let whom = whom.unwrap_or_else(|| format!("{drawer} to send the call that fills it"));
        Some(Account { what: Some(format!("object {count}, promised by {drawer}")), whom: Some(whom) })
    }
}
