//! Embedding, reranking and classification around the network: prompts and tokens before it, pooling and layers
//! after it. Encoders and decoders share all of this. The engines decide which rows the network computes, and when.

mod embedder;
mod files;
mod input;
mod instruction;
mod modules;
mod pooling;
mod readout;
mod spec;

pub(crate) use embedder::yes_no;
pub use embedder::{Embedder, PairPrompt, Prompt, Task};
pub(crate) use files::{asking, network_folder, of_gguf, read};
pub use input::EmbedInput;
pub use modules::Module;
pub use pooling::{Pooler, Pooling};
pub use readout::{EmbedResult, Output, Readout, Rows};
pub use spec::{EmbeddingSpec, Lexical, Padding, Splade};

#[cfg(test)]
mod tests;
