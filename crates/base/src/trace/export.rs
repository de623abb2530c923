//! Traces as files for people: the JSON of Chrome's trace viewer, which Perfetto opens too.
//!
//! An export is one object. `traceEvents` holds the events; times (`ts`) and durations (`dur`) are in microseconds by
//! the clock of the node that recorded them. `otherData.processes` says for each process how many events it lost and
//! what to add to its times to get the time of the job. [`merge`] applies that, so a merged file has one time, which
//! begins at zero, and is itself an export that can be merged again.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::{Event, Phase, Trace};
use crate::clock::Clock;
use crate::{Error, ErrorKind, Result};

/// Whose trace it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The process id. Two nodes with the same one are told apart when their traces are merged.
    pub pid: u32,
    /// The node's name, such as `worker-1`.
    pub name: String,
    /// What to add to a time by the trace's clock to get the time that all nodes of the job share.
    pub clock_offset_ns: i64,
}

/// What to add to a time by `clock` to get the wall clock's time since 1970. Processes of one host can use it as their
/// [`Process::clock_offset_ns`]; between hosts it is as good as their clocks are set.
#[must_use]
pub fn wall_clock_offset_ns(clock: &dyn Clock) -> i64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    clamped(i128::try_from(wall.as_nanos()).unwrap_or(i128::MAX) - i128::from(clock.now().0))
}

