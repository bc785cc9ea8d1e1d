//! What files call the matrices of experts.

/// Those of experts' matrices. Unlike elsewhere they are in full.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertNames {
    /// One expert's, `{}` standing for its number; empty where files have them in stacks alone.
    pub(crate) gate: &'static str,
    pub(crate) up: &'static str,
    pub(crate) down: &'static str,
    /// Each a tensor of that matrix of all of a layer's experts, one after the other; empty where no file has one.
    pub(crate) gates: &'static str,
    pub(crate) ups: &'static str,
    pub(crate) downs: &'static str,
    /// The bias of their sum.
    pub(crate) bias: &'static str,
    /// Gate and up of all experts in one tensor, where files have such.
    pub(crate) pack: Option<ExpertPack>,
}

/// Tensors of all experts of a layer, gate and up in one, in full.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertPack {
    pub(crate) gate_up: &'static str,
    pub(crate) down: &'static str,
    /// What their biases have behind those names.
    pub(crate) bias_suffix: &'static str,
    /// Rows of gate and up take turns, rather than one's being the first half.
    pub(crate) in_turns: bool,
    /// Matrices of floats have their inputs outermost.
    pub(crate) inputs_first: bool,
}

impl ExpertNames {
    pub(crate) const NONE: ExpertNames =
        ExpertNames { gate: "", up: "", down: "", gates: "", ups: "", downs: "", bias: "", pack: None };
}
