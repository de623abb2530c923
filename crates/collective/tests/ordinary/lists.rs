//! Lists of tensors and tensors on several devices, over all media, against the oracle; what disagreement about them
//! says; and how few messages they take.

use crate::common::oracle::{Memory, encode, numbers, reduced, unsigned_zeros, width};
use crate::common::{MEDIA, together, together_with, wait};
use sheave_base::{ErrorKind, Rank, Work};
use sheave_collective::{Communicator, Operator, Table};
use sheave_mesh::Config;
use sheave_net::Medium;
use sheave_tensor::{Arena, Device, Dtype, Tensor};
use std::slice::from_ref;
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// How many ranks go through the lists, and over what.
const GROUPS: [(u32, Medium); 7] = [
    (1, Medium::InProcess),
    (2, Medium::SharedMemory),
    (2, Medium::Tcp),
    (3, Medium::InProcess),
    (3, Medium::SharedMemory),
    (5, Medium::InProcess),
    (5, Medium::Tcp),
];

/// Small ones of several dtypes, empty ones, more small ones than one bucket holds, and large ones.
fn shapes() -> Vec<(Dtype, usize)> {
    let mut shapes = vec![(Dtype::F32, 3), (Dtype::Bf16, 5), (Dtype::F32, 0), (Dtype::U8, 1), (Dtype::F32, 70_001)];
    shapes.extend((0..60).map(|at| (Dtype::F32, 16_000 - at)));
    shapes.extend([(Dtype::F64, 17), (Dtype::Bf16, 9), (Dtype::U8, 65_537), (Dtype::F32, 1)]);
    shapes
}

/// The numbers of each tensor of a rank's list, `times` as long as its shape says.
fn given(shapes: &[(Dtype, usize)], rank: u32, times: usize) -> Vec<Vec<f64>> {
    let of = |(index, (dtype, count)): (usize, &(Dtype, usize))| numbers(*dtype, rank, count * times, index as u64);
    shapes.iter().enumerate().map(of).collect()
}

/// Tensors with these numbers, by turns in the arena and elsewhere.
fn tensors(arena: &Arena, shapes: &[(Dtype, usize)], numbers: &[Vec<f64>]) -> Vec<Tensor> {
    let tensor = |(index, (shape, numbers)): (usize, (&(Dtype, usize), &Vec<f64>))| {
        Memory::Mixed.filled(arena, index as u32, shape.0, numbers)
    };
    shapes.iter().zip(numbers).enumerate().map(tensor).collect()
}

fn zeros(arena: &Arena, shapes: &[(Dtype, usize)], times: usize) -> Vec<Tensor> {
    let zeros: Vec<_> = shapes.iter().map(|(dtype, count)| vec![0.0; count * times * width(*dtype)]).collect();
    tensors(arena, shapes, &zeros)
}

fn check(what: &str, found: &[Tensor], expected: &[Vec<f64>]) {
    assert_eq!(found.len(), expected.len());
    for (index, (tensor, expected)) in found.iter().zip(expected).enumerate() {
        let dtype = tensor.dtype();
        let bytes = unsigned_zeros(dtype, tensor.bytes().expect("nobody writes it").to_vec());
        assert!(bytes == unsigned_zeros(dtype, encode(dtype, expected)), "{what}: tensor {index}");
    }
}

/// The part of a rank, of a list of tensors that hold one for each.
fn parts(list: &[Tensor], rank: u32, size: u32) -> Vec<Tensor> {
    let part = |tensor: &Tensor| {
        let count = tensor.elements() as u64 / u64::from(size);
        tensor.slice_rows(count * u64::from(rank)..count * u64::from(rank + 1)).expect("it has so many")
    };
    list.iter().map(part).collect()
}

