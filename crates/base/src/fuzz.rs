//! How the rooms' fuzz targets read an input that says step by step what is done.

/// The rest of an input. At its end every number is zero, so that any bytes say something.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of `data`.
    #[must_use]
    pub fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Whether all was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes, at most so many.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// The next two bytes, little-endian.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// The next eight bytes, little-endian.
    pub fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Bytes behind their length, which is one of two bytes.
    pub fn counted(&mut self) -> &'a [u8] {
        let length = self.short();
        self.bytes(length.into())
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_read_to_its_end_and_says_zero_behind_it() {
        let mut input = Input::new(&[7, 1, 2, 2, 0, 8, 9, 5]);
        assert_eq!((input.byte(), input.short(), input.counted()), (7, 0x0201, &[8, 9][..]));
        assert_eq!((input.word(), input.is_empty(), input.byte(), input.counted()), (5, true, 0, &[][..]));
    }
}
