//! Which files there are, and of what kind.

use std::fs::DirEntry;
use std::path::Path;

use crate::shell::Outcome;

/// Folders that hold what tools have made.
const MADE_BY_TOOLS: [&str; 8] =
    [".git", "target", "__pycache__", ".venv", ".pytest_cache", ".ruff_cache", ".mypy_cache", "dist"];

/// What rules a file is under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Rust,
    Python,
    /// Settings and scripts: the rules on text alone.
    Settings,
    /// Markdown: its lines may be as long as its paragraphs, its links must lead somewhere.
    Prose,
    /// Everything that is not written by hand.
    Data,
}

impl Kind {
    /// By the file's name; a script without an extension is known by its first line.
    pub(super) fn of(path: &str, text: &str) -> Kind {
        let name = path.rsplit('/').next().unwrap_or(path);
        match name.rsplit_once('.') {
            Some((_, "rs")) => Kind::Rust,
            Some((_, "py" | "pyi")) => Kind::Python,
            Some((_, "toml" | "sh" | "yml" | "yaml")) => Kind::Settings,
            Some((_, "md")) => Kind::Prose,
            None if text.starts_with("#!") => Kind::Settings,
            _ => Kind::Data,
        }
    }
}

/// The paths of all files under `root`, relative to it, in a fixed order. Links are not followed.
pub(super) fn under(root: &Path) -> Outcome<Vec<String>> {
    let mut paths = Vec::new();
    collect(root, "", &mut paths)?;
    paths.sort();
    Ok(paths)
}

fn collect(root: &Path, folder: &str, paths: &mut Vec<String>) -> Outcome {
    let failure = |error: std::io::Error| format!("cannot list {}: {error}", root.join(folder).display());
    for entry in std::fs::read_dir(root.join(folder)).map_err(failure)? {
        let entry: DirEntry = entry.map_err(failure)?;
        let name = entry.file_name().into_string().map_err(|name| format!("{} is not UTF-8", name.display()))?;
        if MADE_BY_TOOLS.contains(&name.as_str()) || name.ends_with(".egg-info") {
            continue;
        }
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        let kind = entry.file_type().map_err(failure)?;
        if kind.is_dir() {
            collect(root, &path, paths)?;
        } else if kind.is_file() {
            paths.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_names_and_first_lines() {
        assert_eq!(Kind::of("crates/base/src/lib.rs", ""), Kind::Rust);
        assert_eq!(Kind::of("python/sheave/_core.pyi", ""), Kind::Python);
        assert_eq!(Kind::of(".ci/run", "#!/usr/bin/env bash\n"), Kind::Settings);
        assert_eq!(Kind::of("fuzz/corpus/frame/0a1b", "anything"), Kind::Data);
        assert_eq!(Kind::of("Cargo.lock", ""), Kind::Data);
    }
}
