//! Every bound of the runtime, in one place.

/// Vocabulary entries of a tokenizer, and rows of a head. XLM-V has 901,629, Gemma 3 262,144.
pub const VOCAB_MAX: usize = 2 << 20;
const _: () = assert!(VOCAB_MAX <= hanzo_engine_kernels::sampling::SAMPLED_VOCAB_MAX);
/// Bytes of `config.json` and other files of settings; those with the most labels have 8 MB.
pub const SETTINGS_FILE_BYTES_MAX: u64 = 16 << 20;
/// Values of such a file, names included: labels both ways, and as many more.
pub const SETTINGS_VALUES_MAX: usize = 8 * LABELS_MAX;
/// Bytes of `tokenizer_config.json`, which lists added tokens a second time: Gemma 3's has 1.2 MB for 6,400 of them.
pub const TOKENIZER_SETTINGS_BYTES_MAX: u64 = 64 << 20;
/// Bytes of `tokenizer.json`. Gemma 3's has 33 MB, Llama 4's 28 MB, XLM-R's 17 MB.
pub const TOKENIZER_FILE_BYTES_MAX: u64 = 128 << 20;
/// Merges of a tokenizer. Gemma 3 has 514,906.
pub const MERGES_MAX: usize = 2 << 20;
/// Values of a tokenizer's normalizer, pre-tokenizer, decoder or post-processor; usual are a few dozen.
pub const TOKENIZER_STEP_VALUES_MAX: usize = 1 << 14;
/// Bytes of an expression that a tokenizer splits or replaces by. DeepSeek's longest has 2 KB.
pub const TOKENIZER_PATTERN_BYTES_MAX: usize = 16 << 10;
/// Added tokens. Speech models that write sound as tokens have 65,536.
pub const ADDED_TOKENS_MAX: usize = 1 << 18;
/// Bytes of all added tokens' texts, each of which is a state of the machine that finds them.
pub const ADDED_TOKEN_BYTES_MAX: usize = 4 << 20;
/// Bytes of one added token's text: where it may not stand, the search begins again one character later.
pub const ONE_ADDED_TOKEN_BYTES_MAX: usize = 1024;
/// Bytes of one piece of a Unigram vocabulary: each is a level of a tree.
pub const PIECE_BYTES_MAX: usize = 1024;
/// Nodes of a Unigram vocabulary's tree: beginnings of its pieces. XLM-R has fewer than a million.
pub const PIECE_NODES_MAX: usize = 4 << 20;
/// Bytes of a map of characters to normal forms (`precompiled_charsmap`). SentencePiece's own have up to 350 KB.
pub const CHARS_MAP_BYTES_MAX: usize = 4 << 20;
/// Characters that such a map may make of one. NFKC makes 18 of U+FDFA.
pub const CHARS_MAP_CHARS_MAX: usize = 64;
/// Bytes of `vocab.txt`; the largest of BERT's have 5 MB.
pub const VOCABULARY_FILE_BYTES_MAX: u64 = 32 << 20;
/// Bytes of a file with a chat template. The longest in use have 30 KB.
pub const TEMPLATE_FILE_BYTES_MAX: u64 = 4 << 20;
/// Bytes of an index of the files that weights are in. DeepSeek V3's names 91,991 tensors in 9 MB.
pub const INDEX_FILE_BYTES_MAX: u64 = 64 << 20;
/// Values of such an index: two for each tensor, and as many for what is said besides.
pub const INDEX_VALUES_MAX: usize = 4 * TENSORS_MAX;
/// Tokens at the beginning of a context that stay where the others move on and nothing else is said: a model that has them no
/// more says nothing of use, because they draw attention whatever they are (StreamingLLM, arXiv 2309.17453).
pub const KEPT_TOKENS_DEFAULT: usize = 4;
/// Tensors of a model.
pub const TENSORS_MAX: usize = 1 << 18;
/// Bytes of a safetensors file's header.
pub const SAFETENSORS_HEADER_BYTES_MAX: u64 = 64 << 20;
/// Values of such a header, names included: a dozen a tensor.
pub const SAFETENSORS_VALUES_MAX: usize = 12 * TENSORS_MAX;
/// Bytes of a pickle of weights: names and shapes of some 20,000 tensors.
pub const PICKLE_BYTES_MAX: usize = 4 << 20;
/// Tuples, lists, dictionaries, storages and tensors that a pickle makes; a tensor takes seven.
pub const PICKLE_OBJECTS_MAX: usize = 1 << 19;
/// Values that are ever put into its containers, on its stack or into its memo; a tensor takes some 60.
pub const PICKLE_VALUES_MAX: usize = 4 << 20;
/// Voices of a model that speaks.
pub const VOICES_MAX: usize = 1024;
/// Bytes of one voice: Kokoro's have 522,240.
pub const VOICE_FILE_BYTES_MAX: u64 = 16 << 20;
/// Nodes of an ONNX file's graph: voices have some 5,000.
pub const ONNX_NODES_MAX: usize = 1 << 18;
/// Bytes of all tensors of PyTorch's files whose numbers do not lie one after the other: BERT-large takes 1.3 GB.
pub const GATHERED_BYTES_MAX: usize = 2 << 30;
/// Bytes of all keys, values and tensors' names of a GGUF file. Gemma 3's have 15 MB.
pub const GGUF_HEADER_BYTES_MAX: usize = 256 << 20;
/// Texts and arrays in all its values: Gemma 3's has 780,000.
pub const GGUF_TEXTS_MAX: usize = 4 << 20;
/// Keys of a GGUF file.
pub const GGUF_KEYS_MAX: usize = 1 << 16;
/// Bytes of a GGUF header string.
pub const GGUF_STRING_BYTES_MAX: usize = 64 << 20;
/// Elements of a GGUF array.
pub const GGUF_ARRAY_MAX: usize = 16 << 20;
/// Layers of a decoder.
pub const LAYERS_MAX: usize = 1024;
/// Groups that layers of different windows are cut into, as far as they can be: each has block tables of its own.
pub const KV_GROUPS_MAX: usize = 16;
/// What groups may take of what their layers need, so that they are few.
pub const KV_WASTE_MAX: f64 = 1.05;
/// Bytes a chat template may render to.
pub const TEMPLATE_OUTPUT_BYTES_MAX: usize = 64 << 20;
/// Bytes of a token that few texts have more of on average: one that is shorter than so many times the tokens there may
/// be is tokenized as a whole.
pub const USUAL_TOKEN_BYTES: usize = 8;
/// Bytes of a piece of a longer text, whose tokens are counted first.
pub const COUNTED_PIECE_BYTES: usize = 64 << 10;
/// Tokens of a piece that cutting may have made, at most.
pub const COUNTED_PIECE_SLACK_TOKENS: usize = 256;
/// Bytes of a long text that are tokenized at a time: that takes up to some hundred times as much memory.
pub const WINDOW_BYTES: usize = 32 << 10;
/// Bytes of a window whose tokens depend on more text than usual.
pub const WINDOW_BYTES_MAX: usize = 128 << 10;
/// Bytes that two windows share.
pub const WINDOW_OVERLAP_BYTES: usize = 4 << 10;
/// Bytes of them for which both have the same tokens.
pub const WINDOW_AGREED_BYTES: usize = 1 << 10;
const _: () = assert!(2 * WINDOW_AGREED_BYTES <= WINDOW_OVERLAP_BYTES / 2);
const _: () = assert!(2 * WINDOW_OVERLAP_BYTES <= WINDOW_BYTES && WINDOW_BYTES < WINDOW_BYTES_MAX);
/// Bytes of a text to be tokenized.
pub const PROMPT_BYTES_MAX: usize = 64 << 20;
/// Bytes of a prompt that are searched for what its system and tools say, in all; in order, each is read once.
pub const PARTS_SEARCHED_BYTES_MAX: usize = 4 * TEMPLATE_OUTPUT_BYTES_MAX;
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
/// Standard deviations below the largest logit: of finite logits none is further than their number.
pub const TOP_N_SIGMA_MAX: f32 = 100.0;
/// What a normalized entropy is raised to.
pub const DYNATEMP_EXPONENT_MAX: f32 = 100.0;
/// Bits of surprise that mirostat aims at; all of a vocabulary alike are not above 21.
pub const MIROSTAT_TAU_MAX: f32 = 100.0;
/// Sequence breakers of a request.
pub const DRY_BREAKERS_MAX: usize = 64;
/// Bytes of a sequence breaker.
pub const DRY_BREAKER_BYTES_MAX: usize = 64;
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
/// Dimensions of a tensor of a safetensors file: convolutions over time, height and width have five.
pub const SAFETENSORS_DIMENSIONS_MAX: usize = 6;
/// Files one model is split into.
pub const MODEL_PARTS_MAX: usize = 4096;
/// Elements of a hidden state, of an MLP's inside, or of the insides of all experts a token goes to.
pub const WIDTH_MAX: usize = 1 << 20;
/// Experts of a layer.
/// Streams beside each other.
pub const STREAMS_MAX: usize = 16;
/// Experts of a layer.
pub const EXPERTS_MAX: usize = 4096;
/// Groups that a layer's experts are chosen from.
pub const EXPERT_GROUPS_MAX: usize = 64;
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
/// Tokens of an answer by which one client's jobs are told from another's; what it really has is not known before its end.
pub const FAIR_ANSWER_TOKENS_MAX: u32 = 256;
/// Clients and their jobs that are remembered beside those that are there.
pub const CLIENTS_FORGOTTEN_FROM: usize = 1024;
/// Sequences that have begun and wait for another turn, for each that may run.
pub const DISPLACED_PER_SLOT_MAX: usize = 4;
/// Jobs of a line that are asked in one step whether it is their turn before the first's.
pub const OVERTAKERS_ASKED_MAX: usize = 32;
/// Rank of a low-rank adapter's matrices; most have 8 to 64.
pub const ADAPTER_RANK_MAX: usize = 1024;
/// Bytes of all matrices of an adapter, as stored.
pub const ADAPTER_BYTES_MAX: u64 = 16 << 30;
/// Adapters of one engine.
pub const ADAPTERS_MAX: usize = 64;
/// Entries of `target_modules` and its like.
pub const ADAPTER_PATTERNS_MAX: usize = 1 << 14;
/// Characters of one part of an error that are shown.
pub const ERROR_PART_CHARS_MAX: usize = 1000;
/// Rows of a step that may have logits beside one of each sequence: drafted tokens, and scored ones of prompts.
pub const EXTRA_LOGIT_ROWS: usize = 16;
/// Tokens that are drafted for a completion in one step.
pub const DRAFT_TOKENS_MAX: usize = 15;
const _: () = assert!(DRAFT_TOKENS_MAX <= EXTRA_LOGIT_ROWS);
/// Drafts by a model in a row that came to nothing, after which it drafts no more for a completion.
pub const DRAFT_FAILURES_MAX: u32 = 7;
/// Of so many steps for which a model is not likely enough to be right, it is tried in one.
pub const DRAFT_CALLS_SKIPPED: usize = 64;
/// Entries of each of the three tables in which what was said before is looked up, 4 bytes each.
pub const LOOKUP_SLOTS_MAX: usize = 1 << 14;
/// Bytes of what a request predicts of its completion; as many of its tokens are used as the completion may have.
pub const PREDICTION_BYTES_MAX: usize = 1 << 20;

