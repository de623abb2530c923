//! What all nodes of a torture have done and seen, in one place.

use crate::common::PATIENCE;
use sheave_base::{Error, ErrorKind, NodeId, Result, Work};
use sheave_mesh::{Answer, Call, Ref};
use sheave_wire::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What the caller itself does to end a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    Wait,
    Cancel,
    /// A deadline that the handler outlasts.
    Late,
    /// It uses what another call may fail to make.
    Use,
}

/// One call, by its number.
#[derive(Default)]
struct Record {
    begun: u32,
    ended: u32,
    is_ok: bool,
}

#[derive(Default)]
pub(crate) struct Ledger {
    calls: Mutex<HashMap<i64, Record>>,
    last: AtomicU64,
    /// Nodes that were killed, or have lost a link to a living one.
    doomed: Mutex<HashMap<NodeId, String>>,
    /// Objects that live, by their owners.
    objects: Mutex<HashMap<NodeId, u64>>,
    exported: AtomicU64,
    /// References that handlers have kept, by their nodes.
    pockets: Mutex<HashMap<NodeId, Vec<Ref>>>,
    failures: Mutex<BTreeMap<String, u64>>,
    /// Guests whose hosts are through with them.
    unasked: Mutex<Vec<NodeId>>,
}

/// An object whose life is counted.
pub(crate) struct Counted {
    ledger: Arc<Ledger>,
    owner: NodeId,
}

impl Counted {
    pub(crate) fn new(ledger: &Arc<Ledger>, owner: NodeId) -> Arc<Self> {
        *lock(&ledger.objects).entry(owner).or_default() += 1;
        ledger.exported.fetch_add(1, SeqCst);
        Arc::new(Self { ledger: Arc::clone(ledger), owner })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *lock(&self.ledger.objects).entry(self.owner).or_default() -= 1;
    }
}

