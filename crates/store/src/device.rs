//! The kind `device`: the values of one key lie on several devices of this process, and its sum lives on one of them.
//!
//! **Where.** A key gets its home at the first push after its init: all keys that have none yet, the largest first,
//! each on that device among those that values have come from which has the fewest bytes by then; of equal ones the
//! first key and the lowest device. It stays there until the key is deleted. So MXNet spreads the merge buffers of its
//! `device` store (`CommDevice::InitMergeBuffer`). On host memory a home is a label: updaters see it on sum and value.
//!
//! **In which order.** The values of one device are added as they are given. The devices, sorted, then form a binary
//! tree: the first takes the second's sum and the third the fourth's, then the first the third's, and so on, so that
//! n devices take ⌈log₂ n⌉ steps. The order depends on the labels alone, not on loads and homes, so the bits are the
//! same in every run and on every home.
//!
//! **In fewer bits.** With a compression every value is coded and decoded before it is added, as it would be on its way
//! to the home. What its code leaves out is kept for its key, its device and its place among the key's values there,
//! once there are sums of all keys: a push that is refused before changes nothing of it.

use crate::compress::Compression;
use crate::key::Key;
use crate::slot::{empty, flat_copy};
use sheave_base::Result;
use sheave_tensor::{Arena, Device, Dtype, Op, Tensor};
use std::collections::{BTreeMap, HashMap};

/// What the store knows of devices.
#[derive(Default)]
pub(crate) struct Devices {
    compression: Compression,
    /// Bytes of the sums that live on each device that values have come from.
    loads_bytes: BTreeMap<Device, u64>,
    homes: HashMap<Key, Home>,
    /// Keys without a home and their bytes, in the order of their init.
    homeless: Vec<(Key, u64)>,
    /// A value in fewer bits.
    coded: Vec<u8>,
    /// What the codes leave out of the push that is being summed.
    drafts: Vec<Draft>,
}

/// What a code leaves out of one value.
struct Draft {
    key: Key,
    /// Its device, and its place among the values of that.
    place: (Device, usize),
    residual: Vec<f32>,
}

struct Home {
    device: Device,
    len_bytes: u64,
    /// By device, and place among the values of that device.
    residuals: HashMap<(Device, usize), Vec<f32>>,
}

/// A value, or the sum of some.
struct Part {
    tensor: Tensor,
    /// Whether its memory may be added to.
    is_own: bool,
}

impl Devices {
    /// A new key.
    pub(crate) fn add(&mut self, key: &Key, len_bytes: usize) {
        self.homeless.push((key.clone(), len_bytes as u64));
    }

    /// A key is there no more.
    pub(crate) fn remove(&mut self, key: &Key) {
        self.homeless.retain(|(homeless, _)| homeless != key);
        let home = self.homes.remove(key);
        if let Some((home, load)) = home.and_then(|home| self.loads_bytes.get_mut(&home.device).map(|at| (home, at))) {
            *load -= home.len_bytes;
        }
    }

    /// How values travel from now on. Another code begins with nothing left over.
    pub(crate) fn set_compression(&mut self, compression: Compression) {
        if self.compression != compression {
            self.compression = compression;
            self.homes.values_mut().for_each(|home| home.residuals.clear());
        }
    }

