//! The job secret: what it is, and where a process finds it.
//!
//! Every link is authenticated with one secret that all processes of a job share. [`resolve`] looks in this order:
//!
//! 1. `SHEAVE_SECRET`: the secret itself;
//! 2. `SHEAVE_SECRET_FILE`: the path of a file that holds it;
//! 3. the user's cookie file, `$XDG_CONFIG_HOME/sheave/cookie` or `~/.config/sheave/cookie`, made on first use.
//!
//! A variable that is set decides: if its secret is unusable, that is an error and never a reason to look further, for
//! a job of which one half fell back to another secret could not tell why its halves do not meet.
//!
//! **Why concurrent first uses agree.** A cookie is written in full to a file of its own and then *linked* to its final
//! name, which fails if the name exists. So the name appears once, with its whole content, and everybody, winners and
//! losers alike, returns what is read back under that name.

use std::ffi::OsString;
use std::fmt;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, RenameFlags};
use zeroize::{Zeroize, Zeroizing};

use crate::limits::{SECRET_BYTES_MAX, SECRET_BYTES_MIN};
use crate::{Error, ErrorKind, Result};

/// Environment variable that holds the secret itself.
pub const SECRET_VARIABLE: &str = "SHEAVE_SECRET";

/// Environment variable that holds the path of a file with the secret.
pub const SECRET_FILE_VARIABLE: &str = "SHEAVE_SECRET_FILE";

/// Random bytes in a cookie; written as twice as many hexadecimal digits.
const COOKIE_RANDOM_BYTES: usize = 32;

/// Bytes that only the members of a job know. Wiped from memory when dropped, and never printed.
///
/// ```
/// use sheave_base::Secret;
///
/// let secret = Secret::new(b"sixteen bytes at least").unwrap();
/// assert_eq!(format!("{secret:?}"), "Secret(..)");
/// assert!(Secret::new(b"guess me").is_err());
/// ```
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

impl Secret {
    /// A secret of these bytes, which are copied; the caller's own copy is the caller's to wipe.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it is shorter than [`SECRET_BYTES_MIN`] or longer than [`SECRET_BYTES_MAX`] bytes.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        match bytes.len() {
            SECRET_BYTES_MIN..=SECRET_BYTES_MAX => Ok(Self(bytes.into())),
            length_bytes => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "a secret of {length_bytes} bytes; it must have between {SECRET_BYTES_MIN} and {SECRET_BYTES_MAX}"
                ),
            )
            .hint("make one with `openssl rand -hex 32`")),
        }
    }

    /// The bytes. Do not copy them to where nobody wipes them.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A secret and where it came from.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The secret.
    pub secret: Secret,
    /// Where it came from, for people, such as `cookie file ~/.config/sheave/cookie`. It holds nothing of the secret.
    pub source: String,
}

/// Finds the job's secret through `lookup`, which reads an environment variable; see the [module](self) for the order.
///
/// Blocks for file I/O, and makes the cookie file on first use.
///
/// # Errors
///
/// `InvalidArgument` if a variable is set to something unusable, `Unauthenticated` if a file is not private to its
/// user, `NotFound` if there is no place for a cookie, `Io` if the system refuses.
///
/// ```no_run
/// let resolved = sheave_base::secret::resolve(|name| std::env::var_os(name)).unwrap();
/// println!("the secret came from {}", resolved.source);
/// ```
pub fn resolve(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Resolved> {
    if let Some(value) = lookup(SECRET_VARIABLE) {
        let bytes = Zeroizing::new(value.into_encoded_bytes());
        let secret = Secret::new(bytes.trim_ascii()).map_err(|error| error.context(SECRET_VARIABLE))?;
        return Ok(Resolved { secret, source: SECRET_VARIABLE.into() });
    }
    let home = lookup("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    if let Some(path) = lookup(SECRET_FILE_VARIABLE) {
        let path = PathBuf::from(path);
        let source = format!("{SECRET_FILE_VARIABLE} {}", shown(&path, home.as_deref()));
        let whole = format!("{SECRET_FILE_VARIABLE} {}", path.display());
        let secret = read(&path, Privacy::Mounted).map_err(|error| error.context(whole))?;
        return Ok(Resolved { secret, source });
    }
    let directory = cookie_directory(lookup("XDG_CONFIG_HOME"), home.as_deref())?;
    let path = directory.join("cookie");
    let source = format!("cookie file {}", shown(&path, home.as_deref()));
    let secret = read_or_create_cookie(&directory, &path).map_err(|error| {
        // The whole path, which says where a wrong HOME leads.
        let error = error.context(format!("cookie file {}", path.display()));
        let is_advised = error.advice().is_some();
        let hint =
            format!("set {SECRET_VARIABLE} or {SECRET_FILE_VARIABLE}, or HOME to a folder that you can write to");
        if is_advised { error } else { error.hint(hint) }
    })?;
    Ok(Resolved { secret, source })
}

/// Where the cookie lives. A relative `XDG_CONFIG_HOME` has no meaning and is passed over, as its specification asks.
fn cookie_directory(configured: Option<OsString>, home: Option<&Path>) -> Result<PathBuf> {
    let configured = configured.map(PathBuf::from).filter(|path| path.is_absolute());
    let base = configured.or_else(|| home.map(|home| home.join(".config"))).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "no place for the cookie file: neither HOME nor XDG_CONFIG_HOME is set")
            .hint(format!("set {SECRET_VARIABLE} or {SECRET_FILE_VARIABLE}"))
    })?;
    Ok(base.join("sheave"))
}

