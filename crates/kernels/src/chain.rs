//! Devices that share one network, behind the contract of one: the first layers are on the first, the next on the second, and the
//! last ones and the head on the last. Each has the weights of its own layers and their part of the cache; rows cross where the
//! layers change hands, and nowhere else.
//!
//! Who computes is told by [`Backend::enter`]. A buffer has a place on each device and knows where its rows are; an op that
//! reads rows which are on other devices has them brought. Devices that differ are
//! [`crate::AnyBackend`]s. Absent: where to cut, which is its caller's, and ways of copying but the devices' own, through the host.

#[macro_use]
mod operands;
mod ops;
mod placed;
#[cfg(test)]
mod tests;

use std::cell::Cell;

use crate::{Backend, KernelError, Stage};
pub use placed::{ChainBuffer, ChainKv, Placed};

/// Where a network is cut in two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Layers before it.
    pub layers: usize,
    /// How many of the cache's layers are theirs: no other layer attends to them.
    pub caches: usize,
    /// What comes before the layers is the first device's too, rather than the one's that has the head.
    pub inputs: bool,
}

/// See the module.
pub struct Chain<B: Backend> {
    devices: Vec<B>,
    cuts: Vec<Cut>, // behind each device but the last
    stage: Cell<Stage>,
    counted: Option<usize>,        // whose bytes are told, or everybody's
    rows: usize,                   // of the open step
    passing: Vec<f32>,             // rows on their way
    passes: u64,                   // buffers whose rows were brought
    failure: Option<KernelError>,  // of rows on their way, which the step's end tells
    restless: Option<Cell<usize>>, // for tests: everything is on every device, and they take turns by ops
}

impl<B: Backend> Chain<B> {
    /// Devices for a network of which nothing is packed yet, and where it is cut behind each but the last.
    ///
    /// # Panics
    /// Where there are not as many cuts as that, or they do not follow one another.
    pub fn new(devices: Vec<B>, cuts: Vec<Cut>) -> Self {
        assert_eq!(devices.len(), cuts.len() + 1, "a cut between each device and the next");
        assert!(
            cuts.is_sorted_by(|a, b| a.layers <= b.layers && a.caches <= b.caches),
            "cuts that do not follow one another: {cuts:?}"
        );
        Self {
            devices,
            cuts,
            stage: Cell::new(Stage::Head),
            counted: None,
            rows: 0,
            passing: Vec::new(),
            passes: 0,
            failure: None,
            restless: None,
        }
    }

    /// It, telling of all that it counts ([`Backend::matrix_bytes`] and the like) what this device takes.
    pub fn counting(self, device: usize) -> Self {
        Self { counted: Some(device), ..self }
    }

    /// Buffers whose rows were brought from one device to another.
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// The devices, in the order of layers.
    pub fn devices(&self) -> &[B] {
        &self.devices
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

    /// The device that has what is packed now; none where each has it that has anything.
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
    fn place<X>(&self, make: impl Fn(&B) -> Result<X, KernelError>) -> Result<Placed<X>, KernelError> {
        let mut placed = Placed::nowhere(self.devices.len());
        for device in self.owners() {
            placed.put(device, make(&self.devices[device])?);
        }
        Ok(placed)
    }

    /// Bytes of what is on these devices, of those that are counted.
    fn count(&self, devices: impl Iterator<Item = usize>, bytes: impl Fn(usize, &B) -> usize) -> usize {
        let counted = devices.filter(|&device| self.counted.is_none_or(|counted| counted == device));
        counted.fold(0, |sum, device| sum.saturating_add(bytes(device, &self.devices[device])))
    }

    /// Has the batch's rows of a buffer on a device.
    fn bring(&mut self, buffer: &ChainBuffer<B>, to: usize) {
        if buffer.is_on(to) {
            return;
        }
        self.passing.resize(self.rows * buffer.cols(), 0.0);
        let from = buffer.somewhere();
        let read = self.devices[from].read_rows(&buffer.at(from), 0, &mut self.passing);
        let passed =
            read.and_then(|()| self.devices[to].write_rows(&mut buffer.to_fill(to), 0, &self.passing));
        buffer.also_on(to);
        self.passes += 1;
        if let Err(error) = passed {
            self.failure.get_or_insert(error);
        }
    }

    /// What became of rows on their way.
    fn passed(&mut self) -> Result<(), KernelError> {
        self.failure.take().map_or(Ok(()), Err)
    }
}