/// References that one node keeps; older ones go.
const POCKET: usize = 20;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    pub(crate) fn will_die(&self, node: NodeId, name: &str) {
        lock(&self.doomed).insert(node, name.to_owned());
    }

    pub(crate) fn may_die(&self, node: NodeId) -> bool {
        lock(&self.doomed).contains_key(&node)
    }

    fn is_culprit(&self, peer: Option<&sheave_base::Peer>) -> bool {
        let doomed = lock(&self.doomed);
        peer.is_some_and(|peer| match peer.node {
            Some(node) => doomed.contains_key(&node),
            None => doomed.values().any(|name| *name == peer.name),
        })
    }

    /// A call that takes its number along as the first of its arguments. Its outcome is looked at when it ends.
    pub(crate) fn call(
        self: &Arc<Self>,
        me: NodeId,
        call: Call,
        intent: Intent,
        make: impl FnOnce(Call) -> Result<Work<Answer>>,
    ) -> Result<Work<Answer>> {
        let number = self.last.fetch_add(1, SeqCst).cast_signed() + 1;
        let args = Value::List(vec![Value::Int(number), call.args]);
        lock(&self.calls).insert(number, Record::default());
        let own = Arc::clone(self);
        let work = match make(Call { args, ..call }) {
            Ok(work) => work,
            Err(error) => {
                self.ended(number, &Err(error.clone()), me, intent);
                return Err(error);
            }
        };
        work.on_complete(move |outcome| own.ended(number, outcome, me, intent));
        Ok(work)
    }

    /// A one-way call, which has no end. Returns its number.
    pub(crate) fn cast(&self, call: Call, make: impl FnOnce(Call) -> Result<()>) -> (i64, Result<()>) {
        let number = self.last.fetch_add(1, SeqCst).cast_signed() + 1;
        let args = Value::List(vec![Value::Int(number), call.args]);
        lock(&self.calls).insert(number, Record { ended: 1, ..Record::default() });
        (number, make(Call { args, ..call }))
    }

    /// A call was answered behind these one-way calls of the same mailbox, of which so many have failed, as their
    /// caller has been told.
    pub(crate) fn have_begun(&self, numbers: &[i64], failed: u64, told: u64) {
        let calls = lock(&self.calls);
        let unheard = numbers.iter().filter(|number| calls.get(number).is_none_or(|record| record.begun != 1)).count();
        drop(calls);
        if unheard > 0 || failed != told {
            let count = numbers.len();
            self.fault(&format!("{unheard} of {count} one-way calls have not begun, {told} of {failed} failures told"));
        }
    }

    /// Waits for a call, and holds it against sheave if it does not end.
    pub(crate) fn wait(&self, work: &Work<Answer>) -> Result<Answer> {
        assert!(work.wait_until(Some(Instant::now() + PATIENCE), None)?, "a call has not ended: {}", self.summary());
        work.wait()
    }

    /// A handler has begun with this call. Returns what comes after the number.
    pub(crate) fn begins(&self, args: Value) -> Value {
        let Value::List(list) = args else { panic!("{args:?} where a list was expected") };
        let mut list = list.into_iter();
        let (Some(Value::Int(number)), Some(rest)) = (list.next(), list.next()) else { panic!("a list of two") };
        let begun = {
            let mut calls = lock(&self.calls);
            let record = calls.entry(number).or_default();
            record.begun += 1;
            record.begun
        };
        if begun > 1 {
            self.fault(&format!("call {number} has begun {begun} times"));
        }
        rest
    }

    fn ended(&self, number: i64, outcome: &Result<Answer>, me: NodeId, intent: Intent) {
        let (ended, begun) = {
            let mut calls = lock(&self.calls);
            let record = calls.entry(number).or_default();
            record.ended += 1;
            record.is_ok = outcome.is_ok();
            (record.ended, record.begun)
        };
        if ended > 1 {
            self.fault(&format!("call {number} has ended {ended} times"));
        }
        match outcome {
            Ok(_) if begun != 1 => self.fault(&format!("call {number} is answered and has begun {begun} times")),
            Ok(_) => {}
            Err(error) => self.judge(error, me, intent),
        }
    }

    /// Whether a call of `me` may end so.
    pub(crate) fn judge(&self, error: &Error, me: NodeId, intent: Intent) {
        let may = match error.kind() {
            ErrorKind::Cancelled => intent == Intent::Cancel,
            ErrorKind::DeadlineExceeded => intent == Intent::Late,
            // What it named may have gone with whoever has given it.
            ErrorKind::NotFound => !lock(&self.doomed).is_empty() && error.what().contains("reference"),
            // Of a promise that its handler has poisoned or forgotten; the error names the call.
            ErrorKind::Mismatch | ErrorKind::Remote => {
                intent == Intent::Use && error.to_string().contains("to fill it")
            }
            _ => false,
        };
        let names_a_culprit = self.is_culprit(error.about()) || self.is_culprit(error.happened_on());
        if !may && !names_a_culprit && !self.may_die(me) {
            return self.fault(&format!("accuses the wrong one, or nobody, at {me}: {error:?}"));
        }
        *lock(&self.failures).entry(format!("{:?}", error.kind())).or_default() += 1;
    }

    /// Notes what must not be, for the end; a panic in a callback would be told and forgotten.
    fn fault(&self, what: &str) {
        *lock(&self.failures).entry(format!("FAULT {what}")).or_default() += 1;
    }

    pub(crate) fn keep(&self, node: NodeId, refs: Vec<Ref>) {
        let old = {
            let mut pockets = lock(&self.pockets);
            let pocket = pockets.entry(node).or_default();
            pocket.extend(refs);
            let too_many = pocket.len().saturating_sub(POCKET);
            pocket.drain(..too_many).collect::<Vec<_>>()
        };
        drop(old);
    }

    pub(crate) fn take_one(&self, node: NodeId) -> Option<Ref> {
        lock(&self.pockets).get_mut(&node)?.pop()
    }

    pub(crate) fn asks_no_more(&self, guest: NodeId) {
        lock(&self.unasked).push(guest);
    }

    pub(crate) fn is_asked_no_more(&self, guest: NodeId) -> bool {
        lock(&self.unasked).contains(&guest)
    }

    pub(crate) fn drop_refs(&self) {
        let pockets = std::mem::take(&mut *lock(&self.pockets));
        drop(pockets);
    }

    /// Objects of nodes that nobody has touched.
    pub(crate) fn objects_alive(&self) -> u64 {
        let objects = lock(&self.objects);
        objects.iter().filter(|(owner, _)| !self.may_die(**owner)).map(|(_, count)| count).sum()
    }

    /// Everything has ended that was begun, and nothing was seen that must not be.
    pub(crate) fn settle(&self) {
        crate::common::until("all calls end", || lock(&self.calls).values().all(|record| record.ended == 1));
        let faults: Vec<_> = lock(&self.failures).keys().filter(|what| what.starts_with("FAULT")).cloned().collect();
        let doomed: Vec<_> = lock(&self.doomed).iter().map(|(node, name)| format!("{name} {node}")).collect();
        let some = faults[..faults.len().min(10)].join("\n");
        assert!(faults.is_empty(), "{} faults, doomed: {}\n{some}", faults.len(), doomed.join(", "));
    }

    pub(crate) fn summary(&self) -> String {
        let calls = lock(&self.calls);
        let fine = calls.values().filter(|record| record.is_ok).count();
        let pending = calls.values().filter(|record| record.ended == 0).count();
        let failures = lock(&self.failures);
        let objects = self.exported.load(SeqCst);
        format!("{} calls, {fine} answered, {pending} pending, {failures:?}, {objects} objects", calls.len())
    }
}
