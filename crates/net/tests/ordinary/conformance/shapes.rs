//! Messages of every shape.

use super::content::{anywhere, check, message, message_of, only, private, wanted};
use super::pairs::{Pair, Pairs};
use super::watch::soon;
use sheave_base::{ErrorKind, Tag, limits};
use sheave_net::{Envelope, Outgoing};
use sheave_tensor::{Dtype, Mode, Tensor};

pub(crate) fn no_elements_and_no_dimensions(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    let shapes: [&[u64]; 3] = [&[0], &[3, 0, 2], &[]];
    for mode in [Mode::Copy, Mode::Move] {
        for (tag, dimensions) in shapes.iter().enumerate() {
            let mut tensor = Tensor::private(Dtype::F64, sheave_tensor::Shape::new(dimensions).unwrap()).unwrap();
            tensor.as_mut_slice::<f64>().unwrap().fill(-0.5);
            left.send(to_right, message(tag as u64, tensor, mode), soon(), None).unwrap();
            let got = right.recv(wanted(Some(to_left), tag as u64), anywhere(), soon(), None).unwrap();
            let tensor = only(&got);
            assert_eq!((tensor.shape().dimensions(), tensor.dtype()), (*dimensions, Dtype::F64));
            assert!(tensor.to_vec::<f64>().unwrap().iter().all(|value| *value == -0.5));
            assert_eq!(tensor.elements(), usize::from(dimensions.is_empty()));
        }
    }
}

pub(crate) fn every_dtype_keeps_its_size(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    for elements in [1, 3, 33, 40_000] {
        let filled = |(seed, dtype): (usize, &Dtype)| {
            let bytes = private(elements * dtype.size_bytes(), seed as u64).into_buffer();
            Tensor::from_buffer(bytes, 0, *dtype, [elements as u64]).unwrap()
        };
        left.send(to_right, message_of(1, Dtype::ALL.iter().enumerate().map(filled), Vec::new()), soon(), None)
            .unwrap();
        let got = right.recv(wanted(Some(to_left), 1), anywhere(), soon(), None).unwrap();
        assert_eq!(got.parts.len(), Dtype::ALL.len());
        for (seed, (dtype, part)) in Dtype::ALL.iter().zip(&got.parts).enumerate() {
            assert_eq!((part.dtype(), part.shape().dimensions()), (*dtype, &[elements as u64][..]));
            check(part, elements * dtype.size_bytes(), seed as u64);
            assert_eq!(part.buffer().len_bytes() / elements, dtype.size_bytes(), "no more memory than its elements");
        }
    }
}

fn control(length_bytes: usize) -> Vec<u8> {
    (0..length_bytes).map(|at| (at * 31 + at / 256) as u8).collect()
}

pub(crate) fn control_alone_and_beside_a_tensor(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    for length_bytes in [0, 1, 100, 2047, 2048, 4096, 4097, 100_000, 1 << 20] {
        for tensors in [0, 1] {
            let tensor = (0..tensors).map(|_| private(length_bytes / 2, 5));
            left.send(to_right, message_of(1, tensor, control(length_bytes)), soon(), None).unwrap();
            let got = right.recv(wanted(Some(to_left), 1), anywhere(), soon(), None).unwrap();
            assert!(got.control == control(length_bytes), "control of {length_bytes} bytes");
            assert_eq!(got.parts.len(), tensors);
            got.parts.iter().for_each(|part| check(part, length_bytes / 2, 5));
        }
    }
}

pub(crate) fn up_to_three_hundred_parts(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    let length = |part: usize, scale: usize| part * 37 % 50 * scale;
    let exchange = |parts: usize, scale: usize| {
        let tensors = (0..parts).map(|part| private(length(part, scale), part as u64));
        left.send(to_right, message_of(9, tensors, vec![parts as u8]), soon(), None).unwrap();
        let got = right.recv(wanted(Some(to_left), 9), anywhere(), soon(), None).unwrap();
        assert_eq!((got.parts.len(), got.control), (parts, vec![parts as u8]));
        for (part, tensor) in got.parts.iter().enumerate() {
            check(tensor, length(part, scale), part as u64);
        }
    };
    (0..=300).for_each(|parts| exchange(parts, 1));
    exchange(300, 100);
    exchange(50, 20_000);
}

pub(crate) fn beyond_the_limits_nothing_is_sent(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    let envelope = Envelope::data(0, Tag(1));
    let control = Outgoing::control(envelope, vec![0; limits::CONTROL_BYTES_MAX + 1]);
    let parts = message_of(1, (0..=limits::PARTS_MAX).map(|_| private(1, 0)), Vec::new());
    for outgoing in [control, parts] {
        let error = left.send(to_right, outgoing, soon(), None).expect_err("beyond a limit");
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    }
    left.send(to_right, message(1, private(10, 4), Mode::Copy), soon(), None).unwrap();
    let got = right.recv(wanted(Some(to_left), 1), anywhere(), soon(), None).unwrap();
    check(only(&got), 10, 4);
}
