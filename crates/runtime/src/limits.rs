//! Every bound of the runtime, in one place.

/// Vocabulary entries of a tokenizer, and rows of a head.
pub const VOCAB_MAX: usize = 4 << 20;
/// Bytes of one tokenizer or configuration file.
pub const TEXT_FILE_BYTES_MAX: u64 = 256 << 20;
/// Bytes of a GGUF header string.
pub const GGUF_STRING_BYTES_MAX: usize = 64 << 20;
/// Key-value pairs or tensors of a GGUF file.
pub const GGUF_ENTRIES_MAX: usize = 1 << 20;
/// Elements of a GGUF array.
pub const GGUF_ARRAY_MAX: usize = 16 << 20;
/// Layers of a decoder.
pub const LAYERS_MAX: usize = 1024;
/// Bytes a chat template may render to.
pub const TEMPLATE_OUTPUT_BYTES_MAX: usize = 64 << 20;
/// Bytes of a text to be tokenized.
pub const PROMPT_BYTES_MAX: usize = 64 << 20;
/// Bytes of a chat template's source.
pub const TEMPLATE_SOURCE_BYTES_MAX: usize = 1 << 20;
/// Tokens of a chat template's source.
pub const TEMPLATE_TOKENS_MAX: usize = 256 << 10;
/// Blocks and expressions inside each other in a chat template.
pub const TEMPLATE_NESTING_MAX: usize = 100;
/// Steps a chat template's program may take, about a second's; reading or copying 64 bytes is one.
pub const TEMPLATE_STEPS_MAX: u64 = 30_000_000;
/// Bytes of all values a chat template's program may make, beside 16 for each byte of the conversation.
pub const TEMPLATE_BYTES_MAX: usize = 128 << 20;
/// Values inside values in a chat template.
pub const TEMPLATE_VALUE_DEPTH_MAX: usize = 160;
/// Blocks, expressions and filters that may be running inside each other in a chat template.
pub const TEMPLATE_DEPTH_MAX: usize = 400;
/// Macros and recursive loops inside each other in a chat template.
pub const TEMPLATE_RECURSION_MAX: usize = 100;

// A prompt's length is bounded by itself, and its places fit 32 bits.
const _: () =
    assert!(TEMPLATE_BYTES_MAX > TEMPLATE_OUTPUT_BYTES_MAX && TEMPLATE_OUTPUT_BYTES_MAX < u32::MAX as usize);
/// Stop strings of a request.
pub const STOP_STRINGS_MAX: usize = 16;
/// Bytes of one stop string.
pub const STOP_STRING_BYTES_MAX: usize = 1024;
/// Alternatives reported with a token's log probability.
pub const TOP_LOGPROBS_MAX: usize = 20;
/// Entries of a request's `logit_bias`; all are applied at every token.
pub const LOGIT_BIAS_MAX: usize = 4096;
/// Completions of one request.
pub const CHOICES_MAX: u32 = 128;
/// Arrays inside arrays of a GGUF file.
pub const GGUF_ARRAY_DEPTH_MAX: usize = 4;
/// Bytes of a GGUF key or tensor name.
pub const GGUF_NAME_BYTES_MAX: usize = 65_535;
/// Alignment of a GGUF file's tensors, in bytes.
pub const GGUF_ALIGNMENT_MAX: u64 = 1 << 20;
/// Dimensions of a tensor.
pub const TENSOR_DIMENSIONS_MAX: usize = 4;
/// Files one model is split into.
pub const MODEL_PARTS_MAX: usize = 4096;
/// Elements of a hidden state, of an MLP's inside, or of the insides of all experts a token goes to.
pub const WIDTH_MAX: usize = 1 << 20;
/// Experts of a layer.
pub const EXPERTS_MAX: usize = 4096;
/// Query heads of a layer.
pub const HEADS_MAX: usize = 4096;
/// Elements of a head.
pub const HEAD_DIM_MAX: usize = 4096;
/// Rows of an encoder's token type embedding.
pub const ENCODER_TYPES_MAX: usize = 1024;
/// Numbers a classifier gives.
pub const LABELS_MAX: usize = 65_536;
/// Tokens of a context.
pub const CONTEXT_TOKENS_MAX: usize = 64 << 20;
/// Stop tokens of a request.
pub const STOP_TOKENS_MAX: usize = 256;
/// Modules of a sentence-transformers model.
pub const EMBEDDING_MODULES_MAX: usize = 32;
/// Tokens that one of several completions of a job draws before another job's may take its place.
pub const SHARED_TURN_TOKENS: usize = 8;
/// Tokens that the only completion of a job draws before a job that has not begun may take its place.
pub const SINGLE_TURN_TOKENS: usize = 32;
/// Sequences that have begun and wait for another turn, for each that may run.
pub const DISPLACED_PER_SLOT_MAX: usize = 4;
/// Jobs of a line that are asked in one step whether it is their turn before the first's.
pub const OVERTAKERS_ASKED_MAX: usize = 32;
