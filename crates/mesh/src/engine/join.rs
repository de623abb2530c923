//! Rendezvous: everybody introduces itself to the coordinator, which sends everybody the table.

use super::member::{Expected, Introduction, Member, Role, rank_all};
use super::{Effect, Engine, Message, Phase};
use sheave_base::clock::Time;
use sheave_base::{Error, ErrorKind, NodeId, Rank, limits};
use sheave_wire::to_control;
use std::collections::{BTreeMap, BTreeSet};

/// Messages that came before the table; more are forgotten, since all that matter are repeated.
const STASH_MAX: usize = 4096;

pub(super) struct Joining {
    deadline: Time,
    next_beat: Time,
    coordinator: Option<NodeId>,
    /// At the coordinator: who has come, itself included.
    joined: BTreeMap<NodeId, Introduction>,
    /// What the coordinator said last.
    missing: Option<String>,
    /// How many strangers were turned away, or how many attempts failed, and why the last one.
    turned: Option<(u64, String)>,
    stash: Stash,
    /// Somebody was told of another mesh, and until when whoever comes is refused because of that.
    differs: Option<(String, Time)>,
}

/// Messages that have come before the table. More than these limits are forgotten: their senders repeat all that
/// matters.
#[derive(Debug, Default)]
struct Stash {
    messages: Vec<(NodeId, Message)>,
    bytes: usize,
}

impl Stash {
    fn push(&mut self, from: NodeId, message: Message) {
        // As long as it came; one that cannot be written did not come over a link.
        let bytes = to_control(&message).map_or(0, |word| word.len());
        if self.messages.len() < STASH_MAX && self.bytes + bytes <= limits::ENGINE_BACKLOG_BYTES_MAX {
            self.bytes += bytes;
            self.messages.push((from, message));
        }
    }
}

impl Joining {
    pub(super) fn new(now: Time, deadline: Time) -> Self {
        let (joined, stash) = (BTreeMap::new(), Stash::default());
        Self { deadline, next_beat: now, coordinator: None, joined, missing: None, turned: None, stash, differs: None }
    }

    pub(super) fn next_timer(&self) -> Time {
        let end = self.differs.as_ref().map_or(self.deadline, |(_, until)| self.deadline.min(*until));
        end.min(self.next_beat)
    }
}

impl Engine {
    /// This node as far as it can be known before there is a table.
    pub(crate) fn introduced_as(&self) -> Member {
        let introduction = self.config.introduction.clone();
        let rank = introduction.wanted_rank.unwrap_or_default();
        Member { node: self.me, rank: Rank(rank), role_rank: rank, introduction }
    }

    /// The joining half of a poll.
    pub(super) fn poll_joining(&mut self) {
        let now = self.now;
        let (hosts, beat) = (self.config.hosts, self.config.liveness.beat);
        let (introduction, expected) = (self.config.introduction.clone(), self.config.expected);
        let me = self.me;
        if hosts && self.joining().is_some_and(|joining| !joining.joined.contains_key(&me)) {
            self.introduced(self.me, introduction, self.config.expected);
            return;
        }
        let Some(joining) = self.joining() else { return };
        if let Some((what, _)) = joining.differs.clone().filter(|(_, until)| now >= *until) {
            let error = self.join_error(Error::new(ErrorKind::Mismatch, what));
            return self.fail(error);
        }
        if now >= joining.deadline {
            return self.join_too_late();
        }
        if now >= joining.next_beat {
            joining.next_beat = now.after(beat);
            if let Some(coordinator) = joining.coordinator {
                self.send(coordinator, Message::Introduce(introduction, expected));
            }
        }
    }

    fn joining(&mut self) -> Option<&mut Joining> {
        match &mut self.phase {
            Phase::Joining(joining) => Some(joining),
            _ => None,
        }
    }

    /// The driver has a link to the coordinator.
    pub(super) fn reached(&mut self, coordinator: NodeId) {
        let (next_beat, introduction) = (self.now.after(self.config.liveness.beat), self.config.introduction.clone());
        if self.config.hosts {
            return;
        }
        if let Some(joining) = self.joining() {
            joining.coordinator = Some(coordinator);
            joining.next_beat = next_beat;
            self.send(coordinator, Message::Introduce(introduction, self.config.expected));
        }
    }

