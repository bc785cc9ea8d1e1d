//! Adaptation of a module's PTX to a GPU. GPUs of compute capability 9.0 and above support programmatic dependent
//! launch, in which a kernel begins while earlier ones still run; older ones do not know its instructions. The build
//! script compiles the same text to machine code, so this file names nothing of the crate.

/// Compute capability of a GPU: its architecture's generation, and the variant in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ComputeCapability {
    /// Generation, such as 9.
    pub major: i32,
    /// Variant, such as 0.
    pub minor: i32,
}

/// Lowest compute capability with programmatic dependent launch.
pub(crate) const EARLY_MIN: ComputeCapability = ComputeCapability { major: 9, minor: 0 };

/// Target that the general module is compiled for, and the target that these instructions need.
const TARGETS: [&str; 2] = [".target sm_80", ".target sm_90"];
/// Common prefix of these instructions.
const INSTRUCTIONS: &str = "griddepcontrol.";
/// A load of data that nothing writes while a kernel runs, which a compiler may move before the kernel's wait for
/// others; and the plain load that replaces it.
const LOADS: [&str; 2] = ["ld.global.nc.", "ld.global."];

/// The module's text for a GPU of this compute capability.
pub(crate) fn text_for(capability: ComputeCapability, module: &str) -> String {
    let mut text = String::with_capacity(module.len());
    for line in module.lines() {
        if capability < EARLY_MIN {
            if !line.starts_with(INSTRUCTIONS) {
                text.push_str(line);
                text.push('\n');
            }
        } else if line == TARGETS[0] {
            text.push_str(TARGETS[1]);
            text.push('\n');
        } else {
            text.push_str(&line.replace(LOADS[0], LOADS[1]));
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
#[path = "early/tests.rs"]
mod tests;
