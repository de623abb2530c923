//! A problem scaled to what the objective reads, and the objective itself.

use crate::problem::Problem;

/// A problem whose shares and weights are multiplied out: what the methods work on.
///
/// A placement costs `Σ_{i<j} pull(i, j) * distance(d[i], d[j]) + imbalance * Σ_e (load(e) - share[e])²`.
pub(crate) struct Terms {
    pub(crate) models: usize,
    pub(crate) devices: usize,
    pub(crate) bytes: Vec<u64>,
    pub(crate) capacity: Vec<u64>,
    /// Shares of the complexity, sum 1 or all 0.
    pub(crate) work: Vec<f64>,
    /// Shares of the complexity capacity, sum 1.
    pub(crate) share: Vec<f64>,
    /// What a unit of distance between two models costs, `n × n`, symmetric, zero on the diagonal.
    pub(crate) pull: Vec<f64>,
    /// Shares of the distances, `m × m`.
    pub(crate) distance: Vec<f64>,
    /// What the square of a difference of shares costs; 0 where nothing computes.
    pub(crate) imbalance: f64,
}

/// Each number by the sum of all, or none where that is zero. Subnormal sums are scaled first, so that no quotient
/// overflows.
fn shares(values: &[f64]) -> Option<Vec<f64>> {
    let largest = values.iter().copied().fold(0.0, f64::max);
    if largest == 0.0 {
        return None;
    }
    let scaled: Vec<f64> = values.iter().map(|value| value / largest).collect();
    let sum: f64 = scaled.iter().sum();
    Some(scaled.into_iter().map(|value| value / sum).collect())
}

impl Terms {
    /// Expects a problem that has been checked.
    pub(crate) fn new(problem: &Problem) -> Self {
        let (models, devices) = (problem.model_bytes.len(), problem.device_bytes.len());
        let work = shares(&problem.model_complexity);
        let imbalance = if work.is_some() { problem.weights.complexity / devices as f64 } else { 0.0 };
        let scale = problem.weights.connection;
        let flows = shares(&problem.connections).unwrap_or_else(|| vec![0.0; models * models]);
        let mut pull = vec![0.0; models * models];
        for one in 0..models {
            for other in (0..models).filter(|&other| other != one) {
                pull[one * models + other] = scale * (flows[one * models + other] + flows[other * models + one]);
            }
        }
        Self {
            models,
            devices,
            bytes: problem.model_bytes.clone(),
            capacity: problem.device_bytes.clone(),
            work: work.unwrap_or_else(|| vec![0.0; models]),
            share: shares(&problem.device_complexity).unwrap_or_else(|| vec![1.0 / devices as f64; devices]),
            pull,
            distance: shares(&problem.distances).unwrap_or_else(|| vec![0.0; devices * devices]),
            imbalance,
        }
    }

    pub(crate) fn pull(&self, one: usize, other: usize) -> f64 {
        self.pull[one * self.models + other]
    }

    pub(crate) fn distance(&self, one: usize, other: usize) -> f64 {
        self.distance[one * self.devices + other]
    }

    /// The share of the complexity that each device has.
    pub(crate) fn loads(&self, device_of: &[usize]) -> Vec<f64> {
        let mut loads = vec![0.0; self.devices];
        for (model, &device) in device_of.iter().enumerate() {
            loads[device] += self.work[model];
        }
        loads
    }

    /// The bytes that each device holds.
    pub(crate) fn used(&self, device_of: &[usize]) -> Vec<u64> {
        let mut used = vec![0; self.devices];
        for (model, &device) in device_of.iter().enumerate() {
            used[device] += self.bytes[model];
        }
        used
    }

    /// What a placement costs, summed in one order: the number that is reported.
    pub(crate) fn cost(&self, device_of: &[usize]) -> f64 {
        let mut connection = 0.0;
        for one in 0..self.models {
            for other in 0..one {
                connection += self.pull(one, other) * self.distance(device_of[one], device_of[other]);
            }
        }
        let square = |(load, share): (f64, &f64)| (load - share) * (load - share);
        connection + self.imbalance * self.loads(device_of).into_iter().zip(&self.share).map(square).sum::<f64>()
    }

    /// More than any placement costs: what rounding errors of bounds are relative to.
    pub(crate) fn scale(&self) -> f64 {
        let furthest = self.distance.iter().copied().fold(0.0, f64::max);
        self.pull.iter().sum::<f64>() * furthest + 2.0 * self.imbalance
    }

    /// Whether two devices may change names: nothing tells them apart.
    pub(crate) fn are_alike(&self, one: usize, other: usize) -> bool {
        let rest = |device: &usize| *device != one && *device != other;
        self.capacity[one] == self.capacity[other]
            && self.share[one] == self.share[other]
            && (0..self.devices).filter(rest).all(|third| self.distance(one, third) == self.distance(other, third))
    }
}
