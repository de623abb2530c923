//! The real binary, as users run it.

use crate::common::{finish, sheave, start, text, wait_until};

#[test]
fn every_case_of_every_transport_is_measured() {
    let output = sheave(&["bench", "link", "--quick", "--no-peer", "--json", "--bytes", "8", "--bytes", "65536"]);
    assert!(output.status.success(), "{output:?}");
    let mut seen = Vec::new();
    for line in text(&output.stdout).lines() {
        let value: serde_json::Value = serde_json::from_str(line).expect("a line is one object");
        let keys: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
        let mut agreed = [
            "bench",
            "case",
            "bytes",
            "ranks",
            "transport",
            "language",
            "p50_us",
            "p90_us",
            "p99_us",
            "max_us",
            "iterations",
        ];
        agreed.sort_unstable();
        assert_eq!(keys, agreed, "{line}");
        assert_eq!((&value["bench"], &value["language"]), (&"link".into(), &"rust".into()));
        assert_eq!(value["ranks"], 2);
        assert!(value["iterations"].as_u64().expect("a count") > 0, "{line}");
        let times: Vec<f64> =
            ["p50_us", "p90_us", "p99_us", "max_us"].iter().map(|key| value[key].as_f64().expect("a number")).collect();
        // A nanosecond is less than a load from the cache of another core, ten seconds are a link that hangs.
        assert!(times[0] > 0.001 && times.is_sorted() && times[3] < 10e6, "{line}");
        seen.push(format!("{} {} {}", value["case"], value["transport"], value["bytes"]).replace('"', ""));
    }
    for (case, transport) in [
        ("ping_pong", "inproc"),
        ("ping_pong", "shm"),
        ("ping_pong", "tcp"),
        ("ping_pong_move", "inproc"),
        ("ping_pong_move", "shm"),
        ("stream", "inproc"),
        ("stream", "shm"),
        ("stream", "tcp"),
    ] {
        for bytes in [8, 65_536] {
            let wanted = format!("{case} {transport} {bytes}");
            assert_eq!(seen.iter().filter(|cell| **cell == wanted).count(), 1, "{wanted} in {seen:?}");
        }
    }
    assert_eq!(seen.len(), 16, "{seen:?}");
}