fn lists(world: &Communicator, arena: &Arena, shapes: &[(Dtype, usize)], in_place: bool) {
    let (rank, size) = (world.rank().0, world.size());
    let all: Vec<_> = (0..size).map(|rank| given(shapes, rank, 1)).collect();
    let own = &all[rank as usize];
    let of_all = |index: usize| all.iter().map(|list| list[index].clone()).collect::<Vec<_>>();
    let each = || 0..shapes.len();

    let inputs = tensors(arena, shapes, own);
    let outputs = if in_place { inputs.clone() } else { zeros(arena, shapes, 1) };
    wait(&world.all_reduce_list(&inputs, &outputs, Operator::Sum)).expect("all_reduce_list");
    let expected: Vec<_> = each().map(|index| reduced(shapes[index].0, Operator::Sum, &of_all(index))).collect();
    check("all_reduce_list", &outputs, &expected);
    if !in_place {
        check("the inputs of all_reduce_list", &inputs, own);
    }

    let list = tensors(arena, shapes, own);
    wait(&world.broadcast_list(&list, Rank(size - 1))).expect("broadcast_list");
    check("broadcast_list", &list, &all[size as usize - 1]);

    let outputs = zeros(arena, shapes, size as usize);
    let inputs = match in_place {
        false => tensors(arena, shapes, own),
        true => {
            let mine = parts(&outputs, rank, size);
            for (part, numbers) in mine.iter().zip(own) {
                part.overwrite(&encode(part.dtype(), numbers), "test").expect("nobody uses it");
            }
            mine
        }
    };
    wait(&world.all_gather_list(&inputs, &outputs)).expect("all_gather_list");
    check("all_gather_list", &outputs, &each().map(|index| of_all(index).concat()).collect::<Vec<_>>());

    let all: Vec<_> = (0..size).map(|rank| given(shapes, rank, size as usize)).collect();
    let inputs = tensors(arena, shapes, &all[rank as usize]);
    let outputs = if in_place { parts(&inputs, rank, size) } else { zeros(arena, shapes, 1) };
    wait(&world.reduce_scatter_list(&inputs, &outputs, Operator::Sum)).expect("reduce_scatter_list");
    let expected = |index: usize| {
        let (dtype, count) = shapes[index];
        let inputs: Vec<_> = all.iter().map(|list| list[index].clone()).collect();
        let whole = reduced(dtype, Operator::Sum, &inputs);
        whole[rank as usize * count * width(dtype)..(rank as usize + 1) * count * width(dtype)].to_vec()
    };
    check("reduce_scatter_list", &outputs, &each().map(expected).collect::<Vec<_>>());
}

#[test]
fn a_list_gives_what_its_tensors_alone_would() {
    for (ranks, medium) in GROUPS {
        together(ranks, medium, |mesh, world| {
            let arena = mesh.node().arena();
            for in_place in [false, true] {
                lists(world, arena, &shapes(), in_place);
                lists(world, arena, &[(Dtype::I64, 7)], in_place);
                lists(world, arena, &[(Dtype::Complex64, 0), (Dtype::Complex64, 0)], in_place);
                lists(world, arena, &[], in_place);
            }
        });
    }
}

