//! Parts of a network that may be on different devices, in the contract. The assignment of parts to devices is decided
//! elsewhere.

/// A part of a network, in the order of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Input of the first layer: embeddings.
    Inputs,
    /// A layer, including the norm of its output.
    Layer(usize),
    /// Parts of a layer that must not be split, such as a router, which decides by all of its rows. A pipeline treats
    /// them like the layer itself.
    Undivided(usize),
    /// Final norm and output head: from hidden states to logits.
    Head,
    /// Data that several layers read, such as rotary frequencies: on every device.
    Everywhere,
}
