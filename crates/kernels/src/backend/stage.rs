//! The parts of a network that devices may share it by, in the contract. Absent: which device has which.

/// A part of a network, in the order of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// From tokens to what the first layer reads.
    Inputs,
    /// A layer, with the norm of what it leaves.
    Layer(usize),
    /// What a layer has that is of use as a whole alone, such as a router, which decides by all of its rows: to devices that share a
    /// network by layers it is of that layer.
    Undivided(usize),
    /// From hidden states to logits.
    Head,
    /// What several layers read, such as frequencies: wherever they are.
    Everywhere,
}
