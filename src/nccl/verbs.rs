//! The operations of a communicator: checks of types, element counts and devices, and the calls of
//! NCCL.

use super::Communicator;
use super::group;
use crate::base::error::{Error, Result};
use crate::base::shared::Shared;
use crate::base::thread::Inside;
use crate::driver::nccl::{Buffer, data};
use crate::gpu::external_registry::HeldStream;
use crate::gpu::gpus::Gpus;
use crate::gpu::sanitizer_reports;
use crate::gpu::stream::Stream;
use crate::memory;
use crate::sanitizer::{self, Point, Touch};
use crate::tensor::dtype::code;
use crate::tensor::{Dtype, Tensor};
use std::sync::atomic::Ordering;

/// A reduction, with NCCL's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// Sum; logical "or" for booleans.
    Sum = 0,
    /// Product; logical "and" for booleans.
    Prod = 1,
    /// Maximum.
    Max = 2,
    /// Minimum.
    Min = 3,
}

impl ReduceOp {
    /// The reduction with this number in C.
    pub fn of(number: i32) -> Result<ReduceOp> {
        match number {
            0 => Ok(ReduceOp::Sum),
            1 => Ok(ReduceOp::Prod),
            2 => Ok(ReduceOp::Max),
            3 => Ok(ReduceOp::Min),
            _ => Err(Error::OutOfRange {
                name: "op",
                value: number.into(),
                allowed: "use TCUDA_REDUCE_SUM, _PROD, _MAX or _MIN",
            }),
        }
    }
}

/// A collective, or one side of a point-to-point message.
#[derive(Clone, Copy, Debug)]
pub enum Verb {
    /// Reduces the inputs of all ranks; every rank gets the result.
    AllReduce(ReduceOp),
    /// Every rank gets the tensor of the root.
    Broadcast(i32),
    /// Reduces the inputs of all ranks; the root gets the result.
    Reduce(ReduceOp, i32),
    /// Every rank gets the concatenated inputs of all ranks.
    AllGather,
    /// Reduces the inputs of all ranks; each rank gets a part of the result.
    ReduceScatter(ReduceOp),
    /// Sends to this rank.
    Send(i32),
    /// Receives from this rank.
    Recv(i32),
}

/// An operation and its tensors, as the host passes them.
pub struct Request<'a> {
    /// The operation.
    pub verb: Verb,
    /// The tensor to read; `None`: this rank reads nothing.
    pub input: Option<&'a Tensor>,
    /// The tensor to write; `None`: this rank writes nothing.
    pub output: Option<&'a Tensor>,
    /// The stream; `None`: the current stream of the communicator's device.
    pub stream: Option<&'a Stream>,
}

/// A checked operation. It has plain numbers and counted references, so that it is valid outside
/// the library.
pub(super) struct Operation {
    pub(super) communicator: Shared<Communicator>,
    pub(super) verb: Verb,
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) count: usize,
    pub(super) data: i32,
    pub(super) op: i32,
    pub(super) native: usize,
    pub(super) stream: HeldStream,
    /// First byte and length of the memory that is read, and of the memory that is written.
    touched: [(u64, u64); 2],
}

const NO_ARITHMETIC: Error = Error::Invalid(
    "NCCL calculates with floats of 16, 32 and 64 bits, bfloat16, complex sums of those, integers \
     of 8, 32 and 64 bits and bool; convert the tensor, or move it with a verb that only copies",
);
const NOT_COMPLEX: Error = Error::Invalid(
    "complex numbers have a sum, and no product, maximum or minimum here: they would be taken \
     part by part",
);

/// NCCL's type for elements that are reduced, how many of them an element has, and the reduction.
fn arithmetic(dtype: Dtype, op: ReduceOp) -> Result<(i32, u64, ReduceOp)> {
    let mut numbers = u64::from(dtype.lanes);
    let mut op = op;
    let found = match (dtype.code, dtype.bits) {
        (code::INT, 8) => data::INT8,
        (code::UINT, 8) => data::UINT8,
        (code::INT, 32) => data::INT32,
        (code::UINT, 32) => data::UINT32,
        (code::INT, 64) => data::INT64,
        (code::UINT, 64) => data::UINT64,
        (code::FLOAT, 16) => data::FLOAT16,
        (code::FLOAT, 32) => data::FLOAT32,
        (code::FLOAT, 64) => data::FLOAT64,
        (code::BFLOAT, 16) => data::BFLOAT16,
        (code::BOOL, 8) => {
            // Bytes that are 0 or 1 remain so.
            op = match op {
                ReduceOp::Sum | ReduceOp::Max => ReduceOp::Max,
                ReduceOp::Prod | ReduceOp::Min => ReduceOp::Min,
            };
            data::UINT8
        }
        (code::COMPLEX, _) if op != ReduceOp::Sum => return Err(NOT_COMPLEX),
        (code::COMPLEX, bits) => {
            numbers *= 2;
            match bits {
                32 => data::FLOAT16,
                64 => data::FLOAT32,
                _ => data::FLOAT64,
            }
        }
        _ => return Err(NO_ARITHMETIC),
    };
    Ok((found, numbers, op))
}

