//! The kind `device`: where sums live, in which order they grow, and what travels in fewer bits.

use sheave_base::ErrorKind;
use sheave_store::{Compression, Key, KvStore, Rule, Updater};
use sheave_tensor::{Device, Tensor};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

fn tensor(values: &[f32], device: u32) -> Tensor {
    Tensor::from_slice(values, [values.len() as u64]).expect("it fits").on(Device::Cpu(device))
}

fn pushed(store: &KvStore, pairs: &[(Key, Tensor)]) {
    store.push(pairs).expect("it is local").wait().expect("they are merged");
}

fn pulled(store: &KvStore, key: &str, elements: usize) -> Vec<f32> {
    let place = tensor(&vec![9.0; elements], 0);
    store.pull(&[(key.into(), place.clone())]).expect("it is local").wait().expect("it is there");
    place.to_vec().expect("floats")
}

/// A store whose updater says on which device it saw sum and value of each key.
fn watched() -> (KvStore, Arc<Mutex<HashMap<Key, Device>>>) {
    let store = KvStore::local("device").expect("known");
    let seen = Arc::new(Mutex::new(HashMap::new()));
    let writing = Arc::clone(&seen);
    let function = move |key: &Key, sum: &Tensor, value: &mut Tensor| {
        assert_eq!(sum.device(), value.device(), "the value has moved to the sum");
        writing.lock().expect("nobody panics").insert(key.clone(), sum.device());
        Ok(())
    };
    store.set_updater(Updater::Function(Arc::new(function))).expect("it is local");
    (store, seen)
}

/// Pushes a value of each key from each device.
fn push_from(store: &KvStore, keys: &[(&str, usize)], devices: u32) {
    let of = |key: &str, elements| (0..devices).map(|at| (key.into(), tensor(&vec![1.0; elements], at))).collect();
    let pairs: Vec<(Key, Tensor)> =
        keys.iter().flat_map(|(key, elements)| -> Vec<(Key, Tensor)> { of(key, *elements) }).collect();
    pushed(store, &pairs);
}

fn init(store: &KvStore, keys: &[(&str, usize)]) {
    let pairs: Vec<(Key, Tensor)> =
        keys.iter().map(|(key, elements)| ((*key).into(), tensor(&vec![0.0; *elements], 0))).collect();
    store.init(&pairs).expect("they are new");
}

#[test]
fn the_largest_keys_get_a_home_first_on_the_least_loaded_device() {
    let (store, seen) = watched();
    let keys = [("a", 10), ("b", 70), ("c", 20), ("d", 40), ("e", 40), ("f", 5)];
    init(&store, &keys);
    // A push of one key settles all: frameworks push a parameter at a time.
    push_from(&store, &keys[..1], 3);
    for key in &keys[1..] {
        push_from(&store, &[*key], 3);
    }
    // 70 | 40 | 40, then 20 and 10 where 40 is, and 5 where 50 is.
    let homes = [("b", 0), ("d", 1), ("e", 2), ("c", 1), ("a", 2), ("f", 2)];
    for (key, device) in homes {
        assert_eq!(seen.lock().expect("nobody panics")[&Key::from(key)], Device::Cpu(device), "{key}");
    }
    // A home stays, whoever pushes; what was deleted weighs nothing.
    pushed(&store, &[("b".into(), tensor(&[1.0; 70], 2))]);
    assert_eq!(seen.lock().expect("nobody panics")[&Key::from("b")], Device::Cpu(0));
    store.delete(&["b".into()]).expect("it is there");
    init(&store, &[("g", 1)]);
    push_from(&store, &[("g", 1)], 2);
    assert_eq!(seen.lock().expect("nobody panics")[&Key::from("g")], Device::Cpu(0));
}

#[test]
fn many_keys_are_spread_evenly() {
    let (store, seen) = watched();
    let names: Vec<String> = (0..200).map(|at| format!("k{at}")).collect();
    let keys: Vec<(&str, usize)> = names.iter().enumerate().map(|(at, key)| (&**key, 1 + at * 37 % 501)).collect();
    init(&store, &keys);
    push_from(&store, &keys, 4);
    let mut loads = BTreeMap::new();
    for (key, elements) in &keys {
        *loads.entry(seen.lock().expect("nobody panics")[&Key::from(*key)]).or_insert(0) += elements;
    }
    let (least, most) = (loads.values().min().expect("some"), loads.values().max().expect("some"));
    assert_eq!(loads.len(), 4);
    // Largest first, so that the small ones at the end level what is left.
    assert!(most - least <= most / 1000, "{loads:?}");
}

/// A value whose sums depend on the order in which they grow.
fn value(device: u32, place: u32) -> Vec<f32> {
    (0..1000).map(|at: u32| ((at * 7919 + device * 104_729 + place * 31) % 10_007) as f32 / 1003.0 + 1e-4).collect()
}

fn added(left: &[f32], right: &[f32]) -> Vec<f32> {
    left.iter().zip(right).map(|(left, right)| left + right).collect()
}

