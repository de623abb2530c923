//! The thread that hears what the guard says, and notices when it is killed.

use crate::exit::Status;
use crate::job::{GuardState, Phase, Shared};
use crate::output::Which;
use crate::protocol::{self, Descriptors, Record, Verb};
use crate::{start, sweep};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Handles records until the guard is gone and reaped. Every wait ends with the guard.
pub(crate) fn run(shared: &Arc<Shared>) {
    let mut ended = None;
    loop {
        let mut events = [PollFd::new(&shared.control, PollFlags::IN), PollFd::new(&shared.guard_pidfd, PollFlags::IN)];
        if rustix::event::poll(&mut events, None).is_err() {
            continue;
        }
        // Read before emptying the socket: what a dead guard has sent is all there.
        let dead = !events[1].revents().is_empty();
        let closed = drain(shared, &mut ended);
        if dead || closed {
            break;
        }
    }
    start::await_end(shared.guard_pid, &shared.guard_pidfd);
    let guard = match ended {
        Some(left) => GuardState::Ended { left },
        // Its children are dying by the kernel's hand; this finds what they had started.
        None => GuardState::Lost { left: !sweep::kill_marked(&shared.mark) },
    };
    close_books(shared, guard);
}

/// Handles all waiting records; true when the guard has closed its end.
fn drain(shared: &Arc<Shared>, ended: &mut Option<bool>) -> bool {
    loop {
        match protocol::receive(shared.control.as_fd()) {
            Ok(Some((record, descriptors))) => match record.verb {
                Verb::Spawned => spawned(shared, record, descriptors),
                Verb::Refused => refused(shared, record),
                Verb::Exited => exited(shared, record),
                Verb::Ended => *ended = Some(record.value != 0),
                Verb::Ready | Verb::Spawn | Verb::Signal | Verb::SignalAll | Verb::End => {}
            },
            Err(Errno::PROTO) => {}
            Err(Errno::AGAIN) => return false,
            Ok(None) | Err(_) => return true,
        }
    }
}

fn spawned(shared: &Arc<Shared>, record: Record, descriptors: Descriptors) {
    let mut state = shared.state.lock();
    let Some(entry) = state.living.get_mut(&record.id) else { return };
    let _ = entry.record.pid.set(u32::try_from(record.value).unwrap_or(0));
    let [status, output, error] = descriptors;
    // Descriptors get lost when we have no numbers left for them.
    entry.phase = match status {
        Some(status) if output.is_some() == error.is_some() => Phase::Forked(status),
        _ => Phase::Refused(Errno::MFILE),
    };
    for (pipe, which) in [(output, Which::Output), (error, Which::Error)] {
        match pipe {
            Some(pipe) => shared.pump.add(pipe, Arc::clone(&entry.record), which),
            None => entry.record.log(which).close(),
        }
    }
    drop(state);
    shared.changed.notify_all();
}

fn refused(shared: &Shared, record: Record) {
    if let Some(entry) = shared.state.lock().living.get_mut(&record.id) {
        entry.phase = Phase::Refused(Errno::from_raw_os_error(record.value));
    }
    shared.changed.notify_all();
}

fn exited(shared: &Shared, record: Record) {
    let mut state = shared.state.lock();
    let mut ended = None;
    if let Some(entry) = state.living.get(&record.id) {
        let child = Arc::clone(&entry.record);
        ended = Some(Arc::clone(&child));
        let exit = state.exit_of(&child, Status::from_wait_status(record.value));
        let running = matches!(entry_phase(&state, record.id), Some(Phase::Running));
        let stillborn = matches!(entry_phase(&state, record.id), Some(Phase::Stillborn));
        let _ = child.exit.set(exit.clone());
        if running {
            state.settle(&child, exit);
        }
        // A child that is being spawned is left to its spawner, who will know whether its program ever ran.
        if running || stillborn {
            state.living.remove(&record.id);
        }
    }
    drop(state);
    shared.changed.notify_all();
    if let Some(ended) = ended {
        ended.tell_end();
    }
}

fn entry_phase(state: &crate::job::State, id: u32) -> Option<&Phase> {
    state.living.get(&id).map(|entry| &entry.phase)
}

/// Whoever is still in the books ended with the guard.
fn close_books(shared: &Shared, guard: GuardState) {
    let mut state = shared.state.lock();
    let living = std::mem::take(&mut state.living);
    for entry in living.values() {
        let exit = state.exit_of(&entry.record, Status::Lost);
        if entry.record.exit.set(exit.clone()).is_ok() && matches!(entry.phase, Phase::Running) {
            state.settle(&entry.record, exit);
        }
    }
    state.guard = guard;
    drop(state);
    shared.changed.notify_all();
    living.values().for_each(|entry| entry.record.tell_end());
}
