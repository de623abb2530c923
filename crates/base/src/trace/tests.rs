use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::ErrorKind;

const THREADS: u32 = 8;
const EVENTS_EACH: u32 = if cfg!(miri) { 20 } else { 2_000 };

fn trace(capacity_events: usize) -> (Trace, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    (Trace::new(capacity_events, clock.clone()), clock)
}

fn process(pid: u32, name: &str, clock_offset_ns: i64) -> Process {
    Process { pid, name: name.into(), clock_offset_ns }
}

fn exported(trace: &Trace, process: &Process) -> Vec<u8> {
    let mut json = Vec::new();
    trace.export(process, &mut json).unwrap();
    json
}

fn parsed(json: &[u8]) -> Value {
    serde_json::from_slice(json).unwrap()
}

fn timed(document: &Value) -> Vec<&Value> {
    document["traceEvents"].as_array().unwrap().iter().filter(|entry| entry["ph"] != "M").collect()
}

/// An event of which every field tells the same number, so that a mixture of two shows.
fn numbered(number: u32) -> Event {
    Event {
        time: Time(number.into()),
        phase: Phase::Complete(Duration::from_nanos(number.into())),
        name: Name(number as u16),
        lane: Lane(number as u16),
        link: Some(LinkId(number)),
        value: number.into(),
    }
}

/// Eight threads record while a ninth reads; returns the numbers of the events that are there in the end.
fn storm(trace: &Trace) -> HashSet<u64> {
    let barrier = Barrier::new(THREADS as usize + 1);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                for event in 0..EVENTS_EACH {
                    trace.record(&numbered(thread * EVENTS_EACH + event));
                }
            });
        }
        barrier.wait();
        for _ in 0..20 {
            for event in trace.events() {
                assert_eq!(event, numbered(u32::try_from(event.value).unwrap()));
            }
        }
    });
    let events = trace.events();
    let numbers: HashSet<u64> = events.iter().map(|event| event.value).collect();
    assert_eq!(numbers.len(), events.len(), "no event is there twice");
    numbers
}

#[test]
fn eight_threads_lose_nothing_while_there_is_room() {
    let all = THREADS * EVENTS_EACH;
    let (trace, _) = trace(all as usize);
    assert_eq!(storm(&trace), (0..u64::from(all)).collect());
    assert_eq!((trace.recorded(), trace.dropped()), (all.into(), 0));
}

#[test]
fn a_full_trace_counts_exactly_what_it_drops() {
    let capacity_events = 3 * EVENTS_EACH as usize;
    let (trace, _) = trace(capacity_events);
    assert_eq!(storm(&trace).len(), capacity_events);
    let dropped = u64::from((THREADS - 3) * EVENTS_EACH);
    assert_eq!((trace.recorded(), trace.dropped()), (capacity_events as u64, dropped));
    let json = parsed(&exported(&trace, &process(1, "full", 0)));
    assert_eq!(json["otherData"]["processes"][0]["dropped"], dropped);
    assert_eq!(timed(&json).len(), capacity_events);
}

#[test]
fn a_slot_is_as_small_as_promised_and_the_capacity_bounded() {
    assert_eq!(size_of::<Slot>(), 32);
    assert_eq!(trace(usize::MAX).0.slots.len(), TRACE_EVENTS_MAX);
}

/// Counts how often it is asked.
#[derive(Default)]
struct AskedClock(AtomicUsize);

impl Clock for AskedClock {
    fn now(&self) -> Time {
        Time(self.0.fetch_add(1, SeqCst) as u64)
    }
}

#[test]
fn a_trace_that_is_off_records_nothing_and_does_not_even_read_the_clock() {
    let clock = Arc::new(AskedClock::default());
    let trace = Trace::new(16, clock.clone());
    let (lane, name) = (trace.lane("main"), trace.name("send"));
    trace.switch(false);
    trace.begin(lane, name, None, 0);
    trace.end(lane, name, None, 0);
    trace.instant(lane, name, None, 0);
    trace.record(&numbered(1));
    drop(trace.span(lane, name));
    assert_eq!((clock.0.load(SeqCst), trace.recorded(), trace.dropped()), (0, 0, 0));
    trace.switch(true);
    drop(trace.span(lane, name));
    assert_eq!((clock.0.load(SeqCst), trace.recorded(), trace.dropped()), (2, 1, 0));

    let off = Trace::off();
    off.instant(off.lane("main"), off.name("send"), None, 0);
    assert_eq!((off.recorded(), off.dropped(), off.slots.len()), (0, 0, 0));
}

