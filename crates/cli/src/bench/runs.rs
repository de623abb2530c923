//! Choices that all benchmarks with cases have, and how their cases are measured in turn.

use super::link::show_progress;
use clap::ValueEnum;
use sheave_base::Result;

/// How often everything is measured, and how it is printed.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct Runs {
    /// Fewer iterations.
    #[arg(long)]
    pub(super) quick: bool,
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    pub(super) json: bool,
    /// Measure everything so often, in turn with the peers; 3 unless given, or 1 with --quick.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100))]
    turns: Option<u32>,
}

impl Runs {
    /// Returns the first of these numbers, or the second one of a quick run.
    pub(super) fn rounds(&self, (rounds, quick): (u32, u32)) -> u32 {
        if self.quick { quick } else { rounds }
    }

    /// Measures each of the chosen cases, or each case there is, once in every turn.
    pub(super) fn in_turn<C>(&self, chosen: &[C], mut measure: impl FnMut(C) -> Result<()>) -> Result<()>
    where
        C: ValueEnum + Copy + PartialEq + 'static,
    {
        let turns = self.turns.unwrap_or(if self.quick { 1 } else { 3 });
        for turn in 1..=turns {
            for case in C::value_variants().iter().filter(|case| chosen.is_empty() || chosen.contains(case)) {
                let name = case.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
                show_progress(&format!("turn {turn} of {turns}: {name}"));
                measure(*case).map_err(|error| error.context(name))?;
            }
        }
        show_progress("");
        Ok(())
    }
}