    /// A message for a node that has no table yet.
    pub(super) fn receive_joining(&mut self, from: NodeId, message: Message) {
        let hosts = self.config.hosts;
        let Some(joining) = self.joining() else { return };
        let is_coordinator = joining.coordinator == Some(from);
        // From a member that has got the table it is the one that the coordinator has made.
        let is_passed_on = |table: &[Member]| !hosts && table.iter().any(|member| member.node == from);
        match message {
            Message::Introduce(introduction, expected) => self.introduced(from, introduction, expected),
            Message::Waiting { missing } if is_coordinator => joining.missing = Some(missing),
            Message::Refuse { error } if is_coordinator => {
                let error = self.join_error(error);
                self.fail(error);
            }
            Message::Welcome { table } if is_coordinator || is_passed_on(&table) => {
                let stash = std::mem::take(&mut joining.stash);
                if let Err(what) = check_table(&table, self.me, &self.config.introduction) {
                    let error = Error::new(ErrorKind::Protocol, format!("the coordinator's table of members {what}"));
                    return self.fail(error.operation("join").hint("do all processes run the same version of sheave?"));
                }
                self.begin(table);
                for (from, message) in stash.messages {
                    self.receive(from, message);
                }
            }
            other => joining.stash.push(from, other),
        }
    }

    /// Somebody wants to join, at any time. Only the host of the rendezvous answers.
    pub(super) fn introduced(&mut self, from: NodeId, introduction: Introduction, told: Expected) {
        if !self.config.hosts {
            return;
        }
        let expected = self.config.expected;
        let differs = told != expected && told != Expected::TOLD;
        if self.joining().is_some_and(|joining| differs || joining.differs.is_some()) {
            return self.numbers_differ(from, &introduction, told);
        }
        let Some(joining) = self.joining() else {
            // A member whose welcome is on its way repeats itself; anybody else is too late.
            let message = if self.member(from).is_some() {
                Message::Welcome { table: self.table.clone() }
            } else {
                let what = "the job has started, and nobody can join it any more";
                Message::Refuse { error: Error::new(ErrorKind::AlreadyExists, what) }
            };
            return self.send(from, message);
        };
        if !joining.joined.contains_key(&from) {
            if let Some(reason) = objection(&joining.joined, &introduction, expected.of(introduction.role)) {
                let error = Error::new(ErrorKind::AlreadyExists, reason);
                return self.send(from, Message::Refuse { error });
            }
            joining.joined.insert(from, introduction);
        }
        if joining.joined.len() < expected.total() as usize {
            let missing = self.missing();
            return self.send(from, Message::Waiting { missing });
        }
        let table = rank_all(&joining.joined);
        for member in &table {
            self.send(member.node, Message::Welcome { table: table.clone() });
        }
        self.begin(table);
    }

    /// Somebody was told of another mesh than this one. Who is right nobody here knows, so nobody joins: not those who
    /// have come, and not those who come within the next beat.
    fn numbers_differ(&mut self, from: NodeId, theirs: &Introduction, told: Expected) {
        let (own, expected, me) = (&self.config.introduction, self.config.expected, self.me);
        let what = format!("{theirs} expects {told}, and {own}, the coordinator, expects {expected}");
        let until = self.now.after(self.config.liveness.beat);
        let Some(joining) = self.joining() else { return };
        let (what, _) = joining.differs.get_or_insert((what, until)).clone();
        let joined = std::mem::take(&mut joining.joined);
        joining.joined.extend(joined.get(&me).map(|own| (me, own.clone())));
        for node in joined.into_keys().chain([from]).filter(|node| *node != me) {
            self.send(node, Message::Refuse { error: Error::new(ErrorKind::Mismatch, what.clone()) });
        }
    }

    /// A joiner went away again: its place is free for its successor.
    pub(super) fn link_lost_joining(&mut self, peer: NodeId) {
        if let Some(joining) = self.joining() {
            joining.joined.remove(&peer);
            if joining.coordinator == Some(peer) {
                joining.coordinator = None;
            }
        }
    }