#[test]
fn the_tensors_may_be_views_of_one_buffer() {
    together(3, Medium::SharedMemory, |_, world| {
        let flat = Tensor::from_slice(&[1.0_f32; 100], [100]).expect("memory");
        let rows = |range| flat.slice_rows(range).expect("rows");
        let list = [rows(60..100), rows(0..10), rows(10..11)];
        for _ in 0..2 {
            wait(&world.all_reduce_list(&list, &list, Operator::Sum)).expect("all come");
        }
        let expected: Vec<f32> = (0..100).map(|at| if (11..60).contains(&at) { 1.0 } else { 9.0 }).collect();
        assert_eq!(flat.to_vec::<f32>().expect("free"), expected);
        let crossed = [rows(0..10), rows(10..11), rows(60..100)];
        for outputs in
            [&crossed[..], &[rows(60..100), rows(0..10), rows(9..10)], &[rows(50..90), rows(0..10), rows(10..11)]]
        {
            let error = wait(&world.all_reduce_list(&list, outputs, Operator::Sum)).expect_err("they overlap");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    });
}

#[test]
fn the_same_lists_give_the_same_bits_on_all_ranks_and_in_every_run() {
    let run = |medium: Medium, late: u32| {
        together(3, medium, move |_, world| {
            if world.rank().0 == late {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            let value = |at: u32| ((at * 7919 + world.rank().0 * 104_729) % 1000) as f32 * 0.001 - 0.3;
            let tensor = |count: u32| Tensor::from_slice(&(0..count).map(value).collect::<Vec<_>>(), [count.into()]);
            let list: Vec<_> = [5, 300, 30_000, 7, 12_000].map(|count| tensor(count).expect("memory")).into();
            wait(&world.all_reduce_list(&list, &list, Operator::Sum)).expect("all come");
            list.iter().map(|tensor| tensor.bytes().expect("free").to_vec()).collect::<Vec<_>>()
        })
    };
    for medium in MEDIA {
        let runs: Vec<_> = (0..3).flat_map(|late| run(medium, late)).collect();
        assert!(runs.iter().all(|lists| *lists == runs[0]), "{medium:?}");
    }
}

fn floats(count: usize) -> Tensor {
    Tensor::from_slice(&vec![1.0_f32; count], [count as u64]).expect("memory")
}

/// Everybody fails with these words.
fn disagree(words: &[&str], act: impl Fn(&Communicator) -> Work<()> + Clone + Send + 'static) {
    for medium in MEDIA {
        let act = act.clone();
        let errors = together(3, medium, move |_, world| {
            let error = wait(&act(world)).expect_err("they disagree");
            let later = wait(&world.barrier()).expect_err("the group is broken");
            assert_eq!(later.kind(), ErrorKind::Mismatch, "{later}, after {error}");
            error
        });
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            assert!(words.iter().all(|word| error.what().contains(word)), "{words:?} are missing in: {error}");
        }
    }
}

#[test]
fn other_lists_are_told_to_all() {
    let words =
        ["all_reduce_list sum of 2 tensors with 9 elements", "all_reduce_list sum of 3 tensors with 12 elements"];
    disagree(&words, |world| {
        let list = [floats(4), floats(5), floats(3)];
        let list = if world.rank().0 == 1 { &list[..] } else { &list[..2] };
        world.all_reduce_list(list, list, Operator::Sum)
    });
    disagree(&["with its dtypes and lengths", "but other ones"], |world| {
        let list = if world.rank().0 == 1 { [floats(4), floats(5)] } else { [floats(5), floats(4)] };
        world.all_reduce_list(&list, &list, Operator::Sum)
    });
    disagree(&["broadcast_list of 2 tensors with 200004 elements", "broadcast_list of 1 tensors with 100 elements"], {
        |world| match world.rank().0 {
            2 => world.broadcast_list(&[floats(100)], Rank(0)),
            _ => world.broadcast_list(&[floats(4), floats(200_000)], Rank(0)),
        }
    });
    disagree(&["all_gather_list of 0 tensors", "all_gather f32[4]"], |world| match world.rank().0 {
        0 => world.all_gather(&floats(4), &floats(12)),
        _ => world.all_gather_list(&[], &[]),
    });
    disagree(&["all_reduce_list sum of 1 tensors with 4 elements", "all_reduce sum f32[4]"], |world| {
        let tensor = floats(4);
        match world.rank().0 {
            0 => world.all_reduce(&tensor, &tensor, Operator::Sum),
            _ => world.all_reduce_list(from_ref(&tensor), from_ref(&tensor), Operator::Sum),
        }
    });
}

#[test]
fn wrong_lists_are_refused_and_nobody_has_entered() {
    together(2, Medium::SharedMemory, |_, world| {
        let (one, two) = (floats(1), floats(2));
        let whole = Tensor::from_slice(&[1_i32], [1]).expect("memory");
        let twice = [one.clone(), one.clone()];
        for work in [
            world.all_reduce_list(from_ref(&one), &[], Operator::Sum),
            world.all_reduce_list(from_ref(&one), from_ref(&two), Operator::Sum),
            world.all_reduce_list(from_ref(&one), from_ref(&whole), Operator::Sum),
            world.all_reduce_list(&twice, &twice, Operator::Sum),
            world.all_reduce_list(&[two.clone(), whole.clone()], &[two.clone(), whole.clone()], Operator::Avg),
            world.all_gather_list(from_ref(&two), from_ref(&one)),
            world.reduce_scatter_list(from_ref(&one), from_ref(&two), Operator::Sum),
            world.broadcast_list(&twice, Rank(1 - world.rank().0)),
            world.broadcast_list(&[], Rank(2)),
            world.all_reduce_devices(&[], Operator::Sum),
            world.all_reduce_devices(&twice, Operator::Sum),
            world.all_reduce_devices(&[one.clone(), two.clone()], Operator::Sum),
            world.reduce_devices(&twice, (world.rank().0 == 1).then_some(&one), Operator::Sum, Rank(0)),
            world.all_gather_devices(from_ref(&one), from_ref(&one)),
        ] {
            let error = wait(&work).expect_err("it is wrong");
            assert!(matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::Unsupported), "{error}");
        }
        let many = vec![floats(0); usize::from(u16::MAX) + 1];
        let error = wait(&world.all_reduce_list(&many, &many, Operator::Sum)).expect_err("they are too many");
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        wait(&world.all_reduce_list(&twice, &[floats(1), floats(1)], Operator::Sum)).expect("nobody has entered");
    });
}

