//! Language model runtime: tokens in, tokens out. Start with [`engine`]: its `step` is the whole system.
//! [`model_files`] turns a model's files into a [`spec::TransformerSpec`] and weights, of parts that [`load`] reads. A
//! single network runs every family, as a [`decoder`] or an [`encoder`]. [`scheduler`] and [`kv`] decide what runs and
//! where its keys and values are stored. [`sampler`] prepares how tokens are drawn. [`output`] turns tokens into text,
//! and [`embedding`] turns hidden states into vectors and scores.
//!
//! Crates below have the formats of files ([`gguf`] and the others), the text side ([`template`], [`tokenizer`]) and
//! the families ([`spec`]). This crate names their modules as if they were its own.
//!
//! Deliberately absent: async, network, wall clock, device names, threads. The same jobs give the same tokens.

pub mod adapter;
pub mod audio;
pub mod convert;
pub mod decoder;
pub mod embedding;
pub mod encoder;
pub mod engine;
pub mod error;
pub mod fair;
#[cfg(test)]
mod gguf_tests;
pub mod head;
mod importance;
pub mod inspect;
pub mod job;
pub mod kv;
pub mod limits;
pub mod load;
pub mod media;
mod mel;
pub mod model_files;
mod network;
mod opened;
pub mod output;
pub mod overflow;
pub mod overrides;
mod pace;
pub mod quantise;
pub mod report;
pub mod sampler;
pub mod scheduler;
pub mod sequence;
pub mod speculation;
pub mod step;
pub mod text;
pub mod vision;
pub mod voice;
pub mod whisper;
mod wire;

pub use adapter::{Adapter, AdapterBase, BaseWeights, LoadedAdapter};
pub use embedding::{EmbedInput, EmbedResult, Embedder, EmbeddingSpec, Output, Prompt, Task};
pub use engine::{EncoderConfig, EncoderEngine, Engine, EngineConfig};
pub use error::{LoadError, RequestError, StepError, printable};
pub use hanzo_engine_families::spec;
pub use hanzo_engine_formats::{Tool, ToolFormat};
pub use hanzo_engine_model_files::{gguf, mapped, onnx, pytorch, safetensors, tensor};
use hanzo_engine_model_files::{json, override_record, regular};
pub use hanzo_engine_text::{chat, infill, template, thinking, tokenizer, transcript};
use hanzo_engine_text::{roles, text_files};
pub use job::{
    CallDelta, CallReading, ClientId, EmbedJob, Event, EventKind, FinishReason, Job, JobId, StopConditions,
    TextLogprob, TokenLogprob, Usage,
};
pub use load::ModelInfo;
pub use media::{LineEnds, MediaSpan};
pub use model_files::ModelFiles;
pub use network::{Isq, IsqRule};
pub use opened::{Network, OpenedModel};
pub use overflow::ContextShift;
pub use overrides::Overrides;
pub use report::{EngineStats, StepReport};
pub use sampler::SamplingParams;
pub use speculation::Speculation;
pub use text::TextModel;
pub use voice::{VoiceFiles, VoiceKind};