#[test]
#[cfg_attr(miri, ignore = "it takes minutes there")]
fn names_and_lanes_are_kept_once_and_are_bounded() {
    let (trace, _) = trace(1);
    assert_eq!(trace.name("send"), trace.name("send"));
    assert_ne!(trace.name("send"), trace.name("recv"));
    assert_eq!(trace.name("other"), Name::default());
    for number in 1..TRACE_LANES_MAX {
        assert_ne!(trace.lane(&format!("lane {number}")), Lane::default());
    }
    assert_eq!(trace.lane("one too many"), Lane::default());
    assert_eq!(trace.lane("lane 1"), Lane(1));
}

#[test]
fn an_export_has_the_fields_of_the_format() {
    let (trace, clock) = trace(16);
    let (lane, push) = (trace.lane("main"), trace.name("push"));
    clock.advance(Duration::from_nanos(1_500));
    trace.begin(lane, push, None, 1);
    {
        let mut span = trace.span(lane, trace.name("send"));
        span.link(LinkId(3)).value(4096);
        clock.advance(Duration::from_micros(2));
    }
    trace.instant(lane, trace.name("retry \"quoted\""), None, 2);
    trace.end(lane, push, None, 3);
    let expected = serde_json::json!({
        "displayTimeUnit": "ns",
        "otherData": {"processes": [
            {"pid": 42, "name": "worker-1", "events": 4, "dropped": 0, "clock_offset_ns": -5},
        ]},
        "traceEvents": [
            {"name": "process_name", "ph": "M", "pid": 42, "tid": 1, "args": {"name": "worker-1"}},
            {"name": "thread_name", "ph": "M", "pid": 42, "tid": 1, "args": {"name": "other"}},
            {"name": "thread_name", "ph": "M", "pid": 42, "tid": 2, "args": {"name": "main"}},
            {"name": "push", "ph": "B", "ts": 1.5, "pid": 42, "tid": 2, "args": {"value": 1}},
            {"name": "send", "ph": "X", "ts": 1.5, "dur": 2.0, "pid": 42, "tid": 2,
             "args": {"link": 3, "value": 4096}},
            {"name": "retry \"quoted\"", "ph": "i", "ts": 3.5, "pid": 42, "tid": 2, "s": "t", "args": {"value": 2}},
            {"name": "push", "ph": "E", "ts": 3.5, "pid": 42, "tid": 2, "args": {"value": 3}},
        ],
    });
    assert_eq!(parsed(&exported(&trace, &process(42, "worker-1", -5))), expected);
}

#[test]
fn merging_moves_each_process_by_its_offset_and_keeps_them_apart() {
    let (early, early_clock) = trace(4);
    let (late, late_clock) = trace(4);
    early_clock.advance(Duration::from_micros(100));
    late_clock.advance(Duration::from_micros(7));
    early.instant(early.lane("main"), early.name("early"), None, 0);
    late.instant(late.lane("main"), late.name("late"), None, 0);
    let wall_ns = 1_790_000_000_000_000_000;
    let exports = [
        exported(&late, &process(9, "late", wall_ns + 100_001)),
        exported(&early, &process(9, "early", wall_ns - 1_000)),
    ];
    let mut merged = Vec::new();
    merge(&exports, &mut merged).unwrap();
    let document = parsed(&merged);
    let seen: Vec<(&str, f64, u64)> = timed(&document)
        .iter()
        .map(|entry| (entry["name"].as_str().unwrap(), entry["ts"].as_f64().unwrap(), entry["pid"].as_u64().unwrap()))
        .collect();
    assert_eq!(seen, [("early", 0.0, 1), ("late", 8.001, 9)]);
    let sources = document["otherData"]["processes"].as_array().unwrap();
    assert_eq!((&sources[1]["name"], &sources[1]["pid"]), (&"early".into(), &1.into()));
    assert_eq!(sources[0]["clock_offset_ns"], wall_ns + 99_000);

    let mut again = Vec::new();
    merge(&[&merged], &mut again).unwrap();
    assert_eq!(parsed(&again), document, "a merged file can be merged again");
}

