//! The problem, and whether its numbers mean anything.

use crate::error::{Error, Result};

/// The most models of a problem: its connections take 8 bytes for each pair.
pub const MODELS_MAX: usize = 2048;

/// The most devices of a problem.
pub const DEVICES_MAX: usize = 512;

/// Models and devices in plain numbers. Matrices are written row by row.
///
/// ```
/// use sheave_placement::{Error, Problem};
///
/// let mut problem = Problem::uniform(&[100, 200], &[300, 300]);
/// problem.connect(0, 1, 2.5);
/// problem.check()?;
/// problem.distances[1] = f64::NAN;
/// let error = problem.check().unwrap_err();
/// assert_eq!(error.to_string(), "distances[1] is NaN; expected a finite number from 0 on");
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Memory that each of the `n` models takes, in bytes.
    pub model_bytes: Vec<u64>,
    /// What each model computes, in any unit: only shares of the sum count. `n` numbers from 0 on.
    pub model_complexity: Vec<f64>,
    /// How much goes from each model to each other, in any unit: only shares of the sum count. `n × n` numbers from 0
    /// on. Those of a model with itself are part of the sum and cost nothing.
    pub connections: Vec<f64>,
    /// Memory that models may take on each of the `m` devices, in bytes.
    pub device_bytes: Vec<u64>,
    /// What each device can compute, in any unit: only shares of the sum count. `m` numbers from 0 on.
    pub device_complexity: Vec<f64>,
    /// How far devices are apart, in any unit: only shares of the sum count. `m × m` numbers from 0 on, symmetric, zero
    /// on the diagonal.
    pub distances: Vec<f64>,
    /// How much the terms of the objective count.
    pub weights: Weights,
}

/// How much each term of the objective counts: numbers from 0 to 1e100.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// That of connected models that are apart; 2 by default.
    pub connection: f64,
    /// That of devices that compute more or less than their share; 1 by default.
    pub complexity: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self { connection: 2.0, complexity: 1.0 }
    }
}

impl Problem {
    /// Returns the problem of models that compute as much as they are large and are not connected, on devices that
    /// compute alike and are all at distance 1 of each other.
    #[must_use]
    pub fn uniform(model_bytes: &[u64], device_bytes: &[u64]) -> Self {
        let (models, devices) = (model_bytes.len(), device_bytes.len());
        let apart = |place: usize| if place / devices == place % devices { 0.0 } else { 1.0 };
        Self {
            model_bytes: model_bytes.to_vec(),
            model_complexity: model_bytes.iter().map(|&bytes| bytes as f64).collect(),
            connections: vec![0.0; models * models],
            device_bytes: device_bytes.to_vec(),
            device_complexity: vec![1.0; devices],
            distances: (0..devices * devices).map(apart).collect(),
            weights: Weights::default(),
        }
    }

    /// Sets how much goes from one model to another.
    ///
    /// # Panics
    /// If there is no such model.
    pub fn connect(&mut self, from: usize, to: usize, amount: f64) {
        let models = self.model_bytes.len();
        assert!(from < models && to < models, "models {from} and {to}; expected them below {models}");
        self.connections[from * models + to] = amount;
    }

    /// Whether lengths agree and numbers have a meaning. Says nothing about what fits.
    ///
    /// # Errors
    /// [`Error::Count`], [`Error::Length`], [`Error::Value`], [`Error::Sum`] or [`Error::Asymmetric`].
    pub fn check(&self) -> Result<()> {
        let (models, devices) = (self.model_bytes.len(), self.device_bytes.len());
        count("model_bytes", models, 0, MODELS_MAX)?;
        count("device_bytes", devices, 1, DEVICES_MAX)?;
        numbers("model_complexity", &self.model_complexity, models)?;
        numbers("connections", &self.connections, models * models)?;
        numbers("device_complexity", &self.device_complexity, devices)?;
        numbers("distances", &self.distances, devices * devices)?;
        weights(&self.weights)?;

        bytes("model_bytes", &self.model_bytes)?;
        bytes("device_bytes", &self.device_bytes)?;
        for one in 0..devices {
            let index = one * devices + one;
            if self.distances[index] != 0.0 {
                let value = self.distances[index];
                return Err(Error::Value { field: "distances", index, value, expected: "0 on the diagonal" });
            }
            for other in 0..one {
                let (there, back) = (self.distances[one * devices + other], self.distances[other * devices + one]);
                if there != back {
                    return Err(Error::Asymmetric { one, other, there, back });
                }
            }
        }
        Ok(())
    }
}

fn count(field: &'static str, count: usize, least: usize, most: usize) -> Result<()> {
    if (least..=most).contains(&count) { Ok(()) } else { Err(Error::Count { field, count, least, most }) }
}

fn numbers(field: &'static str, values: &[f64], expected: usize) -> Result<()> {
    if values.len() != expected {
        return Err(Error::Length { field, length: values.len(), expected });
    }
    let is_wrong = |value: &f64| !(value.is_finite() && *value >= 0.0);
    if let Some(index) = values.iter().position(is_wrong) {
        return Err(Error::Value { field, index, value: values[index], expected: "a finite number from 0 on" });
    }
    if values.iter().sum::<f64>().is_finite() { Ok(()) } else { Err(Error::Sum { field }) }
}

fn bytes(field: &'static str, values: &[u64]) -> Result<()> {
    let sum = values.iter().try_fold(0_u64, |sum, &value| sum.checked_add(value));
    if sum.is_some() { Ok(()) } else { Err(Error::Sum { field }) }
}

/// Large enough for anything, and small enough that nothing overflows.
const WEIGHT_MAX: f64 = 1e100;

fn weights(weights: &Weights) -> Result<()> {
    for (field, value) in [("weights.connection", weights.connection), ("weights.complexity", weights.complexity)] {
        if !(0.0..=WEIGHT_MAX).contains(&value) {
            return Err(Error::Value { field, index: 0, value, expected: "a number from 0 to 1e100" });
        }
    }
    Ok(())
}
