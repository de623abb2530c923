//! Handwritten digits: the file, the split, and batches of it.
//!
//! The checksum covers everything behind it, so that each torn or flipped file is told from a right one before anything
//! is unpacked; what a right checksum vouches for is still counted and bounded, because anybody can compute one.
//! `data/README.md` gives the format and where the digits are from.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::DeflateDecoder;
use sheave_base::{Error, ErrorKind, Result};

/// Pixels of an image: 8 rows of 8.
pub const PIXELS: usize = 64;

/// Digits from 0 to 9.
pub const CLASSES: usize = 10;

const EMBEDDED: &[u8] = include_bytes!("../data/digits.bin");
const MAGIC: &[u8; 8] = b"SHEAVE8X";

/// The brightest pixel.
const PIXEL_MAX: u8 = 16;

/// Most images in a file: 50 times those of the embedded one, in 6 MiB once unpacked.
const IMAGES_MAX: usize = 100_000;

/// Most bytes of a file: no packing of so many images is longer than they are.
const FILE_BYTES_MAX: u64 = (IMAGES_MAX * (PIXELS + 1) + 1024) as u64;

/// Images of 8x8 pixels and what they show, from the UCI repository (E. Alpaydin and C. Kaynak 1998, CC BY 4.0).
///
/// ```
/// use sheave_nn::Digits;
///
/// let digits = Digits::embedded()?;
/// assert_eq!((digits.training().len(), digits.held_out().len()), (1198, 599));
/// assert_eq!(digits.training().label(1), Some(1));
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Digits {
    labels: Vec<u8>,
    pixels: Vec<u8>,
}

impl Digits {
    /// The 1,797 digits inside this library.
    ///
    /// # Errors
    /// Never, unless the library was built from a damaged file.
    pub fn embedded() -> Result<Self> {
        Self::unpack(EMBEDDED).map_err(|what| damaged(&what, "inside the library", "build it again"))
    }

    /// The digits in a file of the same format. Blocks while it is read.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] when there is no such file, [`ErrorKind::InvalidArgument`] when it is torn, damaged or
    /// something else, [`ErrorKind::Io`] when it cannot be read. The message names the path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let unreadable = |error: std::io::Error| {
            let kind = match error.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                _ => ErrorKind::Io,
            };
            let what = format!("cannot read the digits in {}: {error}", path.display());
            Error::new(kind, what).hint("`Digits::embedded` needs no file")
        };
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(unreadable)?;
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(unreadable)?;
        let hint = "copy the file again, or use `Digits::embedded`";
        Self::unpack(&bytes).map_err(|what| damaged(&what, &format!("in {}", path.display()), hint))
    }

    /// All images, in the file's order, with index `i` where `i % 3 != 2`: two thirds.
    #[must_use]
    pub fn training(&self) -> Split {
        self.select(|index| index % 3 != 2)
    }

    /// All images with index `i` where `i % 3 == 2`: the third that no training sees. A writer's digits follow each
    /// other in the file, so each writer is on both sides.
    #[must_use]
    pub fn held_out(&self) -> Split {
        self.select(|index| index % 3 == 2)
    }

    fn select(&self, wanted: fn(usize) -> bool) -> Split {
        let images = self.labels.iter().zip(self.pixels.chunks_exact(PIXELS)).enumerate();
        let mut split = Split { labels: Vec::new(), pixels: Vec::new() };
        for (_, (&label, pixels)) in images.filter(|(index, _)| wanted(*index)) {
            split.labels.push(label);
            split.pixels.extend(pixels.iter().map(|&pixel| f32::from(pixel) / f32::from(PIXEL_MAX)));
        }
        split
    }

    /// Says what is wrong when something is.
    fn unpack(bytes: &[u8]) -> Result<Self, String> {
        let torn = || format!("it ends after {} bytes", bytes.len());
        let (magic, rest) = bytes.split_first_chunk::<8>().ok_or_else(torn)?;
        if magic != MAGIC {
            return Err("it is no file of digits".to_owned());
        }
        let (checksum, rest) = rest.split_first_chunk::<4>().ok_or_else(torn)?;
        let (images, packed) = rest.split_first_chunk::<4>().ok_or_else(torn)?;
        if u32::from_le_bytes(*checksum) != crc32fast::hash(rest) {
            return Err("its checksum is wrong".to_owned());
        }
        let images = u32::from_le_bytes(*images) as usize;
        if images > IMAGES_MAX {
            return Err(format!("it has {images} images, at most {IMAGES_MAX} are possible"));
        }
        let expected_bytes = images * (PIXELS + 1);
        let mut labels = Vec::new();
        // One more than expected, so that what is too long is seen and goes no further.
        let unpacked = DeflateDecoder::new(packed).take(expected_bytes as u64 + 1).read_to_end(&mut labels);
        unpacked.map_err(|error| format!("it does not unpack: {error}"))?;
        if labels.len() != expected_bytes {
            return Err(format!("its content does not fit {images} images"));
        }
        let pixels = labels.split_off(images);
        if labels.iter().any(|&label| usize::from(label) >= CLASSES) || pixels.iter().any(|&pixel| pixel > PIXEL_MAX) {
            return Err("it has a label above 9 or a pixel above 16".to_owned());
        }
        Ok(Self { labels, pixels })
    }
}

