//! The parameters of a particle: one flat vector with versions.
//!
//! **A snapshot never changes.** It is a handle to the memory of the vector. An update writes in place if it has the
//! only handle, and otherwise to a copy, which is the vector from then on. A peer that reads a snapshot out of the
//! arena holds a handle as well.

use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Arena, Dtype, Tensor, View, file};
use std::path::Path;

/// The names of a vector and its version in a file.
const NAME: &str = "parameters";
const VERSION: &str = "version";

/// A flat vector of f32 whose versions can be kept.
///
/// ```
/// use sheave_particle::Parameters;
///
/// let mut parameters = Parameters::new(&[1.0, 2.0])?;
/// let before = parameters.snapshot();
/// parameters.add(&[0.5, 0.5], 2.0)?;
/// assert_eq!((before.version(), before.as_slice()?.to_vec()), (0, vec![1.0, 2.0]));
/// assert_eq!((parameters.version(), parameters.as_slice()?.to_vec()), (1, vec![2.0, 3.0]));
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Debug)]
pub struct Parameters {
    tensor: Tensor,
    version: u64,
    arena: Option<Arena>,
}

/// The parameters of one version. A handle, cheap to clone.
#[derive(Clone, Debug)]
pub struct Snapshot {
    tensor: Tensor,
    version: u64,
}

impl Parameters {
    /// Returns a copy of the values, in private memory, as version 0.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` where memory has run out.
    pub fn new(values: &[f32]) -> Result<Self> {
        Self::made(values, None)
    }

    /// Like [`Parameters::new`], in the arena of a node, where peers on this host read snapshots without a copy.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` when the arena is used up.
    pub fn within(arena: &Arena, values: &[f32]) -> Result<Self> {
        Self::made(values, Some(arena.clone()))
    }

    fn made(values: &[f32], arena: Option<Arena>) -> Result<Self> {
        let mut tensor = empty(arena.as_ref(), values.len())?;
        tensor.as_mut_slice::<f32>()?.copy_from_slice(values);
        Ok(Self { tensor, version: 0, arena })
    }

    /// Returns how many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tensor.elements()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how often they have changed.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the values.
    ///
    /// # Errors
    ///
    /// `BufferInUse` while somebody writes to the memory of a snapshot, which only unsafe code does.
    pub fn as_slice(&self) -> Result<View<'_, f32>> {
        self.tensor.as_slice()
    }

    /// Returns the values of this version, as they will stay. No copy is made, now or later, unless there is an update
    /// while the snapshot is there.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { tensor: self.tensor.clone(), version: self.version }
    }

    /// Lets `change` write the values, which are a new version then, whatever it returns.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` where memory for a copy has run out: then nothing has changed.
    pub fn update<R>(&mut self, change: impl FnOnce(&mut [f32]) -> R) -> Result<R> {
        if self.tensor.as_mut_slice::<f32>().is_err() {
            let mut copy = empty(self.arena.as_ref(), self.len())?;
            copy.as_mut_slice::<f32>()?.copy_from_slice(&self.tensor.as_slice::<f32>()?);
            self.tensor = copy;
        }
        let values = self.tensor.as_mut_slice::<f32>()?;
        self.version += 1;
        Ok(change(values))
    }

    /// Replaces the values.
    ///
    /// # Errors
    ///
    /// `Mismatch` for another number of them, and as [`Parameters::update`].
    pub fn set(&mut self, values: &[f32]) -> Result<()> {
        self.require_length(values, "set")?;
        if self.tensor.as_mut_slice::<f32>().is_err() {
            self.tensor = empty(self.arena.as_ref(), self.len())?;
        }
        self.update(|old| old.copy_from_slice(values))
    }

    /// Adds `scale` times a direction.
    ///
    /// # Errors
    ///
    /// `Mismatch` for another number of elements, and as [`Parameters::update`].
    pub fn add(&mut self, direction: &[f32], scale: f32) -> Result<()> {
        self.require_length(direction, "add")?;
        self.update(|values| values.iter_mut().zip(direction).for_each(|(value, step)| *value += scale * step))
    }

    fn require_length(&self, values: &[f32], operation: &'static str) -> Result<()> {
        if values.len() == self.len() {
            return Ok(());
        }
        let what = format!("{} values; expected {}", values.len(), self.len());
        Err(Error::new(ErrorKind::Mismatch, what).operation(operation))
    }

    /// Writes values and version to a safetensors file, whose folders are made. Atomic: a crash leaves the old file or
    /// the new one. Blocks until the disk has it.
    ///
    /// # Errors
    ///
    /// `Io`, which names the file.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .map_err(|error| Error::from(error).context(folder.display()).operation("save"))?;
        }
        file::save(path, &[(NAME, &self.tensor)], &[(VERSION, &self.version.to_string())])
    }

    /// Replaces the values by those of a file, and the version by the one after both. Blocks while the disk delivers
    /// them.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Io`; `InvalidArgument` for a damaged file; `Mismatch` for one of other parameters. Nothing has
    /// changed then.
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let named = |error: Error| error.context(path.display()).operation("load");
        let contents = file::load(path)?;
        let refused = || named(Error::new(ErrorKind::Mismatch, "it holds no parameters of a particle"));
        let tensor = contents.tensors.get(NAME).filter(|tensor| tensor.dtype() == Dtype::F32).ok_or_else(refused)?;
        let version: u64 = contents.metadata.get(VERSION).and_then(|text| text.parse().ok()).ok_or_else(refused)?;
        self.set(&tensor.as_slice::<f32>()?).map_err(named)?;
        // Whoever has a snapshot of this version has another one than of any before.
        self.version = self.version.max(version.saturating_add(1));
        Ok(())
    }
}

impl Snapshot {
    /// Returns which version it is.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the values.
    ///
    /// # Errors
    ///
    /// As [`Parameters::as_slice`].
    pub fn as_slice(&self) -> Result<View<'_, f32>> {
        self.tensor.as_slice()
    }

    /// Returns them as a tensor, `[number of parameters]`, in the same memory: to be sent, for example.
    #[must_use]
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

fn empty(arena: Option<&Arena>, len: usize) -> Result<Tensor> {
    match arena {
        Some(arena) => Tensor::empty(arena, Dtype::F32, [len as u64]),
        None => Tensor::private(Dtype::F32, [len as u64]),
    }
}
