//! Sheets: what a process is told to do, and what it says came of it.
//!
//! Both stand in a memory file, which the process has as its standard input. It has no name, so that nobody else finds
//! it; it takes answers of any length without anybody who reads meanwhile; and what was written stays there however the
//! process ends.
//!
//! The file begins with two words: the state, and how many bytes follow. The state is written last, so that an answer
//! is there as a whole or not at all.

use rustix::fs::{MemfdFlags, Mode, OFlags};
use sheave_base::fork::ForkMark;
use sheave_base::{Error, ErrorKind, Result};
use sheave_process::Command;
use std::fs::File;
use std::os::unix::fs::FileExt;

const HEADER_BYTES: u64 = 16;

/// The states of a sheet. None of them is what a file of something else is likely to begin with.
const ORDERED: u64 = u64::from_le_bytes(*b"sheave 1");
const RETURNED: u64 = u64::from_le_bytes(*b"sheave 2");
const FAILED: u64 = u64::from_le_bytes(*b"sheave 3");

/// The last word of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has done its work, of which this came.
    Returned(Vec<u8>),
    /// It has failed, and says why.
    Failed(Vec<u8>),
}

/// Memory that a process shares with the one that starts it: there it reads what it is to do, once, and writes what
/// came of that. A process that ends before it has written so has failed, even with 0; one that has is done, however it
/// ends.
///
/// ```
/// use sheave_fleet::{JobPlan, MemberFleet, Sheet};
/// use sheave_process::{Command, Job};
/// use std::time::Duration;
///
/// # fn main() -> sheave_base::Result<()> {
/// let sheet = Sheet::new(b"what to do")?;
/// let program = sheet.hand(Command::new("true"))?;
/// let fleet = MemberFleet::start(JobPlan::new(1, 0)?, Job::start()?, |_| program.clone())?;
/// let error = fleet.wait(Some(Duration::from_secs(20))).unwrap_err();
/// assert_eq!(error.process_end().and_then(|end| end.status()), Some(0));
/// assert_eq!(sheet.answer()?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sheet {
    file: File,
    mark: ForkMark,
}

impl Sheet {
    /// Makes one with an order on it.
    ///
    /// # Errors
    ///
    /// `Io` if the system has no memory for it.
    pub fn new(order: &[u8]) -> Result<Self> {
        let file = File::from(rustix::fs::memfd_create("sheave-sheet", MemfdFlags::CLOEXEC)?);
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        let sheet = Self { file, mark: ForkMark::here() };
        sheet.write(ORDERED, order)?;
        Ok(sheet)
    }

    /// Has the process of this command read and write here; its end is judged by what it has written.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` if this process has no descriptor left.
    pub fn hand(&self, command: Command) -> Result<Command> {
        let (given, read) = (self.file.try_clone()?, self.file.try_clone()?);
        let is_well = move |_| header_of(&read).is_ok_and(|(state, _)| state == RETURNED);
        Ok(command.input(given).judged_by(is_well))
    }

    /// Takes the sheet of this process, which has nothing to read on its standard input then, nor has what it starts.
    ///
    /// # Errors
    ///
    /// `NotFound` if it was given none, or has taken it.
    pub fn of_this_process() -> Result<Self> {
        let file = File::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
        if !header_of(&file).is_ok_and(|(state, _)| state == ORDERED) {
            let what = "this process was given nothing to do on its standard input";
            let error = Error::new(ErrorKind::NotFound, what);
            return Err(error.hint("start it as a member of a fleet, which gives it a sheet"));
        }
        let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(&null)?;
        Ok(Self { file, mark: ForkMark::here() })
    }

    /// Reads what is to be done, and lets go of the memory that it takes.
    ///
    /// # Errors
    ///
    /// `NotFound` if it was read before, `Io` if the system refuses.
    pub fn take_order(&self) -> Result<Vec<u8>> {
        let (state, length) = header_of(&self.file)?;
        if state != ORDERED || length == 0 {
            return Err(Error::new(ErrorKind::NotFound, "the order of this process was taken before"));
        }
        let order = self.read(length)?;
        self.write(ORDERED, &[])?;
        Ok(order)
    }

