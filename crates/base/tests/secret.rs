//! Where the secret comes from: order, privacy of files, and one cookie however many make it at once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails where it stands")]

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;

use sheave_base::secret::{Resolved, resolve};
use sheave_base::{ErrorKind, Result, limits};

const IN_VARIABLE: &str = "the secret in the variable";
const IN_FILE: &str = "the secret in the file";

fn resolve_with(variables: &[(&str, &Path)]) -> Result<Resolved> {
    let table: HashMap<&str, OsString> = variables.iter().map(|(name, value)| (*name, value.into())).collect();
    resolve(|name| table.get(name).cloned())
}

fn write(path: &Path, content: &[u8], mode: u32) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn the_variable_comes_before_the_file_and_the_file_before_the_cookie() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("job-secret");
    write(&file, format!("{IN_FILE}\n").as_bytes(), 0o600);
    let home_entry = ("HOME", home.path());

    let all = [home_entry, ("SHEAVE_SECRET", Path::new(IN_VARIABLE)), ("SHEAVE_SECRET_FILE", file.as_path())];
    let from_variable = resolve_with(&all).unwrap();
    assert_eq!(from_variable.secret.expose(), IN_VARIABLE.as_bytes());
    assert_eq!(from_variable.source, "SHEAVE_SECRET");

    let from_file = resolve_with(&[home_entry, ("SHEAVE_SECRET_FILE", file.as_path())]).unwrap();
    assert_eq!(from_file.secret.expose(), IN_FILE.as_bytes(), "the line end is not part of the secret");
    assert_eq!(from_file.source, "SHEAVE_SECRET_FILE ~/job-secret");
    assert!(!home.path().join(".config").exists(), "no cookie is made when nobody needs it");

    let from_cookie = resolve_with(&[home_entry]).unwrap();
    assert_eq!(from_cookie.source, "cookie file ~/.config/sheave/cookie");
    assert_eq!(from_cookie.secret.expose().len(), 64);
    let again = resolve_with(&[home_entry]).unwrap();
    assert_eq!(again.secret.expose(), from_cookie.secret.expose());
}

#[test]
fn a_cookie_is_private_and_leaves_no_draft() {
    let config = tempfile::tempdir().unwrap();
    resolve_with(&[("XDG_CONFIG_HOME", config.path())]).unwrap();
    let directory = config.path().join("sheave");
    assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(directory.join("cookie")).unwrap().mode() & 0o777, 0o600);
    let names: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["cookie"]);
}

