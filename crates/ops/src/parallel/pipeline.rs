//! Pipeline parallelism: devices that share a network by layers.
//!
//! The first layers are on the first device, the next on the second, and the last ones and the head on the last. Each has the
//! weights of its own layers and their part of the cache. Rows cross where the layers change hands, and nowhere else.
//!
//! [`Executor::enter`](crate::Executor::enter) tells which device computes. A buffer has a place on each device and knows which of them have its
//! rows; rows that an op reads are brought to its device before it runs. Absent: where to cut, which is the caller's choice,
//! and copies that do not go through the host.

mod executor;
mod operands;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use crate::executor::Slots;
use crate::{
    AnyBackend, Experts, Facts, Heads, KernelError, KvPlace, KvSpec, LowRank, Matrix, Operands, Rounding,
    Stage, Vector,
};
use operands::{PipelineBuffer, PipelineKv};

/// Place at which a network is cut in two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineCut {
    /// Layers before it.
    pub layers: usize,
    /// How many of the cache's layers are theirs: no other layer attends to them.
    pub caches: usize,
    /// Whether the first device also has the embeddings. Otherwise the device with the head has them.
    pub inputs: bool,
}

/// Each device's part of an operand, if it has one.
type OnDevices<T> = Vec<Option<T>>;

/// Devices that share a network by layers. See the module.
pub struct Pipeline {
    devices: Vec<AnyBackend>,
    cuts: Vec<PipelineCut>, // behind each device but the last
    facts: Facts,
    stage: Cell<Stage>,
    counted: Option<usize>,        // the device whose bytes are counted; none: all
    rows: usize,                   // of the open step
    passing: Vec<f32>,             // rows on their way
    passes: u64,                   // buffers whose rows were brought
    failure: Option<KernelError>,  // of rows on their way; the step's end returns it
    restless: Option<Cell<usize>>, // for the suite: everything is on every device, and they take turns by ops
    matrices: Arc<Slots<OnDevices<Matrix>>>,
    vectors: Arc<Slots<OnDevices<Vector>>>,
    experts: Arc<Slots<OnDevices<Experts>>>,
    heads: Arc<Slots<OnDevices<Heads>>>,
    low_ranks: Arc<Slots<OnDevices<LowRank>>>,
    buffers: Arc<Slots<PipelineBuffer>>,
    kvs: Arc<Slots<PipelineKv>>,
}

impl Pipeline {
    /// Devices for a network of which nothing is packed yet, and where it is cut behind each but the last.
    ///
    /// # Panics
    /// Where there are not as many cuts as that, or they do not follow one another, or beyond 64 devices.
    pub fn new(devices: Vec<AnyBackend>, cuts: Vec<PipelineCut>) -> Self {
        assert!(devices.len() <= u64::BITS as usize, "{} devices", devices.len());
        assert_eq!(devices.len(), cuts.len() + 1, "a cut between each device and the next");
        assert!(
            cuts.is_sorted_by(|a, b| a.layers <= b.layers && a.caches <= b.caches),
            "cuts that do not follow one another: {cuts:?}"
        );
        let mut pipeline = Self {
            facts: devices[cuts.len()].facts().clone(),
            devices,
            cuts,
            stage: Cell::new(Stage::Head),
            counted: None,
            rows: 0,
            passing: Vec::new(),
            passes: 0,
            failure: None,
            restless: None,
            matrices: Slots::new(),
            vectors: Slots::new(),
            experts: Slots::new(),
            heads: Slots::new(),
            low_ranks: Slots::new(),
            buffers: Slots::new(),
            kvs: Slots::new(),
        };
        pipeline.facts = pipeline.joint_facts();
        pipeline
    }

    /// Facts of the devices as one. Memories would be on one of the devices.
    fn joint_facts(&self) -> Facts {
        let names: Vec<&str> = self.busy().map(|device| &self.devices[device].facts().device[..]).collect();
        let device = names.into_iter().rev().collect::<Vec<_>>().join(" and ");
        let coarser = |one: Rounding, other: Rounding| Rounding {
            operands: if one.operands == Operands::Bf16 { one.operands } else { other.operands },
            bytes_before_quantised: one.bytes_before_quantised || other.bytes_before_quantised,
        };
        let of = self.devices.iter().map(|device| device.facts().rounding);
        let rounding = of.reduce(coarser).expect("a pipeline has a last device");
        let all = |dtype| self.busy().all(|device| self.devices[device].facts().supports(dtype));
        Facts { knows_memories: false, ..Facts::new(device, rounding, all) }
    }

    /// The same pipeline, whose [`Executor::bytes`](crate::Executor::bytes) counts what this device takes.
    pub fn counting(self, device: usize) -> Self {
        Self { counted: Some(device), ..self }
    }

    /// The same pipeline for the conformance suite: everything is on every device, and devices take turns op by op, so that
    /// each op reads rows that another device wrote.
    pub fn taking_turns(self) -> Self {
        Self { restless: Some(Cell::new(0)), ..self }
    }

    /// Buffers whose rows were brought from one device to another.
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// The devices, in the order of layers.
    pub fn devices(&self) -> &[AnyBackend] {
        &self.devices
    }

