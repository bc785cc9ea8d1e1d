//! The bounds of what is read of a model's output: it is nobody's promise that it ends.

/// Characters between the marker that begins a call and its arguments; what is longer is no call.
pub const HEAD_CHARS_MAX: usize = 2 * TOOL_NAME_BYTES_MAX;
/// Values inside values in the arguments of a call.
pub const ARGUMENTS_DEPTH_MAX: usize = 64;
/// Bytes of one value whose type is known only once it is there.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a tool's name.
pub const TOOL_NAME_BYTES_MAX: usize = 256;
/// Schemas inside schemas that a grammar of literals is made of.
pub const SCHEMA_DEPTH_MAX: usize = 64;
