//! All bounds of the runtime.

use std::time::Duration;

pub use hanzo_engine_families::limits::{
    CONTEXT_TOKENS_MAX, ENCODER_TYPES_MAX, EXPERT_GROUPS_MAX, EXPERTS_MAX, HEAD_DIM_MAX, HEADS_MAX,
    LAYERS_MAX, WIDTH_MAX,
};
pub use hanzo_engine_model_files::limits::{MODEL_PARTS_MAX, TENSORS_MAX};
pub use hanzo_engine_text::limits::{
    ADDED_TOKENS_MAX, MERGES_MAX, PIECE_BYTES_MAX, PROMPT_BYTES_MAX, VOCAB_MAX,
};

/// Maximum time that a step without any work waits for a mask.
pub const MASK_WAIT: Duration = Duration::from_millis(10);
/// Bytes of `config.json` and other settings files. The largest, with the most labels, have 8 MB.
pub const SETTINGS_FILE_BYTES_MAX: u64 = 16 << 20;
/// Values of a settings file, names included. A list of labels takes two maps; as many values again are allowed.
pub const SETTINGS_VALUES_MAX: usize = 8 * LABELS_MAX;
/// Bytes of `tokenizer_config.json`, which repeats the added tokens: Gemma 3's has 1.2 MB for 6,400 of them.
pub const TOKENIZER_SETTINGS_BYTES_MAX: u64 = 64 << 20;
/// Bytes of `tokenizer.json`. Gemma 3's has 33 MB, Llama 4's 28 MB, XLM-R's 17 MB.
pub const TOKENIZER_FILE_BYTES_MAX: u64 = 128 << 20;
/// Bytes of `vocab.txt`; the largest of BERT's have 5 MB.
pub const VOCABULARY_FILE_BYTES_MAX: u64 = 32 << 20;
/// Bytes of a file with a chat template. The longest in use have 30 KB.
pub const TEMPLATE_FILE_BYTES_MAX: u64 = 4 << 20;
/// Bytes of a weight index. DeepSeek V3's names 91,991 tensors in 9 MB.
pub const INDEX_FILE_BYTES_MAX: u64 = 64 << 20;
/// Values of a weight index: two for each tensor, and as many for its other keys.
pub const INDEX_VALUES_MAX: usize = 4 * TENSORS_MAX;
/// Default number of tokens at the start of a context that a context shift keeps. A model without its first tokens
/// produces nonsense: they attract attention whatever they are (StreamingLLM, arXiv 2309.17453).
pub const KEPT_TOKENS_DEFAULT: usize = 4;
/// Voices of a text-to-speech model.
pub const VOICES_MAX: usize = 1024;
/// Bytes of a voice: Kokoro's have 522,240.
pub const VOICE_FILE_BYTES_MAX: u64 = 16 << 20;

