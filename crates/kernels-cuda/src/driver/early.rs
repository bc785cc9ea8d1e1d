//! The text of a module as cards take it. Those of compute capability 9.0 and above may begin a kernel while those before it still run
//! (programmatic dependent launch), and older ones do not know the instructions for it. The build makes machine code of the same text, so this
//! names nothing of the crate.

/// Compute capability from which a kernel may begin early.
pub(crate) const EARLY_MIN: (i32, i32) = (9, 0);

/// What the general module is compiled for, and what it must be for to have these instructions.
const TARGETS: [&str; 2] = [".target sm_80", ".target sm_90"];
/// How every one of them begins.
const INSTRUCTIONS: &str = "griddepcontrol.";
/// A load of what nothing writes while a kernel runs, which a compiler may move before the kernel has waited for others; and another load.
const LOADS: [&str; 2] = ["ld.global.nc.", "ld.global."];

/// For a card of this compute capability.
pub(crate) fn text_for(capability: (i32, i32), module: &str) -> String {
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
