//! `cargo xtask generate`: the files of the project that a program writes, and whether they are what it would write.
//!
//! Each is a function without input, so a difference always means that the file was not generated again, or that
//! somebody changed it by hand.

use crate::shell::{Outcome, Workspace};
use std::path::Path;

/// A generated file, relative to the workspace, and what makes its text.
type Generated = (&'static str, fn() -> String);

const GENERATED: [Generated; 1] = [("docs/configuration.md", sheave_base::config::documentation)];

/// Writes every generated file that is not what it should be, and says which.
pub(crate) fn run(workspace: &Workspace) -> Outcome {
    for (path, text) in GENERATED {
        if is_stale(workspace.root(), path, text) {
            let file = workspace.path(path);
            let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
            folder
                .and_then(|()| std::fs::write(&file, text()))
                .map_err(|error| format!("cannot write {path}: {error}"))?;
            println!("wrote {path}");
        }
    }
    Ok(())
}

/// The generated files that are not what they should be, with what is to be done about it.
pub(crate) fn stale(root: &Path) -> Vec<(&'static str, String)> {
    let stale = GENERATED.into_iter().filter(|(path, text)| is_stale(root, path, *text));
    stale.map(|(path, _)| (path, "not what its source says; run `cargo xtask generate`".to_owned())).collect()
}

/// A file that cannot be read is not what it should be.
fn is_stale(root: &Path, path: &str, text: fn() -> String) -> bool {
    std::fs::read_to_string(root.join(path)).ok() != Some(text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_file_is_stale_until_it_is_written_and_after_it_is_changed() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = Workspace::at(folder.path());
        let (path, hint) = stale(folder.path()).remove(0);
        assert_eq!(path, "docs/configuration.md");
        assert!(hint.contains("cargo xtask generate"), "{hint}");
        run(&workspace).unwrap();
        assert_eq!(stale(folder.path()), []);

        let file = workspace.path(path);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("`SHEAVE_SECRET`"));
        std::fs::write(&file, text + "by hand\n").unwrap();
        assert_eq!(stale(folder.path()).len(), 1);
        run(&workspace).unwrap();
        assert_eq!(stale(folder.path()), []);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("docs"), "a file, not a folder").unwrap();
        let message = run(&Workspace::at(folder.path())).unwrap_err();
        assert!(message.starts_with("cannot write docs/configuration.md: "), "{message}");
    }
}