/// A path as people write it, with the home directory left out: the text is shown to the other side of a handshake.
fn shown(path: &Path, home: Option<&Path>) -> String {
    match home.and_then(|home| path.strip_prefix(home).ok()) {
        Some(inside) => format!("~/{}", inside.display()),
        None => path.display().to_string(),
    }
}

/// Who else may have a hand in a secret file.
#[derive(Clone, Copy, PartialEq)]
enum Privacy {
    /// Nobody: it is our own cookie, and not a symbolic link.
    Own,
    /// The administrator, and a group for reading: a secret that was mounted into a container looks like this.
    Mounted,
}

fn read(path: &Path, privacy: Privacy) -> Result<Secret> {
    // Without NONBLOCK, opening a named pipe would wait for a writer.
    let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    if privacy == Privacy::Own {
        flags |= OFlags::NOFOLLOW;
    }
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    check_private(&file, path, privacy)?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(SECRET_BYTES_MAX + 2));
    // One byte more than a secret and its line end can have tells a longer file apart.
    file.take(SECRET_BYTES_MAX as u64 + 2).read_to_end(&mut bytes)?;
    if bytes.len() > SECRET_BYTES_MAX + 1 {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("longer than {SECRET_BYTES_MAX} bytes")));
    }
    Secret::new(bytes.trim_ascii())
}

fn check_private(file: &File, path: &Path, privacy: Privacy) -> Result<()> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Error::new(ErrorKind::InvalidArgument, "not a regular file"));
    }
    let user = rustix::process::geteuid().as_raw();
    let (owners, forbidden): (&[u32], u32) = match privacy {
        Privacy::Own => (&[user], 0o077),
        Privacy::Mounted => (&[user, 0], 0o027),
    };
    let owner = metadata.uid();
    if !owners.contains(&owner) {
        return Err(Error::new(
            ErrorKind::Unauthenticated,
            format!("it belongs to user {owner}, and this process runs as user {user}"),
        )
        .hint(format!("remove {} or name another with {SECRET_FILE_VARIABLE}", path.display())));
    }
    let mode = metadata.mode() & 0o777;
    if mode & forbidden != 0 {
        return Err(Error::new(ErrorKind::Unauthenticated, format!("its mode {mode:04o} lets others in"))
            .hint(format!("if nobody else has seen it, `chmod 600 {}`; else remove it", path.display())));
    }
    Ok(())
}

fn read_or_create_cookie(directory: &Path, path: &Path) -> Result<Secret> {
    match rustix::fs::lstat(path) {
        Ok(_) => {}
        Err(rustix::io::Errno::NOENT) => create_cookie(directory, path)?,
        Err(errno) => return Err(errno.into()),
    }
    read(path, Privacy::Own)
}

/// Makes a cookie appear under `path` with its whole content, unless somebody else does so first.
fn create_cookie(directory: &Path, path: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let mut random = Zeroizing::new([0u8; COOKIE_RANDOM_BYTES]);
    fill_random(random.as_mut_slice())?;
    let mut text = Zeroizing::new(String::with_capacity(2 * COOKIE_RANDOM_BYTES + 1));
    for byte in random.iter() {
        text.push(hex_digit(byte >> 4));
        text.push(hex_digit(byte & 15));
    }
    text.push('\n');

    let draft = Draft::create(directory)?;
    let mut file = &draft.file;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    draft.publish(path)
}

fn hex_digit(value: u8) -> char {
    char::from_digit(u32::from(value), 16).unwrap_or('0')
}

fn fill_random(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|error| Error::new(ErrorKind::Io, format!("no randomness: {error}")))
}

/// A file under a name that nobody else knows; removed when dropped.
struct Draft {
    file: File,
    path: PathBuf,
}

impl Draft {
    fn create(directory: &Path) -> Result<Self> {
        let mut random = [0u8; 8];
        fill_random(&mut random)?;
        let path = directory.join(format!("cookie.{:016x}.draft", u64::from_le_bytes(random)));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = File::from(rustix::fs::open(&path, flags, mode)?);
        let draft = Self { file, path };
        // The process's umask may have taken bits away that the owner needs.
        rustix::fs::fchmod(&draft.file, mode)?;
        Ok(draft)
    }

    /// Gives the file its final name. That somebody else took the name first is a success: theirs counts.
    fn publish(&self, path: &Path) -> Result<()> {
        let linked = match rustix::fs::link(&self.path, path) {
            // A file system without hard links; its rename may still be able to refuse an existing name.
            Err(rustix::io::Errno::PERM | rustix::io::Errno::NOTSUP | rustix::io::Errno::MLINK) => {
                rustix::fs::renameat_with(rustix::fs::CWD, &self.path, rustix::fs::CWD, path, RenameFlags::NOREPLACE)
            }
            other => other,
        };
        match linked {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(errno) => Err(Error::from(io::Error::from(errno))
                .hint(format!("set {SECRET_VARIABLE} or {SECRET_FILE_VARIABLE} instead"))),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After a rename the name is gone already, and a draft that cannot be removed harms nobody.
        let _ = rustix::fs::unlink(&self.path);
    }
}
