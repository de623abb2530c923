//! What this worker's pushes and pulls are coded in.

use super::Client;
use crate::compress::Compression;
use crate::key::Key;
use crate::protocol::Form;
use crate::slot::{Meta, empty};
use sheave_base::Result;
use sheave_tensor::{Arena, Dtype, Tensor};
use std::ops::Range;

/// Of all keys that have none of their own.
#[derive(Clone, Copy, Default)]
pub(crate) struct Compressions {
    pub(crate) push: Compression,
    pub(crate) pull: Compression,
}

/// How one key's gradients are coded.
#[derive(Default)]
pub(super) struct Coding {
    /// If it is said for this key.
    own: Option<Compression>,
    /// What the last residual belongs to.
    code: Compression,
    /// What was not sent yet of each element of the tensor.
    residual: Vec<f32>,
}

impl Coding {
    /// The code of the next push.
    pub(super) fn code(&self, meta: &Meta, default: Compression) -> Compression {
        match self.own {
            Some(own) => own,
            // What has no code travels as it is.
            None if default.require(meta.dtype).is_err() => Compression::None,
            None => default,
        }
    }

    /// A slice as it travels.
    pub(super) fn encode(
        &mut self,
        meta: &Meta,
        form: Form,
        value: Tensor,
        range: &Range<u64>,
        arena: &Arena,
    ) -> Result<Tensor> {
        let Form::Coded(code) = form else { return Ok(value) };
        // Another code begins with nothing left over: what its predecessor has kept is of another scale.
        let elements = if code.has_residual() { meta.shape.elements().unwrap_or(0) as usize } else { 0 };
        if self.code != code || self.residual.len() != elements {
            self.code = code;
            self.residual = vec![0.0; elements];
        }
        let residual = match code.has_residual() {
            true => self.residual.get_mut(range.start as usize..range.end as usize).unwrap_or_default(),
            false => &mut [],
        };
        let mut coded = empty(arena, Dtype::U8, code.encoded_len_bytes(value.elements()) as u64)?;
        code.encode(&value.as_slice::<f32>()?, residual, coded.bytes_mut()?)?;
        Ok(coded)
    }
}

impl Client {
    /// How the gradients of these keys travel from now on; of all that have none of their own if there are none.
    pub(crate) fn set_compression(&self, keys: Option<&[Key]>, code: Compression) -> Result<()> {
        code.check()?;
        let Some(keys) = keys else {
            self.compression.lock().push = code;
            return Ok(());
        };
        let found = keys.iter().map(|key| self.find("set_gradient_compression", key)).collect::<Result<Vec<_>>>()?;
        found.iter().try_for_each(|known| code.require(known.meta.dtype))?;
        found.iter().for_each(|known| known.coding.lock().own = Some(code));
        Ok(())
    }

    /// How values travel to this worker from now on.
    pub(crate) fn set_pull_compression(&self, code: Compression) -> Result<()> {
        code.check()?;
        code.check_for_values()?;
        self.compression.lock().pull = code;
        Ok(())
    }
}
