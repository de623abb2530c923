use super::*;
use proptest::prelude::*;
use sheave_base::clock::SystemClock;
use std::future::{pending, poll_fn};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);

/// Tasks that nobody polls by himself, and how often a thread was called for them.
fn tasks() -> (Arc<Tasks>, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let call = move || {
        counted.fetch_add(1, SeqCst);
    };
    (Tasks::new(Timers::new(Arc::new(SystemClock::default())), call), calls)
}

fn begin(tasks: &Arc<Tasks>, future: impl Future<Output = ()> + Send + 'static) -> Task {
    let task = tasks.prepare(|| Box::pin(future)).expect("there is room");
    task.enqueue();
    task
}

/// A future that pends so often and wakes itself each time.
fn yields(times: usize, polls: &Arc<AtomicUsize>) -> impl Future<Output = ()> + Send + use<> {
    let (mut left, polls) = (times, Arc::clone(polls));
    poll_fn(move |context| {
        polls.fetch_add(1, SeqCst);
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

/// A future that keeps its waker there and never ends.
fn waits(place: &Arc<Mutex<Option<Waker>>>, polls: &Arc<AtomicUsize>) -> impl Future<Output = ()> + Send + use<> {
    let (place, polls) = (Arc::clone(place), Arc::clone(polls));
    poll_fn(move |context| {
        polls.fetch_add(1, SeqCst);
        *place.lock() = Some(context.waker().clone());
        Poll::Pending
    })
}

/// Sets its mark when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn tasks_run_in_the_order_in_which_they_were_woken() {
    let (tasks, calls) = tasks();
    let order = Arc::new(Mutex::new(Vec::new()));
    let kept: Vec<Task> = (0..5)
        .map(|number| {
            let order = Arc::clone(&order);
            begin(&tasks, async move { order.lock().push(number) })
        })
        .collect();
    assert_eq!((calls.load(SeqCst), tasks.count(), order.lock().len()), (5, 5, 0));
    tasks.run_ready();
    assert_eq!((order.lock().clone(), tasks.count()), (vec![0, 1, 2, 3, 4], 0));
    assert!(kept.iter().all(Task::has_ended));
}

#[test]
fn a_task_that_is_woken_while_it_runs_is_polled_again_and_calls_nobody() {
    let (tasks, calls) = tasks();
    let polls = Arc::default();
    let task = begin(&tasks, yields(3, &polls));
    assert_eq!(calls.swap(0, SeqCst), 1);
    tasks.run_ready();
    assert!(task.has_ended());
    assert_eq!((polls.load(SeqCst), calls.load(SeqCst)), (4, 0), "the turn that runs sees what is woken in it");
}

#[test]
fn a_task_that_is_run_by_its_maker_goes_as_far_as_it_can_and_runs_no_other() {
    let (tasks, calls) = tasks();
    let (polls, others) = (Arc::default(), Arc::default());
    let other = begin(&tasks, yields(0, &others));
    calls.store(0, SeqCst);
    let task = tasks.prepare(|| Box::pin(yields(3, &polls))).expect("there is room");
    task.run();
    assert_eq!((polls.load(SeqCst), others.load(SeqCst), calls.load(SeqCst)), (4, 0, 0));
    assert!(task.has_ended() && !other.has_ended());
    let endless = tasks.prepare(|| Box::pin(yields(usize::MAX, &polls))).expect("there is room");
    endless.run();
    assert_eq!((polls.load(SeqCst), calls.load(SeqCst)), (4 + TURN_POLLS, 1), "the rest is for others");
    tasks.run_ready();
    assert!(other.has_ended() && polls.load(SeqCst) > 4 + TURN_POLLS);
}

#[test]
fn several_wakes_are_one_poll_and_one_call() {
    let (tasks, calls) = tasks();
    let (place, polls) = (Arc::default(), Arc::default());
    let _task = begin(&tasks, waits(&place, &polls));
    tasks.run_ready();
    calls.store(0, SeqCst);
    let waker = place.lock().clone().expect("it was polled");
    (0..3).for_each(|_| waker.wake_by_ref());
    tasks.run_ready();
    assert_eq!((polls.load(SeqCst), calls.load(SeqCst)), (2, 1));
}

#[test]
fn tasks_that_wake_themselves_for_ever_keep_no_thread() {
    let (tasks, _calls) = tasks();
    let polls = Arc::default();
    let endless = begin(&tasks, yields(usize::MAX, &polls));
    tasks.run_ready();
    assert_eq!(polls.load(SeqCst), TURN_POLLS);
    // The time thread goes on with it, and others are not kept waiting for it.
    assert!(matches!(tasks.timers.wait(), Some(super::super::timers::Job::Turn)));
    let other = begin(&tasks, async {});
    tasks.run_ready();
    assert_eq!((polls.load(SeqCst), other.has_ended()), (2 * TURN_POLLS - 1, true));
    drop(endless);
    tasks.run_ready();
    assert_eq!((polls.load(SeqCst), tasks.count()), (2 * TURN_POLLS - 1, 0));
}

#[test]
fn a_panic_ends_its_task_alone() {
    let (tasks, _calls) = tasks();
    let (is_dropped, polls) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let held = Dropped(Arc::clone(&is_dropped));
    let broken = begin(&tasks, async move {
        let _held = held;
        panic!("a task of a test");
    });
    let sound = begin(&tasks, yields(1, &polls));
    tasks.run_ready();
    assert!(is_dropped.load(SeqCst) && broken.has_ended() && sound.has_ended());
    assert_eq!((polls.load(SeqCst), tasks.count()), (2, 0));
}

#[test]
fn what_is_cancelled_is_dropped_before_anybody_is_told() {
    let (tasks, _calls) = tasks();
    for is_polled_before in [false, true] {
        let is_dropped = Arc::new(AtomicBool::new(false));
        let held = Dropped(Arc::clone(&is_dropped));
        let task = begin(&tasks, async move {
            let _held = held;
            pending::<()>().await;
        });
        if is_polled_before {
            tasks.run_ready();
        }
        let (tell, told) = channel();
        let seen = Arc::clone(&is_dropped);
        task.cancel_then(move || tell.send(seen.load(SeqCst)).expect("it waits"));
        assert_eq!((told.try_recv(), task.has_ended(), tasks.count()), (Ok(true), true, 0));
    }
    tasks.run_ready();
}

/// One thread polls a task for a while; another one cancels it meanwhile.
#[test]
fn what_is_cancelled_while_it_runs_ends_when_it_runs_no_more() {
    let (tasks, _calls) = tasks();
    let (is_dropped, runs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (enter, entered) = channel();
    let (release, released) = channel::<()>();
    let (held, inside) = (Dropped(Arc::clone(&is_dropped)), Arc::clone(&runs));
    let task = begin(&tasks, async move {
        let _held = held;
        inside.store(true, SeqCst);
        enter.send(()).expect("it waits");
        released.recv_timeout(LONG).expect("it lets go");
        inside.store(false, SeqCst);
        pending::<()>().await;
    });
    let own = Arc::clone(&tasks);
    let runner = std::thread::spawn(move || own.run_ready());
    entered.recv_timeout(LONG).expect("it is polled");
    let (tell, told) = channel();
    let seen = (Arc::clone(&is_dropped), Arc::clone(&runs));
    task.cancel_then(move || tell.send((seen.0.load(SeqCst), seen.1.load(SeqCst))).expect("it waits"));
    let second = Arc::new(AtomicBool::new(false));
    let never = Arc::clone(&second);
    task.cancel_then(move || never.store(true, SeqCst));
    assert!(told.try_recv().is_err() && !task.has_ended(), "the end was told while it ran");
    release.send(()).expect("it waits");
    assert_eq!(told.recv_timeout(LONG), Ok((true, false)), "dropped, and not running");
    runner.join().expect("no panic");
    assert!(task.has_ended() && !second.load(SeqCst), "the first who cancels is told");
    // Who comes when it is over is told at once.
    let late = Arc::clone(&second);
    task.cancel_then(move || late.store(true, SeqCst));
    assert!(second.load(SeqCst));
}

#[test]
fn a_task_is_dropped_with_its_handle_unless_it_is_detached() {
    let (tasks, _calls) = tasks();
    let (place, polls) = (Arc::default(), Arc::default());
    drop(begin(&tasks, waits(&place, &polls)));
    assert_eq!(tasks.count(), 0);
    begin(&tasks, waits(&place, &polls)).detach();
    tasks.run_ready();
    assert_eq!((tasks.count(), polls.load(SeqCst)), (1, 1));
    // Nobody can wake it any more.
    let waker = place.lock().take();
    drop(waker);
    assert_eq!(tasks.count(), 0);
}

#[test]
fn there_are_no_more_tasks_than_the_limit_and_none_after_the_end() {
    let (tasks, _calls) = tasks();
    let mut many: Vec<Task> =
        (0..limits::TASKS_MAX).map(|_| tasks.prepare(|| Box::pin(pending())).expect("there is room")).collect();
    let refused = tasks.prepare(|| Box::pin(pending())).expect_err("one too many");
    assert_eq!((refused.kind(), tasks.count()), (ErrorKind::LimitExceeded, limits::TASKS_MAX));
    many.truncate(1);
    assert_eq!(tasks.count(), 1);
    let is_dropped = Arc::new(AtomicBool::new(false));
    let held = Dropped(Arc::clone(&is_dropped));
    let left = begin(&tasks, async move {
        let _held = held;
        pending::<()>().await;
    });
    tasks.stop();
    assert!(is_dropped.load(SeqCst) && left.has_ended() && many[0].has_ended());
    assert_eq!(tasks.prepare(|| Box::pin(pending())).expect_err("it has ended").kind(), ErrorKind::Closed);
}

#[test]
fn a_quiet_waker_calls_nobody() {
    let (tasks, calls) = tasks();
    let (place, polls) = (Arc::default(), Arc::default());
    let task = begin(&tasks, waits(&place, &polls));
    tasks.run_ready();
    calls.store(0, SeqCst);
    task.quiet_waker().wake();
    assert_eq!((polls.load(SeqCst), calls.load(SeqCst)), (1, 0));
    tasks.run_ready();
    assert_eq!(polls.load(SeqCst), 2);
    let other = begin(&tasks, async move { place.lock().clone().expect("it was polled").wake() });
    assert_eq!(calls.swap(0, SeqCst), 1);
    tasks.run_ready();
    assert!(other.has_ended());
    assert_eq!((polls.load(SeqCst), calls.load(SeqCst)), (3, 0), "what a turn has woken it runs itself");
}

/// When the thread of a turn wakes the task that a poll of it waits for.
#[derive(Clone, Copy, Debug)]
enum Moment {
    BeforeItSleeps,
    WhileItSleeps,
    InATurnAround,
}

/// A poll waits for a task that its own thread has woken, and returns whether that came.
fn waits_for_what_it_wakes(moment: Moment) -> bool {
    let (tell, called) = channel();
    let node = Tasks::new(Timers::new(Arc::new(SystemClock::default())), move || _ = tell.send(()));
    let (elsewhere, _calls) = tasks();
    let (completer, work) = sheave_base::work::pair("test");
    let (place, mut completer) = (Arc::new(Mutex::new(None::<Waker>)), Some(completer));
    let own = Arc::clone(&place);
    let awaited = begin(
        &node,
        poll_fn(move |context| {
            if own.lock().replace(context.waker().clone()).is_none() {
                return Poll::Pending;
            }
            completer.take().into_iter().for_each(|completer| completer.complete(Ok(())));
            Poll::Ready(())
        }),
    );
    node.run_ready();
    let wake = move || place.lock().clone().expect("it was polled").wake();
    let (tell, heard) = channel();
    let until = Some(Instant::now() + LONG);
    let turn = Arc::clone(&elsewhere);
    let kept = match moment {
        Moment::BeforeItSleeps => vec![begin(&node, async move {
            wake();
            tell.send(work.wait_until(until, None)).expect("it listens");
        })],
        Moment::WhileItSleeps => vec![begin(&node, async move {
            let mut interrupt = || {
                wake();
                Ok(())
            };
            tell.send(work.wait_until(until, Some(&mut interrupt))).expect("it listens");
        })],
        Moment::InATurnAround => {
            let inner = async move { tell.send(work.wait_until(until, None)).expect("it listens") };
            let outer = async move {
                wake();
                turn.run_ready();
            };
            vec![begin(&elsewhere, inner), begin(&node, outer)]
        }
    };
    called.try_iter().for_each(drop);
    std::thread::scope(|scope| {
        let others = Arc::clone(&node);
        scope.spawn(move || called.recv_timeout(LONG).map(|()| others.run_ready()));
        node.run_ready();
    });
    let has_come = heard.try_recv().expect("its poll is over").expect("nothing interrupts it");
    assert!(awaited.has_ended() && kept.iter().all(Task::has_ended));
    has_come
}

#[test]
fn what_a_turn_has_woken_is_left_to_others_while_its_thread_sleeps() {
    for moment in [Moment::BeforeItSleeps, Moment::WhileItSleeps, Moment::InATurnAround] {
        assert!(waits_for_what_it_wakes(moment), "{moment:?}: nobody was called");
    }
}

#[test]
fn a_thread_that_has_slept_has_its_turn_again() {
    let (tasks, calls) = tasks();
    let (_completer, never) = sheave_base::work::pair::<()>("test");
    let (place, polls) = (Arc::default(), Arc::default());
    let _other = begin(&tasks, waits(&place, &polls));
    tasks.run_ready();
    let sleeper = begin(&tasks, async move {
        let soon = Instant::now() + Duration::from_millis(1);
        assert_eq!(never.wait_until(Some(soon), None).ok(), Some(false), "nobody ends it");
        place.lock().clone().expect("it was polled").wake();
    });
    calls.store(0, SeqCst);
    tasks.run_ready();
    assert!(sleeper.has_ended());
    assert_eq!((polls.load(SeqCst), calls.load(SeqCst)), (2, 0), "the turn goes on after the sleep");
}

/// Many tasks, threads that wake them and threads that run them: each wake is followed by a poll, and no task is polled
/// by two threads at a time.
#[test]
fn no_wake_is_lost_and_one_thread_at_a_time_polls_a_task() {
    const TASKS: usize = 64;
    const WAKES: usize = 2_000;
    struct Counted {
        wanted: AtomicUsize,
        seen: AtomicUsize,
        is_polled: AtomicBool,
        waker: Mutex<Option<Waker>>,
    }
    let (tasks, _calls) = tasks();
    let counted: Vec<Arc<Counted>> = (0..TASKS)
        .map(|_| {
            Arc::new(Counted {
                wanted: AtomicUsize::new(0),
                seen: AtomicUsize::new(0),
                is_polled: AtomicBool::new(false),
                waker: Mutex::default(),
            })
        })
        .collect();
    let kept: Vec<Task> = counted
        .iter()
        .map(|own| {
            let own = Arc::clone(own);
            begin(
                &tasks,
                poll_fn(move |context| {
                    assert!(!own.is_polled.swap(true, SeqCst), "two threads poll it");
                    *own.waker.lock() = Some(context.waker().clone());
                    let seen = own.wanted.load(SeqCst);
                    own.seen.store(seen, SeqCst);
                    own.is_polled.store(false, SeqCst);
                    if seen == 2 * WAKES { Poll::Ready(()) } else { Poll::Pending }
                }),
            )
        })
        .collect();
    tasks.run_ready();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..WAKES {
                    for own in &counted {
                        own.wanted.fetch_add(1, SeqCst);
                        let waker = own.waker.lock().clone();
                        waker.expect("it was polled").wake();
                    }
                }
            });
            scope.spawn(|| {
                while !kept.iter().all(Task::has_ended) {
                    assert!(begun.elapsed() < LONG, "a wake was lost");
                    tasks.run_ready();
                    std::thread::yield_now();
                }
            });
        }
    });
    assert!(counted.iter().all(|own| own.seen.load(SeqCst) == 2 * WAKES));
    assert_eq!(tasks.count(), 0);
}

