//! The example, as users run it.

use crate::common::{job, soon};
use sheave_process::Command;

/// Accuracy in percent, negative log likelihood, calibration error and Brier score of the row with that name.
fn scores(lines: &[String], name: &str) -> [f64; 4] {
    let line = lines.iter().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {lines:?}"));
    let numbers: Vec<f64> =
        line.replace('%', "").split_whitespace().rev().take(4).map(|text| text.parse().unwrap()).collect();
    [numbers[3], numbers[2], numbers[1], numbers[0]]
}

#[test]
fn posteriors_are_better_than_a_single_network() {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(|folder| folder.parent()).unwrap().join("examples/posteriors");
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("bands.svg");
    let job = job();
    let command = Command::new(program).args(["--quick", "--svg", svg.to_str().unwrap()]);
    let child = job.spawn(command.name("posteriors").env("SHEAVE_SECRET", "of this test alone")).unwrap();
    let exit = child.wait(Some(soon())).unwrap().unwrap();
    let lines = child.stdout_lines();
    assert!(exit.status.success(), "{lines:?} {:?}", child.stderr_lines());
    let single = scores(&lines, "single network");
    for name in ["ensemble", "multi-swag", "svgd"] {
        let [accuracy, nll, _, brier] = scores(&lines, name);
        assert!(accuracy > single[0] && nll < single[1] && brier < single[3], "{name}: {lines:?}");
    }
    // What data say nothing about is not known.
    let model = |name: &str| -> f64 {
        let line = lines.iter().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(model("the gap") > 1.5 * model("quiet data"), "{lines:?}");
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"));
    assert_eq!((drawn.matches("<polygon").count(), drawn.matches("<circle").count()), (2, 160));
}
