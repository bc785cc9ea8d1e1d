//! Bounds of tokenizers, chat templates and prompts.

pub use hanzo_engine_model_files::limits::VOCAB_MAX;

/// Merges of a tokenizer. Gemma 3 has 514,906.
pub const MERGES_MAX: usize = 2 << 20;
/// Values of a tokenizer's normalizer, pre-tokenizer, decoder or post-processor. Most have a few dozen.
pub const TOKENIZER_STEP_VALUES_MAX: usize = 1 << 14;
/// Bytes of a regular expression in a tokenizer. DeepSeek's longest has 2 KB.
pub const TOKENIZER_PATTERN_BYTES_MAX: usize = 16 << 10;
/// Added tokens. Speech models that write sound as tokens have 65,536.
pub const ADDED_TOKENS_MAX: usize = 1 << 18;
/// Bytes of all added tokens' texts. Each byte is a state of the automaton that finds them.
pub const ADDED_TOKEN_BYTES_MAX: usize = 4 << 20;
/// Bytes of an added token's text. After a match at a forbidden place the search starts again one character later.
pub const ONE_ADDED_TOKEN_BYTES_MAX: usize = 1024;
/// Bytes of a piece of a Unigram vocabulary. Each byte is a level of the trie.
pub const PIECE_BYTES_MAX: usize = 1024;
/// Nodes of a Unigram vocabulary's trie, one for each distinct prefix of its pieces. XLM-R has fewer than a
/// million.
pub const PIECE_NODES_MAX: usize = 4 << 20;
/// Bytes of a map of characters to normal forms (`precompiled_charsmap`). SentencePiece's own have up to 350 KB.
pub const CHARS_MAP_BYTES_MAX: usize = 4 << 20;
/// Characters that such a map may make of a single one. NFKC makes 18 of U+FDFA.
pub const CHARS_MAP_CHARS_MAX: usize = 64;
/// Bytes a chat template may render to.
pub const TEMPLATE_OUTPUT_BYTES_MAX: usize = 64 << 20;
/// Bytes per token that few texts exceed on average. A text shorter than this times the allowed tokens is tokenized
/// as a whole.
pub const USUAL_TOKEN_BYTES: usize = 8;
/// Bytes of a piece of a longer text, whose tokens are counted first.
pub const COUNTED_PIECE_BYTES: usize = 64 << 10;
/// Maximum number of extra tokens that cutting adds to a piece.
pub const COUNTED_PIECE_SLACK_TOKENS: usize = 256;
/// Bytes of a long text that are tokenized at a time. Tokenizing takes up to a hundred times as much memory.
pub const WINDOW_BYTES: usize = 32 << 10;
/// Bytes of a window whose tokens depend on more text than usual.
pub const WINDOW_BYTES_MAX: usize = 128 << 10;
/// Bytes that two consecutive windows share.
pub const WINDOW_OVERLAP_BYTES: usize = 4 << 10;
/// Bytes of the overlap in which both windows must have the same tokens.
pub const WINDOW_AGREED_BYTES: usize = 1 << 10;
const _: () = assert!(2 * WINDOW_AGREED_BYTES <= WINDOW_OVERLAP_BYTES / 2);
const _: () = assert!(2 * WINDOW_OVERLAP_BYTES <= WINDOW_BYTES && WINDOW_BYTES < WINDOW_BYTES_MAX);
/// Bytes of a text to be tokenized.
pub const PROMPT_BYTES_MAX: usize = 64 << 20;
/// Total bytes of a prompt that are searched for the system's and tools' messages. If they are in order, each byte
/// is read once.
pub const PARTS_SEARCHED_BYTES_MAX: usize = 4 * TEMPLATE_OUTPUT_BYTES_MAX;
/// Bytes of a chat template's source.
pub const TEMPLATE_SOURCE_BYTES_MAX: usize = 1 << 20;
/// Tokens of a chat template's source.
pub const TEMPLATE_TOKENS_MAX: usize = 256 << 10;
/// Blocks and expressions inside each other in a chat template.
pub const TEMPLATE_NESTING_MAX: usize = 100;
/// Steps that a chat template's program may take, about a second's worth; reading or copying 64 bytes is one step.
pub const TEMPLATE_STEPS_MAX: u64 = 30_000_000;
/// Bytes of all values that a chat template's program may create, besides 16 for each byte of the conversation.
pub const TEMPLATE_BYTES_MAX: usize = 128 << 20;
/// Values inside values in a chat template.
pub const TEMPLATE_VALUE_DEPTH_MAX: usize = 160;
/// Blocks, expressions and filters that may run inside each other in a chat template.
pub const TEMPLATE_DEPTH_MAX: usize = 400;
/// Macros and recursive loops that may run inside each other in a chat template.
pub const TEMPLATE_RECURSION_MAX: usize = 100;
// A prompt bounds its own length, and its offsets fit 32 bits.
const _: () =
    assert!(TEMPLATE_BYTES_MAX > TEMPLATE_OUTPUT_BYTES_MAX && TEMPLATE_OUTPUT_BYTES_MAX < u32::MAX as usize);