/// What a test does with some tasks.
#[derive(Clone, Debug)]
enum Act {
    Begin,
    Wake(usize),
    Cancel(usize),
    End(usize),
    Run,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => Just(Act::Begin),
        5 => any::<usize>().prop_map(Act::Wake),
        1 => any::<usize>().prop_map(Act::Cancel),
        2 => any::<usize>().prop_map(Act::End),
        4 => Just(Act::Run),
    ];
    proptest::collection::vec(act, 0..120)
}

/// A task of the model: how often it must have been polled, and what it will do.
struct Modelled {
    task: Task,
    polls: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
    place: Arc<Mutex<Option<Waker>>>,
    expected: usize,
    is_scheduled: bool,
    is_over: bool,
}

impl Modelled {
    fn new(tasks: &Arc<Tasks>) -> Self {
        let (polls, ends): (Arc<AtomicUsize>, Arc<AtomicBool>) = Default::default();
        let place = Arc::default();
        let (mut inner, own) = (Box::pin(waits(&place, &polls)), Arc::clone(&ends));
        let task = begin(
            tasks,
            poll_fn(move |context| {
                let polled = inner.as_mut().poll(context);
                if own.load(SeqCst) { Poll::Ready(()) } else { polled }
            }),
        );
        Self { task, polls, ends, place, expected: 0, is_scheduled: true, is_over: false }
    }

