//! Functions that the standard library does not promise the same bits of on every machine. These are made of `+`, `-`,
//! `*`, `/` and `sqrt` alone, which IEEE 754 rounds correctly, in one order.

/// `base` to a whole power, by squaring.
pub(crate) fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut product = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    product
}

/// `base`, from 0 to 1, to a power of 0 or more: each binary digit of the exponent behind the point stands for a square
/// root of a square root. At most 52 roots are multiplied, so the relative error is below 1e-13.
pub(crate) fn fractional_power(base: f64, exponent: f64) -> f64 {
    let mut product = power(base, exponent as u64);
    let (mut root, mut rest) = (base, exponent.fract());
    while rest > 0.0 {
        root = root.sqrt();
        rest *= 2.0;
        if rest >= 1.0 {
            product *= root;
            rest -= 1.0;
        }
    }
    product
}

/// `(1 + cos(pi * share)) / 2` for a share from 0 to 1: half a wave from 1 down to 0.
///
/// That is `cos²(x)` with `x = pi * share / 2`, so `1 - sin²(x)` in its first half and the mirror image in its second.
/// There `x` is below pi / 4, and the Taylor series of the sine to `x^17` leaves out less than 1e-19.
pub(crate) fn half_wave(share: f64) -> f64 {
    if share > 0.5 { sine_squared(1.0 - share) } else { 1.0 - sine_squared(share) }
}

/// `sin²(pi * share / 2)` for a share from 0 to a half.
fn sine_squared(share: f64) -> f64 {
    let angle = std::f64::consts::FRAC_PI_2 * share;
    let square = angle * angle;
    let mut series = 1.0;
    // By Horner: sin x = x (1 - x²/(2·3) (1 - x²/(4·5) (…))).
    for even in [16.0, 14.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0] {
        series = 1.0 - square / (even * (even + 1.0)) * series;
    }
    let sine = angle * series;
    sine * sine
}

#[cfg(test)]
mod tests {
    use super::{fractional_power, half_wave, power};

    #[test]
    fn powers_are_those_of_repeated_multiplication() {
        let mut product = 1.0_f64;
        for exponent in 0..1000 {
            assert!((power(0.999, exponent) / product - 1.0).abs() < 1e-12, "{exponent}");
            product *= 0.999;
        }
        assert_eq!((power(0.0, 1), power(0.5, 3), power(0.9, u64::MAX)), (0.0, 0.125, 0.0));
    }

    #[test]
    fn fractional_powers_are_those_of_the_standard_library() {
        for exponent in [0.0, 0.1, 0.5, 0.9, 1.0, 1.5, 2.0, 3.75, 40.01] {
            for number in 1..=1000 {
                let base = f64::from(number) / 1000.0;
                let (ours, theirs) = (fractional_power(base, exponent), base.powf(exponent));
                assert!((ours / theirs - 1.0).abs() < 1e-13, "{base}^{exponent}: {ours} {theirs}");
            }
        }
        assert_eq!((fractional_power(0.0, 0.3), fractional_power(0.0, 0.0)), (0.0, 1.0));
    }

    #[test]
    fn half_waves_are_those_of_the_standard_library() {
        for number in 0..=10_000 {
            let share = f64::from(number) / 10_000.0;
            let theirs = f64::midpoint(1.0, (std::f64::consts::PI * share).cos());
            assert!((half_wave(share) - theirs).abs() < 4e-16, "{share}");
        }
        assert_eq!((half_wave(0.0), half_wave(1.0)), (1.0, 0.0));
        assert!(half_wave(1.0 - 1e-9) > 0.0);
    }
}
