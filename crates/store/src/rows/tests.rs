use super::cut::{Grid, positions};
use super::present::Present;
use super::sum::RowSum;
use super::table::{Table, gather};
use super::*;
use crate::layout::Cutting;
use crate::sum::{Gradient, Sum, Total};
use half::{bf16, f16};
use proptest::prelude::*;
use sheave_tensor::ArenaConfig;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

const SUMMABLE: [Dtype; 11] = [
    Dtype::U8,
    Dtype::U32,
    Dtype::U64,
    Dtype::I8,
    Dtype::I16,
    Dtype::I32,
    Dtype::I64,
    Dtype::F16,
    Dtype::Bf16,
    Dtype::F32,
    Dtype::F64,
];

/// What a table, or a sum, holds: bytes of rows by their id.
type Model = BTreeMap<i64, Vec<u8>>;

/// `left + right`, element by element, as the rules of `sheave_tensor` say.
fn added(dtype: Dtype, left: &[u8], right: &[u8]) -> Vec<u8> {
    fn each<const N: usize>(left: &[u8], right: &[u8], add: impl Fn([u8; N], [u8; N]) -> [u8; N]) -> Vec<u8> {
        let pairs = left.chunks(N).zip(right.chunks(N));
        pairs.flat_map(|(left, right)| add(left.try_into().unwrap(), right.try_into().unwrap())).collect()
    }
    macro_rules! integer {
        ($type:ty) => {
            each(left, right, |a, b| <$type>::from_ne_bytes(a).wrapping_add(<$type>::from_ne_bytes(b)).to_ne_bytes())
        };
    }
    macro_rules! float {
        ($type:ty, $nan:expr, $narrow:expr, $widen:expr) => {
            each(left, right, |a, b| {
                let sum = $widen(<$type>::from_ne_bytes(a)) + $widen(<$type>::from_ne_bytes(b));
                if sum.is_nan() { <$type>::from_bits($nan).to_ne_bytes() } else { $narrow(sum).to_ne_bytes() }
            })
        };
    }
    match dtype {
        Dtype::U8 => integer!(u8),
        Dtype::U16 => integer!(u16),
        Dtype::U32 => integer!(u32),
        Dtype::U64 => integer!(u64),
        Dtype::I8 => integer!(i8),
        Dtype::I16 => integer!(i16),
        Dtype::I32 => integer!(i32),
        Dtype::I64 => integer!(i64),
        Dtype::F16 => float!(f16, 0x7e00, f16::from_f32_const, f16::to_f32_const),
        Dtype::Bf16 => float!(bf16, 0x7fc0, bf16::from_f32_const, bf16::to_f32_const),
        Dtype::F32 => float!(f32, 0x7fc0_0000, |sum| sum, |value| value),
        Dtype::F64 => float!(f64, 0x7ff8 << 48, |sum| sum, |value| value),
        other => panic!("no oracle adds {other}"),
    }
}

fn merge(model: &mut Model, dtype: Dtype, id: i64, row: &[u8]) {
    let sum = model.get(&id).map_or_else(|| row.to_vec(), |known| added(dtype, known, row));
    model.insert(id, sum);
}

/// Bytes that look like anything, from a number.
fn noise(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len_bytes).map(|_| next()).collect()
}

fn tensor(dtype: Dtype, shape: &[u64], bytes: &[u8]) -> Tensor {
    let mut tensor = Tensor::private(dtype, Shape::new(shape).unwrap()).unwrap();
    tensor.bytes_mut().unwrap().copy_from_slice(bytes);
    tensor
}

fn rows(dtype: Dtype, columns: u64, ids: &[i64], bytes: &[u8]) -> Rows {
    let count = ids.len() as u64;
    Rows::new(Tensor::from_slice(ids, [count]).unwrap(), tensor(dtype, &[count, columns], bytes)).unwrap()
}

fn random_rows(dtype: Dtype, columns: u64, ids: &[i64], seed: u64) -> Rows {
    rows(dtype, columns, ids, &noise(seed, ids.len() * columns as usize * dtype.size_bytes()))
}

fn model_of(dtype: Dtype, rows: &Rows) -> Model {
    let mut model = Model::new();
    let add = |rows: RowSlices<'_>| {
        rows.ids.iter().enumerate().for_each(|(index, id)| merge(&mut model, dtype, *id, rows.row(index).unwrap()));
        Ok(())
    };
    rows.read(add).unwrap();
    model
}

fn as_model(rows: RowSlices<'_>) -> Model {
    assert!(is_normal(rows.ids));
    rows.ids.iter().enumerate().map(|(index, id)| (*id, rows.row(index).unwrap().to_vec())).collect()
}

