use super::*;
use ::half::{bf16, f16};
use proptest::prelude::*;
use std::hint::black_box;
use std::time::Instant;

fn two(threshold: f32) -> Compression {
    Compression::TwoBit { threshold }
}

fn one(threshold: f32) -> Compression {
    Compression::OneBit { threshold }
}

fn encoded(codec: Compression, gradient: &[f32], residual: &mut [f32]) -> Vec<u8> {
    let mut bytes = vec![0xa5; codec.encoded_len_bytes(gradient.len())];
    codec.encode(gradient, residual, &mut bytes).unwrap();
    bytes
}

fn decoded(codec: Compression, bytes: &[u8], elements: usize) -> Vec<f32> {
    let mut values = vec![f32::NAN; elements];
    codec.decode_into(bytes, &mut values).unwrap();
    values
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// One value after the other, as the table of the module says: the codes, and what each of them means.
fn oracle(codec: Compression, gradient: &[f32], residual: &mut [f32]) -> (Vec<u8>, Vec<f32>) {
    let mut bytes = vec![0; codec.encoded_len_bytes(gradient.len())];
    let mut values = Vec::new();
    for (index, (gradient, residual)) in gradient.iter().zip(residual).enumerate() {
        *residual += gradient;
        match codec {
            Compression::TwoBit { threshold } => {
                let code = if *residual >= threshold {
                    *residual -= threshold;
                    values.push(threshold);
                    0b11
                } else if *residual <= -threshold {
                    *residual += threshold;
                    values.push(-threshold);
                    0b10
                } else {
                    values.push(0.0);
                    0b00
                };
                bytes[index / 4] |= code << [6, 4, 2, 0][index % 4];
            }
            Compression::OneBit { threshold } => {
                let is_up = *residual > threshold;
                *residual += if is_up { -1.0 } else { 1.0 };
                values.push(if is_up { 1.0 } else { -1.0 });
                bytes[index / 8] |= if is_up { 0x80 >> (index % 8) } else { 0 };
            }
            _ => unreachable!("the oracle of codecs with a threshold"),
        }
    }
    (bytes, values)
}

#[test]
fn bytes_are_laid_out_as_specified() {
    // +, −, 0, + | 0, 0, −, − | + in the first word, and a last one that is nearly empty.
    let mut gradient = vec![0.5, -0.5, 0.0, 0.5, 0.0, 0.0, -0.5, -0.5, 0.5];
    gradient.resize(17, 0.0);
    gradient[16] = -0.5;
    let bytes = encoded(two(0.5), &gradient, &mut [0.0; 17]);
    assert_eq!(bytes, [0b11_10_00_11, 0b00_00_10_10, 0b11_00_00_00, 0, 0b10_00_00_00, 0, 0, 0]);
    let mut gradient = vec![1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0];
    gradient.resize(33, 0.0);
    gradient[32] = 1.0;
    let bytes = encoded(one(0.5), &gradient, &mut [0.0; 33]);
    assert_eq!(bytes, [0x81, 0x40, 0, 0, 0x80, 0, 0, 0]);
    // A threshold below 0 makes zeros +1, and no padding.
    assert_eq!(encoded(one(-0.5), &[0.0; 3], &mut [0.0; 3]), [0xe0, 0, 0, 0]);
    assert_eq!(encoded(Compression::Fp16, &[1.0, -2.0], &mut []), [0x00, 0x3c, 0x00, 0xc0]);
    assert_eq!(encoded(Compression::Bf16, &[1.0, -2.0], &mut []), [0x80, 0x3f, 0x00, 0xc0]);
    assert_eq!(encoded(Compression::None, &[1.0], &mut []), [0, 0, 0x80, 0x3f]);
    let lengths = |codec: Compression| [0, 1, 16, 17, 32, 33].map(|elements| codec.encoded_len_bytes(elements));
    assert_eq!(lengths(two(0.5)), [0, 4, 4, 8, 8, 12]);
    assert_eq!(lengths(one(0.5)), [0, 4, 4, 4, 4, 8]);
}

/// What MXNet 1.9.1 answered to four equal pushes to a `device` store and two of zeros: +, − or 0 times the threshold.
#[test]
fn two_bits_decode_as_those_of_mxnet() {
    const GRADIENT: [f32; 19] = [
        0.5,
        -0.5,
        0.25,
        -0.25,
        0.499_999_97,
        -0.499_999_97,
        0.500_000_06,
        -0.500_000_06,
        1e-45,
        -1e-45,
        0.0,
        -0.0,
        1.75,
        -1.75,
        0.3,
        -0.3,
        0.1,
        -0.1,
        7e-39,
    ];
    const ANSWERS: [&str; 6] = [
        "+-0000+-0000+-00000",
        "+-+-+-+-0000+-+-000",
        "+-00+-+-0000+-00000",
        "+-+-+-+-0000+-+-000",
        "000000000000+-00000",
        "000000000000+-00000",
    ];
    let mut residual = [0.0; 19];
    for (push, answer) in ANSWERS.iter().enumerate() {
        let gradient = if push < 4 { GRADIENT } else { [0.0; 19] };
        let bytes = encoded(two(0.5), &gradient, &mut residual);
        assert_eq!(signs(&decoded(two(0.5), &bytes, 19), 0.5), *answer, "push {push}");
    }
}

/// As above with a threshold that is no power of two, and −0.8 to 0.8 in steps of a tenth.
#[test]
fn roundings_are_those_of_mxnet() {
    const ANSWERS: [&str; 5] =
        ["------00000++++++", "-------000+++++++", "--------0++++++++", "------00000++++++", "-------000+++++++"];
    let gradient: Vec<f32> = (0..17).map(|step| (0.1 * f64::from(step - 8)) as f32).collect();
    let mut residual = [0.0; 17];
    for answer in ANSWERS {
        let bytes = encoded(two(0.3), &gradient, &mut residual);
        assert_eq!(signs(&decoded(two(0.3), &bytes, 17), 0.3), answer);
    }
    // Two workers with a residual each: MXNet answered 0.5, 1.0 and 0.5.
    let (mut residuals, mut sums) = ([[0.0f32]; 2], Vec::new());
    for _ in 0..3 {
        let mut sum = [0.0];
        for (gradient, residual) in [[0.3f32], [0.6]].iter().zip(&mut residuals) {
            two(0.5).add_into(&encoded(two(0.5), gradient, residual), &mut sum).unwrap();
        }
        sums.push(sum[0]);
    }
    assert_eq!(sums, [0.5, 1.0, 0.5]);
}

fn signs(values: &[f32], threshold: f32) -> String {
    let sign = |value: &f32| match value.to_bits() {
        0 => '0',
        bits if bits == threshold.to_bits() => '+',
        bits if bits == (-threshold).to_bits() => '-',
        _ => '?',
    };
    values.iter().map(sign).collect()
}

fn gradients() -> impl Strategy<Value = Vec<f32>> {
    let value =
        prop_oneof![8 => -2.0f32..2.0, 1 => any::<f32>(), 1 => prop::sample::select(vec![0.5, -0.5, 0.0, -0.0])];
    prop::collection::vec(value, 0..150)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Codes, values and residuals are the oracle's bits over three pushes, and a sum is decoding and adding.
    #[test]
    fn codes_are_the_oracles(
        pushes in prop::collection::vec(gradients(), 3), threshold in 0.01f32..2.0, is_one in any::<bool>(),
        start in any::<f32>(),
    ) {
        let codec = if is_one { one(threshold - 1.0) } else { two(threshold) };
        let elements = pushes.iter().map(Vec::len).min().unwrap();
        let (mut residual, mut expected_residual) = (vec![0.0; elements], vec![0.0; elements]);
        for gradient in &pushes {
            let gradient = &gradient[..elements];
            let bytes = encoded(codec, gradient, &mut residual);
            let (expected, values) = oracle(codec, gradient, &mut expected_residual);
            prop_assert_eq!(&bytes, &expected);
            prop_assert_eq!(bits(&residual), bits(&expected_residual));
            prop_assert_eq!(bits(&decoded(codec, &bytes, elements)), bits(&values));
            let (mut sum, mut expected) = (vec![start; elements], vec![start; elements]);
            codec.add_into(&bytes, &mut sum).unwrap();
            let le = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
            let mut bytes = le(&expected);
            sheave_tensor::reduce(sheave_tensor::Op::Sum, Dtype::F32, &mut bytes, &le(&values)).unwrap();
            expected.iter_mut().zip(bytes.chunks(4)).for_each(|(to, bytes)| {
                *to = f32::from_le_bytes(bytes.try_into().unwrap());
            });
            prop_assert_eq!(bits(&sum), bits(&expected));
        }
    }

    /// What was sent and what is kept are together what was given. Multiples of 1/64 are exact in all of the sums.
    #[test]
    fn nothing_is_lost(
        steps in prop::collection::vec(prop::collection::vec(-200i16..200, 40), 1..20), is_one in any::<bool>(),
    ) {
        let codec = if is_one { one(0.25) } else { two(0.75) };
        let (mut residual, mut sent, mut given) = ([0.0; 40], [0.0; 40], [0.0; 40]);
        for step in &steps {
            let gradient: Vec<f32> = step.iter().map(|value| f32::from(*value) / 64.0).collect();
            codec.add_into(&encoded(codec, &gradient, &mut residual), &mut sent).unwrap();
            given.iter_mut().zip(&gradient).for_each(|(given, value)| *given += value);
        }
        for lane in 0..40 {
            prop_assert_eq!(sent[lane] + residual[lane], given[lane]);
        }
    }

    /// A tensor in slices decodes to the same as the whole.
    #[test]
    fn slices_are_as_the_whole(gradient in gradients(), at in any::<prop::sample::Index>()) {
        let at = if gradient.is_empty() { 0 } else { at.index(gradient.len()) };
        for codec in [one(0.1), two(0.4), Compression::Fp16, Compression::Bf16, Compression::None] {
            let mut residual = vec![0.125; gradient.len()];
            let whole = encoded(codec, &gradient, &mut residual.clone());
            let whole = decoded(codec, &whole, gradient.len());
            let mut slices = Vec::new();
            for range in [0..at, at..gradient.len()] {
                let bytes = encoded(codec, &gradient[range.clone()], &mut residual[range.clone()]);
                slices.extend(decoded(codec, &bytes, range.len()));
            }
            prop_assert_eq!(bits(&slices), bits(&whole));
        }
    }

    /// Half floats are those of another implementation, one by one.
    #[test]
    fn half_floats_are_the_nearest(patterns in prop::collection::vec(any::<u32>(), 0..600)) {
        let values: Vec<f32> = patterns.into_iter().map(f32::from_bits).collect();
        for (codec, narrow) in [
            (Compression::Fp16, (|value| f16::from_f32_const(value).to_f32_const()) as fn(f32) -> f32),
            (Compression::Bf16, |value| bf16::from_f32_const(value).to_f32_const()),
        ] {
            let got = decoded(codec, &encoded(codec, &values, &mut []), values.len());
            for (value, got) in values.iter().zip(got) {
                let is_same = if value.is_nan() { got.is_nan() } else { got.to_bits() == narrow(*value).to_bits() };
                prop_assert!(is_same, "{value:e} became {got:e}");
            }
        }
    }

    /// Bytes of anybody are read or refused; those that are read are what their values are written as.
    #[test]
    fn foreign_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40), elements in 0usize..200) {
        for codec in [one(0.0), two(0.5)] {
            let mut values = vec![7.0; elements];
            match codec.decode_into(&bytes, &mut values) {
                Err(_) => prop_assert!(values.iter().all(|value| *value == 7.0)),
                // From no residual, values that are ±1 or ±t and 0 are their own codes.
                Ok(()) => prop_assert_eq!(oracle(codec, &values, &mut vec![0.0; elements]).0, bytes.clone()),
            }
        }
    }
}