    /// Somebody did not get in.
    pub(super) fn turned(&mut self, what: &str) {
        if let Some(joining) = self.joining() {
            let (count, last) = joining.turned.get_or_insert_default();
            *count = count.saturating_add(1);
            *last = one_line(what);
        }
    }

    /// At the coordinator of a join that is not over: who is missing, from where the others came, who did not get in.
    pub fn missing_at_rendezvous(&mut self) -> Option<String> {
        (self.config.hosts && self.joining().is_some()).then(|| self.missing())
    }

    /// Who is missing, from where the others came, and who did not get in.
    fn missing(&mut self) -> String {
        let expected = self.config.expected;
        let Some(joining) = self.joining() else { return String::new() };
        let mut lacking = Vec::new();
        for role in Role::ALL {
            let here = joining.joined.values().filter(|about| about.role == role).count();
            let wanted = expected.of(role) as usize;
            if here < wanted {
                let which = absent(joining.joined.values().filter(|about| about.role == role), wanted);
                lacking.push(format!("{} of {wanted} {role}s{which}", wanted - here));
            }
        }
        let mut joined: Vec<&Introduction> = joining.joined.values().collect();
        let role_of = |about: &Introduction| Role::ALL.iter().position(|role| *role == about.role);
        joined.sort_by_key(|about| (role_of(about), about.wanted_rank.unwrap_or(u32::MAX), &about.name));
        let others = joined.into_iter().map(|about| {
            let name = if about.name.is_empty() { format!("a {}", about.role) } else { about.name.clone() };
            format!("{name} from {} (pid {}, secret from {})", about.host, about.pid, about.secret_source)
        });
        let mut named: Vec<String> = others.take(limits::JOINED_NAMED_MAX).collect();
        let unnamed = joining.joined.len() - named.len();
        if unnamed > 0 {
            named.push(format!("and {unnamed} more"));
        }
        let turned = joining.turned.as_ref().map_or_else(String::new, |(count, last)| match count {
            1 => format!("; 1 stranger was turned away: {last}"),
            count => format!("; {count} strangers were turned away, the last: {last}"),
        });
        format!("missing: {}; joined: {}{turned}", lacking.join(", "), named.join(", "))
    }

    fn join_too_late(&mut self) {
        let hosts = self.config.hosts;
        let missing = if hosts { Some(self.missing()) } else { None };
        let Some(joining) = self.joining() else { return };
        let what = match (&missing, &joining.missing, joining.coordinator, &joining.turned) {
            (Some(missing), ..) | (None, Some(missing), ..) => missing.clone(),
            (None, None, Some(_), _) => "the coordinator did not answer".to_owned(),
            (None, None, None, None) => "the coordinator was not reached".to_owned(),
            (None, None, None, Some((1, last))) => format!("the coordinator was not reached: {last}"),
            (None, None, None, Some((count, last))) => {
                format!("the coordinator was not reached in {count} attempts, the last: {last}")
            }
        };
        let others: Vec<NodeId> = joining.joined.keys().copied().collect();
        let error = Error::new(ErrorKind::DeadlineExceeded, what);
        for other in others {
            self.send(other, Message::Refuse { error: error.clone() });
        }
        let error = self.join_error(error);
        self.fail(error);
    }

    /// Why this node did not join. Nodes that wait for each other in vain may know different secrets.
    fn join_error(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::Mismatch {
            let hint = "start all nodes of a job with the same numbers of ranks, workers and servers";
            return error.operation("join").hint(hint);
        }
        if error.kind() != ErrorKind::DeadlineExceeded {
            return error.operation("join");
        }
        let source = &self.config.introduction.secret_source;
        let hint = "look at the output of the missing nodes; all must know the same coordinator, secret and counts";
        let what = format!("{}; this node's secret came from {source}", error.what());
        Error::new(error.kind(), what).causes_of(&error).operation("join").hint(hint)
    }

    /// The table is there.
    fn begin(&mut self, table: Vec<super::Member>) {
        self.table = table;
        self.phase = Phase::Active;
        self.watch.begin(self.now);
        self.effects.push(Effect::Joined);
    }
}

