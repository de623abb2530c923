//! Who leads: the one thread that sleeps on the node's descriptors, and what becomes of the others when it leaves.
//!
//! A follower enters the list, and then looks whether somebody leads; a leader that leaves says so, and then looks into
//! the list. The progress thread says that it is dormant, and then looks whether somebody leads. So of two of them at
//! least one sees the other, and somebody leads, or is on its way to, as long as anybody sleeps.
//!
//! A caller that takes the lead from the progress thread rings for it, and then sleeps on the same descriptors: it may
//! hear that ring itself, and the progress thread sleeps on without the lead. So that thread says that it *listens*,
//! from before it leads until it is awake, and who leaves the lead to nobody rings for it once more.

use sheave_base::park::{Bell, Parker};
use sheave_base::sync::{AtomicBool, AtomicU32, Mutex, Ordering::Relaxed, Ordering::SeqCst, sequential};
use std::sync::Arc;
use std::time::Duration;

/// Who leads.
const NOBODY: u32 = 0;
const PROGRESS: u32 = 1;
const CALLER: u32 = 2;

/// The lead of one node.
#[derive(Default)]
pub(crate) struct Lead {
    leader: AtomicU32,
    followers: Mutex<Vec<Arc<Parker>>>,
    /// Of the progress thread.
    pub(crate) thread: Parker,
    dormant: AtomicBool,
    /// The progress thread sleeps on the descriptors, or is about to, with the lead or after it has lost it.
    listens: AtomicBool,
}

impl Lead {
    /// True while somebody leads, so that links without a poller must be armed.
    pub(crate) fn is_taken(&self) -> bool {
        sequential();
        self.leader.load(SeqCst) != NOBODY
    }

    /// True while the progress thread leads, as far as that is seen in passing.
    pub(crate) fn is_with_thread(&self) -> bool {
        self.leader.load(Relaxed) == PROGRESS
    }

    /// Tries to make a caller the leader. Whom it takes the lead from sleeps on `bell`.
    pub(crate) fn take(&self, bell: &dyn Bell) -> bool {
        let taken = self.leader.compare_exchange(NOBODY, CALLER, SeqCst, SeqCst).is_ok() || self.usurp(CALLER, bell);
        sequential();
        taken
    }

    /// Takes the lead from the progress thread, for nobody: callers are busy, and poll by themselves.
    pub(crate) fn take_from_thread(&self, bell: &dyn Bell) -> bool {
        self.usurp(NOBODY, bell)
    }

    fn usurp(&self, successor: u32, bell: &dyn Bell) -> bool {
        let taken = self.leader.compare_exchange(PROGRESS, successor, SeqCst, SeqCst).is_ok();
        if taken {
            bell.ring();
        }
        taken
    }

    /// Registers a follower; it must try [`Lead::take`] once more before it sleeps.
    pub(crate) fn follow(&self, parker: &Arc<Parker>) {
        self.followers.lock().push(Arc::clone(parker));
    }

    pub(crate) fn unfollow(&self, parker: &Arc<Parker>) {
        self.followers.lock().retain(|other| !Arc::ptr_eq(other, parker));
    }

    /// The calling thread stops leading. Somebody else is promoted.
    pub(crate) fn step_down(&self, bell: &dyn Bell) {
        self.leader.store(NOBODY, SeqCst);
        self.promote(bell);
    }

    /// If nobody leads, wakes a follower or, failing that, the progress thread if it sleeps for long; on `bell`, if it
    /// has led.
    pub(crate) fn promote(&self, bell: &dyn Bell) {
        if self.is_taken() {
            return;
        }
        let follower = self.followers.lock().pop();
        match follower {
            Some(parker) => parker.unpark(),
            None if self.dormant.load(SeqCst) => self.thread.unpark(),
            None if self.listens.load(SeqCst) => bell.ring(),
            None => {}
        }
    }

    /// The progress thread leads if nobody else does.
    pub(crate) fn begin_thread(&self) -> bool {
        self.listens.store(true, SeqCst);
        let leads = self.leader.compare_exchange(NOBODY, PROGRESS, SeqCst, SeqCst).is_ok();
        if !leads {
            self.listens.store(false, SeqCst);
        }
        sequential();
        leads
    }

