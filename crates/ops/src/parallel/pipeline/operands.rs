//! Buffers and caches of a pipeline, and operands as one of its devices has them.

use std::cell::RefCell;

use super::OnDevices;
use crate::executor::Cells;
use crate::{
    Access, AnyBackend, Buckets, Buffer, BufferId, Experts, ExpertsId, Handle, Heads, HeadsId, KernelError,
    Kv, KvId, LowRank, LowRankId, Matrix, MatrixId, OperandId, OperandMap, Vector, VectorId,
};

const ELSEWHERE: &str = "an op of a device that has not what it names: it was packed in another stage";

/// A device's part of an operand.
pub(super) fn part<T>(of: &OnDevices<T>, device: usize) -> &T {
    of[device].as_ref().expect(ELSEWHERE)
}

/// Activations with a place on each device that has layers. What the host writes is written to all places. What an op writes is
/// on its device alone, until another device reads it.
pub(super) struct PipelineBuffer {
    pub(super) places: OnDevices<Buffer>,
    cols: usize,
    on: u64, // a bit for each device that has the batch's rows
}

impl PipelineBuffer {
    pub(super) fn new(places: OnDevices<Buffer>, cols: usize) -> Self {
        let bit = |(device, buffer): (usize, &Option<Buffer>)| u64::from(buffer.is_some()) << device;
        let on = places.iter().enumerate().map(bit).sum();
        Self { places, cols, on }
    }

    pub(super) fn at(&self, device: usize) -> BufferId {
        part(&self.places, device).id()
    }

    /// A device's, for an op that writes it anew.
    pub(super) fn claim(&mut self, device: usize) -> BufferId {
        self.on = 1 << device;
        self.at(device)
    }

    /// The last device that has the batch's rows.
    pub(super) fn somewhere(&self) -> usize {
        self.on.ilog2() as usize
    }
}

/// The cache: each device has that of its layers.
pub(super) struct PipelineKv {
    pub(super) parts: OnDevices<Kv>,
    pub(super) ends: Vec<usize>, // of its layers, behind each device but the last
}

impl PipelineKv {
    /// The device of a layer, and the number that the layer has there.
    pub(super) fn place(&self, layer: usize) -> (usize, usize) {
        let device = self.ends.partition_point(|&end| end <= layer);
        (device, layer - device.checked_sub(1).map_or(0, |before| self.ends[before]))
    }

    /// The devices that have a part, and that.
    pub(super) fn held(&self) -> impl Iterator<Item = (usize, KvId)> {
        self.parts.iter().enumerate().filter_map(|(device, part)| Some((device, part.as_ref()?.id())))
    }
}

/// Rows on their way from device to device.
pub(super) struct Passage<'a> {
    pub(super) devices: &'a mut [AnyBackend],
    pub(super) rows: usize,
    pub(super) passing: &'a mut Vec<f32>,
    pub(super) passes: &'a mut u64,
    pub(super) failure: &'a mut Option<KernelError>,
}

impl Passage<'_> {
    /// Has the batch's rows of a buffer on a device.
    pub(super) fn bring(&mut self, buffer: &mut PipelineBuffer, to: usize) {
        if buffer.on >> to & 1 == 1 {
            return;
        }
        self.passing.resize(self.rows * buffer.cols, 0.0);
        let (from, target) = (buffer.somewhere(), buffer.at(to));
        let read = self.devices[from].read_rows(buffer.at(from), 0, self.passing);
        let passed = read.and_then(|()| self.devices[to].write_rows(target, 0, self.passing));
        buffer.on |= 1 << to;
        *self.passes += 1;
        if let Err(error) = passed {
            self.failure.get_or_insert(error);
        }
    }
}

/// Puts a device's own operands into an op, and brings the rows that the op reads.
pub(super) struct Localizer<'a> {
    pub(super) device: usize,
    pub(super) passage: RefCell<Passage<'a>>,
    pub(super) matrices: &'a Cells<OnDevices<Matrix>>,
    pub(super) vectors: &'a Cells<OnDevices<Vector>>,
    pub(super) experts: &'a Cells<OnDevices<Experts>>,
    pub(super) heads: &'a Cells<OnDevices<Heads>>,
    pub(super) low_ranks: &'a Cells<OnDevices<LowRank>>,
    pub(super) buffers: RefCell<&'a mut Cells<PipelineBuffer>>,
    pub(super) kvs: &'a Cells<PipelineKv>,
}

impl Localizer<'_> {
    fn own<K>(&self, cells: &Cells<OnDevices<Handle<K>>>, id: OperandId<K>) -> OperandId<K> {
        part(cells.get(id), self.device).id()
    }

    fn buffer(&self, id: BufferId, access: Access) -> BufferId {
        let mut buffers = self.buffers.borrow_mut();
        let buffer = buffers.get_mut(id);
        if matches!(access, Access::Read | Access::Change) {
            self.passage.borrow_mut().bring(buffer, self.device);
        }
        if matches!(access, Access::Write | Access::Change) {
            buffer.on = 1 << self.device;
        }
        buffer.at(self.device)
    }
}

impl<'a> OperandMap<'a> for Localizer<'_> {
    type Matrix = MatrixId;
    type Vector = VectorId;
    type Experts = ExpertsId;
    type Heads = HeadsId;
    type LowRank = LowRankId;
    type Read = BufferId;
    type Write = BufferId;
    type Kv = KvId;
    type Buckets = Buckets;

    fn matrix(&self, id: MatrixId) -> MatrixId {
        self.own(self.matrices, id)
    }

    fn vector(&self, id: VectorId) -> VectorId {
        self.own(self.vectors, id)
    }

    fn experts(&self, id: ExpertsId) -> ExpertsId {
        self.own(self.experts, id)
    }

    fn heads(&self, id: HeadsId) -> HeadsId {
        self.own(self.heads, id)
    }

    fn low_rank(&self, id: LowRankId) -> LowRankId {
        self.own(self.low_ranks, id)
    }

    fn read(&self, id: BufferId, access: Access) -> BufferId {
        self.buffer(id, access)
    }

    fn write(&self, id: BufferId, access: Access) -> BufferId {
        self.buffer(id, access)
    }

    fn kv(&self, id: KvId, layer: usize) -> (KvId, usize) {
        let kv = self.kvs.get(id);
        (part(&kv.parts, self.device).id(), kv.place(layer).1)
    }

    fn buckets(&self, buckets: &'a Buckets) -> Buckets {
        buckets.clone()
    }
}