/// Bytes of an importance matrix's file.
pub const IMPORTANCE_BYTES_MAX: u64 = 2 << 30;
/// Entries of an importance matrix in the format without a header.
pub const IMPORTANCE_ENTRIES_MAX: usize = 1 << 16;

/// Weights of whole rows that a task of quantising takes at once; as floats they stay in a core's cache.
pub const QUANTISED_AT_ONCE: usize = 1 << 16;

/// Rules of a topology.
pub const TOPOLOGY_RULES_MAX: usize = 256;

/// Bytes of a pattern in one of them.
pub const TOPOLOGY_PATTERN_BYTES_MAX: usize = 256;

/// Settings that a load may put over a file's.
pub const OVERRIDES_MAX: usize = 64;

/// Bytes of one of them, as it is written.
pub const OVERRIDE_BYTES_MAX: usize = 4096;
/// Patches of a frame of a picture.
pub const PATCHES_MAX: usize = 1 << 14;
/// Pictures that prompts remember at once, of models whose layers read what is remembered of them (Llama 3.2 Vision); one prompt has no
/// more.
pub const PICTURES_REMEMBERED: usize = 4;
/// Bytes of rows that were made of pictures and are kept for the next prompt with the same ones.
pub const PICTURE_ROWS_BYTES: usize = 32 << 20;
/// Bytes of pictures' vectors that are kept by a model whose pictures become vectors.
pub const PICTURE_VECTORS_BYTES: usize = 1 << 20;

/// Blocks of a prompt that must be found in a row behind one that was not, or they are computed with it: where they begin a step
/// ends that could have gone on.
pub const FOUND_RUN_BLOCKS_MIN: usize = 4;
