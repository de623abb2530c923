//! The smallest eigenvalues of a symmetric matrix: Householder's reflections to three diagonals, then bisection by
//! Sturm's sequence (Golub and Van Loan, Matrix Computations, 8.3 and 8.4).

/// Halvings of the interval that holds all eigenvalues: to the last bits of its length.
const HALVINGS: usize = 64;

/// The `count` smallest eigenvalues of a matrix of `size` rows, from below, and the size of the largest one, to which
/// their errors are relative.
pub(crate) fn smallest(matrix: Vec<f64>, size: usize, count: usize) -> (Vec<f64>, f64) {
    let (diagonal, beside) = three_diagonals(matrix, size);
    let beside_of = |row: usize| row.checked_sub(1).map_or(0.0, |row| beside[row].abs());
    let reach = |row: usize| beside_of(row) + beside.get(row).map_or(0.0, |beside| beside.abs());
    let low = (0..size).map(|row| diagonal[row] - reach(row)).fold(f64::INFINITY, f64::min);
    let high = (0..size).map(|row| diagonal[row] + reach(row)).fold(f64::NEG_INFINITY, f64::max);
    let value = |place: usize| {
        let (mut low, mut high) = (low, high);
        for _ in 0..HALVINGS {
            let middle = low + (high - low) / 2.0;
            if below(&diagonal, &beside, middle) > place { high = middle } else { low = middle }
        }
        low
    };
    ((0..count.min(size)).map(value).collect(), low.abs().max(high.abs()))
}

/// How many eigenvalues are below a number.
fn below(diagonal: &[f64], beside: &[f64], number: f64) -> usize {
    let mut count = 0;
    let mut pivot = 1.0;
    for (row, value) in diagonal.iter().enumerate() {
        let square = row.checked_sub(1).map_or(0.0, |row| beside[row] * beside[row]);
        pivot = value - number - square / pivot;
        if pivot == 0.0 {
            pivot = f64::MIN_POSITIVE.sqrt();
        }
        count += usize::from(pivot < 0.0);
    }
    count
}

/// The diagonal and the one beside it of a matrix with the same eigenvalues.
fn three_diagonals(mut matrix: Vec<f64>, size: usize) -> (Vec<f64>, Vec<f64>) {
    let mut beside = Vec::with_capacity(size.saturating_sub(1));
    for step in 0..size.saturating_sub(1) {
        let start = step + 1;
        let mut mirror: Vec<f64> = (start..size).map(|row| matrix[row * size + step]).collect();
        let norm = mirror.iter().map(|value| value * value).sum::<f64>().sqrt();
        if norm == 0.0 {
            beside.push(0.0);
            continue;
        }
        let target = if mirror[0] > 0.0 { -norm } else { norm };
        mirror[0] -= target;
        beside.push(target);
        reflect(&mut matrix, size, start, &mirror);
    }
    ((0..size).map(|row| matrix[row * size + row]).collect(), beside)
}

/// Reflects rows and columns from `start` on: `A - v w' - w v'`.
fn reflect(matrix: &mut [f64], size: usize, start: usize, mirror: &[f64]) {
    let factor = 2.0 / mirror.iter().map(|value| value * value).sum::<f64>();
    let row_of = |row: usize| (start + row) * size + start;
    let product = |row: usize| {
        let line = &matrix[row_of(row)..][..mirror.len()];
        factor * line.iter().zip(mirror).map(|(one, other)| one * other).sum::<f64>()
    };
    let mut other: Vec<f64> = (0..mirror.len()).map(product).collect();
    let half = factor / 2.0 * other.iter().zip(mirror).map(|(one, other)| one * other).sum::<f64>();
    other.iter_mut().zip(mirror).for_each(|(value, mirror)| *value -= half * mirror);
    for row in 0..mirror.len() {
        let line = &mut matrix[row_of(row)..][..mirror.len()];
        for (column, value) in line.iter_mut().enumerate() {
            *value -= mirror[row] * other[column] + other[row] * mirror[column];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_a_path_are_known() {
        // The Laplacian of a path of n nodes has 2 - 2 cos(pi k / n).
        let size = 9;
        let mut matrix = vec![0.0; size * size];
        for row in 1..size {
            for (one, other, value) in [(row, row, 1.0), (row - 1, row - 1, 1.0), (row, row - 1, -1.0)] {
                matrix[one * size + other] += value;
                if one != other {
                    matrix[other * size + one] += value;
                }
            }
        }
        // Rows that change places change nothing.
        let shuffled: Vec<f64> =
            (0..size * size).map(|place| matrix[(place / size * 4 % size) * size + place % size * 4 % size]).collect();
        for matrix in [matrix, shuffled] {
            let (values, largest) = smallest(matrix, size, size);
            for (place, value) in values.into_iter().enumerate() {
                let expected = 2.0 - 2.0 * (std::f64::consts::PI * place as f64 / size as f64).cos();
                assert!((value - expected).abs() < 1e-14 * largest.max(4.0), "{place}: {value} is not {expected}");
            }
        }
    }

    #[test]
    fn small_and_empty_matrices() {
        assert_eq!(smallest(vec![], 0, 3).0, [0.0; 0]);
        assert_eq!(smallest(vec![5.0], 1, 3).0, [5.0]);
        let (values, _) = smallest(vec![2.0, 3.0, 3.0, 2.0], 2, 2);
        assert!((values[0] + 1.0).abs() < 1e-14 && (values[1] - 5.0).abs() < 1e-14, "{values:?}");
    }
}
