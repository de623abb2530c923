//! Gradients in fewer bits on their way to the servers.
//!
//! A codec turns a slice of `f32` into bytes and back, and has no state but the residual that its caller keeps: what
//! the coarse codes could not say is added to the next gradient, so that nothing is lost, only late (1-bit SGD: Seide
//! et al., Interspeech 2014; thresholds: Strom, Interspeech 2015). Names, codes and layouts are those of MXNet's
//! `set_gradient_compression`.
//!
//! | name | bits | a value becomes | residual |
//! |---|---|---|---|
//! | `none` | 32 | itself | none |
//! | `fp16`, `bf16` | 16 | the nearest half float, ties to even | none |
//! | `2bit` | 2 | +t, −t or 0, whichever side of ±t value and residual are on together | value − what was sent |
//! | `1bit` | 1 | +1 above t, else −1 | value − what was sent |
//!
//! Every element is coded for itself, from its own residual, and elements of a slice are packed from its start. So a
//! tensor that is cut for several servers is coded slice by slice, wherever the borders are, and decodes to the same
//! values as the whole.
//!
//! A NaN spoils what it meets: its element sends 0 (`1bit`: −1) from then on, because its residual is NaN.

mod bits;
mod half;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::Dtype;
use std::fmt;

/// How gradients travel from workers to servers.
///
/// ```
/// use sheave_store::Compression;
///
/// let codec = Compression::parse("2bit")?.with_threshold(0.5)?;
/// let (gradient, mut residual) = ([0.7f32, 0.3, -0.2], [0.0f32; 3]);
/// let mut bytes = vec![0; codec.encoded_len_bytes(3)];
/// let mut sum = [0.0f32; 3];
/// for _ in 0..2 {
///     codec.encode(&gradient, &mut residual, &mut bytes)?;
///     codec.add_into(&bytes, &mut sum)?;
/// }
/// // 16 values fit a word of four bytes. What is not sent yet is kept.
/// assert_eq!((bytes.len(), sum), (4, [1.0, 0.5, 0.0]));
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// Rounded to half precision; beyond ±65,504 to infinity.
    Fp16,
    /// Rounded to the upper half of an `f32`.
    Bf16,
    /// +1 or −1.
    OneBit {
        /// What is above it is +1; any finite number.
        threshold: f32,
    },
    /// +threshold, −threshold or 0.
    TwoBit {
        /// What is sent, and from where on; above 0 and finite.
        threshold: f32,
    },
}

/// What MXNet takes when none is given.
const THRESHOLD: f32 = 0.5;

const NAMES: [(&str, Compression); 5] = [
    ("none", Compression::None),
    ("fp16", Compression::Fp16),
    ("bf16", Compression::Bf16),
    ("1bit", Compression::OneBit { threshold: THRESHOLD }),
    ("2bit", Compression::TwoBit { threshold: THRESHOLD }),
];