    /// The progress thread, which has led, is awake.
    pub(crate) fn end_thread(&self, bell: &dyn Bell) {
        self.listens.store(false, SeqCst);
        if self.leader.compare_exchange(PROGRESS, NOBODY, SeqCst, SeqCst).is_err() {
            // Both slept on the same descriptors: what woke this thread may have been meant for the other.
            bell.ring();
        }
        self.promote(bell);
    }

    /// The progress thread sleeps while a caller leads, for at most `limit`.
    pub(crate) fn rest(&self, limit: Duration) {
        self.dormant.store(true, SeqCst);
        if self.is_taken() {
            self.thread.park(Some(limit));
        }
        self.dormant.store(false, SeqCst);
    }

    /// The progress thread has come out of a turn by a panic: if it led, it leads no more.
    pub(crate) fn thread_lets_go(&self, bell: &dyn Bell) {
        self.dormant.store(false, SeqCst);
        self.listens.store(false, SeqCst);
        if self.leader.compare_exchange(PROGRESS, NOBODY, SeqCst, SeqCst).is_ok() {
            self.promote(bell);
        }
    }
}

#[cfg(all(test, loom))]
mod explored {
    use super::*;
    use loom::sync::{Arc as Shared, Condvar};
    use loom::thread;

    /// A doorbell as an eventfd is one: it rings until somebody has heard it, and all who sleep wake.
    #[derive(Default)]
    struct Doorbell {
        is_rung: loom::sync::Mutex<bool>,
        sleepers: Condvar,
    }

    impl Bell for Doorbell {
        fn ring(&self) {
            *self.is_rung.lock().expect("no panic") = true;
            self.sleepers.notify_all();
        }
    }

    impl Doorbell {
        /// Sleeps until it rings, and silences it.
        fn sleep(&self) {
            let mut is_rung = self.is_rung.lock().expect("no panic");
            while !*is_rung {
                is_rung = self.sleepers.wait(is_rung).expect("no panic");
            }
            *is_rung = false;
        }

        /// Hears what has rung, if it has.
        fn silence(&self) {
            *self.is_rung.lock().expect("no panic") = false;
        }
    }

    /// What several threads wait with: the lead, the doorbell, and one link over which the ends of waits come.
    struct Node {
        lead: Lead,
        bell: Arc<Doorbell>,
        any_bell: Arc<dyn Bell>,
        armed: AtomicBool,
        arrived: AtomicU32,
        pollers: AtomicU32,
        waits: [Wait; 2],
    }

    struct Wait {
        parker: Arc<Parker>,
        is_over: AtomicBool,
    }

    impl Node {
        fn new() -> Shared<Self> {
            let bell = Arc::new(Doorbell::default());
            let wait = || Wait { parker: Arc::new(Parker::new()), is_over: AtomicBool::new(false) };
            Shared::new(Self {
                lead: Lead::default(),
                any_bell: bell.clone(),
                bell,
                armed: AtomicBool::new(false),
                arrived: AtomicU32::new(0),
                pollers: AtomicU32::new(0),
                waits: [wait(), wait()],
            })
        }

        /// The end of a wait comes over the link, as the peer sends it.
        fn send(&self, wait: u32) {
            self.arrived.fetch_or(1 << wait, SeqCst);
            sequential();
            if self.armed.swap(false, SeqCst) {
                self.bell.ring();
            }
        }

        fn poll(&self) {
            let arrived = self.arrived.swap(0, SeqCst);
            for (at, wait) in self.waits.iter().enumerate() {
                if arrived & 1 << at != 0 {
                    wait.is_over.store(true, SeqCst);
                    wait.parker.unpark();
                }
            }
        }

        /// False when there is something to do.
        fn arm(&self) -> bool {
            self.armed.swap(true, SeqCst);
            sequential();
            self.arrived.load(SeqCst) == 0
        }

        fn is_over(&self, wait: usize) -> bool {
            self.waits[wait].is_over.load(SeqCst)
        }

