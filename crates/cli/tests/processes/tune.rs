//! `sheave tune`, as users run it.

use crate::common::{sheave, text};

#[test]
fn the_table_in_force_is_shown_with_its_costs() {
    let output = sheave(&["tune", "--ranks", "2", "--ranks", "6", "--bytes", "8", "--bytes", "1MiB"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let lines: Vec<Vec<&str>> = text(&output.stdout).lines().map(|line| line.split_whitespace().collect()).collect();
    let titles = lines.iter().position(|line| line.first() == Some(&"operation")).expect("there are titles");
    assert!(lines[1..titles].iter().any(|rule| rule.first() == Some(&"all_reduce")), "the rules: {lines:?}");
    let shown = &lines[titles + 1..];
    assert!(shown.iter().all(|line| line.len() == 7), "{shown:?}");
    for (operation, count) in [("barrier", 5), ("all_reduce", 10), ("broadcast", 10), ("all_to_all_v", 10)] {
        assert_eq!(shown.iter().filter(|line| line[0] == operation).count(), count, "{operation}: {shown:?}");
    }
}

#[test]
fn a_table_of_ones_own_is_shown() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("table");
    std::fs::write(&path, "all_reduce ranks<=4 bytes<=100 doubling\nall_reduce ring\n").expect("the folder is ours");
    let path = path.to_str().expect("a plain name");
    let sizes = ["--ranks", "4", "--ranks", "5", "--bytes", "100", "--bytes", "1200"];
    let asking = ["tune", "--table", path, "--operation", "all_reduce", "--topology", "links"];
    let output = sheave(&[&asking[..], &sizes].concat());
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<Vec<&str>> = text(&output.stdout).lines().map(|line| line.split_whitespace().collect()).collect();
    let shown: Vec<&[&str]> = lines.iter().filter(|line| line.len() == 7).map(|line| &line[2..]).skip(1).collect();
    let wanted = [
        ["4", "100", "doubling", "2", "200"],
        ["4", "1200", "ring", "6", "1800"],
        ["5", "100", "ring", "8", "160"],
        ["5", "1200", "ring", "8", "1920"],
    ];
    assert_eq!(shown, wanted);
}

#[test]
fn a_measured_table_can_be_read_back() {
    let sizes = ["--ranks", "2", "--ranks", "3", "--bytes", "8", "--bytes", "16KiB"];
    for (topology, last) in [("host", "direct"), ("links", "ring")] {
        let measuring = ["tune", "--measure", "--quick", "--topology", topology, "--operation", "all_gather"];
        let measuring = [&measuring[..], &["--operation", "all_reduce"], &sizes].concat();
        let output = sheave(&measuring);
        assert!(output.status.success(), "{output:?}");
        let told: Vec<&str> = text(&output.stderr).lines().collect();
        let of_all_reduce: Vec<_> = told.iter().filter(|line| line.contains("all_reduce of ")).collect();
        assert_eq!(of_all_reduce.len(), 4, "{told:?}");
        assert!(of_all_reduce.iter().all(|line| line.contains("doubling ") && line.contains(last)), "{told:?}");
        // Sixteen KiB do not stand on a desk.
        assert!(of_all_reduce.iter().all(|line| !(line.contains(" 16384 ") && line.contains("flat"))), "{told:?}");
        let rules: Vec<&str> = text(&output.stdout).lines().collect();
        let begins = format!("all_reduce {topology} ");
        assert!(rules.iter().any(|rule| rule.starts_with(&format!("{begins}ranks<=2 "))), "{rules:?}");
        // Whatever is larger has a rule.
        assert!(rules.iter().any(|rule| rule.starts_with(&begins) && !rule.contains("<=")), "{rules:?}");
        assert_eq!(rules.iter().any(|rule| rule.starts_with("all_gather_v host ")), topology == "host", "{rules:?}");

        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("table");
        std::fs::write(&path, &output.stdout).expect("the folder is ours");
        let shown = sheave(&["tune", "--table", path.to_str().expect("a plain name")]);
        assert!(shown.status.success(), "{shown:?}");
        assert!(rules.iter().all(|rule| text(&shown.stdout).contains(rule)), "{shown:?}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("table");
    std::fs::write(&path, "all_reduce tree\n").expect("the folder is ours");
    let path = path.to_str().expect("a plain name");
    for arguments in [
        &["tune", "--table", "/nowhere/table"][..],
        &["tune", "--table", path],
        &["tune", "--table", path, "--measure"],
        &["tune", "--ranks", "1"],
        &["tune", "--bytes", "some"],
        &["tune", "--operation", "sum"],
        &["tune", "--quick"],
        &["tune", "--topology", "pigeons"],
        &["tune", "--measure", "--topology", "inproc"],
        &["tune", "faster"],
    ] {
        let output = sheave(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        let complaint = text(&output.stderr);
        assert_eq!(complaint.lines().count(), 1, "{arguments:?}: {complaint}");
        assert!(complaint.starts_with("sheave: ") && !complaint.contains("panicked"), "{complaint}");
        assert!(output.stdout.is_empty());
    }
}