/// Bytes of a tensor that is only copied.
fn bytes_of(tensor: &Tensor) -> Result<u64> {
    let bits = u128::from(tensor.numel) * u128::from(tensor.dtype.element_bits());
    match u64::try_from(bits / 8) {
        Ok(bytes) if bits.is_multiple_of(8) => Ok(bytes),
        _ => Err(Error::Invalid("the elements of the tensor do not fill whole bytes")),
    }
}

/// First byte and length of a contiguous tensor; `None` has no bytes.
fn range_of(tensor: Option<&Tensor>) -> Result<(u64, u64)> {
    let Some(tensor) = tensor else { return Ok((0, 0)) };
    let (first, end) = tensor.range()?;
    Ok((first, end - first))
}

impl Verb {
    /// Name of the public function.
    fn name(self) -> &'static str {
        match self {
            Verb::AllReduce(_) => "tcuda_communicator_all_reduce",
            Verb::Broadcast(_) => "tcuda_communicator_broadcast",
            Verb::Reduce(..) => "tcuda_communicator_reduce",
            Verb::AllGather => "tcuda_communicator_all_gather",
            Verb::ReduceScatter(_) => "tcuda_communicator_reduce_scatter",
            Verb::Send(_) => "tcuda_communicator_send",
            Verb::Recv(_) => "tcuda_communicator_recv",
        }
    }

    /// The reduction, if the operation has one.
    fn op(self) -> Option<ReduceOp> {
        match self {
            Verb::AllReduce(op) | Verb::Reduce(op, _) | Verb::ReduceScatter(op) => Some(op),
            _ => None,
        }
    }
}

impl Communicator {
    /// Queues an operation, or adds it to this thread's open group.
    pub fn run(
        communicator: &Shared<Communicator>,
        inside: &Inside,
        gpus: &Gpus,
        request: &Request<'_>,
    ) -> Result<()> {
        let operation = communicator.prepare(communicator, gpus, request)?;
        if group::is_open(gpus) {
            return group::add(gpus, operation);
        }
        operation.set_last_stream();
        let point = operation.report(gpus);
        group::run_one(inside, &operation).inspect_err(|_| sanitizer::reached(point))
    }

    fn require_rank(&self, name: &'static str, rank: i32) -> Result<()> {
        if (0..self.ranks).contains(&rank) {
            return Ok(());
        }
        let allowed = "use 0 to num_ranks - 1";
        Err(Error::OutOfRange { name, value: rank.into(), allowed })
    }

    /// An error unless a tensor is contiguous memory of the communicator's device.
    fn require(&self, gpus: &Gpus, what: &'static str, tensor: &Tensor) -> Result<()> {
        let device = tensor.require_on(gpus)?;
        if device != self.device {
            return Err(Error::CommunicatorDevice { what, device, own: self.device });
        }
        if !tensor.is_compact() {
            return Err(Error::Invalid(
                "input and output must be contiguous: copy the tensor first",
            ));
        }
        Ok(())
    }

