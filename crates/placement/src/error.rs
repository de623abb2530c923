//! What is wrong with a problem, or what does not fit.

use std::fmt;

/// The result of what can fail here.
pub type Result<T> = std::result::Result<T, Error>;

/// Why there is no placement.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A list has another length than the numbers of models and devices ask for.
    Length {
        /// The field of the problem.
        field: &'static str,
        /// How many entries it has.
        length: usize,
        /// How many it should have.
        expected: usize,
    },
    /// There are too few or too many models or devices.
    Count {
        /// The field of the problem.
        field: &'static str,
        /// How many entries it has.
        count: usize,
        /// The least that it may have.
        least: usize,
        /// The most that it may have.
        most: usize,
    },
    /// A number is none that the field may hold.
    Value {
        /// The field of the problem.
        field: &'static str,
        /// Which entry, counted row by row.
        index: usize,
        /// The number.
        value: f64,
        /// What the field may hold.
        expected: &'static str,
    },
    /// The sum of a field is not finite, or does not fit 64 bits.
    Sum {
        /// The field of the problem.
        field: &'static str,
    },
    /// Two devices are not as far from each other one way as the other way.
    Asymmetric {
        /// One device.
        one: usize,
        /// The other device.
        other: usize,
        /// The distance from the one to the other.
        there: f64,
        /// The distance back.
        back: f64,
    },
    /// A placement names a device that there is not.
    NoSuchDevice {
        /// The model.
        model: usize,
        /// The device that it is said to be on.
        device: usize,
        /// How many devices there are.
        devices: usize,
    },
    /// All models together are larger than all devices.
    TotalTooLarge {
        /// Bytes of all models.
        bytes: u64,
        /// Bytes of all devices.
        available: u64,
    },
    /// A model is larger than every device.
    ModelTooLarge {
        /// The first such model.
        model: usize,
        /// Its bytes.
        bytes: u64,
        /// Bytes of the largest device.
        largest: u64,
    },
    /// Each model fits somewhere, but no placement fits all of them; this is proven.
    Infeasible {
        /// Bytes of all models.
        bytes: u64,
        /// Bytes of all devices.
        available: u64,
    },
    /// No placement that fits was found, and none was ruled out: the problem is too large to try all.
    NothingFound {
        /// The model that was left over in the best attempt.
        model: usize,
        /// Its bytes.
        bytes: u64,
        /// The most bytes that a device still had then.
        free: u64,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { field, length, expected } => {
                write!(out, "{field} has {length} entries; expected {expected}")
            }
            Self::Count { field, count, least, most } => {
                write!(out, "{field} has {count} entries; expected {least} to {most}")
            }
            Self::Value { field, index, value, expected } => {
                write!(out, "{field}[{index}] is {value}; expected {expected}")
            }
            Self::Sum { field } => write!(out, "the sum of {field} is too large; expected one that fits 64 bits"),
            Self::Asymmetric { one, other, there, back } => write!(
                out,
                "distances from device {one} to {other} is {there} and back is {back}; expected the same both ways"
            ),
            Self::NoSuchDevice { model, device, devices } => {
                write!(out, "device_of[{model}] is {device}; expected a device below {devices}")
            }
            Self::TotalTooLarge { bytes, available } => {
                write!(out, "the models take {bytes} bytes in all; expected at most the {available} of all devices")
            }
            Self::ModelTooLarge { model, bytes, largest } => {
                write!(out, "model {model} takes {bytes} bytes; expected at most the {largest} of the largest device")
            }
            Self::Infeasible { bytes, available } => write!(
                out,
                "no placement fits: the models take {bytes} of {available} bytes, but cannot be divided among the \
                 devices"
            ),
            Self::NothingFound { model, bytes, free } => write!(
                out,
                "found no placement that fits: model {model} of {bytes} bytes was left over, and no device had more \
                 than {free} bytes free"
            ),
        }
    }
}

impl std::error::Error for Error {}