#[test]
fn a_store_is_measured_over_both_kinds_of_links() {
    let output = sheave(&["bench", "store", "--quick", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let mut seen = Vec::new();
    for line in text(&output.stdout).lines() {
        let value: serde_json::Value = serde_json::from_str(line).expect("a line is one object");
        assert_eq!((&value["bench"], &value["ranks"]), (&"store".into(), &2.into()), "{line}");
        assert!(value["iterations"].as_u64().expect("a count") >= 3, "{line}");
        // A microsecond is less than a round trip, ten seconds are a store that hangs.
        assert!((1.0..10e6).contains(&value["p50_us"].as_f64().expect("a number")), "{line}");
        seen.push(format!("{} {} {}", value["case"], value["transport"], value["bytes"]).replace('"', ""));
    }
    let sizes = ["1024", "65536", "1048576", "5760000", "67108864"];
    let of = |case: &str, sizes: &[&str]| -> Vec<String> {
        let over = |bytes: &&str| ["shm", "tcp"].map(|transport| format!("{case} {transport} {bytes}"));
        sizes.iter().flat_map(over).collect()
    };
    let wanted = [
        of("push_pull", &sizes),
        of("push_pull_async", &sizes),
        of("push_pull_10000", &["64"]),
        of("push_pull_10000_async", &["64"]),
        of("push_pull_2bit", &["5760000"]),
        of("push_pull_fp16", &["5760000"]),
        of("push_pull_rows", &["2560000"]),
    ];
    let wanted = wanted.concat();
    assert_eq!(seen, wanted);
}

#[test]
fn every_case_of_a_session_is_measured() {
    let output = sheave(&["bench", "session", "--quick", "--json", "--bytes", "64KiB"]);
    assert!(output.status.success(), "{output:?}");
    let mut seen = Vec::new();
    for line in text(&output.stdout).lines() {
        let value: serde_json::Value = serde_json::from_str(line).expect("a line is one object");
        assert_eq!((&value["bench"], &value["ranks"]), (&"session".into(), &2.into()), "{line}");
        let named = |key: &str| value[key].as_str().expect("a name").to_owned();
        if named("transport").starts_with("allowed") {
            continue;
        }
        // A tenth of a microsecond is less than a command, ten seconds are a session that hangs.
        assert!((0.1..10e6).contains(&value["p50_us"].as_f64().expect("a number")), "{line}");
        seen.push(format!("{} {}", named("case"), named("transport")));
    }
    let cases = ["call", "pipelined", "pipelined_kept", "fetch", "fetch_shared", "start"];
    let of = |case: &str| ["threads", "processes", "sockets"].map(|kind| format!("{case} {kind}"));
    assert_eq!(seen, cases.map(of).concat());
}

/// A script in the place of a Python, which is given the peer's script and runs this instead.
fn in_place_of_python(folder: &std::path::Path, lines: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("python");
    std::fs::write(&path, format!("#!/bin/sh\n{lines}\n")).expect("the folder is ours");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("the file is ours");
    path.to_str().expect("a plain name").to_owned()
}

#[test]
fn a_store_stands_beside_its_peer_and_says_how_to_get_it() {
    let arguments = ["bench", "store", "--quick", "--transport", "shm", "--case", "push_pull_2bit"];
    let alone = sheave(&arguments);
    assert!(alone.status.success(), "{alone:?}");
    assert!(text(&alone.stderr).contains("mxnet==1.9.1"), "{alone:?}");
    assert!(!text(&alone.stdout).contains("mxnet"), "{alone:?}");

    let folder = tempfile::tempdir().expect("there is room");
    // It answers to the options of the script alone, with the time of a round that no store beats.
    let lines = r#"test "$2" = --jobs && test "$3" = dist_sync_2bit && test -s "$1" || exit 1
        echo '{"case": "5.76MB", "bytes": 5760000, "times_us": [1000000, 1000000]}'"#;
    let python = in_place_of_python(folder.path(), lines);
    let beside = sheave(&[&arguments[..], &["--peer", "mxnet", "--peer-python", &python]].concat());
    assert!(beside.status.success() && beside.stderr.is_empty(), "{beside:?}");
    let lines: Vec<&str> = text(&beside.stdout).lines().collect();
    let [_, ours, peers] = lines[..] else { panic!("two rows: {lines:?}") };
    assert!(ours.contains(" shm ") && peers.contains(" mxnet-tcp "), "{lines:?}");
    let ratio: f64 = ours.split_whitespace().last().and_then(|ratio| ratio.parse().ok()).expect("a ratio");
    assert!(ratio < 1.0, "{ours}");

    let broken = in_place_of_python(folder.path(), "echo 'no module named mxnet' >&2; exit 1");
    let beside = sheave(&[&arguments[..], &["--peer", "mxnet", "--peer-python", &broken]].concat());
    assert!(beside.status.success() && text(&beside.stderr).contains("no module named mxnet"), "{beside:?}");
}

fn rows_of(output: &std::process::Output) -> Vec<serde_json::Value> {
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("a line is one object")).collect()
}

fn named(row: &serde_json::Value) -> String {
    let word = |key: &str| row[key].as_str().expect("a name").to_owned();
    format!("{} {}", word("case"), word("transport"))
}

#[test]
fn particles_of_rust_are_measured_without_a_python() {
    let rows = rows_of(&sheave(&["bench", "particle", "--quick", "--json"]));
    let wanted = ["send sheave-rust", "send allowed-rust", "send_wait sheave-rust", "create sheave-rust"];
    assert_eq!(rows.iter().map(named).collect::<Vec<_>>(), wanted);
    for row in rows {
        // A hundredth of a microsecond is less than a message, ten seconds are particles that hang.
        assert!((0.01..10e6).contains(&row["p50_us"].as_f64().expect("a number")), "{row}");
        assert_eq!((&row["bench"], &row["language"]), (&"particle".into(), &"rust".into()), "{row}");
    }
}

#[test]
fn particles_stand_beside_those_of_push_and_one_process_beside_two() {
    let folder = tempfile::tempdir().expect("there is room");
    std::fs::create_dir(folder.path().join("push")).expect("the folder is ours");
    let place = folder.path().to_str().expect("a plain name");
    // It answers to the words of each script alone: ours as one process and as two, PusH's with the face and without.
    let lines = format!(
        r#"test "$1" = -c && exit 0
        case "$*" in
            *"program.py ensemble sheave 2")
                each=$((8000000 / SHEAVE_WORLD_SIZE))
                echo "times: 8 $each $each" ;;
            "-m sheave.compat push "*"program.py processes 2") echo 8 2000000 2000000 ;;
            *"program.py processes 2 --push {place}") test "$1" != -m && echo 8 4000000 4000000 ;;
            *) exit 1 ;;
        esac"#
    );
    let python = in_place_of_python(folder.path(), &lines);
    let arguments = ["bench", "particle", "--quick", "--json", "--case", "processes", "--python", &python];
    let rows = rows_of(&sheave(&[&arguments[..], &["--push", place]].concat()));
    let of = |row: &serde_json::Value| {
        let number = |key: &str| row[key].as_f64().map(|number| (number * 100.0).round() / 100.0);
        (named(row), number("ratio"), number("target"))
    };
    let wanted = [
        ("processes sheave", Some(0.5), Some(0.56)),
        ("processes one-process", None, None),
        ("processes face", Some(0.5), None),
        ("processes push", None, None),
    ];
    let wanted = wanted.map(|(name, ratio, target)| (name.to_owned(), ratio, target));
    assert_eq!(rows.iter().map(of).collect::<Vec<_>>(), wanted);

    let alone = rows_of(&sheave(&arguments));
    assert_eq!(alone.iter().map(named).collect::<Vec<_>>(), ["processes sheave", "processes one-process"]);
    let silent = in_place_of_python(folder.path(), "exit 0");
    let output = sheave(&["bench", "particle", "--quick", "--case", "epoch", "--python", &silent]);
    assert!(!output.status.success() && text(&output.stderr).contains("no times of epoch"), "{output:?}");
    assert!(output.stdout.is_empty(), "no table without rows: {output:?}");
}

