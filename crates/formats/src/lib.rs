//! Models' notations of reasoning and tool calls: detection from chat templates, streaming separation of
//! answer, reasoning and calls, and grammars that enforce them. This crate has no tokens, no models, and no API
//! types.

mod calls;
mod format;
mod grammar;
mod harmony;
mod json;
pub mod limits;
mod piece;
mod read;
mod reasoning;
mod split;
mod tools;
mod write;

pub use format::ToolFormat;
pub use grammar::Demand;
pub use piece::{End, Piece};
pub use reasoning::ReasoningMarkers;
pub use split::{SplitOptions, Splitter};
pub use tools::Tool;
pub use write::{CallPart, Made};