fn arena() -> Arena {
    static ARENA: OnceLock<Arena> = OnceLock::new();
    ARENA.get_or_init(|| Arena::new(ArenaConfig::default())).clone()
}

fn ids_in(rows: i64) -> impl Strategy<Value = Vec<i64>> {
    prop::collection::vec(0..rows, 0..40)
}

fn dtypes() -> impl Strategy<Value = Dtype> {
    prop::sample::select(SUMMABLE.to_vec())
}

/// What a worker contributes to a round.
#[derive(Clone, Debug)]
enum Given {
    Rows(Vec<i64>, u64),
    Dense(u64),
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn normal_rows_are_the_sums_of_equal_ones(
        ids in ids_in(30), dtype in dtypes(), columns in 0u64..5, seed in any::<u64>()
    ) {
        let given = random_rows(dtype, columns, &ids, seed);
        let normal = given.normal(&arena()).unwrap();
        let expected = model_of(dtype, &given);
        prop_assert_eq!(normal.values().shape().dimensions(), &[expected.len() as u64, columns]);
        prop_assert_eq!(normal.read(|rows| Ok(as_model(rows))).unwrap(), expected);
        if is_normal(&ids) {
            prop_assert!(normal.values().buffer().is_same(given.values().buffer()), "needlessly copied");
        }
        let (distinct, places) = distinct(&ids);
        prop_assert!(is_normal(&distinct));
        let back: Vec<i64> = places.iter().map(|place| distinct[*place as usize]).collect();
        prop_assert_eq!((back, distinct), (ids.clone(), normal.ids().to_vec::<i64>().unwrap()));
    }

    #[test]
    fn tables_are_cut_like_tensors(
        number in any::<u64>(), rows in 0u64..1 << 40, row_elements in 0u64..1 << 30, servers in 1u32..64,
        bound in 1u64..1 << 50,
    ) {
        let cutting = Cutting { servers, cut_elements: bound, slice_elements: 1 << 18 };
        let slices = cutting.row_slices(number, rows, row_elements);
        let is_cut = servers > 1 && rows >= u64::from(servers) && rows.saturating_mul(row_elements) >= bound;
        prop_assert_eq!(slices.len(), if is_cut { servers as usize } else { 1 });
        prop_assert_eq!((slices[0].server, slices[0].number), (cutting.home(number), number));
        let mut next = 0;
        for slice in &slices {
            prop_assert_eq!(slice.range.start, next);
            let share = rows / slices.len() as u64;
            prop_assert!((slice.range.end - slice.range.start).abs_diff(share) <= 1);
            next = slice.range.end;
        }
        prop_assert_eq!(next, rows);
        let servers_used: std::collections::HashSet<usize> = slices.iter().map(|slice| slice.server).collect();
        prop_assert_eq!(servers_used.len(), slices.len());
    }

    /// Slices that begin and end anywhere, or between rows, element by element.
    #[test]
    fn parts_are_all_elements_once(
        ids in ids_in(50), columns in 1u64..20, seed in any::<u64>(),
        mut borders in prop::collection::vec(0u64..1000, 0..6), is_table in any::<bool>(),
    ) {
        let arena = arena();
        let normal = random_rows(Dtype::I16, columns, &ids, seed).normal(&arena).unwrap();
        borders.iter_mut().for_each(|border| {
            *border %= 50 * columns + 1;
            *border -= if is_table { *border % columns } else { 0 };
        });
        borders.extend([0, 50 * columns]);
        borders.sort_unstable();
        let expected: BTreeMap<u64, Vec<u8>> = normal.read(|rows| Ok(as_model(rows))).unwrap().into_iter()
            .flat_map(|(id, row)| (id as u64 * columns..).zip(row.chunks(2).map(<[u8]>::to_vec).collect::<Vec<_>>()))
            .collect();
        let mut together = BTreeMap::new();
        for slice in borders.windows(2).map(|pair| pair[0]..pair[1]) {
            let part = normal.part(&slice, &arena).unwrap();
            prop_assert_eq!(part.grid, Grid::of(columns, &slice));
            let row_elements = part.grid.row_elements;
            prop_assert_eq!(part.grid.rows * row_elements, slice.end - slice.start);
            prop_assert!(!is_table || slice.is_empty() || row_elements == columns);
            prop_assert!(part.values.elements() == 0 || part.values.buffer().is_same(normal.values().buffer()));
            for (local, bytes) in part.read(|rows| Ok(as_model(rows))).unwrap() {
                prop_assert!((local as u64) < part.grid.rows);
                let first = slice.start + local as u64 * row_elements;
                for (element, bytes) in (first..).zip(bytes.chunks(2)) {
                    prop_assert_eq!(together.insert(element, bytes.to_vec()), None);
                }
            }
        }
        prop_assert_eq!(together, expected);
    }