#[test]
fn a_variable_that_is_set_decides_even_when_it_is_unusable() {
    let home = tempfile::tempdir().unwrap();
    let home_entry = ("HOME", home.path());
    for bad in ["", "short"] {
        let error = resolve_with(&[home_entry, ("SHEAVE_SECRET", Path::new(bad))]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.what().starts_with("SHEAVE_SECRET: "), "{error}");
        assert!(bad.is_empty() || !error.to_string().contains(bad), "an error tells nothing of the secret");
    }
    let error = resolve_with(&[home_entry, ("SHEAVE_SECRET_FILE", &home.path().join("absent"))]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(!home.path().join(".config").exists());
}

#[test]
fn files_that_others_can_reach_are_refused_with_advice() {
    let home = tempfile::tempdir().unwrap();
    let cookie = home.path().join(".config/sheave/cookie");
    resolve_with(&[("HOME", home.path())]).unwrap();
    for mode in [0o644, 0o640, 0o604, 0o620, 0o601] {
        fs::set_permissions(&cookie, fs::Permissions::from_mode(mode)).unwrap();
        let error = resolve_with(&[("HOME", home.path())]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "mode {mode:o}");
        assert!(error.advice().unwrap().contains("chmod 600"));
    }

    let file = home.path().join("mounted");
    write(&file, IN_FILE.as_bytes(), 0o440);
    resolve_with(&[("SHEAVE_SECRET_FILE", file.as_path())]).unwrap();
    for mode in [0o444, 0o660] {
        write(&file, IN_FILE.as_bytes(), 0o600);
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let error = resolve_with(&[("SHEAVE_SECRET_FILE", file.as_path())]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "mode {mode:o}");
    }
}

#[test]
fn a_cookie_of_somebody_else_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let cookie = home.path().join(".config/sheave/cookie");
    resolve_with(&[("HOME", home.path())]).unwrap();
    // Only the administrator can give files away; everybody else can only be given root's.
    if std::os::unix::fs::chown(&cookie, Some(12_345), None).is_err() {
        return;
    }
    let error = resolve_with(&[("HOME", home.path())]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    assert!(error.what().contains("user 12345"), "{error}");
}

#[test]
fn what_is_not_a_regular_file_of_the_right_size_is_refused_at_once() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join(".config/sheave");
    fs::create_dir_all(&directory).unwrap();
    let real = home.path().join("real");
    write(&real, IN_FILE.as_bytes(), 0o600);
    symlink(&real, directory.join("cookie")).unwrap();
    resolve_with(&[("HOME", home.path())]).unwrap_err();

    let pipe = home.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let error = resolve_with(&[("SHEAVE_SECRET_FILE", pipe.as_path())]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "a named pipe must not be waited for");

    let large = home.path().join("large");
    write(&large, &vec![b'x'; limits::SECRET_BYTES_MAX + 1], 0o600);
    assert!(resolve_with(&[("SHEAVE_SECRET_FILE", large.as_path())]).is_err());
    write(&large, &vec![b'x'; limits::SECRET_BYTES_MAX], 0o600);
    assert!(resolve_with(&[("SHEAVE_SECRET_FILE", large.as_path())]).is_ok());
}

#[test]
fn without_a_home_the_error_says_what_to_set() {
    let error = resolve_with(&[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.advice().unwrap().contains("SHEAVE_SECRET"));
}

/// A wrong HOME shows in the path, which is not abbreviated; what to set instead is said.
#[test]
fn f93_a_home_that_is_no_folder_is_shown_and_what_to_set() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    write(&home, b"a file", 0o600);
    let error = resolve_with(&[("HOME", &home)]).unwrap_err();
    let cookie = home.join(".config/sheave/cookie");
    assert!(error.what().contains(cookie.to_str().unwrap()), "{error}");
    let hint = error.advice().unwrap_or_default();
    assert!(["SHEAVE_SECRET", "SHEAVE_SECRET_FILE", "HOME"].iter().all(|name| hint.contains(name)), "{error}");
}

#[test]
fn sixteen_threads_at_once_make_one_cookie() {
    for _ in 0..20 {
        let home = tempfile::tempdir().unwrap();
        let start = Barrier::new(16);
        let secrets: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        resolve_with(&[("HOME", home.path())]).unwrap().secret.expose().to_vec()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(secrets.windows(2).all(|pair| pair[0] == pair[1]));
        assert_eq!(fs::read_dir(home.path().join(".config/sheave")).unwrap().count(), 1);
    }
}

const CHILD_HOME: &str = "SHEAVE_TEST_CHILD_HOME";

/// Not a test of its own: what each process of the next test runs.
#[test]
fn child_prints_its_secret() {
    if let Some(home) = std::env::var_os(CHILD_HOME) {
        let secret = resolve_with(&[("HOME", Path::new(&home))]).unwrap().secret;
        println!("secret={}", String::from_utf8_lossy(secret.expose()));
    }
}

#[test]
fn sixteen_processes_at_once_make_one_cookie() {
    let home = tempfile::tempdir().unwrap();
    let children: Vec<_> = (0..16)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["child_prints_its_secret", "--exact", "--nocapture"])
                .env(CHILD_HOME, home.path())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let secrets: Vec<String> = children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let start = text.find("secret=").expect("the child prints its secret") + "secret=".len();
            text[start..].lines().next().unwrap().to_owned()
        })
        .collect();
    assert_eq!(secrets[0].len(), 64);
    assert!(secrets.iter().all(|secret| *secret == secrets[0]));
    assert_eq!(fs::read_dir(home.path().join(".config/sheave")).unwrap().count(), 1);
}
