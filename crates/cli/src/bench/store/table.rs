//! Rows of a large table, of which a round pushes and pulls few.
//!
//! Every worker has ten thousand rows of its own, in ascending order and spread over the whole table; a hundredth of
//! them are also another worker's, about as many as when both draw theirs by chance. They are the same in every round,
//! as in the peer's script.

use super::job::{EXPECTED, GRADIENT, LEARNING_RATE, ROUND_TIMEOUT, timed};
use hdrhistogram::Histogram;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::Mesh;
use sheave_store::{Key, KvStore, Rows};
use sheave_tensor::{Dtype, Shape, Tensor};

const TABLE_ROWS: u64 = 1_000_000;
pub(super) const COLUMNS: usize = 64;
/// Of one push or pull.
pub(super) const ROWS: usize = 10_000;
const SHARED_ROWS: u64 = 100;
/// It has no factor in common with the number of rows, so its multiples are all rows.
const STRIDE: u64 = 617_503;

/// The rows of a worker, ascending.
fn ids(rank: u32) -> Vec<i64> {
    let first = u64::from(rank) * (ROWS as u64 - SHARED_ROWS);
    let mut ids: Vec<i64> = (first..first + ROWS as u64).map(|at| (at * STRIDE % TABLE_ROWS) as i64).collect();
    ids.sort_unstable();
    ids
}

/// Times rounds on a table of zeros, and checks what it holds then.
pub(super) fn rounds(mesh: &Mesh, store: &KvStore, iterations: usize) -> Result<Histogram<u64>> {
    let key = Key::from("table");
    let ids = ids(store.rank());
    let id_tensor = Tensor::from_slice(&ids, [ROWS as u64])?;
    let values = |value: f32| -> Result<Tensor> {
        let mut tensor = Tensor::empty(mesh.node().arena(), Dtype::F32, [ROWS as u64, COLUMNS as u64])?;
        tensor.as_mut_slice::<f32>()?.fill(value);
        Ok(tensor)
    };
    let none = Rows::new(Tensor::from_slice(&[0i64; 0], [0])?, Tensor::private(Dtype::F32, [0, COLUMNS as u64])?)?;
    store.init_rows(&[(key.clone(), Shape::from([TABLE_ROWS, COLUMNS as u64]), none)])?;
    let given = [(key.clone(), Rows::new(id_tensor.clone(), values(GRADIENT)?)?)];
    let place = values(0.0)?;
    let wanted = [(key.clone(), id_tensor, place.clone())];
    let (times, rounds) = timed(iterations, || store.push_pull_rows(&given, &wanted))?;
    store.pull_rows(&wanted)?.wait_timeout(ROUND_TIMEOUT)?;
    check(&ids, &place.as_slice::<f32>()?, rounds)?;
    store.delete(&[key])?;
    Ok(times)
}

fn check(ids_here: &[i64], values: &[f32], rounds: usize) -> Result<()> {
    let of_all: Vec<Vec<i64>> = (0..EXPECTED.workers).map(ids).collect();
    for (id, row) in ids_here.iter().zip(values.chunks(COLUMNS)) {
        let pushes = of_all.iter().filter(|ids| ids.binary_search(id).is_ok()).count() * rounds;
        let expected = -LEARNING_RATE * f64::from(GRADIENT) * pushes as f64;
        if !row.iter().all(|value| (f64::from(*value) - expected).abs() <= expected.abs() * 1e-2) {
            return Err(Error::new(ErrorKind::Internal, format!("row {id} is not what was pushed should make it")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_has_its_rows_and_few_are_of_both() {
        let (first, second) = (ids(0), ids(1));
        for ids in [&first, &second] {
            assert!(ids.len() == ROWS && ids.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(ids[0] >= 0 && ids[ROWS - 1] < TABLE_ROWS as i64);
            // In every tenth of the table about a tenth of them.
            let in_tenth = |tenth: i64| ids.iter().filter(|id| *id / 100_000 == tenth).count();
            assert!((0..10).map(in_tenth).all(|count| (800..1200).contains(&count)));
        }
        assert_eq!(first.iter().filter(|id| second.binary_search(id).is_ok()).count(), SHARED_ROWS as usize);
        let all = |shared: f32, own: f32| {
            let of = |id: &i64| [if second.binary_search(id).is_ok() { shared } else { own }; COLUMNS];
            first.iter().flat_map(of).collect::<Vec<f32>>()
        };
        assert!(check(&first, &all(-0.12, -0.06), 4).is_ok());
        assert!(check(&first, &all(-0.06, -0.06), 4).is_err() && check(&first, &all(-0.12, -0.12), 4).is_err());
    }
}