fn damaged(what: &str, place: &str, hint: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("the digits {place} are damaged: {what}")).hint(hint.to_owned())
}

/// A part of the digits, pixels scaled to 0..=1.
#[derive(Clone, Debug)]
pub struct Split {
    labels: Vec<u8>,
    pixels: Vec<f32>,
}

impl Split {
    /// Number of images.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no image.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// What an image shows.
    #[must_use]
    pub fn label(&self, index: usize) -> Option<u8> {
        self.labels.get(index).copied()
    }

    /// An image's pixels, row by row, from 0 to 1.
    #[must_use]
    pub fn pixels(&self, index: usize) -> Option<&[f32]> {
        self.pixels.chunks_exact(PIXELS).nth(index)
    }

    /// Those images, in that order, as a worker's share of a global batch of `global_images`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when there is no such image, no index at all, or the global batch is smaller than
    /// the share.
    pub fn batch(&self, indices: &[usize], global_images: usize) -> Result<Batch> {
        if indices.is_empty() || indices.len() > global_images {
            let what = format!("{} images are no share of a global batch of {global_images}", indices.len());
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let mut batch = Batch { labels: Vec::new(), pixels: Vec::new(), global_images };
        for &index in indices {
            let (Some(label), Some(pixels)) = (self.label(index), self.pixels(index)) else {
                let what = format!("there is no image {index} among {}", self.len());
                return Err(Error::new(ErrorKind::InvalidArgument, what));
            };
            batch.labels.push(u32::from(label));
            batch.pixels.extend_from_slice(pixels);
        }
        Ok(batch)
    }
}

/// A worker's share of a global batch; made by [`Split::batch`].
#[derive(Clone, Debug)]
pub struct Batch {
    pub(crate) labels: Vec<u32>,
    pub(crate) pixels: Vec<f32>,
    pub(crate) global_images: usize,
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn packed(images: u32, content: &[u8]) -> Vec<u8> {
        let mut rest = flate2::write::DeflateEncoder::new(images.to_le_bytes().to_vec(), flate2::Compression::best());
        rest.write_all(content).unwrap();
        let rest = rest.finish().unwrap();
        [MAGIC.as_slice(), &crc32fast::hash(&rest).to_le_bytes(), &rest].concat()
    }

    #[test]
    fn the_embedded_digits_are_those_of_the_source() {
        let digits = Digits::embedded().unwrap();
        let mut counts = [0; CLASSES];
        digits.labels.iter().for_each(|&label| counts[usize::from(label)] += 1);
        // Counted in the source by another program; the sums weigh each number by its place.
        assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        let weighed =
            |numbers: &[u8]| (1..).zip(numbers).map(|(place, &number)| place * u64::from(number)).sum::<u64>();
        assert_eq!((weighed(&digits.labels), weighed(&digits.pixels)), (7_272_861, 32_232_145_379));
        assert!(EMBEDDED.len() < 60_000);
    }

