//! Operations on tensors that each rank has on several devices.
//!
//! A rank's tensors are combined on the rank in the order of its list, then one operation of the group follows, and
//! its result is copied to the rank's devices. So every element is reduced in an order that lists and ranks alone
//! decide. Tensors live in this process's memory; device labels say nothing about where, and are not looked at.
//!
//! **Memory.** A rank's tensors do not overlap. The first one is what the group's operation works on, where that may
//! change it; the others are filled when it has ended.

use crate::carrier::Carrier;
use crate::communicator::Communicator;
use crate::lists::{Sharing, check_overlaps};
use crate::memory::Region;
use crate::numbers::{Numbers, segments};
use crate::operation::{Form, Header, Kind, Operator};
use sheave_base::limits::LIST_TENSORS_MAX;
use sheave_base::{Error, ErrorKind, Rank, Result, Work};
use sheave_tensor::{Dtype, Tensor};
use std::future::Future;

/// Elements that are widened at a time, to stay in cache until they are added.
const SEGMENT: usize = 64 << 10;

/// What one reduction of the tensors of one rank needs to know.
#[derive(Clone, Copy)]
struct Sum {
    dtype: Dtype,
    /// Of one tensor into the result of its rank.
    load: Numbers,
    /// Of the ranks' results, which are f32 where sums of f16 and bf16 are.
    across: Numbers,
}

impl Sum {
    fn of(dtype: Dtype, operator: Operator, tensors: u32) -> Self {
        let load = Numbers::new(dtype, operator, tensors);
        let across = if load.are_widened() { Numbers::new(Dtype::F32, operator, tensors) } else { load };
        Self { dtype, load, across }
    }

    /// All tensors of this rank, one after the other, in `target`, which may be the first one.
    fn here(self, carrier: &Carrier, tensors: &[Region], target: &Region) -> Result<()> {
        let Some((first, rest)) = tensors.split_first() else { return Ok(()) };
        self.load.load(target, first)?;
        let count = self.load.elements(first);
        let wide = if self.load.are_widened() && !rest.is_empty() {
            Some(carrier.scratch(self.load.work_bytes(count.min(SEGMENT)))?)
        } else {
            None
        };
        for segment in segments(0..count, SEGMENT) {
            let sum = target.part(self.load.work_bytes_of(&segment));
            for tensor in rest {
                let own = tensor.part(self.load.bytes_of(&segment));
                match &wide {
                    Some(wide) => {
                        let wide = wide.part(0..sum.len_bytes());
                        self.load.load(&wide, &own)?;
                        self.load.combine(&sum, &sum, &wide)?;
                    }
                    None => self.load.combine(&sum, &sum, &own)?,
                }
            }
        }
        Ok(())
    }

    /// Rounds a finished result, which is f32 where sums of f16 and bf16 are.
    fn round(self, output: &Region, whole: &Region) -> Result<()> {
        if self.load.are_widened() { output.narrow_from(self.dtype, whole) } else { output.copy_from(whole) }
    }
}

impl Communicator {
    /// Reduces all tensors of all ranks, of the same dtype and length, into each of them. Ranks may have different
    /// numbers of tensors, but for [`Operator::Avg`], which divides by the number of all.
    pub fn all_reduce_devices(&self, tensors: &[Tensor], operator: Operator) -> Work<()> {
        let kind = Kind::AllReduce;
        let header = self.devices_header(kind, Some(operator), tensors, operator == Operator::Avg);
        let regions = || {
            alike(tensors)?;
            operator.require(tensors[0].dtype())?;
            apart(&[], tensors, header.name()).map(|(_, written)| written)
        };
        let sum = Sum::of(header.dtype, operator, self.size() * tensors.len() as u32);
        let bytes = sum.load.work_bytes(header.count as usize) as u64;
        self.start_devices(&header, regions(), move |mut carrier, devices| async move {
            let whole = match sum.load.are_widened() {
                true => carrier.scratch(bytes as usize)?,
                false => devices[0].clone(),
            };
            sum.here(&carrier, &devices, &whole)?;
            carrier.all_reduce(sum.across, &whole, &whole).await?;
            sum.round(&devices[0], &whole)?;
            spread(&devices)
        })
    }

    /// The root's first tensor goes to all tensors of all ranks, which have the same dtype and length. Ranks may have
    /// different numbers of them.
    pub fn broadcast_devices(&self, tensors: &[Tensor], root: Rank) -> Work<()> {
        let header = Header { root: root.0, ..self.devices_header(Kind::Broadcast, None, tensors, false) };
        let regions = || {
            alike(tensors)?;
            let read = usize::from(self.is(root)?);
            let (mut devices, written) = apart(&tensors[..read], &tensors[read..], header.name())?;
            devices.extend(written);
            Ok(devices)
        };
        let dtype = header.dtype;
        self.start_devices(&header, regions(), move |mut carrier, devices| async move {
            carrier.broadcast(dtype, &devices[0]).await?;
            spread(&devices)
        })
    }

