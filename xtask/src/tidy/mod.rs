//! `cargo xtask tidy`: the rules on text that no compiler checks.
//!
//! Each rule is a function from a file's text (or the manifests) to findings, with tests that show it fire. To add a
//! rule, write such a function and call it from [`file()`] or [`check`].

mod attributes;
mod files;
mod floors;
mod locks;
mod markdown;
mod python;
mod rooms;
mod rust;
mod text;

use std::fmt;
use std::path::Path;

use crate::generate;
use crate::shell::{Outcome, Workspace};
use files::Kind;

/// The most lines that a file may have.
const FILE_LINES_MAX: usize = 1_000;
/// The most lines that a function may have, from its signature to its last line.
const FUNCTION_LINES_MAX: usize = 70;
/// The most characters that a line of code may have.
const LINE_CHARACTERS_MAX: usize = 120;

/// A place where a rule is broken.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    /// Relative to the workspace.
    path: String,
    /// Counted from 1; 0 when the whole file is meant.
    line: usize,
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(formatter, "{}: {}", self.path, self.message),
            line => write!(formatter, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// A line and what is wrong with it, before it is known in which file.
type Note = (usize, String);

/// Checks the workspace and prints every finding.
pub(crate) fn run(workspace: &Workspace) -> Outcome {
    let mut findings = check(workspace.root())?;
    findings.extend(floors::check(&rooms::read(workspace)?));
    findings.extend(locks::check(workspace.root())?);
    let stale = generate::stale(workspace.root()).into_iter();
    findings.extend(stale.map(|(path, message)| Finding { path: path.to_owned(), line: 0, message }));
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        1 => Err("tidy found 1 place to mend".to_owned()),
        count => Err(format!("tidy found {count} places to mend")),
    }
}

/// The findings in every file under `root`.
fn check(root: &Path) -> Outcome<Vec<Finding>> {
    let mut findings = Vec::new();
    for path in files::under(root)? {
        let bytes = std::fs::read(root.join(&path)).map_err(|error| format!("cannot read {path}: {error}"))?;
        // What is not UTF-8 is data, and data has no style.
        if let Ok(text) = String::from_utf8(bytes) {
            let notes = file(root, &path, &text);
            findings.extend(notes.into_iter().map(|(line, message)| Finding { path: path.clone(), line, message }));
        }
    }
    Ok(findings)
}

/// Everything that is wrong with one file.
fn file(root: &Path, path: &str, text: &str) -> Vec<Note> {
    let kind = Kind::of(path, text);
    let mut notes = text::outside_paths(text);
    if kind != Kind::Data {
        notes.extend(text::white_space(text));
        notes.extend(text::file_length(text));
    }
    if !matches!(kind, Kind::Data | Kind::Prose) {
        notes.extend(text::line_length(text));
    }
    match kind {
        Kind::Rust => notes.extend(rust::check(text)),
        Kind::Python => notes.extend(python::check(text)),
        Kind::Prose => notes.extend(markdown::check(root, path, text)),
        Kind::Data | Kind::Settings => {}
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes `text` as the only file of a workspace and returns what is said about it.
    fn findings(path: &str, text: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
        check(folder.path()).unwrap().iter().map(Finding::to_string).collect()
    }

    #[test]
    fn each_kind_of_file_is_checked_by_its_rules() {
        assert_eq!(findings("crates/base/src/lib.rs", "fn f() { todo!() }\n").len(), 1);
        assert_eq!(findings("python/sheave/store.py", "@pytest.mark.skip\n").len(), 1);
        assert_eq!(findings("docs/index.md", "[gone](gone.md)\n").len(), 1);
        let wide = "x".repeat(LINE_CHARACTERS_MAX + 1) + "\n";
        assert_eq!(findings("Cargo.toml", &wide).len(), 1);
        assert_eq!(findings("docs/index.md", &wide), [""; 0]);
        assert_eq!(findings("data/digits.csv", "trailing \n"), [""; 0]);
    }

    #[test]
    fn build_outputs_are_not_ours() {
        assert_eq!(findings("target/debug/build/out.rs", "\tfn f() {}"), [""; 0]);
    }

    #[test]
    fn a_finding_says_where() {
        assert_eq!(findings("a.rs", "fn f() {}\n\t\n")[0], "a.rs:2: a tab; indent with spaces");
    }
}
