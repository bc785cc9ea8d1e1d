//! Limits for reading a model's output, which is unbounded in itself.

/// Maximum characters between the marker of a call and its arguments. A longer text is no call.
pub const HEAD_CHARS_MAX: usize = 2 * TOOL_NAME_BYTES_MAX;
/// Maximum nesting of values in the arguments of a call.
pub const ARGUMENTS_DEPTH_MAX: usize = 64;
/// Maximum bytes of a value whose type is known only at its end.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of a tool's name.
pub const TOOL_NAME_BYTES_MAX: usize = 256;
/// Maximum nesting of schemas in a grammar of literals.
pub const SCHEMA_DEPTH_MAX: usize = 64;
