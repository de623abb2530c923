//! The things that a job hands to its processes without writing them into their environment or into a folder:
//! descriptors of this process, which those of the same user open by their paths below `/proc`.
//!
//! The secret in a variable would be inherited by everything that a process starts, and be in every dump of an
//! environment. In a file it would have to be removed by somebody, even if this process is killed. What stands below
//! `/proc` is gone with this process, and the kernel lets nobody in who could not read its memory.

use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, Mode};
use rustix::pipe::PipeFlags;
use sheave_base::config::LOSSES_VARIABLE;
use sheave_base::limits::JOB_LOSSES_MAX;
use sheave_base::secret::{SECRET_FILE_VARIABLE, SECRET_VARIABLE};
use sheave_base::{Error, ErrorKind, Result, Secret, loss::Loss, random};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};

/// Room for the notes of all processes of a large job about each other; the most that needs no privilege.
const NOTES_BYTES: usize = 1 << 20;

/// Draws a secret for one job, in hexadecimal digits.
///
/// # Errors
///
/// `Io` if the system has no randomness.
///
/// ```
/// assert_eq!(sheave_fleet::draw_secret()?.len(), 64);
/// # Ok::<(), sheave_base::Error>(())
/// ```
pub fn draw_secret() -> Result<String> {
    let mut bytes = [0; 32];
    random::fill("drawing a secret", &mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The path at which other processes of this user find a descriptor of this one.
fn path_of(descriptor: &impl AsRawFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), descriptor.as_raw_fd())
}

/// The secret of a job, for as long as the job is started and runs.
#[derive(Debug)]
pub(crate) struct JobSecret {
    variable: (&'static str, String),
    _file: Option<File>,
}

impl JobSecret {
    /// Draws a secret and puts it where the processes of the job find it.
    pub(crate) fn draw() -> Result<Self> {
        Self::of(&Secret::new(draw_secret()?.as_bytes())?)
    }

    /// Puts the secret of a job that runs there.
    pub(crate) fn of(secret: &Secret) -> Result<Self> {
        let bytes = secret.expose();
        // A file is read without the line end that an editor may have added.
        if bytes.trim_ascii().len() != bytes.len() {
            let what = "the job's secret begins or ends with blanks, which a process that reads it would leave out";
            return Err(Error::new(ErrorKind::InvalidArgument, what).hint("make one with `openssl rand -hex 32`"));
        }
        Ok(match Self::file(bytes) {
            Ok((file, path)) => Self { variable: (SECRET_FILE_VARIABLE, path), _file: Some(file) },
            // Without /proc, only the environment is left.
            Err(error) => {
                let text = String::from_utf8(bytes.to_vec()).map_err(|_| Error::from(error))?;
                Self { variable: (SECRET_VARIABLE, text), _file: None }
            }
        })
    }

    fn file(secret: &[u8]) -> std::io::Result<(File, String)> {
        let mut file = File::from(rustix::fs::memfd_create("sheave-secret", MemfdFlags::CLOEXEC)?);
        rustix::fs::fchmod(&file, Mode::RUSR)?;
        file.write_all(secret)?;
        let path = path_of(&file);
        File::open(&path)?;
        Ok((file, path))
    }

    /// The variable that tells a process of the job where the secret is.
    pub(crate) fn variable(&self) -> (&'static str, String) {
        self.variable.clone()
    }
}

/// A pipe in which the processes of a job note whom they have lost, before they fail because of that.
#[derive(Debug)]
pub struct Losses {
    pipe: Option<(OwnedFd, OwnedFd)>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    losses: BTreeSet<Loss>,
    /// A note whose end has not been read.
    rest: Vec<u8>,
}

impl Losses {
    /// Makes the pipe. Nobody can note anything if the system refuses one; the process to blame is then guessed from
    /// the ends alone.
    pub(crate) fn new() -> Self {
        let pipe = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok();
        if let Some((_, write)) = &pipe {
            let _ = rustix::pipe::fcntl_setpipe_size(write, NOTES_BYTES);
        }
        Self { pipe, known: Mutex::default() }
    }

    /// The variable that tells a process of the job where to note whom it loses.
    pub(crate) fn variable(&self) -> Option<(&'static str, String)> {
        self.pipe.as_ref().map(|(_, write)| (LOSSES_VARIABLE, path_of(write)))
    }

    /// Reads all that was noted so far. Notes of many processes in a long job fill the pipe unless this is called now
    /// and then.
    #[must_use]
    pub fn known(&self) -> BTreeSet<Loss> {
        let mut known = self.known.lock();
        let Known { losses, rest } = &mut *known;
        let mut buffer = [0; 4096];
        while let Some(Ok(length @ 1..)) = self.pipe.as_ref().map(|(read, _)| rustix::io::read(read, &mut buffer)) {
            for byte in buffer.iter().take(length) {
                match byte {
                    b'\n' => {
                        losses.extend(Loss::read(rest).filter(|_| losses.len() < JOB_LOSSES_MAX));
                        rest.clear();
                    }
                    byte if rest.len() < Loss::BYTES_MAX => rest.push(*byte),
                    _ => {}
                }
            }
        }
        losses.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f32_the_secret_is_found_at_its_path_and_is_private() {
        let secret = JobSecret::draw().expect("memory for some bytes");
        let (name, path) = secret.variable();
        assert_eq!(name, SECRET_FILE_VARIABLE);
        let lookup = |asked: &str| (asked == name).then(|| path.clone().into());
        let found = sheave_base::secret::resolve(lookup).expect("it is private to its user");
        assert_eq!(found.secret.expose().len(), 64);
        drop(secret);
        assert!(sheave_base::secret::resolve(lookup).is_err(), "it ends with the job");
    }

    #[test]
    fn the_secret_of_a_job_that_runs_is_handed_on_unless_it_would_change() {
        let bytes = [0xff; 20];
        let handed = JobSecret::of(&Secret::new(&bytes).expect("long enough")).expect("memory for some bytes");
        let (name, path) = handed.variable();
        let found = sheave_base::secret::resolve(|asked| (asked == name).then(|| path.clone().into()));
        assert_eq!(found.expect("it is private to its user").secret.expose(), bytes);
        let error = JobSecret::of(&Secret::new(&[b' '; 20]).expect("long enough")).expect_err("nothing would be read");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn what_is_noted_is_known() {
        let losses = Losses::new();
        let (_, path) = losses.variable().expect("a pipe");
        let loss = Loss { by: "rank-0".into(), of: "rank 1".into(), is_left: false };
        loss.note(path.as_ref());
        std::fs::write(&path, "nonsense\n").expect("it is open");
        loss.note(path.as_ref());
        assert_eq!(losses.known(), BTreeSet::from([loss.clone()]));
        assert_eq!(losses.known().len(), 1);
        drop(losses);
        loss.note(path.as_ref());
    }
}