    fn prepare(
        &self,
        communicator: &Shared<Communicator>,
        gpus: &Gpus,
        request: &Request<'_>,
    ) -> Result<Operation> {
        self.require_live()?;
        let stream = match request.stream {
            Some(stream) => stream,
            None => gpus.device(self.device)?.streams.current(),
        };
        if stream.device() != self.device {
            let device = stream.device();
            return Err(Error::CommunicatorDevice { what: "stream", device, own: self.device });
        }
        let (input, output) = self.tensors(request)?;
        for (what, tensor) in [("input", input), ("output", output)] {
            if let Some(tensor) = tensor {
                self.require(gpus, what, tensor)?;
            }
        }
        // Every operation has an input or an output.
        let Some(some) = input.or(output) else { return Err(Error::Null { name: "input" }) };
        if let (Some(input), Some(output)) = (input, output) {
            self.require_matching(request.verb, input, output)?;
        }
        // The tensor whose elements one rank contributes or receives.
        let part = match request.verb {
            Verb::ReduceScatter(_) => output.unwrap_or(some),
            _ => some,
        };
        let (data, count, op) = match request.verb.op() {
            Some(op) => {
                let (data, numbers, op) = arithmetic(part.dtype, op)?;
                (data, part.numel.checked_mul(numbers), op)
            }
            None => (data::INT8, Some(bytes_of(part)?), ReduceOp::Sum),
        };
        let count = count.and_then(|count| usize::try_from(count).ok());
        let count = count.ok_or(Error::Invalid("the tensor has more elements than memory"))?;
        let stream = stream.on_this_thread(gpus)?;
        for tensor in [input, output].into_iter().flatten() {
            record_use(tensor, stream)?;
        }
        let address = |tensor: Option<&Tensor>| tensor.map_or(0, |tensor| tensor.address as usize);
        let touched = [range_of(input)?, range_of(output)?];
        // A rank that does not read or write passes its other tensor, because NCCL requires a
        // pointer.
        let (from, to) = (address(input.or(output)), address(output.or(input)));
        Ok(Operation {
            communicator: communicator.share(),
            verb: request.verb,
            input: from,
            output: to,
            count,
            data,
            op: op as i32,
            native: stream.native() as usize,
            stream: HeldStream::new(stream),
            touched,
        })
    }

    /// The tensors that this rank reads and writes.
    fn tensors<'a>(
        &self,
        request: &Request<'a>,
    ) -> Result<(Option<&'a Tensor>, Option<&'a Tensor>)> {
        let input = request.input.ok_or(Error::Null { name: "input" });
        let output = request.output.ok_or(Error::Null { name: "output" });
        match request.verb {
            Verb::Broadcast(root) => {
                self.require_rank("root", root)?;
                let output = output?;
                Ok((if root == self.rank { Some(input?) } else { None }, Some(output)))
            }
            Verb::Reduce(_, root) => {
                self.require_rank("root", root)?;
                let input = input?;
                Ok((Some(input), if root == self.rank { Some(output?) } else { None }))
            }
            Verb::Send(peer) => {
                self.require_rank("peer", peer)?;
                Ok((Some(input?), None))
            }
            Verb::Recv(peer) => {
                self.require_rank("peer", peer)?;
                Ok((None, Some(output?)))
            }
            Verb::AllReduce(_) | Verb::AllGather | Verb::ReduceScatter(_) => {
                Ok((Some(input?), Some(output?)))
            }
        }
    }

    /// An error unless type, size and overlap of input and output fit the operation.
    fn require_matching(&self, verb: Verb, input: &Tensor, output: &Tensor) -> Result<()> {
        if input.dtype != output.dtype {
            return Err(Error::Invalid("input and output must have elements of the same type"));
        }
        let ranks = self.ranks as u64;
        let (from, to, rule) = match verb {
            Verb::AllGather => (
                input.numel.checked_mul(ranks),
                Some(output.numel),
                "output has num_ranks times as many",
            ),
            Verb::ReduceScatter(_) => (
                Some(input.numel),
                output.numel.checked_mul(ranks),
                "input has num_ranks times as many",
            ),
            _ => (Some(input.numel), Some(output.numel), "both have as many"),
        };
        if from != to || from.is_none() {
            let (input, output) = (input.numel, output.numel);
            return Err(Error::Elements { input, output, rule });
        }
        let (one, other) = (input.range()?, output.range()?);
        let overlap = one.0 < other.1 && other.0 < one.1;
        // In place: the smaller tensor is this rank's own part of the larger one.
        let own = |all: (u64, u64), part: (u64, u64)| {
            part.0 == all.0 + (part.1 - part.0) * self.rank as u64
        };
        let in_place = match verb {
            Verb::AllGather => own(other, one),
            Verb::ReduceScatter(_) => own(one, other),
            _ => one == other,
        };
        if overlap && !in_place {
            return Err(Error::Invalid(
                "input and output overlap: they may be the same, or one this rank's own part of \
                 the other",
            ));
        }
        Ok(())
    }
}

/// Records that the stream uses the block, so that it is not reused too early.
fn record_use(tensor: &Tensor, stream: &Stream) -> Result<()> {
    if tensor.numel == 0 {
        return Ok(());
    }
    match memory::extent(tensor.address)? {
        Some((start, _)) => memory::record_stream(start, stream),
        None => Ok(()),
    }
}