/// Which of so many ranks have not joined, if all that have said which they are.
fn absent<'a>(joined: impl Iterator<Item = &'a Introduction>, wanted: usize) -> String {
    let Some(taken) = joined.map(|about| about.wanted_rank).collect::<Option<BTreeSet<u32>>>() else {
        return String::new();
    };
    let absent = || (0..wanted as u32).filter(|rank| !taken.contains(rank));
    let named: Vec<String> = absent().take(limits::JOINED_NAMED_MAX).map(|rank| rank.to_string()).collect();
    let unnamed = absent().count() - named.len();
    let more = if unnamed > 0 { format!(" and {unnamed} more") } else { String::new() };
    format!(" (rank {}{more})", named.join(", "))
}

/// Says what is wrong with a table that the coordinator has sent, if anything is: everybody must be in it once, in the
/// order of the ranks, and this node as what it has said that it is.
fn check_table(table: &[Member], me: NodeId, said: &Introduction) -> Result<(), String> {
    // How many there are is the coordinator's word, but no node can have links to more.
    if table.len() > limits::LINKS_MAX {
        return Err(format!("has {} members; expected {} at most", table.len(), limits::LINKS_MAX));
    }
    let (mut nodes, mut names) = (BTreeSet::new(), BTreeSet::new());
    let mut of_role = BTreeMap::<Role, u32>::new();
    for (rank, member) in (0..).zip(table) {
        let about = &member.introduction;
        let next = of_role.entry(about.role).or_default();
        if (member.rank.0, member.role_rank) != (rank, *next) {
            let found = format!("{} and {} {}", member.rank, about.role, member.role_rank);
            return Err(format!("gives {} rank {found}; expected rank {rank} and {} {next}", about.name, about.role));
        }
        *next += 1;
        if about.name.is_empty() || about.name.len() > limits::HANDSHAKE_TEXT_BYTES_MAX {
            let most = limits::HANDSHAKE_TEXT_BYTES_MAX;
            return Err(format!("names rank {rank} in {} bytes; expected 1 to {most}", about.name.len()));
        }
        if !nodes.insert(member.node) || !names.insert(&about.name) {
            return Err(format!("has rank {rank}, {} (node {}), twice", about.name, member.node));
        }
    }
    let own = table.iter().find(|member| member.node == me).map(|member| &member.introduction);
    match own {
        None => Err(format!("lacks this node, {said}")),
        Some(own) if own.role != said.role || (!said.name.is_empty() && own.name != said.name) => {
            Err(format!("has this node, {said}, as {} {}", own.role, own.name))
        }
        Some(_) => Ok(()),
    }
}

/// The beginning of `text`, without what would break the line.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for char in text.chars() {
        if line.len() + char.len_utf8() > limits::JOIN_EVIDENCE_BYTES_MAX {
            return line + "..";
        }
        line.push(if char.is_control() { ' ' } else { char });
    }
    line
}

/// Why `new` cannot be one of `joined`.
fn objection(joined: &BTreeMap<NodeId, Introduction>, new: &Introduction, places: u32) -> Option<String> {
    let same_role = || joined.values().filter(|about| about.role == new.role);
    if let Some(other) = joined.values().find(|about| !new.name.is_empty() && about.name == new.name) {
        return Some(format!("the name {} is taken by pid {} on {}", new.name, other.pid, other.host));
    }
    if let Some(other) = same_role().find(|about| about.wanted_rank.is_some() && about.wanted_rank == new.wanted_rank) {
        return Some(format!("{other} has the rank that {new} wants"));
    }
    (same_role().count() >= places as usize).then(|| format!("the mesh has {places} {}s, all are here", new.role))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_base::Epoch;

    #[test]
    fn f15_what_comes_before_the_table_is_bounded_in_bytes_and_in_number() {
        for (bytes, most) in [(1 << 20, limits::ENGINE_BACKLOG_BYTES_MAX >> 20), (0, STASH_MAX)] {
            let mut stash = Stash::default();
            for number in 0..STASH_MAX as u64 + 10 {
                let (set, label, steps) = (number, "x".repeat(bytes), Vec::new());
                stash.push(NodeId(number), Message::Waits { epoch: Epoch(1), set, label, steps });
            }
            let kept = stash.messages.len();
            // The other fields of each take some bytes too.
            assert!((most - 1..=most).contains(&kept), "{kept} of {bytes} bytes");
        }
    }
}