    /// The sum of each key's values, on the key's home; keys keep the order of their first value.
    pub(crate) fn sums<'a>(&mut self, pairs: &'a [(Key, Tensor)], arena: &Arena) -> Result<Vec<(&'a Key, Tensor)>> {
        // What cannot be read gives no key a home.
        pairs.iter().try_for_each(|(_, value)| value.bytes().map(drop))?;
        self.settle(pairs);
        let mut places: HashMap<&Key, usize> = HashMap::with_capacity(pairs.len());
        let mut groups: Vec<(&Key, Vec<&Tensor>)> = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            let place = *places.entry(key).or_insert(groups.len());
            if place == groups.len() {
                groups.push((key, Vec::new()));
            }
            groups[place].1.push(value);
        }
        // Those of a push that was refused.
        self.drafts.clear();
        let sums = groups.into_iter().map(|(key, values)| Ok((key, self.sum(key, &values, arena)?)));
        let sums = sums.collect::<Result<Vec<_>>>()?;
        for Draft { key, place, residual } in self.drafts.drain(..) {
            if let Some(home) = self.homes.get_mut(&key) {
                home.residuals.insert(place, residual);
            }
        }
        Ok(sums)
    }

    /// Gives all keys a home that have none.
    fn settle(&mut self, pairs: &[(Key, Tensor)]) {
        pairs.iter().for_each(|(_, value)| *self.loads_bytes.entry(value.device()).or_default() += 0);
        if self.loads_bytes.is_empty() {
            return;
        }
        let mut homeless = std::mem::take(&mut self.homeless);
        homeless.sort_by_key(|(_, len_bytes)| std::cmp::Reverse(*len_bytes));
        for (key, len_bytes) in homeless {
            if let Some((device, load)) = self.loads_bytes.iter_mut().min_by_key(|(device, load)| (**load, **device)) {
                *load += len_bytes;
                self.homes.insert(key, Home { device: *device, len_bytes, residuals: HashMap::new() });
            }
        }
    }

    fn sum(&mut self, key: &Key, values: &[&Tensor], arena: &Arena) -> Result<Tensor> {
        let mut on_devices: BTreeMap<Device, Vec<Part>> = BTreeMap::new();
        for value in values {
            let parts = on_devices.entry(value.device()).or_default();
            let part = self.travelled(key, value, parts.len(), arena)?;
            parts.push(part);
        }
        let mut level = Vec::with_capacity(on_devices.len());
        for parts in on_devices.into_values() {
            level.extend(chained(parts, arena)?);
        }
        while level.len() > 1 {
            let mut next = Vec::with_capacity(level.len().div_ceil(2));
            let mut parts = level.into_iter();
            while let Some(first) = parts.next() {
                next.extend(chained(std::iter::once(first).chain(parts.next()), arena)?);
            }
            level = next;
        }
        let home = self.homes.get(key).map_or_else(Device::default, |home| home.device);
        let sum = level.into_iter().next().map(|part| part.tensor.on(home));
        sum.ok_or_else(|| crate::local::unknown(key, "push"))
    }

    /// A value as it comes out of the code that it travels in: the `place`th of its key on its device.
    fn travelled(&mut self, key: &Key, value: &Tensor, place: usize, arena: &Arena) -> Result<Part> {
        let code = self.compression;
        let home = self.homes.get(key).filter(|_| code != Compression::None && value.dtype() == Dtype::F32);
        let Some(home) = home else {
            return Ok(Part { tensor: value.clone(), is_own: false });
        };
        let (elements, place) = (value.elements(), (value.device(), place));
        let mut residual = home.residuals.get(&place).cloned().unwrap_or_default();
        residual.resize(if code.has_residual() { elements } else { 0 }, 0.0);
        self.coded.resize(code.encoded_len_bytes(elements), 0);
        code.encode(&value.as_slice::<f32>()?, &mut residual, &mut self.coded)?;
        self.drafts.push(Draft { key: key.clone(), place, residual });
        let mut tensor = empty(arena, Dtype::F32, elements as u64)?;
        code.decode_into(&self.coded, tensor.as_mut_slice::<f32>()?)?;
        Ok(Part { tensor: reshaped(&tensor, value)?, is_own: true })
    }
}

/// The sum of parts, one after the other; none of none.
fn chained(parts: impl IntoIterator<Item = Part>, arena: &Arena) -> Result<Option<Part>> {
    let mut parts = parts.into_iter();
    let Some(mut sum) = parts.next() else { return Ok(None) };
    for part in parts {
        if !sum.is_own {
            sum = Part { tensor: reshaped(&flat_copy(&sum.tensor, arena)?, &sum.tensor)?, is_own: true };
        }
        sum.tensor.reduce_from(Op::Sum, &part.tensor)?;
    }
    Ok(Some(sum))
}

/// A flat tensor in the shape of another.
fn reshaped(flat: &Tensor, like: &Tensor) -> Result<Tensor> {
    flat.reshape(like.shape().clone())
}