impl Operation {
    /// Stores the stream as that of the communicator's last operation.
    pub(super) fn set_last_stream(&self) {
        self.communicator.set_last_stream(&self.stream);
    }

    /// Reports the operation to the sanitizer. This is done before NCCL is called, because
    /// afterwards the GPUs may be gone. Returns the point that counts as reached if NCCL refuses
    /// the operation.
    pub(super) fn report(&self, gpus: &Gpus) -> Option<Point> {
        if !sanitizer::is_on() {
            return None;
        }
        let stream = &*self.stream;
        let [(input, read), (output, written)] = self.touched;
        let touches = [Touch::read(input, read), Touch::write(output, written)];
        // NCCL runs the kernels of a communicator one after the other, on whatever streams.
        let Ok(key) = self.communicator.key(gpus, stream) else { return None };
        sanitizer_reports::event_waited(gpus, key, stream);
        sanitizer_reports::operation(gpus, stream, self.verb.name(), &touches);
        sanitizer_reports::event_recorded(gpus, key, stream);
        sanitizer_reports::point_of_stream(gpus, stream)
    }

    /// Reports that each stream of a group continues after all operations of the group.
    pub(super) fn report_group_end(&self, gpus: &Gpus) {
        if !sanitizer::is_on() {
            return;
        }
        let stream = &*self.stream;
        if let Ok(key) = self.communicator.key(gpus, stream) {
            sanitizer_reports::event_waited(gpus, key, stream);
        }
    }

    /// Calls NCCL. The caller has acquired the communicator.
    pub(super) fn issue(&self) -> (&'static str, i32) {
        let functions = self.communicator.functions;
        let comm = self.communicator.comm.load(Ordering::SeqCst);
        let (input, output) = (self.input as Buffer, self.output as Buffer);
        let (count, data, op, stream) = (self.count, self.data, self.op, self.native as Buffer);
        match self.verb {
            Verb::AllReduce(_) => ("ncclAllReduce", {
                // SAFETY: memory of the device, checked; the host keeps it and the stream.
                unsafe { (functions.all_reduce)(input, output, count, data, op, comm, stream) }
            }),
            Verb::Broadcast(root) => ("ncclBroadcast", {
                // SAFETY: as above.
                unsafe { (functions.broadcast)(input, output, count, data, root, comm, stream) }
            }),
            Verb::Reduce(_, root) => ("ncclReduce", {
                // SAFETY: as above.
                unsafe { (functions.reduce)(input, output, count, data, op, root, comm, stream) }
            }),
            Verb::AllGather => ("ncclAllGather", {
                // SAFETY: as above.
                unsafe { (functions.all_gather)(input, output, count, data, comm, stream) }
            }),
            Verb::ReduceScatter(_) => ("ncclReduceScatter", {
                // SAFETY: as above.
                unsafe { (functions.reduce_scatter)(input, output, count, data, op, comm, stream) }
            }),
            Verb::Send(peer) => ("ncclSend", {
                // SAFETY: as above.
                unsafe { (functions.send)(input, count, data, peer, comm, stream) }
            }),
            Verb::Recv(peer) => ("ncclRecv", {
                // SAFETY: as above.
                unsafe { (functions.recv)(output, count, data, peer, comm, stream) }
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_its_arithmetic_or_none() {
        let of = |code, bits, op| arithmetic(Dtype::new(code, bits), op).ok();
        let (sum, prod) = (ReduceOp::Sum, ReduceOp::Prod);
        assert_eq!(of(code::BFLOAT, 16, prod), Some((data::BFLOAT16, 1, prod)));
        assert_eq!(of(code::COMPLEX, 64, sum), Some((data::FLOAT32, 2, sum)));
        assert_eq!(of(code::COMPLEX, 64, prod), None);
        assert_eq!(of(code::BOOL, 8, sum), Some((data::UINT8, 1, ReduceOp::Max)));
        assert_eq!(of(code::BOOL, 8, prod), Some((data::UINT8, 1, ReduceOp::Min)));
        assert_eq!(of(code::INT, 16, sum), None);
        assert_eq!(of(code::FLOAT8_E3M4, 8, sum), None);
        assert_eq!(of(code::INT, 4, sum), None);
        let pair = Dtype { lanes: 2, ..Dtype::new(code::FLOAT, 32) };
        assert_eq!(arithmetic(pair, sum).ok(), Some((data::FLOAT32, 2, sum)));
    }
}