    /// Several rounds of one sum, rows and dense contributions mixed, against a map that adds one after the other.
    #[test]
    fn sums_are_those_in_the_order_of_ranks(
        rounds in prop::collection::vec(prop::collection::vec(prop_oneof![
            5 => (ids_in(25), any::<u64>()).prop_map(|(ids, seed)| Given::Rows(ids, seed)),
            1 => any::<u64>().prop_map(Given::Dense),
        ], 0..6), 1..4),
        dtype in dtypes(), columns in 1u64..40,
    ) {
        let arena = arena();
        let row_bytes = columns as usize * dtype.size_bytes();
        let grid = Grid { rows: 25, row_elements: columns };
        let mut sum = Sum::default();
        for round in rounds {
            let (mut expected, mut is_dense) = (Model::new(), false);
            for given in round {
                match given {
                    Given::Rows(ids, seed) => {
                        let normal = random_rows(dtype, columns, &ids, seed).normal(&arena).unwrap();
                        let part = normal.part(&(0..25 * columns), &arena).unwrap();
                        prop_assert_eq!(part.grid, grid);
                        sum.add(Gradient::Rows(part), &arena).unwrap();
                        for (id, row) in normal.read(|rows| Ok(as_model(rows))).unwrap() {
                            merge(&mut expected, dtype, id, &row);
                        }
                    }
                    Given::Dense(seed) => {
                        let bytes = noise(seed, row_bytes * 25);
                        sum.add(Gradient::Plain(tensor(dtype, &[25 * columns], &bytes)), &arena).unwrap();
                        (0..25).zip(bytes.chunks(row_bytes)).for_each(|(id, row)| {
                            merge(&mut expected, dtype, id, row);
                        });
                        is_dense = true;
                    }
                }
            }
            let Some(total) = sum.take() else {
                prop_assert!(expected.is_empty() && !is_dense);
                continue;
            };
            let got = match &total {
                Total::Rows(rows) => {
                    let packed = rows.packed(dtype, &arena).unwrap();
                    let model = rows.read(|rows| Ok(as_model(rows))).unwrap();
                    prop_assert_eq!(&*packed.bytes().unwrap(), model.values().flatten().copied().collect::<Vec<u8>>());
                    (model, false)
                }
                Total::Dense(dense) => {
                    ((0..).zip(dense.bytes().unwrap().chunks(row_bytes).map(<[u8]>::to_vec)).collect(), true)
                }
            };
            prop_assert_eq!(got, (expected, is_dense));
            sum.keep(total, &arena);
        }
    }

    /// Writing and reading rows of a table, in any order, against a map.
    #[test]
    fn tables_hold_what_was_written(
        steps in prop::collection::vec((0u8..3, ids_in(20), any::<u64>()), 0..12), dtype in dtypes(),
        wanted in ids_in(20), columns in 1u64..20,
    ) {
        let row_bytes = columns as usize * dtype.size_bytes();
        let mut bytes = noise(1, 20 * row_bytes);
        let mut expected: Model = (0..20).zip(bytes.chunks(row_bytes).map(<[u8]>::to_vec)).collect();
        let mut present = Present::All;
        for (step, ids, seed) in steps {
            let given = random_rows(dtype, columns, &ids, seed);
            let mut table = Table::new(&mut bytes, dtype, row_bytes);
            match step {
                0 => {
                    let given = given.normal(&arena()).unwrap();
                    given.read(|rows| present.assign(&mut table, rows)).unwrap();
                    expected.values_mut().for_each(|row| row.fill(0));
                    expected.extend(given.read(|rows| Ok(as_model(rows))).unwrap());
                    prop_assert_eq!(&present, &Present::Some(given.ids().to_vec().unwrap()));
                }
                1 => {
                    given.read(|rows| table.add(rows)).unwrap();
                    given.read(|rows| {
                        let mut each = rows.ids.iter().enumerate();
                        each.try_for_each(|(index, id)| {
                            merge(&mut expected, dtype, *id, rows.row(index)?);
                            Ok(())
                        })
                    }).unwrap();
                    present = Present::All;
                }
                _ => {
                    given.read(|rows| table.assign(rows)).unwrap();
                    given.read(|rows| {
                        let mut each = rows.ids.iter().enumerate();
                        each.try_for_each(|(index, id)| {
                            expected.insert(*id, rows.row(index)?.to_vec());
                            Ok(())
                        })
                    }).unwrap();
                    present = Present::All;
                }
            }
            prop_assert_eq!(&bytes, &expected.values().flatten().copied().collect::<Vec<u8>>());
        }
        let mut packed = vec![0xa5; wanted.len() * row_bytes];
        gather(&bytes, row_bytes, &wanted, &mut packed).unwrap();
        prop_assert_eq!(packed, wanted.iter().flat_map(|id| expected[id].clone()).collect::<Vec<u8>>());
    }
}

