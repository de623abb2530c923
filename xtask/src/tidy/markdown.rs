//! Links in Markdown that lead to files of ours: each must lead to one that is there.

use std::path::Path;

use super::Note;

/// Judges the links of the Markdown file at `path`, relative to `root`.
pub(super) fn check(root: &Path, path: &str, text: &str) -> Vec<Note> {
    let folder = root.join(path).parent().unwrap_or(root).to_path_buf();
    let mut notes = Vec::new();
    let mut is_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") || line.trim_start().starts_with("~~~") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        for target in targets(&without_code(line)) {
            if !exists(root, &folder, target) {
                notes.push((number, format!("the link to `{target}` leads nowhere")));
            }
        }
    }
    notes
}

/// Where a line's links lead: `[words](target "title")` and `[words]: target`.
fn targets(line: &str) -> Vec<&str> {
    let mut targets: Vec<&str> = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()).collect();
    if line.starts_with('[') {
        targets.extend(line.split_once("]: ").and_then(|(_, target)| target.split_whitespace().next()));
    }
    targets
}

/// The line without what stands between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Whether the target is not ours to judge, or is there. A place within a page is not looked for.
fn exists(root: &Path, folder: &Path, target: &str) -> bool {
    let file = target.split('#').next().unwrap_or(target).trim_matches(['<', '>']);
    let is_address = file.split_once(':').is_some_and(|(scheme, _)| scheme.chars().all(char::is_alphabetic));
    if file.is_empty() || is_address {
        return true;
    }
    match file.strip_prefix('/') {
        Some(from_the_root) => root.join(from_the_root).exists(),
        None => folder.join(file).exists(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said about `text` as `docs/page.md` beside `docs/other.md` and under `README.md`.
    fn wrong(text: &str) -> usize {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("docs")).unwrap();
        std::fs::write(folder.path().join("README.md"), "").unwrap();
        std::fs::write(folder.path().join("docs/other.md"), "").unwrap();
        check(folder.path(), "docs/page.md", text).len()
    }

    #[test]
    fn links_to_files() {
        assert_eq!(wrong("[a](other.md), [b](other.md#place) and [c](../README.md \"title\")"), 0);
        assert_eq!(wrong("![a](picture.svg) and [b](../other.md)"), 2);
        assert_eq!(wrong("[a](/docs/other.md) and [b](/other.md)"), 1);
        assert_eq!(wrong("[a][b]\n\n[b]: gone.md\n[c]: other.md\n"), 1);
    }

    #[test]
    fn what_is_no_link_to_a_file() {
        assert_eq!(wrong("[a](https://example.org/gone.md), [b](#here), [c](mailto:a@example.org)"), 0);
        assert_eq!(wrong("`[a](gone.md)`\n\n```\n[a](gone.md)\n```\n"), 0);
    }
}