#[test]
fn what_is_no_export_is_refused_by_its_number() {
    let (trace, _) = trace(4);
    trace.instant(Lane::default(), Name::default(), None, 0);
    let good = exported(&trace, &process(1, "worker-0", 0));
    let text = String::from_utf8(good.clone()).unwrap();
    let unlisted = text.replacen("\"pid\":1", "\"pid\":2", 1).into_bytes();
    let bad = [good[..good.len() - 3].to_vec(), b"{}".to_vec(), Vec::new(), b"\xff".to_vec(), unlisted];
    for bad in bad {
        let error = merge(&[good.clone(), bad], std::io::sink()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.what().starts_with("export 2 is no trace of sheave: "), "{error}");
    }
    let mut nothing = Vec::new();
    merge(&[""; 0], &mut nothing).unwrap();
    assert_eq!(timed(&parsed(&nothing)).len(), 0);
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, _) = trace(4);
    trace.instant(Lane::default(), Name::default(), None, 0);
    let path = folder.path().join("trace.json");
    trace.export_to_file(&process(1, "worker-0", 0), &path).unwrap();
    assert_eq!(timed(&parsed(&std::fs::read(&path).unwrap())).len(), 1);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);

    let occupied = folder.path().join("occupied");
    std::fs::create_dir(&occupied).unwrap();
    let error = trace.export_to_file(&process(1, "worker-0", 0), &occupied).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.what().contains("writing the trace ") && error.what().contains("occupied"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no draft is left behind");
}

#[test]
fn an_output_that_refuses_is_an_error() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::Error::from(std::io::ErrorKind::StorageFull))
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (trace, _) = trace(4);
    assert_eq!(trace.export(&process(1, "worker-0", 0), Full).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn the_wall_clock_is_reached_from_any_origin() {
    let clock = ManualClock::default();
    let before_ns = wall_clock_offset_ns(&clock);
    clock.advance(Duration::from_secs(1_000));
    let moved_ns = before_ns - wall_clock_offset_ns(&clock);
    // The wall clock went on meanwhile, and may have been set.
    assert!((900_000_000_000..1_100_000_000_000).contains(&moved_ns), "{moved_ns}");
}

fn any_event() -> impl Strategy<Value = Event> {
    let phase = prop_oneof![
        Just(Phase::Begin),
        Just(Phase::End),
        Just(Phase::Instant),
        any::<u64>().prop_map(|span_ns| Phase::Complete(Duration::from_nanos(span_ns))),
    ];
    (any::<u64>(), phase, any::<u16>(), any::<u16>(), any::<Option<u32>>(), any::<u64>()).prop_map(
        |(time_ns, phase, name, lane, link, value)| Event {
            time: Time(time_ns),
            phase,
            name: Name(name),
            lane: Lane(lane),
            link: link.map(LinkId),
            value,
        },
    )
}

proptest! {
    #[test]
    fn what_is_recorded_comes_back_and_exports_as_valid_json(
        events in prop::collection::vec(any_event(), 0..40),
        title in any::<String>(),
        offset_ns in any::<i64>(),
    ) {
        let (trace, _) = trace(32);
        trace.lane(&title);
        for event in &events {
            trace.record(event);
        }
        let expected: Vec<Event> = events
            .iter()
            .take(32)
            .map(|event| {
                let phase = match event.phase {
                    Phase::Complete(span) => Phase::Complete(span.min(Duration::from_nanos(DURATION_NS_MAX))),
                    phase => phase,
                };
                let link = event.link.filter(|link| link.0 != NO_LINK);
                Event { phase, link, ..*event }
            })
            .collect();
        prop_assert_eq!(trace.events(), expected);
        prop_assert_eq!(trace.dropped(), events.len().saturating_sub(32) as u64);

        let json = exported(&trace, &process(7, &title, offset_ns));
        prop_assert_eq!(timed(&parsed(&json)).len(), events.len().min(32));
        let mut merged = Vec::new();
        merge(&[json.clone(), json], &mut merged).unwrap();
        prop_assert_eq!(timed(&parsed(&merged)).len(), 2 * events.len().min(32));
    }
}