#[test]
fn a_list_of_small_tensors_takes_as_many_messages_as_one_tensor() {
    let quiet = Arc::new(Barrier::new(4));
    // Signs of life are messages too.
    let seldom = |_, config: &mut Config| {
        config.node.liveness.timeout = Duration::from_secs(600);
        config.node.liveness.beat = Duration::from_secs(120);
    };
    together_with(
        4,
        Medium::SharedMemory,
        seldom,
        |_| Table::default(),
        move |mesh, world| {
            let list: Vec<_> = (0..500).map(|_| floats(1000)).collect();
            let whole = floats(500_000);
            let mut counts = Vec::new();
            for act in [&(|| world.all_reduce(&whole, &whole, Operator::Sum)) as &dyn Fn() -> Work<()>, &|| {
                world.all_reduce_list(&list, &list, Operator::Sum)
            }] {
                // The first time makes links.
                for _ in 0..2 {
                    wait(&world.barrier()).expect("all come");
                    quiet.wait();
                    let before = mesh.node().counts().messages_sent;
                    quiet.wait();
                    wait(&act()).expect("all come");
                    quiet.wait();
                    counts.push(mesh.node().counts().messages_sent - before);
                    quiet.wait();
                }
            }
            assert_eq!(counts[1], counts[3]);
        },
    );
}

#[test]
fn lists_and_single_operations_are_in_flight_together() {
    for medium in MEDIA {
        together(3, medium, |_, world| {
            let lists: Vec<Vec<_>> = (0..12).map(|at| vec![floats(10), floats(30_000), floats(at * 11)]).collect();
            let single: Vec<_> = (0..12).map(|at| floats(1 + at * 3000)).collect();
            let works: Vec<_> = lists
                .iter()
                .zip(&single)
                .flat_map(|(list, one)| {
                    [
                        world.all_reduce_list(list, list, Operator::Sum),
                        world.all_reduce(one, one, Operator::Sum),
                        world.barrier(),
                    ]
                })
                .collect();
            works.iter().rev().for_each(|work| wait(work).expect("all come"));
            for tensor in lists.iter().flatten().chain(&single) {
                assert!(tensor.to_vec::<f32>().expect("free").iter().all(|value| *value == 3.0));
            }
        });
    }
}

/// What the tensor on one device of a rank holds.
fn replica(dtype: Dtype, rank: u32, device: usize, count: usize) -> Vec<f64> {
    numbers(dtype, rank * 10 + device as u32, count, 77)
}

