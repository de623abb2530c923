//! A hundred thousand references, of which nothing is left: no object, no promise, no holder, no word, no memory.

use super::live::{finish, two, until};
use super::*;
use crate::{Mesh, Request};
use std::time::Instant;

const OBJECTS: usize = 100_000;
/// References that one call carries.
const BATCH: usize = 5000;
/// Rounds after which tables and the allocator have what they need, and those after which that is looked at.
const WARM: usize = 4;
const ROUNDS: usize = 10;
/// By how much the process may grow between them, in kibibytes: less than 24 bytes for each reference, which is less
/// than an entry of a table.
const GROWTH_MAX_KIB: u64 = 12 << 10;

/// Counts of what a node keeps for references: its objects and their holders, what it holds and passes, promises that
/// it has drawn and that are open, names that it was told of, waits, and words that were not sent.
fn kept(mesh: &Mesh) -> [usize; 9] {
    let tables = mesh.shared.references.tables.lock();
    [
        tables.owned.len(),
        tables.owned.values().map(|owned| owned.holders.len()).sum(),
        tables.holds.len(),
        tables.passing_count(),
        tables.drawn_count + tables.draws.values().map(|(_, open)| *open).sum::<usize>(),
        tables.unfilled.values().sum(),
        // All names in one range are one.
        tables.announced.values().map(|announced| announced.ranges().saturating_sub(1)).sum(),
        tables.waits,
        tables.words(),
    ]
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("it is there");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("a line");
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
}

/// Half of the objects are exported and passed on, half are promised and filled. All are held by both for a moment.
fn round(owner: &Mesh, holder: &Mesh, keeper: &parking_lot::Mutex<Vec<Ref>>) {
    let mut held = Vec::with_capacity(OBJECTS);
    for _ in 0..OBJECTS / 2 / BATCH {
        let refs: Vec<Ref> = (0..BATCH).map(|number| owner.export(Arc::new(number)).expect("there is room")).collect();
        let names = Value::List(refs.iter().map(Ref::value).collect());
        owner.call(holder.me().node, "it", "keep", names).expect("sent").wait().expect("kept");
        held.extend(refs);
    }
    until("they are held", || keeper.lock().len() == OBJECTS / 2);
    for _ in 0..OBJECTS / 2 / BATCH {
        let node = owner.me().node;
        let refs: Vec<Ref> = (0..BATCH).map(|_| holder.promise(node).expect("there is room")).collect();
        let names = Value::List(refs.iter().map(Ref::to_fill).collect());
        holder.call(node, "it", "make", names).expect("sent").wait().expect("made");
        keeper.lock().extend(refs);
    }
    let [objects, holders, ..] = kept(owner);
    assert_eq!((objects, kept(holder)[2]), (OBJECTS, OBJECTS));
    assert!(holders >= OBJECTS, "{holders} holders");
    let theirs = std::mem::take(&mut *keeper.lock());
    drop((held, theirs));
    for mesh in [owner, holder] {
        until("nothing is left", || kept(mesh) == [0; 9]);
    }
}

#[test]
fn a_hundred_thousand_references_leave_nothing_behind() {
    let [owner, holder] = two();
    let keeper: Arc<parking_lot::Mutex<Vec<Ref>>> = Arc::default();
    let keeping = Arc::clone(&keeper);
    let keep = move |request: Request| {
        keeping.lock().extend(request.refs);
        request.reply.value(());
    };
    holder.serve("it", keep).expect("the name is free");
    let make = |request: Request| {
        let Value::List(names) = &request.args else { panic!("a list") };
        let filled = names.iter().try_for_each(|name| request.promises.fulfil(name, Arc::new(1_usize)));
        match filled {
            Ok(()) => request.reply.value(()),
            Err(error) => request.reply.error(error),
        }
    };
    owner.serve("it", make).expect("the name is free");
    let begun = Instant::now();
    (0..WARM).for_each(|_| round(&owner, &holder, &keeper));
    let before = resident_kib();
    (WARM..ROUNDS).for_each(|_| round(&owner, &holder, &keeper));
    let grown = resident_kib().saturating_sub(before);
    assert!(grown <= GROWTH_MAX_KIB, "{grown} KiB more are resident");
    println!("{ROUNDS} rounds of {OBJECTS} references in {:?}, {grown} KiB more", begun.elapsed());
    finish([owner, holder]);
}
