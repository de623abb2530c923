//! Sums of any numbers of gradients in any order of pushes, flushes and losses, against sums made one by one.

use super::*;
use crate::Tensors;
use proptest::prelude::*;
use sheave_base::clock::Time;
use sheave_tensor::{ArenaConfig, Tensor};

fn arena() -> Arena {
    Arena::new(ArenaConfig::default())
}

fn settings(batch: usize, queue_max: usize, overflow: Overflow) -> Settings {
    Settings { batch, queue_max, overflow, ..Settings::default() }
}

fn id(number: u64) -> GradientId {
    GradientId { node: NodeId(7), client: 0, number }
}

fn gradient(values: &[f32]) -> Tensors {
    let doubles: Vec<f64> = values.iter().map(|value| f64::from(*value) / 3.0).collect();
    let single = Tensor::from_slice(values, [values.len() as u64]).unwrap();
    let double = Tensor::from_slice(&doubles, [values.len() as u64]).unwrap();
    Tensors::from([("single".to_owned(), single), ("double".to_owned(), double)])
}

fn contribution(number: u64, values: &[f32], arena: &Arena) -> Contribution {
    let gradient = gradient(values);
    Contribution::new(&Model::of(&gradient).unwrap(), id(number), &gradient, arena).unwrap()
}

fn numbers(contributions: &[Contribution]) -> Vec<u64> {
    contributions.iter().flat_map(|part| part.ids.iter().map(|id| id.number)).collect()
}

#[test]
fn settings_without_a_meaning_are_named() {
    let wrong = |settings: Settings| settings.check().unwrap_err().what().to_owned();
    assert_eq!(wrong(settings(0, 4, Overflow::PushBack)), "a batch of 0; expected 1 to 4096");
    assert_eq!(wrong(settings(4, 4, Overflow::PushBack)), "a queue_max of 4; expected 5 to 65536");
    let never = Settings { flush_after: Some(Duration::ZERO), ..Settings::default() };
    assert_eq!(wrong(never), "a flush_after of 0; expected more, or none");
    Settings::default().check().unwrap();
}

#[test]
fn who_pushes_waits_for_room() {
    let arena = arena();
    let mut reducer = Reducer::new(settings(2, 3, Overflow::PushBack)).unwrap();
    for number in 1..=3 {
        assert!(matches!(reducer.push(contribution(number, &[1.0], &arena), number, Time(number)), Pushed::Taken(..)));
    }
    for number in 4..=6 {
        assert!(matches!(reducer.push(contribution(number, &[1.0], &arena), number, Time(9)), Pushed::Waits));
    }
    assert_eq!((reducer.len(), reducer.waiting(), reducer.oldest()), (3, 3, Some(Time(1))));
    assert_eq!(numbers(&reducer.take(false).unwrap()), [1, 2]);
    // The fifth is not wanted any more.
    let (admitted, forgotten) = reducer.admit(Time(10), |waiter| *waiter != 5);
    assert_eq!((admitted, forgotten), (vec![4, 6], vec![id(5)]));
    assert_eq!(numbers(&reducer.take(false).unwrap()), [3, 4]);
    assert!(reducer.take(false).is_none());
    assert_eq!(numbers(&reducer.take(true).unwrap()), [6]);
    assert!(reducer.take(true).is_none() && reducer.is_empty());
    assert_eq!((reducer.taken(), reducer.gone()), (5, 5));
}

#[test]
fn the_oldest_is_dropped_and_named() {
    let arena = arena();
    let mut reducer = Reducer::new(settings(1, 2, Overflow::DropOldest)).unwrap();
    let mut push = |number| match reducer.push(contribution(number, &[1.0], &arena), (), Time(number)) {
        Pushed::Taken((), dropped) => dropped.iter().map(|id| id.number).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!([1, 2, 3, 4].map(&mut push), [vec![], vec![], vec![1], vec![2]]);
    let left = reducer.clear();
    assert_eq!((left.queued, left.waited.len(), left.waiters.len()), (vec![id(3), id(4)], 0, 0));
    assert_eq!((reducer.taken(), reducer.gone()), (4, 4));
}

#[test]
fn those_that_wait_are_bounded() {
    let arena = arena();
    let mut reducer = Reducer::new(settings(1, 2, Overflow::PushBack)).unwrap();
    let mut push = |number| reducer.push(contribution(number, &[1.0], &arena), (), Time(0));
    let most = limits::LEARNER_WAITING_MAX as u64 + 2;
    (0..most).for_each(|number| assert!(!matches!(push(number), Pushed::Refused(..))));
    let Pushed::Refused((), error) = push(most) else { panic!("there is no room") };
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    let left = reducer.clear();
    assert_eq!((left.queued.len(), left.waited.len()), (2, limits::LEARNER_WAITING_MAX));
}

#[test]
fn sums_of_different_models_are_refused() {
    let arena = arena();
    let error = |parts| sum(parts, &arena).unwrap_err().kind();
    assert_eq!(error(vec![]), ErrorKind::InvalidArgument);
    let mixed = vec![contribution(1, &[1.0], &arena), contribution(2, &[1.0, 2.0], &arena)];
    assert_eq!(error(mixed), ErrorKind::Mismatch);
}

#[test]
fn sums_longer_than_a_block_are_right() {
    let arena = arena();
    let elements = BLOCK_BYTES / 4 * 2 + 37;
    let values = |factor: f32| (0..elements).map(|at| at as f32 * factor).collect::<Vec<_>>();
    let parts = (1..=5_u8).map(|number| contribution(number.into(), &values(number.into()), &arena)).collect();
    let model = Model::of(&gradient(&values(1.0))).unwrap();
    let total = sum(parts, &arena).unwrap();
    let tensors = total.tensors(&model).unwrap();
    let mut expected = values(1.0);
    for number in 2..=5_u8 {
        expected.iter_mut().zip(values(number.into())).for_each(|(sum, value)| *sum += value);
    }
    assert_eq!(tensors["single"].to_vec::<f32>().unwrap(), expected);
}

#[derive(Clone, Debug)]
enum Event {
    Push(Vec<f32>),
    Take(bool),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => proptest::collection::vec(-1e6_f32..1e6, 3).prop_map(Event::Push),
        1 => any::<bool>().prop_map(Event::Take),
    ]
}