#[test]
fn an_exchange_is_measured_as_a_whole_and_by_phase() {
    let output = sheave(&["bench", "exchange", "--quick", "--json", "--bytes", "1024", "--bytes", "300000"]);
    let mut seen = Vec::new();
    assert!(output.status.success(), "{output:?}");
    for line in text(&output.stdout).lines() {
        let value: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
        assert_eq!(value["bench"], "exchange", "{line}");
        let quantiles = ["p50_us", "p90_us", "p99_us", "max_us"].map(|key| value[key].as_f64().expect("a number"));
        assert!(quantiles.is_sorted() && quantiles[3] > 0.0, "{line}");
        seen.push((
            value["case"].to_string(),
            value["transport"].to_string(),
            value["ranks"].as_u64(),
            value["bytes"].as_u64(),
        ));
    }
    for case in ["registered", "private", "network", "process", "request_send", "answer_take"] {
        for (transport, ranks, bytes) in [("shm", 1, 1024), ("tcp", 1, 300_000), ("shm", 2, 300_000), ("tcp", 2, 1024)]
        {
            let row = (format!("\"{case}\""), format!("\"{transport}\""), Some(ranks), Some(bytes));
            assert!(seen.contains(&row), "{row:?} is not among {seen:?}");
        }
    }
    assert!(
        seen.iter().any(|row| row.0 == "\"moved\"") && seen.iter().all(|row| row.0 != "\"moved\"" || row.2 == Some(1))
    );
}

