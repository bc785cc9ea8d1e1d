//! Names of the experts' matrices in files.

/// Names of the experts' matrices. Unlike in other tables they are full names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertNames {
    /// Names of a single expert's matrices, with `{}` for its number; empty if files have only stacks.
    pub(crate) gate: &'static str,
    pub(crate) up: &'static str,
    pub(crate) down: &'static str,
    /// Names of tensors that stack one matrix of all of a layer's experts; empty if no file has them.
    pub(crate) gates: &'static str,
    pub(crate) ups: &'static str,
    pub(crate) downs: &'static str,
    /// Bias of the experts' sum.
    pub(crate) bias: &'static str,
    /// Gate and up of all experts in one tensor, if files have such.
    pub(crate) pack: Option<ExpertPack>,
}

/// Full names of tensors of all experts of a layer, with gate and up in one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertPack {
    pub(crate) gate_up: &'static str,
    pub(crate) down: &'static str,
    /// Suffix of their biases' names.
    pub(crate) bias_suffix: &'static str,
    /// Whether rows of gate and up alternate, rather than one being the first half.
    pub(crate) in_turns: bool,
    /// Whether matrices of floats have their inputs outermost.
    pub(crate) inputs_first: bool,
}

impl ExpertNames {
    pub(crate) const NONE: ExpertNames =
        ExpertNames { gate: "", up: "", down: "", gates: "", ups: "", downs: "", bias: "", pack: None };
}

impl ExpertPack {
    /// Gate's rows before up's, and outputs outermost.
    pub(crate) const fn new(gate_up: &'static str, down: &'static str) -> ExpertPack {
        ExpertPack { gate_up, down, bias_suffix: "_bias", in_turns: false, inputs_first: false }
    }
}
