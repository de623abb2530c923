//! Alone in its binary, because it counts what the whole process holds.

use crate::common::{own_children, soon, until};
use sheave_process::{Command, Job, Output};
use std::time::Duration;

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn cycle(number: usize) {
    let output = if number.is_multiple_of(2) { Output::Capture } else { Output::Quiet };
    let job = Job::builder().output(output).start().unwrap();
    let quick = job.spawn(Command::new("true")).unwrap();
    job.spawn(Command::new("sh").args(["-c", "sleep 60 & sleep 60"])).unwrap();
    let _ = job.spawn(Command::new("/nonexistent/program")).unwrap_err();
    let _ = quick.wait(Some(soon())).unwrap().unwrap();
    if number.is_multiple_of(3) {
        let report = job.end(Duration::from_secs(1));
        assert!(report.trouble.is_none(), "{report}");
    }
}

#[test]
fn fifty_jobs_leave_no_process_no_zombie_no_descriptor_and_no_thread() {
    cycle(0);
    let before = (open_descriptors(), threads());
    for number in 0..50 {
        cycle(number);
    }
    until("all is given back", soon(), || (open_descriptors(), threads()) == before);
    assert_eq!(own_children(), Vec::<u32>::new());
}