proptest! {
    /// Whatever comes and whenever it is taken: each gradient is in one sum, or was dropped, and sums of sums are the
    /// mean that one would have made of all.
    #[test]
    fn each_gradient_is_in_one_sum(
        events in proptest::collection::vec(event(), 1..60),
        batch in 1_usize..5,
        more in 1_usize..4,
        drops in any::<bool>(),
    ) {
        let (arena, overflow) = (arena(), if drops { Overflow::DropOldest } else { Overflow::PushBack });
        let mut reducer = Reducer::new(settings(batch, batch + more, overflow)).unwrap();
        let model = Model::of(&gradient(&[0.0; 3])).unwrap();
        let (mut pushed, mut dropped, mut sums): (Vec<Vec<f32>>, Vec<u64>, Vec<Contribution>) = Default::default();
        let finish = [Event::Take(true)].into_iter().cycle().take(60);
        for event in events.into_iter().chain(finish) {
            // In the way that needs no count of them.
            let queued = reducer.queue.iter().map(|(one, _)| one).chain(reducer.waiting.iter().map(|(one, ())| one));
            let there: Vec<u64> = queued.flat_map(|one| one.ids.iter().map(|id| id.number)).collect();
            prop_assert!((0..pushed.len() as u64 + 1).all(|number| reducer.has(id(number)) == there.contains(&number)));
            prop_assert_eq!(reducer.kept.len(), there.len());
            match event {
                Event::Push(values) => {
                    let number = pushed.len() as u64;
                    let came = reducer.push(contribution(number, &values, &arena), (), Time(0));
                    pushed.push(values);
                    match came {
                        Pushed::Taken((), gone) => dropped.extend(gone.iter().map(|id| id.number)),
                        Pushed::Waits => prop_assert!(!drops),
                        Pushed::Refused((), error) => panic!("{error}"),
                    }
                    prop_assert!(reducer.len() <= batch + more);
                }
                Event::Take(partial) => {
                    if let Some(taken) = reducer.take(partial) {
                        prop_assert!(taken.len() == batch || partial && taken.len() < batch);
                        sums.push(sum(taken, &arena).unwrap());
                    }
                    reducer.admit(Time(0), |()| true);
                }
            }
        }
        let mut seen: Vec<u64> = numbers(&sums).into_iter().chain(dropped.iter().copied()).collect();
        seen.sort_unstable();
        prop_assert_eq!(&seen, &(0..pushed.len() as u64).collect::<Vec<_>>());
        for total in &sums {
            // In the order of arrival, each addition rounded on its own.
            let values = total.ids.iter().map(|id| &pushed[id.number as usize]);
            let naive = values.cloned().reduce(|sum, next| sum.iter().zip(next).map(|(a, b)| a + b).collect());
            let got = total.tensors(&model).unwrap()["single"].to_vec::<f32>().unwrap();
            prop_assert_eq!(got, naive.unwrap());
        }
        if !sums.is_empty() {
            let total = sum(sums, &arena).unwrap();
            let ids = total.ids.clone();
            let mean = total.into_mean(&arena).unwrap().tensors(&model).unwrap()["double"].to_vec::<f64>().unwrap();
            for (at, mean) in mean.into_iter().enumerate() {
                let all = ids.iter().map(|id| f64::from(pushed[id.number as usize][at]) / 3.0);
                let expected = all.sum::<f64>() / ids.len() as f64;
                prop_assert!((mean - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{mean} is not {expected}");
            }
        }
    }
}
