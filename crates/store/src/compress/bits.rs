//! One and two bits per value, in words of four bytes.
//!
//! The first value is in the top bits of the first byte. A loop takes the values of one word at a time, without a
//! branch: each comparison picks a constant that has the lane's bits at the lane's place, and the word is what they are
//! together. The last word is padded with zero bits.

use sheave_base::{Error, ErrorKind, Result};

/// Values in a word of two bits each.
pub(super) const TWO_BIT_LANES: usize = 16;

/// Values in a word of one bit each.
pub(super) const ONE_BIT_LANES: usize = 32;

/// The lowest bit of each lane of a word of `BITS` bits per lane, as the word lies in memory read as little-endian.
const fn places<const LANES: usize>() -> [u32; LANES] {
    let (bits, per_byte) = (32 / LANES, LANES / 4);
    let mut places = [0; LANES];
    let mut lane = 0;
    while lane < LANES {
        places[lane] = 1 << (8 * (lane / per_byte) + 8 - bits * (lane % per_byte + 1));
        lane += 1;
    }
    places
}

/// Of two bits the upper one says whether there is anything, and the lower one whether it is up: 11 is up, 10 is down.
const TWO_UP: [u32; TWO_BIT_LANES] = places();
const TWO_ON: [u32; TWO_BIT_LANES] = {
    let mut places = places();
    let mut lane = 0;
    while lane < TWO_BIT_LANES {
        places[lane] <<= 1;
        lane += 1;
    }
    places
};
const ONE_UP: [u32; ONE_BIT_LANES] = places();

/// All bits or none: what a comparison is in a vector.
#[inline(always)]
fn mask(is_so: bool) -> u32 {
    u32::from(is_so).wrapping_neg()
}

pub(super) fn encode_two(gradient: &[f32], residual: &mut [f32], out: &mut [u8], threshold: f32) {
    encode::<TWO_BIT_LANES>(gradient, residual, out, |gradient, residual| {
        let mut codes = [0; TWO_BIT_LANES];
        for lane in 0..TWO_BIT_LANES {
            let value = residual[lane] + gradient[lane];
            let (up, down) = (mask(value >= threshold), mask(value <= -threshold));
            let sent = (up & threshold.to_bits()) | (down & (-threshold).to_bits());
            residual[lane] = value - f32::from_bits(sent);
            codes[lane] = (up & TWO_UP[lane]) | ((up | down) & TWO_ON[lane]);
        }
        codes.iter().fold(0, |word, code| word | code)
    });
}

pub(super) fn encode_one(gradient: &[f32], residual: &mut [f32], out: &mut [u8], threshold: f32) {
    encode::<ONE_BIT_LANES>(gradient, residual, out, |gradient, residual| {
        let mut codes = [0; ONE_BIT_LANES];
        for lane in 0..ONE_BIT_LANES {
            let value = residual[lane] + gradient[lane];
            let up = value > threshold;
            residual[lane] = value - if up { 1.0 } else { -1.0 };
            codes[lane] = if up { ONE_UP[lane] } else { 0 };
        }
        codes.iter().fold(0, |word, code| word | code)
    });
}

pub(super) fn decode_two(bytes: &[u8], target: &mut [f32], threshold: f32, put: impl Fn(f32, f32) -> f32 + Copy) {
    let (plus, minus) = (threshold.to_bits(), (-threshold).to_bits());
    decode::<TWO_BIT_LANES>(bytes, target, put, |word| {
        let mut values = [0.0; TWO_BIT_LANES];
        for lane in 0..TWO_BIT_LANES {
            let (up, on) = (mask(word & TWO_UP[lane] != 0), mask(word & TWO_ON[lane] != 0));
            values[lane] = f32::from_bits(on & ((up & plus) | (!up & minus)));
        }
        values
    });
}