#[test]
fn devices_form_a_tree_and_values_of_one_device_a_chain() {
    let store = KvStore::local("local_allreduce_device").expect("known");
    init(&store, &[("w", 1000), ("ballast", 100_000)]);
    // As given: device 3 before device 0, and two values of device 0 with another in between.
    let order = [(3, 0), (0, 0), (4, 0), (2, 0), (0, 1), (1, 0)];
    let pairs: Vec<(Key, Tensor)> =
        order.iter().map(|(device, place)| ("w".into(), tensor(&value(*device, *place), *device))).collect();
    let zero = added(&value(0, 0), &value(0, 1));
    let left = added(&added(&zero, &value(1, 0)), &added(&value(2, 0), &value(3, 0)));
    let expected = added(&left, &value(4, 0));
    let flat = (1..5).fold(zero, |sum, device| added(&sum, &value(device, 0)));
    assert_ne!(expected, flat, "the order is seen");
    pushed(&store, &pairs);
    assert_eq!(pulled(&store, "w", 1000), expected);
    assert_eq!(pairs[1].1.to_vec::<f32>().expect("floats"), value(0, 0), "what was given is as it was");
    // The same bits when the sum lives elsewhere.
    let other = KvStore::local("device").expect("known");
    init(&other, &[("w", 1000)]);
    pushed(&other, &pairs);
    assert_eq!(pulled(&other, "w", 1000), expected);
}

#[test]
fn one_device_gives_the_bits_of_the_local_store() {
    let pairs: Vec<(Key, Tensor)> = (0..5).map(|place| ("w".into(), tensor(&value(0, place), 0))).collect();
    let of = |kind: &str| {
        let store = KvStore::local(kind).expect("known");
        init(&store, &[("w", 1000)]);
        store.set_optimizer(Rule::adam(0.01)).expect("it is local");
        (0..3).for_each(|_| pushed(&store, &pairs));
        pulled(&store, "w", 1000)
    };
    assert_eq!(of("device"), of("local"));
}

#[test]
fn every_source_has_a_residual_of_its_own() {
    let two = Compression::parse("2bit").expect("known");
    // From two devices, and twice from one: the figures of MXNet 1.9.1.
    for devices in [[0, 1], [0, 0]] {
        let store = KvStore::local("device").expect("known");
        store.set_gradient_compression(two).expect("it is for this kind");
        init(&store, &[("w", 1), ("other", 1)]);
        for expected in [0.5, 1.0] {
            let sources = [(0.3, devices[0]), (0.6, devices[1])];
            let pairs = sources.map(|(value, device)| ("w".into(), tensor(&[value], device)));
            pushed(&store, &pairs);
            assert_eq!(pulled(&store, "w", 1), [expected]);
            // Another key has its own.
            pushed(&store, &[("other".into(), tensor(&[0.3], devices[0]))]);
        }
        assert_eq!(pulled(&store, "other", 1), [0.5]);
        // 0.1 and 0.2 are left of "w", but another code begins with nothing.
        store.set_gradient_compression(two.with_threshold(0.4).expect("it has a meaning")).expect("as before");
        pushed(&store, &[("w".into(), tensor(&[0.35], devices[0])), ("w".into(), tensor(&[0.3], devices[1]))]);
        assert_eq!(pulled(&store, "w", 1), [0.0]);
    }
}

#[test]
fn compression_is_for_floats_and_not_for_the_kind_local() {
    let two = Compression::parse("2bit").expect("known");
    let refused = KvStore::local("local").expect("known").set_gradient_compression(two).expect_err("nothing travels");
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let store = KvStore::local("device").expect("known");
    let refused = store.set_gradient_compression(Compression::TwoBit { threshold: -1.0 }).expect_err("no meaning");
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    store.set_gradient_compression(two).expect("it is for this kind");
    // First values and other dtypes stay as they are.
    let number = |value: i64| Tensor::from_slice(&[value], [1]).expect("it fits");
    store.init(&[("n".into(), number(0)), ("w".into(), tensor(&[0.3], 0))]).expect("they are new");
    assert_eq!(pulled(&store, "w", 1), [0.3]);
    pushed(&store, &[("n".into(), number(3)), ("n".into(), number(4).on(Device::Cpu(1)))]);
    let place = number(0);
    store.pull(&[("n".into(), place.clone())]).expect("it is local").wait().expect("it is there");
    assert_eq!(place.to_vec::<i64>().expect("numbers"), [7]);
}

#[test]
fn a_push_that_is_refused_is_left_over_by_no_code() {
    let store = KvStore::local("device").expect("known");
    store.set_gradient_compression(Compression::TwoBit { threshold: 0.5 }).expect("it has a meaning");
    store.set_updater(Updater::Sum).expect("it is local");
    init(&store, &[("w", 3), ("v", 3)]);
    let flags = || {
        let bytes = Tensor::from_slice(&[1u8; 3], [3]).expect("it fits");
        Tensor::from_buffer(bytes.into_buffer(), 0, sheave_tensor::Dtype::Bool, [3]).expect("it fits")
    };
    store.init(&[("flags".into(), flags())]).expect("it is new");
    for expected in [0.0, 0.5, 0.5, 1.0] {
        let value = || Key::from("w");
        let refused =
            |pairs: &[(Key, Tensor)]| store.push(pairs).and_then(|work| work.wait()).expect_err("in vain").kind();
        // Nobody sums these.
        let pairs = [(value(), tensor(&[0.3; 3], 0)), ("flags".into(), flags()), ("flags".into(), flags())];
        assert_eq!(refused(&pairs), ErrorKind::Unsupported);
        let other = tensor(&[1.0; 3], 0);
        let written = other.write_lease("test").expect("nobody else has it");
        let pairs = [(value(), tensor(&[0.3; 3], 0)), ("v".into(), other.clone())];
        assert_eq!(refused(&pairs), ErrorKind::BufferInUse);
        drop(written);
        pushed(&store, &[(value(), tensor(&[0.3; 3], 0))]);
        assert_eq!(pulled(&store, "w", 3), [expected; 3]);
    }
}