#[test]
fn every_case_of_a_mesh_is_measured() {
    let output = sheave(&["bench", "mesh", "--quick", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let mut seen = Vec::new();
    for line in text(&output.stdout).lines() {
        let value: serde_json::Value = serde_json::from_str(line).expect("a line is one object");
        assert_eq!((&value["bench"], &value["language"]), (&"mesh".into(), &"rust".into()));
        let least = if value["case"] == "start_up" { 3 } else { 500 };
        assert_eq!(value["iterations"], least, "{line}");
        let p50_us = value["p50_us"].as_f64().expect("a number");
        assert!(p50_us > 0.1 && p50_us < 10e6, "{line}");
        seen.push(format!("{} {} {}", value["case"], value["transport"], value["ranks"]).replace('"', ""));
    }
    let calls = ["call", "call_executor", "call_pipelined"].map(|case| (case, 2));
    let cases: Vec<_> = [("start_up", 4), ("barrier", 2), ("barrier", 4)].into_iter().chain(calls).collect();
    let of = |(case, ranks)| ["shm", "tcp"].map(|transport| format!("{case} {transport} {ranks}"));
    let wanted: Vec<_> = cases.into_iter().flat_map(of).collect();
    assert_eq!(seen, wanted);
}

#[test]
fn every_case_of_a_collective_is_measured() {
    let cases =
        ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "reduce", "gather", "scatter", "all_to_all"];
    let cases = cases.map(|case| [case.to_owned(), format!("{case}_private")]);
    let cases: Vec<String> = cases.into_iter().flatten().collect();
    // Barriers are timed a hundred in a row, as all short operations are, which takes long where others run too.
    let sizes = ["98304"];
    let all = ["barrier", "ping_pong", "ping_pong_private"].into_iter().chain(cases.iter().map(String::as_str));
    let named = all.flat_map(|case| ["--case", case]).chain(sizes.into_iter().flat_map(|size| ["--bytes", size]));
    let arguments = ["bench", "collective", "--quick", "--no-peer", "--json", "--ranks", "2", "--ranks", "3"];
    let output = sheave(&arguments.into_iter().chain(named).collect::<Vec<_>>());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let mut seen = Vec::new();
    for line in text(&output.stdout).lines() {
        let value: serde_json::Value = serde_json::from_str(line).expect("a line is one object");
        assert_eq!((&value["bench"], &value["language"]), (&"collective".into(), &"rust".into()), "{line}");
        assert!(value["iterations"].as_u64().expect("a count") >= 5 && value.get("ratio").is_none(), "{line}");
        // A nanosecond is less than a load from the cache of another core, ten seconds are ranks that hang.
        assert!((0.001..10e6).contains(&value["p50_us"].as_f64().expect("a number")), "{line}");
        let [case, transport] = ["case", "transport"].map(|key| value[key].as_str().expect("a word"));
        seen.push(format!("{case} {transport} {} {}", value["ranks"], value["bytes"]));
    }
    let mut wanted: Vec<String> = Vec::new();
    for transport in ["shm", "tcp"] {
        for ranks in [2, 3] {
            let of_size = |size| cases.iter().map(move |case| format!("{case} {transport} {ranks} {size}"));
            wanted.extend(sizes.into_iter().flat_map(of_size));
            wanted.push(format!("barrier {transport} {ranks} 0"));
        }
        let ping_pong = |size| ["ping_pong", "ping_pong_private"].map(|case| format!("{case} {transport} 2 {size}"));
        wanted.extend(sizes.into_iter().flat_map(ping_pong));
    }
    seen.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(seen, wanted);
}

#[test]
fn a_collective_stands_beside_gloo_and_a_bare_loop() {
    let arguments = [
        "bench",
        "collective",
        "--quick",
        "--transport",
        "shm",
        "--ranks",
        "2",
        "--bytes",
        "64KiB",
        "--turns",
        "2",
        "--pin",
    ];
    let folder = tempfile::tempdir().expect("there is room");
    // It has what is imported, and answers to the arguments of the script with a time that no operation needs.
    let lines = r#"test "$1" = -c && exit 0
        test -s "$1" && test "$2 $3 $4 $5" = "all_reduce 2 10000 65536" && echo "$5 1000000000 1000000000""#;
    let python = in_place_of_python(folder.path(), lines);
    let named = ["--case", "all_reduce", "--case", "all_reduce_private", "--gloo", &python];
    let beside = sheave(&[&arguments[..], &named].concat());
    assert!(beside.status.success(), "{beside:?}");
    let lines: Vec<&str> = text(&beside.stdout).lines().collect();
    assert!(lines.len() >= 3 && lines[0].contains("gloo") && lines[0].contains("bare loop"), "{lines:?}");
    for (line, case) in lines[1..3].iter().zip(["all_reduce ", "all_reduce_private "]) {
        assert!(line.starts_with(case) && line.contains(" 64 KiB ") && line.contains(" 1000342 "), "{line}");
        assert!(line.ends_with(" met") || line.ends_with(" missed"), "{line}");
    }

    let broken = in_place_of_python(folder.path(), "echo 'no module named torch' >&2; exit 1");
    let refused = sheave(&[&arguments[..], &["--gloo", &broken]].concat());
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(text(&refused.stderr).contains("no module named torch"), "{refused:?}");
}

#[test]
fn process_groups_of_torch_stand_beside_gloo_and_what_they_may_take() {
    let folder = tempfile::tempdir().expect("there is room");
    // It has what is imported, and as rank 0 answers to the arguments of the script: gloo takes ten times as long. The
    // file to meet by is a new one for each job, and short operations are measured with the recorder and without.
    let lines = r#"test "$1" = -c && exit 0
        test -s "$1" && test "$OMP_NUM_THREADS" = 1 || exit 3
        test "$SHEAVE_RANK" = 0 || exit 0
        (set -o noclobber; echo >"$5") || exit 4
        case "$2 $4 ${TORCH_FR_BUFFER_SIZE-as it comes}" in
            "all_reduce 10 as it comes") sizes="8 1048576 67108864" ;;
            "all_reduce_unrecorded 10 0") sizes=8 ;;
            "ddp 5 as it comes") sizes=33587200 ;;
            "init 1 as it comes") sizes=0 ;;
            *) exit 5 ;;
        esac
        test "$3" = gloo && time_ns=400000 || time_ns=40000
        for bytes in $sizes; do echo "times: $bytes $time_ns $((SHEAVE_WORLD_SIZE * time_ns))"; done"#;
    let python = in_place_of_python(folder.path(), lines);
    let cases = ["all_reduce", "all_reduce_unrecorded", "ddp", "init"].into_iter().flat_map(|case| ["--case", case]);
    let arguments = ["bench", "torch", "--quick", "--json", "--turns", "2", "--python", &python];
    let output = sheave(&arguments.into_iter().chain(cases).collect::<Vec<_>>());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let mut seen = Vec::new();
    for line in text(&output.stdout).lines() {
        let value: serde_json::Value = serde_json::from_str(line).expect("a line is one object");
        let [case, at] = ["case", "transport"].map(|key| value[key].as_str().expect("a word"));
        let verdict = value.get("verdict").and_then(|verdict| verdict.as_str()).unwrap_or("");
        let times = format!("{} times", value["iterations"]);
        seen.push(format!("{case} {} {} {at} {times} {verdict}", value["bytes"], value["ranks"]).trim_end().to_owned());
    }
    let wanted = [
        "all_reduce 8 2 sheave 4 times met",
        "all_reduce 8 2 allowed 1 times",
        "all_reduce 1048576 2 sheave 4 times met",
        "all_reduce 67108864 2 sheave 4 times met",
        "all_reduce 8 2 gloo 4 times",
        "all_reduce 1048576 2 gloo 4 times",
        "all_reduce 67108864 2 gloo 4 times",
        "all_reduce_unrecorded 8 2 sheave 4 times missed",
        "all_reduce_unrecorded 8 2 allowed 1 times",
        "all_reduce_unrecorded 8 2 gloo 4 times",
        "ddp 33587200 2 sheave 4 times met",
        "ddp 33587200 2 gloo 4 times",
        "ddp 33587200 4 sheave 4 times met",
        "ddp 33587200 4 gloo 4 times",
        "init 0 4 sheave 4 times met",
        "init 0 4 gloo 4 times",
    ];
    assert_eq!(seen, wanted);
}