    /// Reduces all tensors of all ranks, of the same dtype and length, into root's output, which only root gives. Ranks
    /// may have different numbers of tensors, but for [`Operator::Avg`], which divides by the number of all.
    pub fn reduce_devices(
        &self,
        inputs: &[Tensor],
        output: Option<&Tensor>,
        operator: Operator,
        root: Rank,
    ) -> Work<()> {
        let header = self.devices_header(Kind::Reduce, Some(operator), inputs, operator == Operator::Avg);
        let header = Header { root: root.0, ..header };
        let regions = || {
            alike(inputs)?;
            operator.require(inputs[0].dtype())?;
            match (self.is(root)?, output) {
                (true, None) => Err(refused("the root gives an output")),
                (false, Some(_)) => Err(refused("only the root gives an output")),
                _ => {
                    output.map_or(Ok(()), |output| alike_two(&inputs[0], output, 1))?;
                    // The result is written when all inputs have been read.
                    Region::lists(inputs, output.map_or(&[], std::slice::from_ref), header.name())
                }
            }
        };
        let sum = Sum::of(header.dtype, operator, self.size() * inputs.len() as u32);
        let bytes = sum.load.work_bytes(header.count as usize);
        self.start_devices(&header, regions(), move |mut carrier, (inputs, outputs)| async move {
            let partial = carrier.scratch(bytes)?;
            sum.here(&carrier, &inputs, &partial)?;
            let output = outputs.first();
            let whole = output.map(|_| carrier.scratch(bytes)).transpose()?;
            carrier.reduce(sum.across, &partial, whole.as_ref()).await?;
            output.zip(whole).map_or(Ok(()), |(output, whole)| sum.round(output, &whole))
        })
    }

    /// The inputs of all ranks, in the order of the ranks and of their lists, one behind the other in each output of
    /// every rank. All inputs have the same dtype and length, and all ranks the same number of them.
    pub fn all_gather_devices(&self, inputs: &[Tensor], outputs: &[Tensor]) -> Work<()> {
        let header = self.devices_header(Kind::AllGather, None, inputs, true);
        let size = self.size() as usize;
        let regions = || {
            alike(inputs)?;
            alike(outputs)?;
            alike_two(&inputs[0], &outputs[0], inputs.len() * size)?;
            apart(inputs, outputs, header.name())
        };
        let dtype = header.dtype;
        self.start_devices(&header, regions(), move |mut carrier, (inputs, outputs)| async move {
            let (block, whole) = (inputs.len() * inputs[0].len_bytes(), &outputs[0]);
            let own = whole.part(carrier.rank() * block..(carrier.rank() + 1) * block);
            for (index, input) in inputs.iter().enumerate() {
                own.part(index * input.len_bytes()..(index + 1) * input.len_bytes()).copy_from(input)?;
            }
            carrier.all_gather(dtype, &own, whole).await?;
            spread(&outputs)
        })
    }

    fn devices_header(&self, kind: Kind, operator: Option<Operator>, tensors: &[Tensor], counted: bool) -> Header {
        let (dtype, count) = tensors.first().map_or((Dtype::U8, 0), |first| (first.dtype(), first.elements()));
        // More are refused.
        let tensors = if counted { u16::try_from(tensors.len()).unwrap_or(u16::MAX) } else { 0 };
        Header { operator, form: Form::Devices, tensors, ..self.header(kind, dtype, count) }
    }

    fn start_devices<T, F>(
        &self,
        header: &Header,
        regions: Result<T>,
        run: impl FnOnce(Carrier, T) -> F + Send + 'static,
    ) -> Work<()>
    where
        T: Send + 'static,
        F: Future<Output = Result<()>> + Send + 'static,
    {
        match regions {
            Ok(regions) => self.state().start_parts(*header, 1, self.conditions(), |carrier| run(carrier, regions)),
            Err(error) => {
                let error = error.operation(header.name()).group(self.group().label());
                Work::ready(header.name(), Err(error))
            }
        }
    }
}

/// The first of a rank's tensors goes to the others.
fn spread(devices: &[Region]) -> Result<()> {
    let Some((first, rest)) = devices.split_first() else { return Ok(()) };
    rest.iter().try_for_each(|other| other.copy_from(first))
}

fn refused(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidArgument, what)
}

/// One tensor at least, and all of one dtype and length.
fn alike(tensors: &[Tensor]) -> Result<()> {
    let Some((first, rest)) = tensors.split_first() else {
        return Err(refused("a rank has a tensor on one device at least"));
    };
    if tensors.len() > LIST_TENSORS_MAX {
        let what = format!("tensors on {} devices; the limit is {LIST_TENSORS_MAX}", tensors.len());
        return Err(Error::new(ErrorKind::LimitExceeded, what));
    }
    rest.iter().try_for_each(|other| alike_two(first, other, 1))
}

/// One dtype, and the second `times` as long.
fn alike_two(one: &Tensor, other: &Tensor, times: usize) -> Result<()> {
    if one.dtype() == other.dtype() && one.elements().checked_mul(times) == Some(other.elements()) {
        return Ok(());
    }
    let [(dtype, count), (other, found)] = [one, other].map(|tensor| (tensor.dtype(), tensor.elements()));
    Err(refused(format!("{other}[{found}] was given where {dtype}[{}] is needed", count.saturating_mul(times))))
}

/// Takes hold of tensors of which those that are written overlap no other.
fn apart(read: &[Tensor], written: &[Tensor], operation: &'static str) -> Result<(Vec<Region>, Vec<Region>)> {
    let (read, written) = Region::lists(read, written, operation)?;
    check_overlaps(&read, &written, |_| Sharing::Apart)?;
    Ok((read, written))
}
