//! How models write reasoning and tool calls: which format a chat template speaks, its text split into answer, reasoning and
//! calls as it streams, and the grammar that enforces it. Absent on purpose: tokens, models, what an API calls these things.

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
pub use split::{Reading, Splitter};
pub use tools::Tool;
pub use write::{CallPart, Made};