/// A sum knows one NaN only, whatever was in it before.
#[test]
fn sums_have_the_one_nan() {
    let mut residuals = [0.0f32; 2];
    for codec in NAMES.map(|(_, codec)| codec) {
        let bytes = encoded(codec, &[1.0, 1.0], &mut residuals);
        let mut sum = [f32::from_bits(0xff80_0001), f32::from_bits(0x7fff_ffff)];
        codec.add_into(&bytes, &mut sum).unwrap();
        assert_eq!(bits(&sum), [0x7fc0_0000; 2], "{codec}");
    }
    // A NaN in a gradient says nothing for good.
    let mut residual = [0.0];
    for gradient in [f32::NAN, 9.0] {
        assert_eq!(decoded(two(0.5), &encoded(two(0.5), &[gradient], &mut residual), 1), [0.0]);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let kind = |outcome: Result<()>| outcome.unwrap_err().kind();
    let mut three = [0.0; 3];
    assert_eq!(kind(two(0.5).encode(&[0.0; 3], &mut [0.0; 2], &mut [0; 4])), ErrorKind::Mismatch);
    assert_eq!(kind(two(0.5).encode(&[0.0; 3], &mut three, &mut [0; 8])), ErrorKind::Mismatch);
    assert_eq!(kind(Compression::Bf16.decode_into(&[0; 5], &mut three)), ErrorKind::Mismatch);
    assert_eq!(kind(two(0.5).decode_into(&[0b01_00_00_00, 0, 0, 0], &mut three)), ErrorKind::Protocol);
    assert_eq!(kind(two(0.5).decode_into(&[0b00_00_00_11, 0, 0, 0], &mut three)), ErrorKind::Protocol);
    assert_eq!(kind(one(0.5).decode_into(&[0x10, 0, 0, 0], &mut three)), ErrorKind::Protocol);
    for threshold in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert_eq!(kind(two(threshold).check()), ErrorKind::InvalidArgument);
        assert_eq!(one(threshold).check().is_ok(), threshold.is_finite());
    }
    assert!(Compression::Fp16.with_threshold(0.5).is_err() && two(1.0).with_threshold(-1.0).is_err());
    for (name, codec) in NAMES {
        assert_eq!((Compression::parse(name).unwrap(), codec.to_string().as_str()), (codec, name));
        assert!(codec.check().is_ok() && codec.require(Dtype::F32).is_ok());
        let refused = codec.require(Dtype::F64).err().map(|error| error.kind());
        assert_eq!(refused, (codec != Compression::None).then_some(ErrorKind::Unsupported));
    }
    let error = Compression::parse("3bit").unwrap_err();
    assert!(error.to_string().contains("none, fp16, bf16, 1bit, 2bit"), "{error}");
}

