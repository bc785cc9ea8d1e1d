//! Two devices that share one network, behind the contract of one: the first layers are on the first, the others and the head on
//! the second. Each has the weights of its own layers and their part of the cache; rows cross where the layers change hands, and
//! nowhere else. More devices are two, one of which is such a pair.
//!
//! Who computes is told by [`Backend::enter`]. A buffer has a place on both devices and knows where its rows are; an op that
//! reads rows which are on the other device has them brought. Absent: where to cut, which is its caller's, and ways of copying but
//! the devices' own, through the host.

#[macro_use]
mod operands;
mod ops;
mod params;
mod placed;
#[cfg(test)]
mod tests;

use std::cell::Cell;

use crate::{Backend, KernelError, Stage};
use placed::Side;
pub use placed::{Placed, SplitBuffer, SplitKv};

/// Where a network is cut in two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Layers of the first device, from the network's first on.
    pub layers: usize,
    /// How many of the cache's layers are theirs: no other layer attends to them.
    pub caches: usize,
    /// What comes before the layers is the first device's too, rather than the one's that has the head.
    pub inputs: bool,
}

impl Cut {
    /// Everything on the second device.
    pub const NOWHERE: Cut = Cut { layers: 0, caches: 0, inputs: false };
}

/// See the module.
pub struct Split<A: Backend, B: Backend> {
    first: A,
    second: B,
    cut: Cut,
    stage: Cell<Stage>,
    counts: [bool; 2],            // whose bytes are told
    rows: usize,                  // of the open step
    passing: Vec<f32>,            // rows on their way
    passes: u64,                  // buffers whose rows were brought
    failure: Option<KernelError>, // of rows on their way, which the step's end tells
    restless: Option<Cell<bool>>, // for tests: everything is on both devices, and they take turns by ops
}

impl<A: Backend, B: Backend> Split<A, B> {
    /// For a network that is cut there, of which nothing is packed yet.
    pub fn new(first: A, second: B, cut: Cut) -> Self {
        Self {
            first,
            second,
            cut,
            stage: Cell::new(Stage::Head),
            counts: [true; 2],
            rows: 0,
            passing: Vec::new(),
            passes: 0,
            failure: None,
            restless: None,
        }
    }

    /// It, telling of all that it counts ([`Backend::matrix_bytes`] and the like) what the first device takes.
    pub fn counting_first(self) -> Self {
        Self { counts: [true, false], ..self }
    }

    /// Likewise, what the second takes.
    pub fn counting_second(self) -> Self {
        Self { counts: [false, true], ..self }
    }

    /// Buffers whose rows were brought from one device to the other.
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// The device of the last layers and the head.
    pub fn second(&self) -> &B {
        &self.second
    }

    /// Whether anything is on the first device.
    fn has_first(&self) -> bool {
        self.cut.layers > 0 || self.cut.inputs || self.restless.is_some()
    }

    /// Which of the devices have what is packed now.
    fn sides(&self) -> [bool; 2] {
        if self.restless.is_some() {
            return [true; 2];
        }
        let is_first = match self.stage.get() {
            Stage::Inputs => self.cut.inputs,
            Stage::Layer(layer) => layer < self.cut.layers,
            Stage::Head => false,
            Stage::Everywhere => return [self.has_first(), true],
        };
        [is_first, !is_first]
    }

    /// The device that computes now.
    ///
    /// # Panics
    /// In no part of the network that is on one.
    fn side(&self) -> Side {
        if let Some(turn) = &self.restless {
            return if turn.replace(!turn.get()) { Side::First } else { Side::Second };
        }
        match self.sides() {
            [true, false] => Side::First,
            [false, true] => Side::Second,
            _ => panic!("an op in {:?}, which is on no single device", self.stage.get()),
        }
    }

    /// Makes something on the devices that have what is packed now.
    fn place<X, Y>(
        &self,
        first: impl FnOnce(&A) -> Result<X, KernelError>,
        second: impl FnOnce(&B) -> Result<Y, KernelError>,
    ) -> Result<Placed<X, Y>, KernelError> {
        Ok(match self.sides() {
            [true, false] => Placed::First(first(&self.first)?),
            [false, _] => Placed::Second(second(&self.second)?),
            [true, true] => Placed::Both(first(&self.first)?, second(&self.second)?),
        })
    }

    /// Bytes of what is on these devices, of those that are counted.
    fn count(
        &self,
        sides: [bool; 2],
        first: impl FnOnce(&A) -> usize,
        second: impl FnOnce(&B) -> usize,
    ) -> usize {
        let of_first = if sides[0] && self.counts[0] { first(&self.first) } else { 0 };
        let of_second = if sides[1] && self.counts[1] { second(&self.second) } else { 0 };
        of_first.saturating_add(of_second)
    }

    /// Has the batch's rows of a buffer on a device.
    fn bring(&mut self, buffer: &SplitBuffer<A, B>, side: Side) {
        if buffer.is_on(side) {
            return;
        }
        let Self { first, second, passing, .. } = self;
        passing.resize(self.rows * buffer.cols(), 0.0);
        let passed = match side {
            Side::First => {
                let read = second.read_rows(&buffer.second(), 0, passing);
                read.and_then(|()| first.write_rows(&mut buffer.first_to_fill(), 0, passing))
            }
            Side::Second => {
                let read = first.read_rows(&buffer.first(), 0, passing);
                read.and_then(|()| second.write_rows(&mut buffer.second_to_fill(), 0, passing))
            }
        };
        buffer.also_on(side);
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