        /// Waits as a node's threads do: `Inner::sleep_until_done`.
        fn wait(&self, wait: usize) {
            let parker = &self.waits[wait].parker;
            let mut leads = false;
            while !self.is_over(wait) {
                leads = leads || self.lead.take(&*self.bell);
                if leads {
                    let is_quiet = self.arm() && !self.is_over(wait);
                    if parker.enter_elsewhere(&self.any_bell) && is_quiet {
                        self.bell.sleep();
                    }
                    parker.leave_elsewhere();
                    self.poll();
                    continue;
                }
                self.lead.follow(parker);
                if self.lead.is_taken() && !self.is_over(wait) {
                    parker.park(None);
                }
                self.lead.unfollow(parker);
            }
            if leads {
                self.lead.step_down(&*self.bell);
            } else {
                self.lead.promote(&*self.bell);
            }
        }
    }

    fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        // What goes wrong here does so after a switch or two at the wrong moment.
        builder.preemption_bound = Some(preemptions);
        builder.check(run);
    }

    /// Two threads wait, one of them leads. The end of its wait comes first, or the other's: whoever stays is served.
    #[test]
    fn loom_a_leader_hands_over_to_a_follower() {
        model(2, || {
            let node = Node::new();
            let (peer, other) = (Shared::clone(&node), Shared::clone(&node));
            let peer = thread::spawn(move || (0..2).for_each(|wait| peer.send(wait)));
            let other = thread::spawn(move || other.wait(1));
            node.wait(0);
            other.join().expect("no panic");
            peer.join().expect("no panic");
        });
    }

    /// A caller takes the lead from the progress thread, which sleeps on the same doorbell, and what rings it for the
    /// one may wake the other.
    #[test]
    fn loom_a_caller_takes_the_lead_from_the_progress_thread() {
        model(3, || {
            let node = Node::new();
            let (peer, progress) = (Shared::clone(&node), Shared::clone(&node));
            let progress = thread::spawn(move || {
                if progress.lead.begin_thread() {
                    if progress.arm() {
                        progress.bell.sleep();
                    }
                    progress.lead.end_thread(&*progress.bell);
                }
            });
            let peer = thread::spawn(move || peer.send(0));
            node.wait(0);
            peer.join().expect("no panic");
            // Left alone it would sleep on, as it should.
            node.bell.ring();
            progress.join().expect("no panic");
            assert!(!node.lead.is_taken());
        });
    }

    /// A caller takes the lead from the progress thread and hears the ring that was meant for that: when it leaves,
    /// the progress thread wakes.
    #[test]
    fn loom_the_progress_thread_does_not_sleep_on_without_the_lead() {
        model(3, || {
            let node = Node::new();
            let progress = Shared::clone(&node);
            let progress = thread::spawn(move || {
                assert!(progress.lead.begin_thread(), "nobody led");
                progress.bell.sleep();
                progress.lead.end_thread(&*progress.bell);
            });
            while !node.lead.is_with_thread() {
                thread::yield_now();
            }
            assert!(node.lead.take(&*node.bell), "the progress thread led");
            node.bell.silence();
            node.lead.step_down(&*node.bell);
            progress.join().expect("no panic");
            assert!(!node.lead.is_taken());
        });
    }

    /// The progress thread sleeps for long while a caller leads, and no longer.
    #[test]
    fn loom_the_progress_thread_does_not_rest_when_nobody_leads() {
        model(3, || {
            let node = Node::new();
            assert!(node.lead.take(&*node.bell), "nobody led");
            let progress = Shared::clone(&node);
            let progress = thread::spawn(move || {
                while !progress.lead.begin_thread() {
                    progress.lead.rest(Duration::MAX);
                }
            });
            node.lead.step_down(&*node.bell);
            progress.join().expect("no panic");
            assert!(node.lead.is_with_thread());
        });
    }

    /// A poller leaves its link while another thread becomes the leader: one of the two arms it.
    #[test]
    fn loom_a_link_that_its_poller_leaves_is_armed() {
        model(3, || {
            let node = Node::new();
            node.pollers.store(1, SeqCst);
            let poller = Shared::clone(&node);
            let poller = thread::spawn(move || {
                poller.pollers.fetch_sub(1, SeqCst);
                if poller.lead.is_taken() && poller.pollers.load(SeqCst) == 0 {
                    poller.arm();
                }
            });
            assert!(node.lead.take(&*node.bell));
            if node.pollers.load(SeqCst) == 0 {
                node.arm();
            }
            poller.join().expect("no panic");
            assert!(node.armed.load(SeqCst), "nobody hears of what arrives");
        });
    }
}