pub(super) fn decode_one(bytes: &[u8], target: &mut [f32], put: impl Fn(f32, f32) -> f32 + Copy) {
    decode::<ONE_BIT_LANES>(bytes, target, put, |word| {
        let mut values = [0.0; ONE_BIT_LANES];
        for lane in 0..ONE_BIT_LANES {
            values[lane] = if word & ONE_UP[lane] == 0 { -1.0 } else { 1.0 };
        }
        values
    });
}

/// Refuses the code 01, which is none, and padding that is not zero.
pub(super) fn check_two(bytes: &[u8], elements: usize) -> Result<()> {
    let lone = |bad: u32, word: &[u8; 4]| {
        let word = u32::from_le_bytes(*word);
        bad | word & !(word >> 1) & 0x5555_5555
    };
    if bytes.as_chunks::<4>().0.iter().fold(0, lone) != 0 {
        return Err(Error::new(ErrorKind::Protocol, "a compressed gradient with a code that is none"));
    }
    check_padding::<TWO_BIT_LANES>(bytes, elements)
}

/// Refuses padding that is not zero.
pub(super) fn check_one(bytes: &[u8], elements: usize) -> Result<()> {
    check_padding::<ONE_BIT_LANES>(bytes, elements)
}

fn check_padding<const LANES: usize>(bytes: &[u8], elements: usize) -> Result<()> {
    match bytes.as_chunks::<4>().0.last() {
        Some(last) if u32::from_le_bytes(*last) & !filled::<LANES>(elements) != 0 => {
            Err(Error::new(ErrorKind::Protocol, "a compressed gradient with more values than it has"))
        }
        _ => Ok(()),
    }
}

/// The bits of the last word that so many elements fill.
fn filled<const LANES: usize>(elements: usize) -> u32 {
    let lanes = if elements.is_multiple_of(LANES) { LANES } else { elements % LANES };
    let all = (1u32 << (32 / LANES)) - 1;
    places::<LANES>().iter().take(lanes).fold(0, |mask, place| mask | (place * all))
}

#[inline(always)]
fn encode<const LANES: usize>(
    gradient: &[f32],
    residual: &mut [f32],
    out: &mut [u8],
    block: impl Fn(&[f32; LANES], &mut [f32; LANES]) -> u32,
) {
    let (gradients, gradient_rest) = gradient.as_chunks::<LANES>();
    let (residuals, residual_rest) = residual.as_chunks_mut::<LANES>();
    let words = out.as_chunks_mut::<4>().0;
    for ((gradient, residual), word) in gradients.iter().zip(residuals).zip(words.iter_mut()) {
        *word = block(gradient, residual).to_le_bytes();
    }
    if let (Some(word), false) = (words.last_mut(), gradient_rest.is_empty()) {
        let (mut gradient, mut residual) = ([0.0; LANES], [0.0; LANES]);
        gradient[..gradient_rest.len()].copy_from_slice(gradient_rest);
        residual[..residual_rest.len()].copy_from_slice(residual_rest);
        *word = (block(&gradient, &mut residual) & filled::<LANES>(gradient_rest.len())).to_le_bytes();
        residual_rest.copy_from_slice(&residual[..residual_rest.len()]);
    }
}

#[inline(always)]
fn decode<const LANES: usize>(
    bytes: &[u8],
    target: &mut [f32],
    put: impl Fn(f32, f32) -> f32,
    block: impl Fn(u32) -> [f32; LANES],
) {
    let (targets, rest) = target.as_chunks_mut::<LANES>();
    let words = bytes.as_chunks::<4>().0;
    for (target, word) in targets.iter_mut().zip(words) {
        let values = block(u32::from_le_bytes(*word));
        for lane in 0..LANES {
            target[lane] = put(target[lane], values[lane]);
        }
    }
    if let Some(word) = words.get(targets.len()) {
        let values = block(u32::from_le_bytes(*word));
        rest.iter_mut().zip(values).for_each(|(target, value)| *target = put(*target, value));
    }
}