#[test]
fn the_ranks_of_a_collective_end_with_the_command() {
    let mut child = start(&["bench", "collective", "--no-peer", "--ranks", "2"]);
    let path = format!("/proc/{0}/task/{0}/children", child.id());
    let mut ranks = Vec::new();
    let appeared = wait_until(|| {
        let children = std::fs::read_to_string(&path).unwrap_or_default();
        ranks = children.split_whitespace().map(str::to_owned).collect();
        ranks.len() == 2
    });
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
    assert!(appeared, "there were no two ranks");
    let is_gone = |rank: &String| {
        !std::fs::read_to_string(format!("/proc/{rank}/cmdline")).is_ok_and(|line| line.contains("collective-child"))
    };
    assert!(wait_until(|| ranks.iter().all(is_gone)), "ranks {ranks:?} have outlived the command");
}

#[test]
fn filters_leave_one_row_in_the_table() {
    let arguments = ["--quick", "--no-peer", "--transport", "inproc", "--case", "stream", "--bytes", "1KiB", "--pin"];
    let output = sheave(&[&["bench", "link"][..], &arguments].concat());
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("p50") && lines[1].contains("1 KiB") && lines[1].contains("inproc"), "{lines:?}");
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    for arguments in [
        &["bench", "link", "--bytes", "many"][..],
        &["bench", "link", "--bytes", "0"],
        &["bench", "link", "--transport", "pigeon"],
        &["bench", "link", "--case", "ping_pong_move", "--transport", "tcp"],
        &["bench", "link", "--faster"],
        &["bench", "exchange", "--transport", "inproc"],
        &["bench", "exchange", "--workers", "3"],
        &["bench", "store", "--transport", "inproc"],
        &["bench", "store", "--case", "push_pull_3bit"],
        &["bench", "store", "--bytes", "17"],
        &["bench", "store", "--case", "push_pull_rows", "--bytes", "1024"],
        &["bench", "store", "--peer", "mxnet"],
        &["bench", "store", "--peer-python", "/bin/sh"],
        &["bench", "store", "--peer", "mxnet", "--peer-python", "/nowhere/python"],
        &["bench", "particle", "--case", "epoch"],
        &["bench", "particle", "--case", "send", "--case", "across"],
        &["bench", "particle", "--python", "/nowhere/python"],
        &["bench", "particle", "--push", "/"],
        &["bench", "particle", "--python", "/bin/true", "--push", "/nowhere"],
        &["bench", "particle", "--python", "/bin/true", "--push-python", "/bin/true"],
        &["bench", "mesh", "--transport", "inproc"],
        &["bench", "collective", "--transport", "inproc"],
        &["bench", "collective", "--case", "all_reduce_public"],
        &["bench", "collective", "--case", "all_reduce", "--bytes", "6"],
        &["bench", "collective", "--case", "ping_pong", "--ranks", "3"],
        &["bench", "collective", "--ranks", "0"],
        &["bench", "collective", "--turns", "0"],
        &["bench", "collective", "--gloo", "/nowhere/python"],
        &["bench", "collective", "--gloo", "/bin/false"],
        &["bench", "collective", "--gloo", "/bin/true", "--no-peer"],
        &["bench", "collective-child"],
        &["bench", "limit-child"],
        &["bench", "mesh-child"],
        &["bench", "lonk"],
    ] {
        let output = sheave(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        let complaint = text(&output.stderr);
        assert_eq!(complaint.lines().count(), 1, "{arguments:?}: {complaint}");
        assert!(complaint.starts_with("sheave: ") && !complaint.contains("panicked"), "{complaint}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn version_and_help_go_to_standard_output() {
    let version = sheave(&["--version"]);
    assert!(version.status.success());
    assert_eq!(text(&version.stdout).trim(), concat!("sheave ", env!("CARGO_PKG_VERSION")));
    let help = sheave(&["help", "bench", "link"]);
    assert!(help.status.success() && text(&help.stdout).contains("--quick"), "{help:?}");
}

#[test]
fn a_reader_that_goes_away_is_not_complained_about() {
    let mut child =
        start(&["bench", "link", "--quick", "--no-peer", "--json", "--transport", "inproc", "--bytes", "8"]);
    drop(child.stdout.take());
    let output = finish(child);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn the_second_process_ends_with_the_first() {
    let mut child = start(&["bench", "link", "--no-peer", "--transport", "shm"]);
    let path = format!("/proc/{0}/task/{0}/children", child.id());
    let mut second = String::new();
    let appeared = wait_until(|| {
        second = std::fs::read_to_string(&path).unwrap_or_default().trim().to_owned();
        !second.is_empty()
    });
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
    assert!(appeared, "there was no second process");
    let command_line = format!("/proc/{second}/cmdline");
    let gone = || !std::fs::read_to_string(&command_line).is_ok_and(|line| line.contains("link-child"));
    assert!(wait_until(gone), "process {second} has outlived its parent");
}
