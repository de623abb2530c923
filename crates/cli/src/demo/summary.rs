//! What is left of a demo: a table or a line of JSON, a picture, and a trace.

use super::job::Run;
use super::progress::bytes;
use super::{Arguments, chart};
use crate::Failure;
use serde::Serialize;
use sheave_base::trace::merge;
use sheave_store::{Compression, Kind};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is written: the picture and the trace.
pub(super) const FILES: [&str; 2] = ["learning-curve.svg", "trace.json"];

/// The summary, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    kind: String,
    transport: Option<&'static str>,
    workers: u32,
    servers: u32,
    seed: u64,
    epochs: usize,
    test_accuracy: f64,
    loss: f64,
    seconds: f64,
    images_per_s: f64,
    bytes_per_s: f64,
    compression: &'static str,
    threshold: Option<f32>,
    /// Of one worker and step: as they are, and as they travel.
    gradient_bytes: u64,
    sent_gradient_bytes: u64,
    staleness: Option<u64>,
    /// Whether another run gives the same weights, bit for bit.
    deterministic: bool,
    weights_sha256: &'a str,
    chart: PathBuf,
    trace: PathBuf,
}

/// Writes picture and trace, and prints the summary.
pub(super) fn write(arguments: &Arguments, run: &Run, took: Duration) -> Result<(), Failure> {
    let Some(last) = run.epochs.last() else {
        return Err(Failure::Run("the training has reported no epoch".to_owned()));
    };
    let folder = &arguments.out;
    let title = format!("{}, {} workers, seed {}", arguments.kind, arguments.workers, arguments.seed);
    let picture = chart::draw(&run.epochs, &title);
    let mut trace = Vec::new();
    merge(&run.traces, &mut trace)?;
    std::fs::create_dir_all(folder).map_err(|error| unwritten(folder, &error))?;
    let chart = store(&folder.join(FILES[0]), picture.as_bytes())?;
    let trace = store(&folder.join(FILES[1]), &trace)?;
    let seconds = last.seconds.max(1e-9);
    let is_distributed = arguments.kind.is_distributed();
    let compression = arguments.compression()?;
    let summary = Summary {
        kind: arguments.kind.to_string(),
        transport: is_distributed.then_some(arguments.transport.name()),
        workers: arguments.workers,
        servers: if is_distributed { arguments.servers } else { 0 },
        seed: arguments.seed,
        epochs: run.epochs.len(),
        test_accuracy: last.accuracy,
        loss: last.loss,
        seconds: took.as_secs_f64(),
        images_per_s: last.images as f64 / seconds,
        bytes_per_s: last.bytes as f64 / seconds,
        compression: compression.name(),
        threshold: compression.threshold(),
        gradient_bytes: run.gradient_bytes.plain,
        sent_gradient_bytes: run.gradient_bytes.sent,
        staleness: (arguments.kind == Kind::DistSsp).then_some(arguments.config()?.staleness),
        deterministic: !matches!(arguments.kind, Kind::DistAsync | Kind::DistSsp),
        weights_sha256: &run.weights_sha256,
        chart,
        trace,
    };
    print(&summary, arguments.json)
}

fn print(summary: &Summary<'_>, json: bool) -> Result<(), Failure> {
    let text = if json {
        serde_json::to_string(summary).map_err(|error| Failure::Run(error.to_string()))?
    } else {
        table(summary)
    };
    writeln!(std::io::stdout().lock(), "{text}").map_err(|_| Failure::Unread)
}

fn table(summary: &Summary<'_>) -> String {
    let Summary { kind, workers, servers, .. } = summary;
    let transport = summary.transport.map(|transport| format!(", over {transport}")).unwrap_or_default();
    let staleness = summary.staleness.map(|steps| format!(", staleness {steps}")).unwrap_or_default();
    let sha256 = match summary.deterministic {
        true => summary.weights_sha256.to_owned(),
        false => format!("{} (of this run: gradients come in no fixed order)", summary.weights_sha256),
    };
    let rows = [
        ("store", format!("{kind}: {workers} workers, {servers} servers{transport}{staleness}")),
        ("test accuracy", format!("{:.2} % after {} epochs", summary.test_accuracy * 100.0, summary.epochs)),
        ("loss", format!("{:.4}", summary.loss)),
        ("time", format!("{:.2} s in all", summary.seconds)),
        ("images", format!("{:.0} per second", summary.images_per_s)),
        ("traffic", format!("{} per second", bytes(summary.bytes_per_s))),
        ("gradients", gradients(summary)),
        ("weights", format!("sha256 {sha256}")),
        ("picture", summary.chart.display().to_string()),
        ("trace", format!("{} (open it at ui.perfetto.dev)", summary.trace.display())),
    ];
    rows.map(|(name, value)| format!("{name:>14}  {value}")).join("\n")
}

/// What a worker sends in one step, and how.
fn gradients(summary: &Summary<'_>) -> String {
    let Summary { compression, gradient_bytes, sent_gradient_bytes, .. } = *summary;
    let sent = bytes(sent_gradient_bytes as f64);
    if compression == Compression::None.name() {
        return format!("{sent} per worker and step");
    }
    let threshold = summary.threshold.map(|threshold| format!(", threshold {threshold}")).unwrap_or_default();
    let plain = bytes(gradient_bytes as f64);
    let ratio = gradient_bytes as f64 / sent_gradient_bytes.max(1) as f64;
    format!("{sent} per worker and step, {ratio:.1} times less than {plain} ({compression}{threshold})")
}

/// Writes a file, which appears only when it is whole. Returns its path as others find it.
fn store(path: &Path, contents: &[u8]) -> Result<PathBuf, Failure> {
    let draft = path.with_extension(format!("{}.part", std::process::id()));
    let written = std::fs::write(&draft, contents).and_then(|()| std::fs::rename(&draft, path));
    written.map_err(|error| {
        // It may not be there; the first error is the one to tell.
        let _ = std::fs::remove_file(&draft);
        unwritten(path, &error)
    })?;
    Ok(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Run(format!("{} cannot be written: {error}", path.display()))
}
