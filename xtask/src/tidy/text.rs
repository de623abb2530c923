//! Rules that hold for text of any kind.

use super::{FILE_LINES_MAX, LINE_CHARACTERS_MAX, Note};

/// Folders that exist on one person's machine only, in pieces, so that this file does not name them.
const OUTSIDE_PATHS: [&str; 3] = [concat!("/wo", "rk/"), concat!("/fa", "rm"), concat!("/ro", "ot/")];

pub(super) fn file_length(text: &str) -> Option<Note> {
    let count = text.lines().count();
    (count > FILE_LINES_MAX).then(|| (0, format!("{count} lines; a file has at most {FILE_LINES_MAX}: split it")))
}

pub(super) fn line_length(text: &str) -> Vec<Note> {
    let judge = |(number, line): (usize, &str)| {
        let count = line.chars().count();
        let message = || format!("{count} characters; a line has at most {LINE_CHARACTERS_MAX}");
        (count > LINE_CHARACTERS_MAX).then(|| (number, message()))
    };
    (1..).zip(text.lines()).filter_map(judge).collect()
}

/// Tabs, trailing white space, carriage returns, and how the file ends.
pub(super) fn white_space(text: &str) -> Vec<Note> {
    let mut notes = Vec::new();
    for (number, line) in (1..).zip(text.split('\n')) {
        if line.contains('\t') {
            notes.push((number, "a tab; indent with spaces".to_owned()));
        } else if line.ends_with(char::is_whitespace) {
            notes.push((number, "white space at the end of the line".to_owned()));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        notes.push((0, "no newline at the end of the file".to_owned()));
    } else if text.ends_with("\n\n") {
        notes.push((0, "an empty line at the end of the file".to_owned()));
    }
    notes
}

/// Absolute paths that mean nothing on anybody else's machine.
pub(super) fn outside_paths(text: &str) -> Vec<Note> {
    let judge = |(number, line): (usize, &str)| {
        let path = OUTSIDE_PATHS.into_iter().find(|path| names(line, path))?;
        Some((number, format!("`{path}` is a folder of one machine; use a path relative to the project")))
    };
    (1..).zip(text.lines()).filter_map(judge).collect()
}

/// Whether `line` holds `path` as the beginning of an absolute path, not as the middle of a longer one.
fn names(line: &str, path: &str) -> bool {
    let is_part_of_a_name = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.' | '}');
    line.match_indices(path).any(|(at, _)| {
        let goes_on = !path.ends_with('/') && line[at + path.len()..].starts_with(is_part_of_a_name);
        !line[..at].ends_with(is_part_of_a_name) && !goes_on
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files() {
        assert!(file_length(&"line\n".repeat(FILE_LINES_MAX)).is_none());
        assert!(file_length(&"line\n".repeat(FILE_LINES_MAX + 1)).is_some());
    }

    #[test]
    fn long_lines_are_counted_in_characters() {
        let longest = "é".repeat(LINE_CHARACTERS_MAX);
        assert_eq!(line_length(&longest), []);
        assert_eq!(line_length(&format!("short\n{longest}é\n"))[0].0, 2);
    }

    #[test]
    fn white_space_of_every_wrong_sort() {
        let wrong = |text: &str| white_space(text).len();
        assert_eq!(wrong("fine\n\n  fine\n"), 0);
        assert_eq!(wrong(""), 0);
        assert_eq!(wrong("a\tb\n"), 1);
        assert_eq!(wrong("a \n"), 1);
        assert_eq!(wrong("a\r\n"), 1);
        assert_eq!(wrong("a"), 1);
        assert_eq!(wrong("a\n\n"), 1);
    }

    #[test]
    fn paths_of_one_machine() {
        for path in OUTSIDE_PATHS {
            assert_eq!(outside_paths(&format!("fine\nsee {path} there\n"))[0].0, 2, "{path}");
            assert_eq!(outside_paths(&format!("target{path} {path}")).len(), 1, "{path}");
            assert_eq!(outside_paths(&format!("https://example.org{path}")), [], "{path}");
        }
        assert_eq!(outside_paths(concat!("/fa", "rmer")), []);
    }
}
