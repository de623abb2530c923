//! How input is refused.

use std::fmt::Display;

use sheave_base::{Error, ErrorKind, Result};

use crate::Real;

/// An error about a field: `{field} is {value}; expected {expected}`.
pub(crate) fn refuse(operation: &'static str, field: &str, value: impl Display, expected: impl Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("{field} is {value}; expected {expected}")).operation(operation)
}

/// Refuses a number that is not finite, or does not have a property.
pub(crate) fn number(operation: &'static str, field: &str, value: f64, is_right: bool, expected: &str) -> Result<()> {
    if value.is_finite() && is_right { Ok(()) } else { Err(refuse(operation, field, value, expected)) }
}

/// Refuses a slice of another length.
pub(crate) fn length(operation: &'static str, field: &str, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(refuse(operation, &format!("the length of {field}"), found, expected))
}

/// Refuses a slice with an element that is infinite or not a number.
pub(crate) fn finite<T: Real>(operation: &'static str, field: &str, values: &[T]) -> Result<()> {
    match values.iter().position(|value| !value.to_double().is_finite()) {
        None => Ok(()),
        Some(place) => Err(refuse(operation, &format!("{field}[{place}]"), values[place].to_double(), "a finite one")),
    }
}

/// The number of rows of a matrix with so many columns that a slice holds.
pub(crate) fn rows(operation: &'static str, field: &str, found: usize, columns: usize) -> Result<usize> {
    if columns > 0 && found > 0 && found.is_multiple_of(columns) {
        return Ok(found / columns);
    }
    Err(refuse(operation, &format!("the length of {field}"), found, format!("a multiple of {columns} above zero")))
}

/// The length that all of several slices have; there is one slice at least.
pub(crate) fn common_length<T: Real, S: AsRef<[T]>>(
    operation: &'static str,
    field: &str,
    slices: &[S],
) -> Result<usize> {
    let Some(first) = slices.first() else {
        return Err(refuse(operation, &format!("the number of {field}"), 0, "one at least"));
    };
    let expected = first.as_ref().len();
    for (place, slice) in slices.iter().enumerate() {
        if slice.as_ref().len() != expected {
            length(operation, &format!("{field}[{place}]"), slice.as_ref().len(), expected)?;
        }
    }
    Ok(expected)
}