fn devices(world: &Communicator, arena: &Arena, dtype: Dtype, count: usize, on: impl Fn(u32) -> usize) {
    let (rank, size) = (world.rank().0, world.size());
    let own = || -> Vec<Tensor> {
        let tensor = |device: usize| {
            let tensor = Memory::Mixed.filled(arena, device as u32, dtype, &replica(dtype, rank, device, count));
            tensor.on(Device::Cpu(device as u32))
        };
        (0..on(rank)).map(tensor).collect()
    };
    let all: Vec<_> = (0..size).flat_map(|rank| (0..on(rank)).map(move |at| replica(dtype, rank, at, count))).collect();
    let are_as_many = (0..size).all(|rank| on(rank) == on(0));
    for operator in [Operator::Sum, Operator::Min, Operator::Avg] {
        if operator.require(dtype).is_err() || (operator == Operator::Avg && !are_as_many) {
            continue;
        }
        let expected = reduced(dtype, operator, &all);
        let tensors = own();
        wait(&world.all_reduce_devices(&tensors, operator)).expect("all_reduce_devices");
        check("all_reduce_devices", &tensors, &vec![expected.clone(); tensors.len()]);

        let inputs = own();
        let output = Memory::Arena.tensor(arena, 0, dtype, count);
        let root = size / 2;
        let given = (rank == root).then_some(&output);
        wait(&world.reduce_devices(&inputs, given, operator, Rank(root))).expect("reduce_devices");
        if rank == root {
            check("reduce_devices", &[output], &[expected]);
        }
        let untouched: Vec<_> = (0..on(rank)).map(|device| replica(dtype, rank, device, count)).collect();
        check("the inputs of reduce_devices", &inputs, &untouched);
    }
    for root in [0, size - 1] {
        let tensors = own();
        wait(&world.broadcast_devices(&tensors, Rank(root))).expect("broadcast_devices");
        check("broadcast_devices", &tensors, &vec![replica(dtype, root, 0, count); tensors.len()]);
    }
    if are_as_many {
        let outputs: Vec<_> =
            (0..2).map(|at| Memory::Mixed.tensor(arena, at, dtype, count * size as usize * on(0))).collect();
        wait(&world.all_gather_devices(&own(), &outputs)).expect("all_gather_devices");
        check("all_gather_devices", &outputs, &vec![all.concat(); 2]);
    }
}

#[test]
fn tensors_on_several_devices_are_one_operation() {
    for (ranks, medium) in GROUPS {
        together(ranks, medium, |mesh, world| {
            for (dtype, count) in [(Dtype::F32, 0), (Dtype::F32, 5), (Dtype::Bf16, 70_003), (Dtype::I32, 40_000)] {
                devices(world, mesh.node().arena(), dtype, count, |_| 1);
                devices(world, mesh.node().arena(), dtype, count, |_| 3);
                devices(world, mesh.node().arena(), dtype, count, |rank| 1 + rank as usize % 3);
            }
        });
    }
}

#[test]
fn halves_on_several_devices_are_accumulated_in_single_precision() {
    together(2, Medium::SharedMemory, |_, world| {
        let half = |value: f32| Tensor::from_slice(&[half::f16::from_f32(value); 3], [3]).expect("memory");
        let tensors = if world.rank().0 == 0 { [half(2048.0), half(1.0)] } else { [half(1.0), half(1.0)] };
        wait(&world.all_reduce_devices(&tensors, Operator::Sum)).expect("both come");
        for tensor in tensors {
            // 2051 lies between two halves: it is rounded to the even one, once.
            assert!(tensor.to_vec::<half::f16>().expect("free").iter().all(|sum| sum.to_f32() == 2052.0));
        }
    });
}

#[test]
fn other_numbers_of_devices_are_told_to_all_where_they_matter() {
    let own = |world: &Communicator| vec![0; 2 + world.rank().0 as usize % 2].into_iter().map(|_| floats(4));
    let words = ["all_reduce_devices avg f32[4] on 2 devices", "all_reduce_devices avg f32[4] on 3 devices"];
    disagree(&words, move |world| world.all_reduce_devices(&own(world).collect::<Vec<_>>(), Operator::Avg));
    let words = ["all_gather_devices f32[4] on 2 devices", "all_gather_devices f32[4] on 3 devices"];
    disagree(&words, move |world| {
        let inputs: Vec<_> = own(world).collect();
        world.all_gather_devices(&inputs, &[floats(3 * 4 * inputs.len())])
    });
    disagree(&["broadcast_devices f32[4]", "broadcast_devices f32[5]"], |world| {
        world.broadcast_devices(&[floats(if world.rank().0 == 1 { 5 } else { 4 })], Rank(0))
    });
}