#[test]
#[ignore = "soak suite: prints figures, best with --release"]
fn figures() {
    for elements in [16 << 10, 1 << 20, 16 << 20] {
        let gradient: Vec<f32> = (0..elements as u32)
            .map(|index| (index.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0)
            .collect();
        let (mut residual, mut target) = (vec![0.0f32; elements], vec![0.0f32; elements]);
        for codec in NAMES.map(|(_, codec)| codec) {
            let mut bytes = vec![0; codec.encoded_len_bytes(elements)];
            let rate = |work: &mut dyn FnMut()| {
                work();
                let rounds = (64 << 20) / elements + 1;
                let best = (0..5).map(|_| {
                    let start = Instant::now();
                    (0..rounds).for_each(|_| work());
                    start.elapsed().as_secs_f64() / rounds as f64
                });
                elements as f64 * 4e-9 / best.fold(f64::INFINITY, f64::min)
            };
            let encode = rate(&mut || codec.encode(black_box(&gradient), &mut residual, &mut bytes).unwrap());
            let decode = rate(&mut || codec.decode_into(black_box(&bytes), &mut target).unwrap());
            let add = rate(&mut || codec.add_into(black_box(&bytes), &mut target).unwrap());
            println!("{elements:9} {codec}: encode {encode:.1} decode {decode:.1} add {add:.1} GB/s of f32");
        }
    }
}