    #[test]
    fn thirds_are_apart() {
        let content: Vec<u8> = (0..7_u8).chain((0..7).flat_map(|image| [image + 1; PIXELS])).collect();
        let digits = Digits::unpack(&packed(7, &content)).unwrap();
        assert_eq!((digits.training().labels, digits.held_out().labels), (vec![0, 1, 3, 4, 6], vec![2, 5]));
        assert_eq!(digits.held_out().pixels(1), Some(&[6.0 / 16.0; PIXELS][..]));
        assert_eq!((digits.held_out().pixels(2), digits.held_out().label(2)), (None, None));
        let batch = digits.training().batch(&[4, 0], 8).unwrap();
        assert_eq!((batch.labels, batch.pixels[0], batch.pixels[PIXELS]), (vec![6, 0], 7.0 / 16.0, 1.0 / 16.0));
        for (indices, global_images) in [(&[0, 5][..], 8), (&[], 8), (&[0, 1], 1), (&[usize::MAX], 8)] {
            let error = digits.training().batch(indices, global_images).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }

    #[test]
    fn every_truncation_and_every_flip_is_refused() {
        for len_bytes in 0..EMBEDDED.len() {
            assert!(Digits::unpack(&EMBEDDED[..len_bytes]).is_err(), "{len_bytes}");
        }
        let mut bytes = EMBEDDED.to_vec();
        for place in 0..bytes.len() {
            // Each bit of the byte in some place, all of them in the header.
            for flip in if place < 16 { 1..=255 } else { 1 << (place % 8)..=1 << (place % 8) } {
                bytes[place] ^= flip;
                assert!(Digits::unpack(&bytes).is_err(), "{place} {flip}");
                bytes[place] ^= flip;
            }
        }
        bytes.push(0);
        assert!(Digits::unpack(&bytes).is_err());
    }

    #[test]
    fn a_right_checksum_vouches_for_nothing() {
        let image = [&[9][..], &[PIXEL_MAX; PIXELS]].concat();
        assert_eq!(Digits::unpack(&packed(1, &image)).unwrap().labels, [9]);
        assert!(Digits::unpack(&packed(0, &[])).unwrap().training().is_empty());
        let label = [&[10][..], &[0; PIXELS]].concat();
        let pixel = [&[0; PIXELS][..], &[17]].concat();
        let wrong: [(u32, &[u8], &str); 6] = [
            (1, &label, "label above 9"),
            (1, &pixel, "pixel above 16"),
            (1, &image[1..], "does not fit"),
            (2, &image, "does not fit"),
            (1, &vec![0; 1 << 20], "does not fit"),
            (u32::MAX, &image, "at most"),
        ];
        for (images, content, expected) in wrong {
            let what = Digits::unpack(&packed(images, content)).unwrap_err();
            assert!(what.contains(expected), "{what}");
        }
        let rest = [&1_u32.to_le_bytes()[..], &[0xff; 40]].concat();
        let bytes = [MAGIC.as_slice(), &crc32fast::hash(&rest).to_le_bytes(), &rest].concat();
        assert!(Digits::unpack(&bytes).unwrap_err().contains("does not unpack"));
    }

    #[test]
    fn files_are_named_when_they_are_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("digits.bin");
        let message = |kind| {
            let error = Digits::open(&path).unwrap_err();
            assert_eq!(error.kind(), kind);
            assert!(error.to_string().contains("digits.bin") && error.to_string().contains("hint: "), "{error}");
        };
        message(ErrorKind::NotFound);
        std::fs::write(&path, EMBEDDED).unwrap();
        assert_eq!(Digits::open(&path).unwrap().labels, Digits::embedded().unwrap().labels);
        std::fs::write(&path, &EMBEDDED[..EMBEDDED.len() / 2]).unwrap();
        message(ErrorKind::InvalidArgument);
        std::fs::write(&path, "label,pixel\n").unwrap();
        message(ErrorKind::InvalidArgument);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        message(ErrorKind::Io);
    }
}