impl Compression {
    /// The compression of this name, with a threshold of 0.5 if it has one.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for any other name, with the names that there are.
    pub fn parse(name: &str) -> Result<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, compression)| *compression).ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            let shown: String = name.chars().take(80).flat_map(char::escape_debug).collect();
            refused(format!("there is no gradient compression \"{shown}\""))
                .hint(format!("compressions are {}", names.join(", ")))
        })
    }

    /// The name, without the threshold.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
            Self::OneBit { .. } => "1bit",
            Self::TwoBit { .. } => "2bit",
        }
    }

    /// The threshold, if it has one.
    #[must_use]
    pub fn threshold(&self) -> Option<f32> {
        match *self {
            Self::OneBit { threshold } | Self::TwoBit { threshold } => Some(threshold),
            _ => None,
        }
    }

    /// The same with another threshold.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it has none, and those of [`check`](Self::check).
    pub fn with_threshold(self, threshold: f32) -> Result<Self> {
        let changed = match self {
            Self::OneBit { .. } => Self::OneBit { threshold },
            Self::TwoBit { .. } => Self::TwoBit { threshold },
            other => return Err(refused(format!("the compression {other} has no threshold"))),
        };
        changed.check()?;
        Ok(changed)
    }

    /// Refuses what only fits gradients: what its codes leave out of a value nobody would ever send.
    pub(crate) fn check_for_values(&self) -> Result<()> {
        match self.has_residual() {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::Unsupported, format!("values cannot be pulled as {self}"))
                .operation("pull")
                .hint("pull them as fp16 or bf16; 1bit and 2bit are for gradients, whose rest is sent later")),
        }
    }

    /// Refuses thresholds without a meaning.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a threshold that is not finite, or for `2bit` not above 0.
    pub fn check(&self) -> Result<()> {
        let is_good = match *self {
            Self::OneBit { threshold } => threshold.is_finite(),
            Self::TwoBit { threshold } => threshold.is_finite() && threshold > 0.0,
            _ => true,
        };
        if is_good {
            return Ok(());
        }
        let what = format!("a threshold of {} for the compression {self}", self.threshold().unwrap_or_default());
        let hint = if matches!(self, Self::TwoBit { .. }) { "a number above 0" } else { "any finite number" };
        Err(refused(what).hint(format!("take {hint}")))
    }

    /// Refuses tensors whose gradients cannot be compressed.
    ///
    /// # Errors
    ///
    /// `Unsupported` for every dtype but `f32`, unless it is `none`.
    pub fn require(&self, dtype: Dtype) -> Result<()> {
        if matches!(self, Self::None) || dtype == Dtype::F32 {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unsupported, format!("gradients of {dtype} cannot be compressed to {self}"))
            .hint("compression is for dense f32 gradients; keep other keys in a store without it"))
    }

    /// Whether [`encode`](Self::encode) keeps what it could not say.
    #[must_use]
    pub fn has_residual(&self) -> bool {
        self.threshold().is_some()
    }

    /// Bytes that so many values become.
    #[must_use]
    pub fn encoded_len_bytes(&self, elements: usize) -> usize {
        match self {
            Self::None => elements * 4,
            Self::Fp16 | Self::Bf16 => elements * 2,
            Self::OneBit { .. } => elements.div_ceil(bits::ONE_BIT_LANES) * 4,
            Self::TwoBit { .. } => elements.div_ceil(bits::TWO_BIT_LANES) * 4,
        }
    }

    /// Writes `gradient`, and what is left in `residual` of earlier ones, to all of `out`; keeps in `residual` what
    /// could not be said. A codec without a residual leaves `residual` alone, and it may be empty.
    ///
    /// # Errors
    ///
    /// `Mismatch` if the lengths do not fit each other; then nothing is changed.
    pub fn encode(&self, gradient: &[f32], residual: &mut [f32], out: &mut [u8]) -> Result<()> {
        self.fit(gradient.len(), out.len())?;
        if self.has_residual() && residual.len() != gradient.len() {
            let what = format!("a residual of {} values for a gradient of {}", residual.len(), gradient.len());
            return Err(Error::new(ErrorKind::Mismatch, what).operation("compress"));
        }
        match *self {
            Self::None => half::copy(gradient, out),
            Self::Fp16 => half::encode_f16(gradient, out),
            Self::Bf16 => half::encode_bf16(gradient, out),
            Self::OneBit { threshold } => bits::encode_one(gradient, residual, out, threshold),
            Self::TwoBit { threshold } => bits::encode_two(gradient, residual, out, threshold),
        }
        Ok(())
    }

    /// Reads what [`encode`](Self::encode) wrote over all of `target`.
    ///
    /// # Errors
    ///
    /// `Mismatch` if the bytes are not those of so many values, `Protocol` if they cannot come from `encode`; then
    /// nothing is changed.
    pub fn decode_into(&self, bytes: &[u8], target: &mut [f32]) -> Result<()> {
        self.read(bytes, target, |_, value| value)
    }

    /// Adds what [`encode`](Self::encode) wrote to `sum`: the same bits as decoding it and then adding it as
    /// [`sheave_tensor::reduce`] does.
    ///
    /// # Errors
    ///
    /// Those of [`decode_into`](Self::decode_into).
    pub fn add_into(&self, bytes: &[u8], sum: &mut [f32]) -> Result<()> {
        self.read(bytes, sum, |sum, value| {
            let sum = sum + value;
            // The one NaN, as in all sums of tensors.
            f32::from_bits(if sum.is_nan() { 0x7fc0_0000 } else { sum.to_bits() })
        })
    }

    #[inline(always)]
    fn read(&self, bytes: &[u8], target: &mut [f32], put: impl Fn(f32, f32) -> f32 + Copy) -> Result<()> {
        self.fit(target.len(), bytes.len())?;
        match *self {
            Self::None => half::read(bytes, target, put),
            Self::Fp16 => half::decode_f16(bytes, target, put),
            Self::Bf16 => half::decode_bf16(bytes, target, put),
            Self::OneBit { .. } => {
                bits::check_one(bytes, target.len())?;
                bits::decode_one(bytes, target, put);
            }
            Self::TwoBit { threshold } => {
                bits::check_two(bytes, target.len())?;
                bits::decode_two(bytes, target, threshold, put);
            }
        }
        Ok(())
    }

    fn fit(&self, elements: usize, len_bytes: usize) -> Result<()> {
        if len_bytes == self.encoded_len_bytes(elements) {
            return Ok(());
        }
        let due = self.encoded_len_bytes(elements);
        let what = format!("{elements} values are {due} bytes in the compression {self}, not {len_bytes}");
        Err(Error::new(ErrorKind::Mismatch, what).operation("compress"))
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn refused(what: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, what).operation("set_gradient_compression")
}
