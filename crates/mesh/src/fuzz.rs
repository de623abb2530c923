//! What the fuzz targets of the mesh do with their input. The tests here replay the corpus.
//!
//! Each takes any bytes and panics only if sheave is wrong: a decoder panicked, what it accepted is read otherwise than
//! it is written, what it refused is no error of a peer's, or what a peer says made a table grow without end.

use crate::engine::{
    Config, Effect, Engine, Event, Expected, GroupId, Introduction, Liveness, Member, Message, OperationId, Role,
};
use sheave_base::clock::Time;
use sheave_base::fuzz::Input;
use sheave_base::{Error, ErrorKind, NodeId};
use sheave_wire::{from_control, to_control};
use std::collections::BTreeSet;
use std::time::Duration;

/// Words about references: see the function of this name beside them.
pub fn reference_words(data: &[u8]) {
    crate::reference::words_fuzz(data);
}

/// The text of an invitation.
pub fn invitation(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<crate::Invitation>() {
        Ok(invitation) => {
            let written = invitation.to_text();
            let again = written.parse::<crate::Invitation>().expect("what was written can be read");
            assert_eq!((again.name(), again.host()), (invitation.name(), invitation.host()));
            assert_eq!(again.to_text(), written);
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}"),
    }
}

/// Effects of one poll: a message to everybody for whatever is under way.
const EFFECTS_MAX: usize = 512;

const NODES: u32 = 3;

fn id(node: u32) -> NodeId {
    NodeId(u64::from(node) + 1)
}

fn engine(node: u32) -> Engine {
    let introduction = introduction(node);
    let (expected, liveness) = (Expected::ranks(NODES), Liveness::default());
    let config = Config { introduction, expected, hosts: node == 0, liveness, join_timeout: Duration::from_secs(60) };
    Engine::new(config, id(node), Time(0))
}

fn introduction(node: u32) -> Introduction {
    Introduction {
        name: format!("rank-{node}"),
        role: Role::Rank,
        wanted_rank: Some(node),
        host: "here".into(),
        pid: 100 + node,
        secret_source: "a file".into(),
        address: "sheave://127.0.0.1:7000/".into(),
        process: String::new(),
    }
}

/// The engine of the first or of the last of three members, once they have joined, or before.
fn member(is_first: bool, has_joined: bool) -> (Engine, Vec<Member>) {
    let mut first = engine(0);
    for node in 1..NODES {
        let message = Message::Introduce(introduction(node), Expected::ranks(NODES));
        first.handle(Time(0), Event::Received { from: id(node), message });
    }
    drop(first.poll(Time(0)));
    let table = first.table().to_vec();
    assert_eq!(table.len(), NODES as usize, "all have joined");
    if is_first {
        return (if has_joined { first } else { engine(0) }, table);
    }
    let mut last = engine(NODES - 1);
    last.handle(Time(0), Event::Reached(id(0)));
    if has_joined {
        let message = Message::Welcome { table: table.clone() };
        last.handle(Time(0), Event::Received { from: id(0), message });
    }
    drop(last.poll(Time(0)));
    (last, table)
}

/// The words that an engine hears from members and strangers, and what happens to it meanwhile. What it hears it would
/// write so, or refuses as a peer's fault; it says nothing that cannot be written and read, and its tables keep within
/// what the mesh has.
pub fn engine_words(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.byte();
    let (engine, _) = member(flags & 1 == 0, flags & 2 == 0);
    let mut node = Node { engine, now: Time(0), group: None, operations: 0 };
    while !input.is_empty() {
        node.act(&mut input);
        node.poll();
    }
}

struct Node {
    engine: Engine,
    now: Time,
    group: Option<GroupId>,
    operations: u64,
}

impl Node {
    fn act(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        // One more than there are.
        let peer = id(u32::from(what >> 3) % (NODES + 1));
        let event = match what % 8 {
            0..=3 => match read(input.counted()) {
                Some(message) => Event::Received { from: peer, message },
                None => return,
            },
            4 => {
                self.now = self.now.after(Duration::from_millis(input.short().into()));
                return;
            }
            5 => Event::LinkLost { peer, reason: "the connection broke".to_owned() },
            6 if what >> 7 == 0 => Event::Alive { peer },
            6 => Event::Ended { peer },
            _ => self.own(input.byte()),
        };
        self.engine.handle(self.now, event);
    }