/// Stop strings of a request.
pub const STOP_STRINGS_MAX: usize = 16;
/// Bytes of one stop string.
pub const STOP_STRING_BYTES_MAX: usize = 1024;
/// Alternatives reported with a token's log probability.
pub const TOP_LOGPROBS_MAX: usize = 20;
/// Entries of a request's `logit_bias`; all are applied at every token.
pub const LOGIT_BIAS_MAX: usize = 4096;
/// `top_n_sigma`, in standard deviations below the largest logit. No finite logit is more standard deviations away
/// than there are logits.
pub const TOP_N_SIGMA_MAX: f32 = 100.0;
/// Exponent of dynamic temperature, applied to the normalised entropy.
pub const DYNATEMP_EXPONENT_MAX: f32 = 100.0;
/// Mirostat's target surprise in bits. A uniform distribution over the largest vocabulary has at most 21.
pub const MIROSTAT_TAU_MAX: f32 = 100.0;
/// Sequence breakers of a request.
pub const DRY_BREAKERS_MAX: usize = 64;
/// Bytes of a sequence breaker.
pub const DRY_BREAKER_BYTES_MAX: usize = 64;
/// Completions of one request.
pub const CHOICES_MAX: u32 = 128;
/// Outputs of a classifier.
pub const LABELS_MAX: usize = 65_536;
/// Stop tokens of a request.
pub const STOP_TOKENS_MAX: usize = 256;
/// Modules of a sentence-transformers model.
pub const EMBEDDING_MODULES_MAX: usize = 32;
/// Tokens that one of a job's several completions generates before another job's may take its slot.
pub const SHARED_TURN_TOKENS: usize = 8;
/// Tokens that a job's only completion generates before an unstarted job may take its slot.
pub const SINGLE_TURN_TOKENS: usize = 32;
/// Tokens of an answer that count in fair queueing between clients' jobs. Its true length is not known before its
/// end.
pub const FAIR_ANSWER_TOKENS_MAX: u32 = 256;
/// Clients and jobs that the fair queue remembers, besides those that wait or run.
pub const CLIENTS_FORGOTTEN_FROM: usize = 1024;
/// Preempted sequences that wait for another turn, for each slot.
pub const DISPLACED_PER_SLOT_MAX: usize = 4;
/// Waiting jobs that are checked in a step for whether they may overtake the first.
pub const OVERTAKERS_ASKED_MAX: usize = 32;
/// Rank of a low-rank adapter's matrices; most have 8 to 64.
pub const ADAPTER_RANK_MAX: usize = 1024;
/// Bytes of all matrices of an adapter, as stored.
pub const ADAPTER_BYTES_MAX: u64 = 16 << 30;
/// Adapters of one engine.
pub const ADAPTERS_MAX: usize = 64;
/// Entries of `target_modules` and its like.
pub const ADAPTER_PATTERNS_MAX: usize = 1 << 14;
/// Extra rows of a step with logits, besides one for each sequence: draft tokens, and scored prompt tokens.
pub const EXTRA_LOGIT_ROWS: usize = 16;
/// Draft tokens of a completion in a step.
pub const DRAFT_TOKENS_MAX: usize = 15;
const _: () = assert!(DRAFT_TOKENS_MAX <= EXTRA_LOGIT_ROWS);
/// Consecutive rejected drafts after which a draft model no longer drafts for a completion.
pub const DRAFT_FAILURES_MAX: u32 = 7;
/// While a draft model is not likely enough to be right, it is tried in one of this many steps.
pub const DRAFT_CALLS_SKIPPED: usize = 64;
/// Entries of each of the three lookup tables for drafting from earlier text, 4 bytes each.
pub const LOOKUP_SLOTS_MAX: usize = 1 << 14;
/// Bytes of a request's predicted completion. Only as many of its tokens are used as the completion may have.
pub const PREDICTION_BYTES_MAX: usize = 1 << 20;

/// Bytes of an importance matrix file.
pub const IMPORTANCE_BYTES_MAX: u64 = 2 << 30;
/// Entries of an importance matrix in the format without a header.
pub const IMPORTANCE_ENTRIES_MAX: usize = 1 << 16;

/// Weights of whole rows that a quantisation task takes at once; as floats they stay in a core's cache.
pub const QUANTISED_AT_ONCE: usize = 1 << 16;

/// Rules of a topology.
pub const TOPOLOGY_RULES_MAX: usize = 256;

/// Bytes of a pattern in a topology rule.
pub const TOPOLOGY_PATTERN_BYTES_MAX: usize = 256;

/// Settings of a file that a load may override.
pub const OVERRIDES_MAX: usize = 64;

/// Bytes of such an override, as written.
pub const OVERRIDE_BYTES_MAX: usize = 4096;
/// Patches of a picture's frame.
pub const PATCHES_MAX: usize = 1 << 14;
/// Pictures in the cross-attention cache at once, for models with cross-attention to image features (Llama 3.2
/// Vision). A prompt has at most as many.
pub const PICTURES_REMEMBERED: usize = 4;
/// Bytes of rows made from pictures or sounds that are kept for the next prompt with the same ones.
pub const PICTURE_ROWS_BYTES: usize = 32 << 20;
/// Bytes of pictures' embedding vectors that are kept.
pub const PICTURE_VECTORS_BYTES: usize = 1 << 20;

/// Minimum number of consecutive cached blocks that are used after a block that was not cached. A step must end
/// where such a run starts, so shorter runs are computed instead.
pub const FOUND_RUN_BLOCKS_MIN: usize = 4;
