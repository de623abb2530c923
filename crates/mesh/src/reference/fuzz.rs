//! A node's references, and members and strangers that say whatever an input says about them.

use super::name::Mention;
use super::promise::Asking;
use super::table::Bounds;
use super::words::{BATCH_MAX, Word};
use super::{Brought, Ref, References};
use sheave_base::fuzz::Input;
use sheave_base::{Error, ErrorKind, NodeId};
use sheave_wire::{from_control, to_control};
use std::sync::{Arc, Weak};

/// This node, two other members, and one that is none.
const NODES: u64 = 4;

/// So little that an input comes to the limits.
const BOUNDS: Bounds = Bounds { owned: 6, held: 5, passing: 4, promised: 3, waits: 2 };

/// Hears words, adopts references, passes them on and loses members, as the input says. Words are understood as they
/// are written, those that are not for their sender to say are refused with `Protocol`, and no table grows beyond its
/// bound.
pub(crate) fn words(data: &[u8]) {
    let mut input = Input::new(data);
    let references = References::bounded(NodeId(1), Weak::new(), BOUNDS);
    references.joined((1..NODES).map(NodeId));
    let mut holder = Holder { references, refs: Vec::new(), brought: Vec::new() };
    while !input.is_empty() {
        holder.act(&mut input);
        holder.check();
    }
    let Holder { references, refs, brought } = holder;
    drop((refs, brought));
    drop(references.take_garbage());
    references.end();
    drop(references.take_garbage());
}

struct Holder {
    references: Arc<References>,
    refs: Vec<Ref>,
    brought: Vec<Brought>,
}

impl Holder {
    fn act(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        let from = NodeId(2 + u64::from(what >> 3) % (NODES - 1));
        match what % 8 {
            0 | 1 => self.hear(from, input.counted()),
            2 => self.adopt(from, input),
            3 => self.refs.extend(self.references.export(Arc::new(7u64)).ok()),
            4 => self.refs.extend(self.references.promise(from).ok()),
            5 => {
                let names: Vec<Mention> = self.refs.iter().map(Ref::mention).collect();
                if let Ok(passed) = self.references.pass(from, &names)
                    && what >> 7 == 0
                {
                    self.references.take_back(from, passed.iter().map(Ref::name));
                }
            }
            6 if what >> 7 == 0 => {
                let words = self.references.take_words(from, usize::from(input.byte()));
                let written = to_control(&words).expect("what is said can be written");
                assert_eq!(from_control::<Vec<Word>>(&written).expect("and read"), words);
            }
            6 => self.references.lost(from),
            _ => {
                self.refs.truncate(usize::from(what >> 5));
                self.brought.truncate(usize::from(what >> 6));
            }
        }
        drop(self.references.take_garbage());
    }

    fn hear(&self, from: NodeId, bytes: &[u8]) {
        let is_of_a_peer = |error: &Error| [ErrorKind::Protocol, ErrorKind::LimitExceeded].contains(&error.kind());
        let words: Vec<Word> = match from_control(bytes) {
            Ok(words) => words,
            Err(error) => return assert!(is_of_a_peer(&error), "{error}"),
        };
        let written = to_control(&words).expect("what was read can be written");
        assert_eq!(from_control::<Vec<Word>>(&written).expect("and read again"), words);
        match self.references.check(from, &words) {
            Ok(true) => self.references.heard(from, words),
            Ok(false) => assert!(from.0 >= NODES, "a member is heard"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Protocol, "{error}"),
        }
    }

    fn adopt(&mut self, from: NodeId, input: &mut Input<'_>) {
        let (count, asks) = (input.byte() % 8, input.byte() & 1 != 0);
        let names: Vec<Mention> =
            (0..count).map(|_| Mention::of(NodeId(u64::from(input.byte()) % (NODES + 1)), input.word())).collect();
        let asking = asks.then(|| Arc::new(Asking { from, number: input.word(), method: "fuzz".to_owned() }));
        let brought = self.references.adopt(from, &names, asking);
        assert_eq!(brought.error.is_none(), brought.refs.len() == names.len(), "each is adopted, or there is a reason");
        self.brought.push(brought);
    }