    fn run(&mut self) {
        if std::mem::take(&mut self.is_scheduled) && !self.is_over {
            self.expected += 1;
            self.is_over = self.ends.load(SeqCst);
        }
    }
}

proptest! {
    /// Polled once for all wakes since the last time, never after its end.
    #[test]
    fn tasks_are_polled_as_their_model_says(acts in acts()) {
        let (tasks, _calls) = tasks();
        let mut all: Vec<Modelled> = Vec::new();
        for act in acts {
            let count = all.len().max(1);
            match act {
                Act::Begin => all.push(Modelled::new(&tasks)),
                Act::Wake(which) => {
                    if let Some(one) = all.get_mut(which % count) {
                        let waker = one.place.lock().clone();
                        if let Some(waker) = waker {
                            waker.wake();
                            one.is_scheduled = true;
                        }
                    }
                }
                Act::Cancel(which) => {
                    if let Some(one) = all.get_mut(which % count) {
                        one.task.cancel_then(|| ());
                        one.is_over = true;
                    }
                }
                Act::End(which) => {
                    if let Some(one) = all.get_mut(which % count) {
                        one.ends.store(true, SeqCst);
                    }
                }
                Act::Run => {
                    tasks.run_ready();
                    all.iter_mut().for_each(Modelled::run);
                }
            }
            for one in &all {
                prop_assert_eq!(one.polls.load(SeqCst), one.expected);
                prop_assert_eq!(one.task.has_ended(), one.is_over);
            }
            prop_assert_eq!(tasks.count(), all.iter().filter(|one| !one.is_over).count());
        }
    }
}
