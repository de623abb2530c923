//! What operations of a group wait for, for notices and tools.

use super::State;
use crate::hub::Hub;
use crate::task::Task;
use sheave_base::work::awaited::{Account, Describe, Which};
use sheave_base::work::pair;
use sheave_base::{Error, ErrorKind, Rank, Work};
use std::sync::Arc;

impl State {
    fn named_rank(&self, rank: Rank) -> String {
        match self.group.member(rank) {
            Some(member) => format!("rank {rank} ({})", member.introduction.name),
            None => format!("rank {rank}"),
        }
    }

    fn task(&self, key: u64) -> Option<Arc<Task>> {
        self.tasks.lock().get(&key).cloned().filter(|task| !task.is_done())
    }

    /// Whom a collective operation waits for, as far as that can be known without asking.
    fn whom(&self, task: &Task) -> String {
        task.awaited.get().map_or_else(|| "the others".to_owned(), |rank| self.named_rank(rank))
    }

    /// Asks the others how far they are. Takes a moment.
    async fn found_out(&self, hub: &Hub, task: &Task) -> String {
        let missing = hub.who_is_missing(self, task.key).await;
        if missing.is_empty() { self.whom(task) } else { format!("{missing} to enter") }
    }
}

/// A task, by its key.
impl Describe for State {
    fn describe(&self, [key, _]: Which) -> Option<Account> {
        let task = self.task(key)?;
        let (operation, label) = (task.operation, self.group.label());
        Some(match task.message {
            _ if task.is_collective => Account {
                what: Some(format!("{operation} on group {label}, sequence {}", task.key)),
                whom: Some(self.whom(&task)),
            },
            Some((other, tag)) => Account {
                what: Some(format!("{operation} with tag {tag} on group {label}")),
                whom: Some(other.map_or_else(|| "any rank".to_owned(), |rank| self.named_rank(rank))),
            },
            None => Account { what: Some(format!("{operation} on group {label}")), whom: Some(self.whom(&task)) },
        })
    }

    fn ask(&self, [key, _]: Which) -> Option<Work<String>> {
        let task = self.task(key).filter(|task| task.is_collective)?;
        let (state, hub) = (self.me.upgrade()?, self.hub.this()?);
        let (completer, work) = pair("asking");
        let runtime = hub.runtime.clone();
        let asking = runtime.spawn(async move {
            completer.complete(match state.task(key) {
                Some(_) => Ok(state.found_out(&hub, &task).await),
                None => Err(Error::new(ErrorKind::NotFound, "it has ended")),
            });
        });
        // That there is no room for it is no reason to fail.
        asking.ok()?.detach();
        Some(work)
    }
}