    /// Reads what each device has of a matrix.
    pub fn read_matrix<T>(
        &self,
        of: &Matrix,
        mut read: impl FnMut(&AnyBackend, &Matrix) -> T,
    ) -> OnDevices<T> {
        let cells = self.matrices.lock();
        let parts = cells.get(of.id()).iter().zip(&self.devices);
        parts.map(|(part, device)| part.as_ref().map(|part| read(device, part))).collect()
    }

    /// Reads what each device has of a vector.
    pub fn read_vector<T>(
        &self,
        of: &Vector,
        mut read: impl FnMut(&AnyBackend, &Vector) -> T,
    ) -> OnDevices<T> {
        let cells = self.vectors.lock();
        let parts = cells.get(of.id()).iter().zip(&self.devices);
        parts.map(|(part, device)| part.as_ref().map(|part| read(device, part))).collect()
    }

    /// The device of the last layers and the head.
    fn last(&self) -> usize {
        self.cuts.len()
    }

    /// Whether anything is on a device.
    fn has(&self, device: usize) -> bool {
        let begins = device.checked_sub(1).map_or(0, |before| self.cuts[before].layers);
        let layers = self.cuts.get(device).map(|cut| cut.layers > begins);
        layers.unwrap_or(true) || self.inputs() == device || self.restless.is_some()
    }

    /// The devices that have something, the last among them.
    fn busy(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.devices.len()).filter(|&device| self.has(device))
    }

    /// The device of what comes before the layers.
    fn inputs(&self) -> usize {
        if self.cuts.first().is_some_and(|cut| cut.inputs) { 0 } else { self.last() }
    }

    /// The device that has what is packed now; none where each device that has anything has it.
    fn own(&self) -> Option<usize> {
        if self.restless.is_some() {
            return None;
        }
        match self.stage.get() {
            Stage::Inputs => Some(self.inputs()),
            Stage::Layer(layer) | Stage::Undivided(layer) => {
                Some(self.cuts.partition_point(|cut| cut.layers <= layer))
            }
            Stage::Head => Some(self.last()),
            Stage::Everywhere => None,
        }
    }

    /// The devices that have what is packed now.
    fn owners(&self) -> impl Iterator<Item = usize> + '_ {
        let own = self.own();
        self.busy().filter(move |&device| own.is_none_or(|own| own == device))
    }

    /// The device that computes now.
    ///
    /// # Panics
    /// In no part of the network that is on one.
    fn at(&self) -> usize {
        if let Some(turn) = &self.restless {
            return turn.replace((turn.get() + 1) % self.devices.len());
        }
        self.own().unwrap_or_else(|| panic!("an op in {:?}, which is on no single device", self.stage.get()))
    }

    /// Makes something on the devices that have what is packed now.
    fn place<X>(
        &self,
        make: impl Fn(&AnyBackend) -> Result<X, KernelError>,
    ) -> Result<OnDevices<X>, KernelError> {
        let mut placed: OnDevices<X> = self.devices.iter().map(|_| None).collect();
        for device in self.owners() {
            placed[device] = Some(make(&self.devices[device])?);
        }
        Ok(placed)
    }

    /// Bytes of what is on these devices, of those that are counted.
    fn count(
        &self,
        devices: impl Iterator<Item = usize>,
        bytes: impl Fn(usize, &AnyBackend) -> usize,
    ) -> usize {
        let counted = devices.filter(|&device| self.counted.is_none_or(|counted| counted == device));
        counted.fold(0, |sum, device| sum.saturating_add(bytes(device, &self.devices[device])))
    }

    /// Range of a device's layers, among so many layers of the cache.
    fn caches(&self, layers: usize, device: usize) -> Range<usize> {
        let end = |device: usize| self.cuts.get(device).map_or(layers, |cut| cut.caches.min(layers));
        device.checked_sub(1).map_or(0, end)..end(device)
    }

    /// The failure of rows on their way.
    fn passed(&mut self) -> Result<(), KernelError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Ends the step on the devices before one, on each of them even if others fail.
    fn end_before(&mut self, last: usize) -> Result<(), KernelError> {
        let mut ended = Ok(());
        for device in 0..last {
            if self.has(device) {
                ended = ended.and(self.devices[device].end());
            }
        }
        ended
    }
}

/// The cache of some of the layers: as many blocks in the same groups, in as few planes as they need. None for no layers.
fn kv_of(spec: &KvSpec, layers: Range<usize>) -> Option<KvSpec> {
    if layers.is_empty() {
        return None;
    }
    let mut of = KvSpec { layers: spec.layers[layers.clone()].to_vec(), ..spec.clone() };
    if !spec.groups.places.is_empty() {
        let mut planes = vec![0; spec.groups.count()];
        let own = layers.zip(&of.layers).map(|(layer, layout)| {
            let KvPlace { group, .. } = spec.groups.place(layer);
            let plane = planes[group];
            // Layers that keep a state are in none.
            planes[group] += usize::from(!matches!(layout, crate::KvLayout::State(_)));
            KvPlace { group, plane }
        });
        of.groups.places = own.collect();
    }
    Some(of)
}