fn clamped(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document<'a> {
    display_time_unit: Cow<'a, str>,
    #[serde(borrow)]
    other_data: OtherData<'a>,
    #[serde(borrow)]
    trace_events: Vec<Entry<'a>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OtherData<'a> {
    #[serde(borrow)]
    processes: Vec<Source<'a>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Source<'a> {
    pid: u64,
    #[serde(borrow)]
    name: Cow<'a, str>,
    events: u64,
    dropped: u64,
    clock_offset_ns: i64,
}

/// An event as Chrome's format writes it; the fields that its phase does not have are left out.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    ph: char,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u64,
    tid: u32,
    /// How far an instant reaches: `t` for its lane.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<char>,
    args: Arguments,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<u64>,
}

fn microseconds(time_ns: u128) -> f64 {
    time_ns as f64 / 1e3
}

/// Thread ids begin with 1: some readers take 0 for the idle thread of the system.
fn thread_id(lane: usize) -> u32 {
    u32::try_from(lane).unwrap_or(u32::MAX - 1) + 1
}

/// The entry that gives a process or a thread its title.
fn title(what: &'static str, pid: u64, tid: u32, title: &str) -> Entry<'static> {
    let args = Arguments { name: Some(title.to_owned()), ..Arguments::default() };
    Entry { name: what.into(), ph: 'M', ts: None, dur: None, pid, tid, s: None, args }
}

fn entry(event: &Event, names: &[&'static str], pid: u64) -> Entry<'static> {
    let (ph, dur, s) = match event.phase {
        Phase::Begin => ('B', None, None),
        Phase::End => ('E', None, None),
        Phase::Instant => ('i', None, Some('t')),
        Phase::Complete(duration) => ('X', Some(microseconds(duration.as_nanos())), None),
    };
    Entry {
        // Names of another trace are the caller's mistake, which must not cost it its trace.
        name: names.get(usize::from(event.name.0)).copied().unwrap_or(super::OTHER).into(),
        ph,
        ts: Some(microseconds(event.time.0.into())),
        dur,
        pid,
        tid: thread_id(event.lane.0.into()),
        s,
        args: Arguments { name: None, link: event.link.map(|link| link.0), value: Some(event.value) },
    }
}

impl Trace {
    /// Writes the events so far as JSON, ordered by time. Others may go on recording. Blocks as `output` does.
    ///
    /// # Errors
    ///
    /// `Io` when `output` refuses.
    pub fn export(&self, process: &Process, output: impl Write) -> Result<()> {
        let mut events = self.events();
        events.sort_by_key(|event| event.time);
        let pid = u64::from(process.pid);
        let mut trace_events = vec![title("process_name", pid, 1, &process.name)];
        let lanes = self.lanes.lock().clone();
        let names = self.names.lock().clone();
        trace_events.extend((0..).zip(&lanes).map(|(lane, text)| title("thread_name", pid, thread_id(lane), text)));
        trace_events.extend(events.iter().map(|event| entry(event, &names, pid)));
        let source = Source {
            pid,
            name: process.name.as_str().into(),
            events: events.len() as u64,
            dropped: self.dropped(),
            clock_offset_ns: process.clock_offset_ns,
        };
        write(vec![source], trace_events, output)
    }

    /// Exports to a file, which appears under `path` only when it is whole. Blocks for file I/O.
    ///
    /// # Errors
    ///
    /// `Io` that names the path when the system refuses.
    pub fn export_to_file(&self, process: &Process, path: &Path) -> Result<()> {
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}.part", process.pid));
        let exported = File::create(&draft).map_err(Error::from);
        let exported = exported.and_then(|file| self.export(process, BufWriter::new(file)));
        exported.and_then(|()| Ok(std::fs::rename(&draft, path)?)).map_err(|error| {
            // What cannot be written may not be there to be removed either; the first error is the one to tell.
            let _ = std::fs::remove_file(&draft);
            error.context(format_args!("writing the trace {}", path.display()))
        })
    }
}

fn write(processes: Vec<Source<'_>>, trace_events: Vec<Entry<'_>>, mut output: impl Write) -> Result<()> {
    let other_data = OtherData { processes };
    let document = Document { display_time_unit: "ns".into(), other_data, trace_events };
    serde_json::to_writer(&mut output, &document).map_err(|error| Error::from(std::io::Error::from(error)))?;
    Ok(output.flush()?)
}

/// Puts exports together into one, in the time that they share, so that the earliest event of all is at zero. An export
/// whose process id was seen before gets one of its own. Needs memory for all of them; blocks as `output` does.
///
/// # Errors
///
/// `InvalidArgument` that counts to the export which is none, from 1; `Io` when `output` refuses.
///
/// ```
/// # fn main() -> sheave_base::Result<()> {
/// use sheave_base::clock::{Clock, SystemClock};
/// use sheave_base::trace::{Process, Trace, merge, wall_clock_offset_ns};
/// use std::sync::Arc;
///
/// let mut exports = Vec::new();
/// for (pid, name) in [(7, "server-0"), (8, "worker-0")] {
///     let clock = Arc::new(SystemClock::default());
///     let trace = Trace::new(16, clock.clone());
///     trace.instant(trace.lane("main"), trace.name("started"), None, 0);
///     let process = Process { pid, name: name.into(), clock_offset_ns: wall_clock_offset_ns(&*clock) };
///     let mut json = Vec::new();
///     trace.export(&process, &mut json)?;
///     exports.push(json);
/// }
/// let mut merged = Vec::new();
/// merge(&exports, &mut merged)?;
/// assert!(merge(&["[]"], &mut merged).unwrap_err().to_string().starts_with("export 1 is no trace of sheave"));
/// # Ok(())
/// # }
/// ```
pub fn merge<E: AsRef<[u8]>>(exports: &[E], output: impl Write) -> Result<()> {
    let mut merged = Merged::default();
    for (number, export) in (1..).zip(exports) {
        let refused = |why: String| {
            Error::new(ErrorKind::InvalidArgument, format!("export {number} is no trace of sheave: {why}"))
                .hint("was the process that wrote it killed? leave its export out")
        };
        let document: Document<'_> =
            serde_json::from_slice(export.as_ref()).map_err(|error| refused(error.to_string()))?;
        merged.add(document).map_err(refused)?;
    }
    merged.write(output)
}

#[derive(Default)]
struct Merged<'a> {
    taken: BTreeSet<u64>,
    processes: Vec<Source<'a>>,
    /// Entries with the time of the job in nanoseconds, for those that have a time.
    entries: Vec<(Option<i128>, Entry<'a>)>,
}

impl<'a> Merged<'a> {
    fn add(&mut self, document: Document<'a>) -> Result<(), String> {
        let mut known = HashMap::new();
        for mut source in document.other_data.processes {
            let (old, offset_ns) = (source.pid, i128::from(source.clock_offset_ns));
            if !self.taken.insert(old) {
                source.pid = (1..).find(|pid| !self.taken.contains(pid)).unwrap_or(old);
                self.taken.insert(source.pid);
            }
            if known.insert(old, (source.pid, offset_ns)).is_some() {
                return Err(format!("it lists process {old} twice"));
            }
            self.processes.push(source);
        }
        for mut entry in document.trace_events {
            let process = known.get(&entry.pid).ok_or_else(|| format!("it does not list process {}", entry.pid))?;
            entry.pid = process.0;
            let time_ns = entry.ts.map(|ts| (ts * 1e3).round() as i128);
            self.entries.push((time_ns.map(|time_ns| time_ns.saturating_add(process.1)), entry));
        }
        Ok(())
    }

    fn write(self, output: impl Write) -> Result<()> {
        let Self { mut processes, mut entries, .. } = self;
        // Titles have no time and come first.
        entries.sort_by_key(|(time_ns, _)| *time_ns);
        let origin_ns = entries.iter().find_map(|(time_ns, _)| *time_ns).unwrap_or_default();
        for source in &mut processes {
            source.clock_offset_ns = clamped(origin_ns);
        }
        let entries = entries.into_iter().map(|(time_ns, entry)| {
            // The origin is the least of them all, so no difference is negative.
            let ts = time_ns.map(|time_ns| microseconds(time_ns.abs_diff(origin_ns)));
            Entry { ts, ..entry }
        });
        write(processes, entries.collect(), output)
    }
}