    fn check(&self) {
        let [owned, holds, passing, drawn, unfilled, waits, _] = self.references.sizes();
        let sizes = self.references.sizes();
        // Each node that draws has a number of promises of its own.
        let promised = BOUNDS.promised * NODES as usize;
        assert!(owned <= BOUNDS.owned + promised && holds <= BOUNDS.held && passing <= BOUNDS.passing, "{sizes:?}");
        assert!(drawn <= promised && unfilled <= promised && waits <= BOUNDS.waits, "{sizes:?}");
        for node in 1..NODES {
            assert!(self.references.take_words(NodeId(node), 0).is_empty());
        }
        assert!(self.references.begin_flush().len() < NODES as usize);
        const { assert!(BATCH_MAX >= 1) };
    }
}

/// The corpus: each word as the other ends of a node's references say it.
#[cfg(test)]
pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    use super::name::Name;
    use super::words::Cause;

    let heard = |from: u8, words: &[Word]| {
        let bytes = to_control(&words).expect("it can be written");
        [&[(from - 2) << 3][..], &(bytes.len() as u16).to_le_bytes(), &bytes].concat()
    };
    // What this node makes first, and what the others have drawn for it and made.
    let made = 4;
    let drawn = Name::drawn(NodeId(1), 1, 1).expect("there are more").id;
    let adopt = |from: u8, asks: u8, names: &[(u8, u64)]| {
        let mut step = vec![2 | (from - 2) << 3, names.len() as u8, asks];
        for (owner, id) in names {
            step.push(*owner);
            step.extend(id.to_le_bytes());
        }
        step.extend(&u64::to_le_bytes(9)[..usize::from(asks) * 8]);
        step
    };
    let (export, pass, tell, drop_all) = (vec![3], vec![5 | 1 << 3], vec![6, 255, 6 | 1 << 3, 255], vec![7]);
    let count = |id, giver, times| Word::Count { id, giver: NodeId(giver), times };
    let confirm = |holder, owner, id| Word::Confirm { holder: NodeId(holder), owner: NodeId(owner), id, times: 1 };
    let broken = Word::Broken { id: drawn, cause: Cause::new(ErrorKind::Cancelled, "given up") };
    let (released, gone) = (Word::Release { id: made, counts: 1 }, Word::Gone { id: 8 });
    let counted = heard(3, &[count(made, 2, 2), released.clone(), released.clone()]);
    let filling = [adopt(2, 1, &[(1, drawn | 1)]), heard(2, std::slice::from_ref(&broken))];
    vec![
        ("none", heard(2, &[])),
        ("counts", [export.clone(), pass.clone(), counted, tell.clone()].concat()),
        ("confirms", [adopt(2, 0, &[(2, 8)]), pass.clone(), heard(3, &[confirm(3, 2, 8)]), drop_all.clone()].concat()),
        ("gone", [adopt(2, 0, &[(2, 8), (3, 12)]), heard(2, &[gone]), tell.clone(), drop_all.clone()].concat()),
        ("promised", [heard(3, &[count(drawn, 2, 1)]), filling.concat(), tell.clone()].concat()),
        ("draws", [vec![4, 4 | 1 << 3], pass, tell, drop_all].concat()),
        ("not_its_own", [heard(3, &[broken]), heard(2, &[count(made, 9, 1)])].concat()),
        ("lost", [export, heard(2, &[released]), vec![6 | 2 << 6], adopt(3, 0, &[(2, 8)])].concat()),
        (
            "many",
            heard(2, &[count(made, 3, u64::MAX), count(made, 3, u64::MAX), Word::Release { id: made, counts: 1 }]),
        ),
    ]
}
