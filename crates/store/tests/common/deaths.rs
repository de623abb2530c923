//! Jobs of which several processes are killed at once, and what the others say of that.

use super::{PATIENCE, hear, job, note, now_ms, parts, say, start_all, until};
use sheave_base::Error;
use sheave_base::config::Transport;
use sheave_mesh::Expected;
use sheave_process::{Child, Job};
use std::time::Instant;

/// The parts that will be killed, in the environment of every actor.
pub(crate) const VICTIMS: &str = "SHEAVE_TEST_VICTIMS";

/// The bound of the design for everything that a killed process is needed for.
pub(crate) const BOUND_MS: u128 = 1000;

const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;

/// Says an error, with the time.
pub(crate) fn tell(label: &str, error: &Error) {
    say(&format!("{label} {} {:?} {error}", now_ms(), error.kind()));
}

/// The parts of this job that will be killed.
pub(crate) fn victims() -> Vec<String> {
    let victims = std::env::var(VICTIMS).expect("the test has set it");
    victims.split(' ').filter(|victim| !victim.is_empty()).map(str::to_owned).collect()
}

/// Whether this process is one of them.
pub(crate) fn is_victim() -> bool {
    let me = std::env::var(super::PART).expect("this is a part");
    victims().contains(&me)
}

/// A job with those of its processes that are to be killed.
pub(crate) struct Deaths {
    job: Job,
    children: Vec<Child>,
    victims: Vec<String>,
    /// For the reader of a failure.
    what: String,
    begun_ms: u128,
}

impl Deaths {
    /// Starts the job, with these variables in everybody's environment.
    #[track_caller]
    pub(crate) fn start(
        expected: Expected,
        transport: Transport,
        victims: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let all = parts(expected);
        assert!(victims.iter().all(|victim| all.iter().any(|part| part == victim)), "{victims:?} of {all:?}");
        let job = job();
        let named = victims.join(" ");
        let variables: Vec<_> = variables.iter().copied().chain([(VICTIMS, named.as_str())]).collect();
        let children = start_all(&job, expected, transport, &variables);
        let texts: Vec<&str> = variables.iter().map(|(_, text)| *text).collect();
        let what = format!("{transport:?}, {}", texts.join(", "));
        Self { job, children, victims: victims.iter().map(|victim| (*victim).to_owned()).collect(), what, begun_ms: 0 }
    }

    /// The processes of a role.
    pub(crate) fn of<'a>(&'a self, role: &'a str) -> impl Iterator<Item = &'a Child> {
        self.children.iter().filter(move |child| child.name().starts_with(role))
    }

    /// Those of a role that are not killed.
    pub(crate) fn survivors<'a>(&'a self, role: &'a str) -> impl Iterator<Item = &'a Child> {
        self.of(role).filter(|child| !self.is_victim(child))
    }

    fn is_victim(&self, child: &Child) -> bool {
        self.victims.iter().any(|victim| victim == child.name())
    }

    /// Waits until all who play a role say this.
    pub(crate) fn hear_all(&self, role: &str, text: &str) {
        self.of(role).for_each(|child| drop(hear(child, text)));
    }

    /// Kills all victims at once: none of them does anything between the first kill and the last. At the end of a job
    /// one of them may have left before.
    pub(crate) fn kill(&mut self) {
        let signal = |signal: i32| {
            for child in self.children.iter().filter(|child| self.is_victim(child)) {
                let sent = child.kill(signal);
                assert!(sent.is_ok() || child.exit().is_some(), "{sent:?}");
            }
        };
        signal(SIGSTOP);
        let begun_ms = now_ms();
        signal(SIGKILL);
        self.begun_ms = begun_ms;
    }

    /// That a text names one of the dead, as an error of a peer that is lost.
    pub(crate) fn blames(&self, by: &str, said: &str) {
        let names_one = self.victims.iter().any(|victim| said.contains(victim.as_str()));
        assert!(said.contains("PeerLost") && names_one, "{}: {by} blames nobody who died: {said}", self.what);
    }

    /// That so much time after the death is soon enough.
    pub(crate) fn is_in_time(&self, by: &str, at_ms: &str) {
        let took_ms = at_ms.parse::<u128>().expect("a time").saturating_sub(self.begun_ms);
        note(&format!("{}: {by} after {took_ms} ms", self.what));
        assert!(took_ms < BOUND_MS, "{}: {by} after {took_ms} ms", self.what);
    }

    /// That a survivor tells an error under this label, in time, which names one of the dead.
    pub(crate) fn fails(&self, child: &Child, label: &str) {
        let said = hear(child, label);
        let by = format!("{} {label}", child.name());
        let (at_ms, error) = said.split_once(' ').unwrap_or_else(|| panic!("{}: {by} went well", self.what));
        self.blames(&by, error);
        self.is_in_time(&by, at_ms);
    }

    /// That all have ended, the survivors well, and that nobody is left.
    pub(crate) fn all_end(self) {
        for child in &self.children {
            until("it has ended", || child.exit().is_some());
            let exit = child.exit().expect("it has ended");
            let (name, text) = (child.name(), child.stderr_lines().join("\n"));
            assert!(exit.status.success() || self.is_victim(child), "{}: {name}: {exit:?}\n{text}", self.what);
        }
        let ended = self.job.wait_all_ended(Some(Instant::now() + PATIENCE)).expect("it is ours");
        assert!(ended.is_some(), "{}: somebody is left", self.what);
    }
}