#[test]
fn rows_that_are_none_are_refused() {
    let f32s = |shape: &[u64]| Tensor::private(Dtype::F32, Shape::new(shape).unwrap()).unwrap();
    let ids = |ids: &[i64]| Tensor::from_slice(ids, [ids.len() as u64]).unwrap();
    let kind = |ids: Tensor, values: Tensor| Rows::new(ids, values).unwrap_err().kind();
    assert_eq!(kind(Tensor::from_slice(&[1i32], [1]).unwrap(), f32s(&[1, 2])), ErrorKind::Mismatch);
    assert_eq!(kind(Tensor::from_slice(&[1i64], []).unwrap(), f32s(&[1, 2])), ErrorKind::Mismatch);
    assert_eq!(kind(ids(&[1, 2]), f32s(&[1, 2])), ErrorKind::Mismatch);
    assert_eq!(kind(ids(&[1]), f32s(&[])), ErrorKind::Mismatch);
    assert_eq!(kind(ids(&[]), f32s(&[0, u64::MAX, 2])), ErrorKind::LimitExceeded);
    // A table of one dimension has rows of one element.
    assert_eq!(Rows::new(ids(&[4]), f32s(&[1])).unwrap().row_shape(), [0; 0]);

    let key = Key::from("embedding");
    let check = |given: &[i64], dtype, shape: &[u64]| {
        let rows = Rows::new(ids(given), f32s(&[given.len() as u64, 2])).unwrap();
        rows.check(&key, dtype, &Shape::new(shape).unwrap())
    };
    check(&[9, 0, 9], Dtype::F32, &[10, 2]).unwrap();
    check(&[], Dtype::F32, &[0, 2]).unwrap();
    for (dtype, shape) in [(Dtype::F64, &[10, 2][..]), (Dtype::F32, &[10, 3]), (Dtype::F32, &[10]), (Dtype::F32, &[])] {
        assert_eq!(check(&[1], dtype, shape).unwrap_err().kind(), ErrorKind::Mismatch);
    }
    for (given, id) in [(&[0, 10, -1][..], "10"), (&[5, -1], "-1"), (&[i64::MAX], "9223372036854775807")] {
        let error = check(given, Dtype::F32, &[10, 2]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(error.what(), format!("key \"embedding\" has 10 rows, and none of the id {id}"));
    }
}

#[test]
fn what_has_no_sum_may_not_be_given_twice() {
    let arena = arena();
    let normal = |ids: &[i64]| rows(Dtype::Bool, 1, ids, &vec![1; ids.len()]).normal(&arena);
    assert_eq!(normal(&[2, 1]).unwrap().ids().to_vec::<i64>().unwrap(), [1, 2]);
    assert_eq!(normal(&[1, 1]).unwrap_err().kind(), ErrorKind::Unsupported);
    let mut sum = RowSum::new(Dtype::Bool, Grid { rows: 5, row_elements: 1 });
    let one = normal(&[3]).unwrap();
    one.read(|rows| sum.add_rows(rows)).unwrap();
    assert_eq!(one.read(|rows| sum.add_rows(rows)).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_sum_refuses_what_does_not_fit_and_stays_as_it_was() {
    let mut sum = RowSum::new(Dtype::F32, Grid { rows: 5, row_elements: 2 });
    let good = random_rows(Dtype::F32, 2, &[1, 4], 1);
    good.read(|rows| sum.add_rows(rows)).unwrap();
    let mut refused = |given: Rows| given.read(|rows| sum.add_rows(rows)).unwrap_err().kind();
    assert_eq!(refused(random_rows(Dtype::F32, 3, &[1], 2)), ErrorKind::Mismatch);
    for ids in [&[1, 5][..], &[-1, 2], &[2, 1], &[1, 1]] {
        assert_eq!(refused(random_rows(Dtype::F32, 2, ids, 2)), ErrorKind::InvalidArgument);
    }
    let held = sum.read(|rows| Ok(as_model(rows)));
    assert_eq!(held.unwrap(), good.read(|rows| Ok(as_model(rows))).unwrap());
    let error = gather(&[0; 16], 8, &[2], &mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert_eq!(gather(&[0; 16], 8, &[1], &mut [0; 9]).unwrap_err().kind(), ErrorKind::Mismatch);
}

#[test]
fn a_warm_sum_allocates_nothing() {
    let mut sum = RowSum::new(Dtype::F32, Grid { rows: 1000, row_elements: 4 });
    let mut addresses = Vec::new();
    for round in 0..6 {
        for worker in 0..3 {
            let ids: Vec<i64> = (0..100).map(|index| index * 3 + worker).collect();
            random_rows(Dtype::F32, 4, &ids, round).read(|rows| sum.add_rows(rows)).unwrap();
        }
        addresses.push(sum.addresses());
        sum.clear();
    }
    // The two vectors of ids change places with every contribution.
    assert!(addresses[3..].iter().all(|address| *address == addresses[2]), "{addresses:?}");
}

/// All other rows hold marks here, which zeros would replace.
#[test]
fn assigning_looks_at_changed_rows_only() {
    let mut bytes = vec![0u8; 40];
    let mut present = Present::Some(vec![1, 3, 5]);
    bytes.iter_mut().enumerate().for_each(|(index, byte)| *byte = index as u8 + 1);
    let given = rows(Dtype::U8, 4, &[3, 7], &[100, 101, 102, 103, 104, 105, 106, 107]);
    let mut expected = bytes.clone();
    expected[4..8].fill(0);
    expected[20..24].fill(0);
    expected[12..16].copy_from_slice(&[100, 101, 102, 103]);
    expected[28..32].copy_from_slice(&[104, 105, 106, 107]);
    given.read(|rows| present.assign(&mut Table::new(&mut bytes, Dtype::U8, 4), rows)).unwrap();
    assert_eq!(bytes, expected);
    let outside = rows(Dtype::U8, 4, &[10], &[0; 4]);
    assert!(outside.read(|rows| present.assign(&mut Table::new(&mut bytes, Dtype::U8, 4), rows)).is_err());
    assert_eq!(present, Present::All);
    assert_eq!(positions(&[1, 5, 9], &(5..9)), 1..2);
}

#[test]
#[ignore = "soak suite: prints figures, best with --release"]
fn figures() {
    const TABLE: u64 = 1_000_000;
    const COLUMNS: u64 = 64;
    let arena = arena();
    let mut table = vec![1u8; (TABLE * COLUMNS * 4) as usize];
    let mut random = 1u64;
    let mut ids = |count: usize| -> Vec<i64> {
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((random >> 33) % TABLE) as i64
        };
        (0..count).map(|_| next()).collect()
    };
    for count in [10_000, 100_000] {
        let pushes: Vec<Rows> =
            (0..2).map(|seed| random_rows(Dtype::F32, COLUMNS, &ids(count), seed).normal(&arena).unwrap()).collect();
        let unsorted = random_rows(Dtype::F32, COLUMNS, &ids(count), 3);
        let wanted = ids(count);
        let mut packed = vec![0u8; count * COLUMNS as usize * 4];
        let mut sum = RowSum::new(Dtype::F32, Grid { rows: TABLE, row_elements: COLUMNS });
        let mut present = Present::Some(Vec::new());
        let report = |name: &str, bytes: usize, work: &mut dyn FnMut()| {
            work();
            let mut times: Vec<f64> = (0..31).map(|_| timed(work)).collect();
            times.sort_by(f64::total_cmp);
            println!("{count:7} {name:30} {:8.1} µs {:6.2} GB/s", times[15] * 1e6, bytes as f64 / times[15] / 1e9);
        };
        let bytes = packed.len();
        let whole = table.clone();
        report("gather", bytes, &mut || gather(&whole, 256, &wanted, &mut packed).unwrap());
        report("normal, of unsorted", bytes, &mut || drop(black_box(unsorted.normal(&arena).unwrap())));
        report("normal, of normal", bytes, &mut || drop(black_box(pushes[0].normal(&arena).unwrap())));
        report("sum of two workers", bytes * 2, &mut || {
            sum.clear();
            pushes.iter().for_each(|push| push.read(|rows| sum.add_rows(rows)).unwrap());
        });
        report("add to table", bytes, &mut || {
            let mut table = Table::new(&mut table, Dtype::F32, 256);
            pushes[0].read(|rows| table.add(rows)).unwrap();
        });
        let mut turn = 0;
        report("assign to table, others cleared", bytes * 2, &mut || {
            turn += 1;
            let mut table = Table::new(&mut table, Dtype::F32, 256);
            pushes[turn % 2].read(|rows| present.assign(&mut table, rows)).unwrap();
        });
    }
}

fn timed(work: &mut dyn FnMut()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}
