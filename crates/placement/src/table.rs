//! A placement as text.

use crate::problem::Problem;
use crate::solve::Placement;
use std::fmt::Write;

/// What models and devices are called; those without a name are called by their number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// By model.
    pub models: Vec<String>,
    /// By device.
    pub devices: Vec<String>,
}

impl Labels {
    pub(crate) fn model(&self, model: usize) -> String {
        self.models.get(model).cloned().unwrap_or_else(|| format!("model {model}"))
    }

    pub(crate) fn device(&self, device: usize) -> String {
        self.devices.get(device).cloned().unwrap_or_else(|| format!("device {device}"))
    }
}

/// What a device has of what it could have.
pub(crate) struct Row {
    pub(crate) models: Vec<usize>,
    pub(crate) bytes: u64,
    /// Its part of all complexity, and of all complexity capacity; 0 where there is none.
    pub(crate) work: f64,
    pub(crate) share: f64,
}

/// By device: what the placement, which is one of this problem, gives it.
pub(crate) fn rows(problem: &Problem, placement: &Placement) -> Vec<Row> {
    let part = |values: &[f64], of: f64| {
        let sum: f64 = values.iter().sum();
        if sum > 0.0 { of / sum } else { 0.0 }
    };
    let row = |device: usize| {
        let is_here = |model: &usize| placement.device_of[*model] == device;
        let models: Vec<usize> = (0..placement.device_of.len()).filter(is_here).collect();
        // The sum of nothing is -0.
        let work = models.iter().fold(0.0, |work, &model| work + problem.model_complexity[model]);
        Row {
            bytes: models.iter().map(|&model| problem.model_bytes[model]).sum(),
            work: part(&problem.model_complexity, work),
            share: part(&problem.device_complexity, problem.device_complexity[device]),
            models,
        }
    };
    (0..problem.device_bytes.len()).map(row).collect()
}

/// Bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Returns a line for each device: its memory and what is used of it, its part of the work and its share, its models.
/// The last line says how good the placement is.
///
/// # Panics
/// If the placement is not one of this problem.
///
/// ```
/// use sheave_placement::{Labels, Options, Problem, solve, table};
///
/// let problem = Problem::uniform(&[3 << 20, 1 << 20], &[4 << 20, 4 << 20]);
/// let placement = solve(&problem, &Options::default())?;
/// let text = "\
/// device    used     memory   work  share  models
/// device 0  3.0 MiB  4.0 MiB  75 %  50 %   model 0
/// device 1  1.0 MiB  4.0 MiB  25 %  50 %   model 1
/// objective 0.0625, which is the optimum
/// ";
/// assert_eq!(table(&problem, &placement, &Labels::default()), text);
/// # Ok::<(), sheave_placement::Error>(())
/// ```
#[must_use]
pub fn table(problem: &Problem, placement: &Placement, labels: &Labels) -> String {
    let mut lines = vec![["device", "used", "memory", "work", "share", "models"].map(str::to_owned)];
    for (device, row) in rows(problem, placement).into_iter().enumerate() {
        let models: Vec<String> = row.models.iter().map(|&model| labels.model(model)).collect();
        let percent = |part: f64| format!("{:.0} %", 100.0 * part);
        let memory = size(problem.device_bytes[device]);
        let (work, share) = (percent(row.work), percent(row.share));
        lines.push([labels.device(device), size(row.bytes), memory, work, share, models.join(", ")]);
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..5).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}  ")).collect::<String>();
        let _ = writeln!(text, "{}", format!("{cells}{}", line[5]).trim_end());
    }
    let _ = writeln!(text, "{}", verdict(placement));
    text
}

/// How good a placement is, in words.
pub(crate) fn verdict(placement: &Placement) -> String {
    let objective = (placement.objective * 1e6).round() / 1e6;
    let objective = if objective == 0.0 { format!("{:e}", placement.objective) } else { objective.to_string() };
    match placement.exact {
        true => format!("objective {objective}, which is the optimum"),
        false => format!("objective {objective}, with a gap of {:.1} % to the lower bound", 100.0 * placement.gap),
    }
}
