//! `sheave demo`: the main job on real input. A scheduler, servers and workers, as processes, train a small network on
//! handwritten digits; the weights and the optimizer live on the servers.
//!
//! [`job`] starts the processes and listens to them, [`part`] is what each of them does, [`train`] is the loop itself,
//! the same for a store on servers and for a local one. What a process reports is a [`words::Word`] on a line of its
//! standard output. [`progress`] and [`chart`] draw.

mod chart;
mod job;
mod part;
mod progress;
mod summary;
mod train;
mod words;

use crate::Failure;
use sheave_base::ErrorKind;
use sheave_nn::{Digits, Schedule};
use sheave_store::{Compression, Config, Kind};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Trains a network on handwritten digits, over a parameter server on this machine.
///
/// One scheduler, servers and workers run as processes of their own. At the end there are a table, a picture of the
/// learning curve (SVG) and a trace (for ui.perfetto.dev).
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How the store works: dist_sync, dist_async, dist_ssp, or local, which computes the same as dist_sync in one
    /// process, or device.
    #[arg(long, default_value = "dist_sync", value_parser = parse_kind)]
    kind: Kind,
    /// With dist_ssp: how many steps the slowest worker may be behind one that pulls; 3 if it is left out.
    #[arg(long, value_name = "N")]
    staleness: Option<u64>,
    /// How gradients travel to the servers: none, fp16, bf16, 2bit, 1bit; what 2bit and 1bit leave out is sent later.
    #[arg(long, value_name = "NAME", default_value = "none", value_parser = parse_compression)]
    compress: Compression,
    /// With 2bit: what is sent, and from where on; with 1bit: what is above it is sent as +1, all else as -1.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    threshold: Option<f32>,
    /// How many workers compute gradients.
    #[arg(long, value_name = "W", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// How many servers hold the weights.
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    servers: u32,
    /// What the processes talk over.
    #[arg(long, value_enum, default_value_t = Transport::Shm)]
    transport: Transport,
    /// Decides the first weights and the order of the images.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How often every image is seen.
    #[arg(long, default_value_t = 35, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    epochs: u32,
    /// Images of one worker in one step.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    batch: u32,
    /// The images; those that come with sheave if it is left out.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// The port where the processes meet, on loopback; any that is free if it is left out.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Where picture and trace are written.
    #[arg(long, value_name = "FOLDER", default_value = "sheave-demo")]
    out: PathBuf,
    /// Print the summary alone, as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Be a process of a job that is running.
    #[arg(long, hide = true)]
    pub(crate) part: bool,
}

/// How the bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Transport {
    /// Shared memory.
    Shm,
    /// TCP connections over loopback.
    Tcp,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

fn parse_kind(name: &str) -> Result<Kind, String> {
    Kind::parse(name).map_err(|error| error.to_string())
}

fn parse_compression(name: &str) -> Result<Compression, String> {
    Compression::parse(name).map_err(|error| error.to_string())
}

impl Arguments {
    /// How the store is set up.
    fn config(&self) -> Result<Config, Failure> {
        let config = Config::from(self.kind);
        match self.staleness {
            Some(_) if self.kind != Kind::DistSsp => {
                Err(Failure::Usage(format!("--staleness is for --kind dist_ssp, not {}", self.kind)))
            }
            Some(staleness) => Ok(Config { staleness, ..config }),
            None => Ok(config),
        }
    }

    /// How gradients travel.
    fn compression(&self) -> Result<Compression, Failure> {
        if self.kind == Kind::Local && self.compress != Compression::None {
            let what = format!("--compress {}: nothing travels in a store of the kind local", self.compress);
            return Err(Failure::Usage(format!("{what}; hint: take --kind device or one of dist_*")));
        }
        let threshold = match (self.threshold, self.compress) {
            (None, Compression::None | Compression::Fp16 | Compression::Bf16) => return Ok(self.compress),
            (None, code) => train::threshold(code),
            (Some(threshold), _) => threshold,
        };
        let code = self.compress.with_threshold(threshold);
        code.map_err(|error| Failure::Usage(format!("--threshold {threshold}: {error}")))
    }
}

/// Runs the demo, or one process of it.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.config()?;
    arguments.compression()?;
    let digits = open_data(arguments)?;
    if arguments.part {
        return part::run(arguments, &digits);
    }
    check_schedule(arguments, &digits)?;
    check_folder(arguments)?;
    let begun = Instant::now();
    let run = if arguments.kind.is_distributed() { job::run(arguments)? } else { part::run_alone(arguments, &digits)? };
    summary::write(arguments, &run, begun.elapsed())
}

/// A file that cannot be read, or is not what it should be, is a mistake on the command line.
fn open_data(arguments: &Arguments) -> Result<Digits, Failure> {
    let digits = match &arguments.data {
        Some(path) => Digits::open(path),
        None => Digits::embedded(),
    };
    digits.map_err(|error| match error.kind() {
        ErrorKind::Internal => Failure::Run(error.to_string()),
        _ => Failure::Usage(error.to_string()),
    })
}

/// More images in one step than there are is a mistake on the command line.
fn check_schedule(arguments: &Arguments, digits: &Digits) -> Result<(), Failure> {
    let Arguments { seed, workers, batch, .. } = *arguments;
    let schedule = Schedule::new(seed, digits.training().len(), workers as usize, batch as usize);
    schedule.map(drop).map_err(|error| Failure::Usage(format!("--workers {workers} --batch {batch}: {error}")))
}

/// A place where nothing can be written is found before the work is done, by writing there; what was made for that is
/// taken away again.
fn check_folder(arguments: &Arguments) -> Result<(), Failure> {
    let folder = &arguments.out;
    let refuse = |what: String| {
        let hint = "give a folder that you can write to";
        Err(Failure::Usage(format!("--out {}: {what}; hint: {hint}", folder.display())))
    };
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && path.symlink_metadata().is_err();
    let missing: Vec<&Path> = folder.ancestors().take_while(is_missing).collect();
    let tried = std::fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder)).map(drop);
    // The innermost first; one that somebody else uses by now stays.
    missing.iter().for_each(|path| drop(std::fs::remove_dir(path)));
    if let Err(error) = tried {
        return refuse(format!("nothing can be written there: {error}"));
    }
    match summary::FILES.into_iter().find(|name| folder.join(name).is_dir()) {
        Some(name) => refuse(format!("{name} is a folder there")),
        None => Ok(()),
    }
}