    /// Writes what came of it. The last of several answers counts.
    ///
    /// # Errors
    ///
    /// `Io` if there is no room for it; then nothing was answered. `Forked` in a copy of the process whose sheet it is.
    pub fn write_answer(&self, answer: &Answer) -> Result<()> {
        self.mark.check("sheet")?;
        match answer {
            Answer::Returned(text) => self.write(RETURNED, text),
            Answer::Failed(text) => self.write(FAILED, text),
        }
    }

    /// Reads the answer, if there is one.
    ///
    /// # Errors
    ///
    /// `Io` if the system refuses.
    pub fn answer(&self) -> Result<Option<Answer>> {
        Ok(match header_of(&self.file)? {
            (RETURNED, length) => Some(Answer::Returned(self.read(length)?)),
            (FAILED, length) => Some(Answer::Failed(self.read(length)?)),
            _ => None,
        })
    }

    /// Returns whether there is an answer that says that all is done.
    #[must_use]
    pub fn has_returned(&self) -> bool {
        header_of(&self.file).is_ok_and(|(state, _)| state == RETURNED)
    }

    fn read(&self, length: u64) -> Result<Vec<u8>> {
        let held = self.file.metadata()?.len().saturating_sub(HEADER_BYTES);
        let length = usize::try_from(length.min(held)).unwrap_or(usize::MAX);
        let mut text = vec![0; length];
        self.file.read_exact_at(&mut text, HEADER_BYTES)?;
        Ok(text)
    }

    fn write(&self, state: u64, text: &[u8]) -> Result<()> {
        let header = |state: u64| [state.to_le_bytes(), (text.len() as u64).to_le_bytes()].concat();
        // Whoever reads what is half written, or was written over an answer, sees none.
        self.file.set_len(0)?;
        self.file.write_all_at(&header(0), 0)?;
        self.file.write_all_at(text, HEADER_BYTES)?;
        self.file.write_all_at(&header(state), 0)?;
        Ok(())
    }
}

fn header_of(file: &File) -> std::io::Result<(u64, u64)> {
    let mut words = [[0; 8]; 2];
    file.read_exact_at(words.as_flattened_mut(), 0)?;
    let [state, length] = words.map(u64::from_le_bytes);
    Ok((state, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_there_as_a_whole_or_not_at_all() {
        let sheet = Sheet::new(b"an order").expect("memory for some bytes");
        assert_eq!(sheet.answer().expect("it is read"), None);
        assert_eq!(sheet.take_order().expect("it is read"), b"an order");
        assert_eq!(sheet.take_order().expect_err("it was taken").kind(), ErrorKind::NotFound);
        assert!(!sheet.has_returned());
        let long = Answer::Returned(vec![7; 1 << 20]);
        sheet.write_answer(&long).expect("there is room");
        assert_eq!(sheet.answer().expect("it is read"), Some(long));
        assert!(sheet.has_returned());
        let short = Answer::Failed(b"short".to_vec());
        sheet.write_answer(&short).expect("there is room");
        assert_eq!(sheet.answer().expect("it is read"), Some(short));
        assert!(!sheet.has_returned());
        sheet.file.write_all_at(&[0; 8], 0).expect("there is room");
        assert_eq!(sheet.answer().expect("it is read"), None, "an answer that is half written");
        sheet.file.set_len(3).expect("it shrinks");
        assert!(sheet.answer().is_err() && !sheet.has_returned());
    }

    #[test]
    fn door_answers_of_processes_have_no_name_and_are_private() {
        let sheet = Sheet::new(b"an order").expect("memory for some bytes");
        let seen = sheet.file.metadata().expect("it is a file");
        use std::os::unix::fs::MetadataExt;
        assert_eq!((seen.nlink(), seen.mode() & 0o777), (0, 0o600));
    }
}
