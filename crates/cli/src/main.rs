//! The binary `sheave`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(sheave_cli::main(std::env::args_os().skip(1), Vec::new()))
}