    /// What this node's user asks for.
    fn own(&mut self, what: u8) -> Event {
        let world: Vec<NodeId> = (0..NODES).map(id).collect();
        let group = *self.group.get_or_insert_with(|| self.engine.group("world", &world).unwrap_or(GroupId(0)));
        self.operations += 1;
        let operation = OperationId(self.operations);
        match what % 6 {
            0 => Event::Barrier { operation, group, deadline: Some(self.now.after(Duration::from_secs(3))) },
            1 => Event::Confirm { operation, group },
            2 => Event::Shrink { operation, group },
            3 => Event::Leave { operation },
            4 => Event::Ask {
                operation,
                nodes: BTreeSet::from_iter(world),
                until: self.now.after(Duration::from_secs(1)),
            },
            _ => Event::Cancel { operation: OperationId(self.operations.saturating_sub(1)) },
        }
    }

    fn poll(&mut self) {
        let effects = self.engine.poll(self.now);
        assert!(effects.len() <= EFFECTS_MAX, "{} effects", effects.len());
        for effect in effects {
            if let Effect::Send { message, .. } | Effect::Farewell { message, .. } = effect {
                let written = to_control(&message).expect("what an engine says can be written");
                assert_eq!(from_control::<Message>(&written).expect("and read"), message);
            }
        }
        assert!(self.engine.table().len() <= NODES as usize, "{:?}", self.engine.table());
        assert!(self.engine.deaths().len() <= NODES as usize, "{:?}", self.engine.deaths());
        assert!(self.engine.num_dead() <= NODES as usize && self.engine.living().count() <= NODES as usize);
    }
}

