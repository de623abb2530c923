//! The workspace on disk, and commands run in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::group::Group;
use crate::watch::FOREVER;

/// What a step comes to: a value, or one message for the person who reads the terminal.
pub(crate) type Outcome<T = ()> = Result<T, String>;

/// Where the project lies and where its build outputs go.
pub(crate) struct Workspace {
    root: PathBuf,
    target: PathBuf,
    /// Set for every cargo command: see [`Workspace::without_python`].
    no_python: bool,
}

impl Workspace {
    /// The workspace this tool was built in, or, where that has moved, the one cargo runs us from.
    pub(crate) fn find() -> Outcome<Workspace> {
        let manifest = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
        let root = Path::new(&manifest).parent().ok_or("the folder of xtask has no parent")?.to_path_buf();
        if !root.join("Cargo.toml").is_file() {
            return Err(format!("no workspace in {}; hint: run this as `cargo xtask`", root.display()));
        }
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |path| root.join(path));
        Ok(Workspace { root, target, no_python: false })
    }

    /// A workspace made by a test.
    #[cfg(test)]
    pub(crate) fn at(root: &Path) -> Workspace {
        Workspace { root: root.to_path_buf(), target: root.join("target"), no_python: false }
    }

    /// Tells the Python bindings' build not to look for an interpreter: one that is too old would fail the build of a
    /// workspace whose Rust half needs none.
    pub(crate) fn without_python(&mut self) {
        self.no_python = true;
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Cargo's target directory.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// The cargo that runs us, in the workspace's root.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        self.command(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()), arguments)
    }

    /// A toolchain's cargo through rustup's proxy, which the cargo that runs us is not.
    pub(crate) fn nightly_cargo(&self, arguments: &[&str]) -> Command {
        let mut command = self.command("cargo", &["+nightly"]);
        command.args(arguments).env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC").env_remove("RUSTDOC");
        command
    }

    /// Any program, in the workspace's root.
    pub(crate) fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).args(arguments);
        if self.no_python {
            command.env("PYO3_NO_PYTHON", "1");
        }
        command
    }
}

/// Runs `command` with our terminal to its end; an exit code other than 0 is an error.
pub(crate) fn run(command: Command) -> Outcome {
    let words = words(&command);
    match Group::spawn(command)?.wait(FOREVER)? {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("`{words}` ended with {status}")),
        None => Err(format!("`{words}` did not end")),
    }
}

/// What `command` prints on its standard output; an exit code other than 0 is an error that carries its last words.
pub(crate) fn output(mut command: Command) -> Outcome<String> {
    let words = words(&command);
    command.stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("`{words}` cannot be run: {error}"))?;
    if !output.status.success() {
        let last_words = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{words}` ended with {}: {}", output.status, last_words.trim_end()));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("`{words}` printed something that is not UTF-8"))
}

/// The command as a person would type it: the program without its folder, then the arguments.
pub(crate) fn words(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