/// A message as another node has sent it; `None` for what is refused as that node's fault.
fn read(bytes: &[u8]) -> Option<Message> {
    let is_of_a_peer = |error: &Error| [ErrorKind::Protocol, ErrorKind::LimitExceeded].contains(&error.kind());
    match from_control::<Message>(bytes) {
        Ok(message) => {
            let written = to_control(&message).expect("what was read can be written");
            assert_eq!(from_control::<Message>(&written).expect("and read again"), message);
            Some(message)
        }
        Err(error) => {
            assert!(is_of_a_peer(&error), "{error}");
            None
        }
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::Target;
    use super::*;
    use crate::engine::{Ballot, Death, FIRST_EPOCH, Steps, group_id};
    use crate::reference::words_seeds;
    use sheave_base::Epoch;

    /// What serde reserves for a list of announced length before it has seen the items.
    const SERDE_BYTES: usize = 4 << 20;

    const ENGINE: Target =
        Target { name: "engine_words", run: engine_words, fixed_bytes: SERDE_BYTES, ratio: 64 << 10 };
    const REFERENCES: Target =
        Target { name: "reference_words", run: reference_words, fixed_bytes: SERDE_BYTES, ratio: 64 << 10 };
    const INVITATION: Target = Target { name: "invitation", run: invitation, fixed_bytes: 64 << 10, ratio: 128 };

    fn heard(from: u32, message: &Message) -> Vec<u8> {
        let bytes = to_control(message).expect("it can be written");
        [&[(from as u8) << 3][..], &(bytes.len() as u16).to_le_bytes(), &bytes].concat()
    }

    fn later(milliseconds: u16) -> Vec<u8> {
        [&[4][..], &milliseconds.to_le_bytes()].concat()
    }

    /// Every word of an engine, said by another member than the one that hears it.
    fn words() -> Vec<(&'static str, Message)> {
        let (epoch, group, number) = (FIRST_EPOCH, group_id("world", &[id(0), id(1), id(2)]), 7);
        let ballot = Ballot { round: 0, rank: 0 };
        let later = Ballot { round: 2, rank: 1 };
        let death = Death { node: id(1), epoch: Epoch(2), left: false, reason: "it failed: out of memory".into() };
        let (deaths, suspect) = (vec![death], id(1));
        let steps = vec![Steps { group, rank: 1, barriers: 3, operations: 4 }];
        let error = Error::new(ErrorKind::PeerLost, "its process ended");
        let (asker, whom) = (id(1), id(0));
        vec![
            ("introduce", Message::Introduce(introduction(1), Expected::ranks(NODES))),
            ("waiting", Message::Waiting { missing: "rank-2".into() }),
            ("refuse", Message::Refuse { error: error.clone() }),
            ("welcome", Message::Welcome { table: member(true, true).1 }),
            ("beat", Message::Beat { epoch, answer: false }),
            ("accuse", Message::Accuse { epoch, suspect, reason: "a silence".into(), has_ended: true }),
            ("away", Message::Away { epoch, reason: "it was stopped for 3000 ms".into() }),
            ("leave", Message::Leave { epoch }),
            ("prepare", Message::Prepare { epoch, ballot: later, ended: vec![id(1)] }),
            ("promise", Message::Promise { epoch, ballot: later, accepted: Some((ballot, deaths.clone())) }),
            ("accept", Message::Accept { epoch, ballot, deaths: deaths.clone(), ended: vec![] }),
            ("accepted", Message::Accepted { epoch, ballot }),
            ("rejected", Message::Rejected { epoch, promised: later }),
            ("commit", Message::Commit { epoch: Epoch(2), deaths, leaving: vec![id(2)] }),
            ("dropped", Message::Dropped { epoch, group, number, members: 3 }),
            ("hold", Message::Hold { epoch, group, number }),
            ("kept", Message::Kept { epoch, group, number }),
            ("forgotten", Message::Forgotten { epoch, group, number }),
            ("waits", Message::Waits { epoch, set: 5, label: "world".into(), steps }),
            ("enter", Message::Enter { epoch, group, sequence: 0 }),
            ("release", Message::Release { epoch, group, through: 0 }),
            ("broken", Message::Broken { epoch, group, by_death: false, about: id(1), error, failed_from: Some(3) }),
            ("failed", Message::Failed { epoch, reason: "out of memory".into() }),
            ("ask", Message::Ask { epoch, asker, number, whom }),
            ("answer", Message::Answer { epoch, asker, number, whom }),
        ]
    }

    #[test]
    fn f43_engine_words_replay() {
        // Each to the last member, which waits for a barrier, from the first and from the second; then time passes.
        let told = |flags: u8, message: &Message| {
            let steps = [heard(0, message), later(100), heard(1, message), later(2000), later(4000), later(9000)];
            [vec![flags, 7, 0], steps.concat()].concat()
        };
        let mut seeds: Vec<_> = words().iter().map(|(name, word)| (*name, told(1, word))).collect();
        let find = |name| words().into_iter().find(|(other, _)| *other == name).expect("it is one").1;
        seeds.push(("welcome_joins", told(3, &find("welcome"))));
        seeds.push(("introduce_joins", [vec![2], heard(1, &find("introduce")), later(500)].concat()));
        let enters = [heard(1, &find("enter")), heard(2, &find("enter")), later(1000)];
        seeds.push(("a_barrier", [vec![0, 7, 0], enters.concat()].concat()));
        let dies = [vec![5 | 1 << 3], heard(2, &find("accepted")), later(6000), heard(2, &find("promise"))];
        seeds.push(("a_death", [vec![0, 7, 0], dies.concat(), vec![7, 2]].concat()));
        seeds.push(("a_leave", [vec![0, 7, 3], heard(1, &find("accepted")), later(1500)].concat()));
        ENGINE.seeds_are_current(&seeds);
        ENGINE.replay();
    }

    #[test]
    fn f43_reference_words_replay() {
        REFERENCES.seeds_are_current(&words_seeds());
        REFERENCES.replay();
    }

    #[test]
    fn f43_invitations_replay() {
        let token = "0123456789abcdef".repeat(4);
        let full = "sheave://127.0.0.1:4711/?node=00000000000000ff&name=rank-0&boot=a-b&unix=x%23y";
        let seeds = [("full", full, "rank-0.worker-1"), ("unix", "sheave:///?node=1&unix=a", "w")];
        let seeds = seeds.map(|(name, address, guest)| (name, format!("{token}@{address}#{guest}").into_bytes()));
        INVITATION.seeds_are_current(&seeds);
        INVITATION.replay();
    }
}
