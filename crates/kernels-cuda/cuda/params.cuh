// What each kernel is given, by value: the same structs as in src/params.rs, field by field. Pointers are 64 bits on
// both sides and stand first, so that there is no padding; the emulator compares the sizes at every launch.
#pragma once

#define NONE 0xffffffffu
// Which of a batch's counts bounds a kernel's rows.
#define COUNT_ROWS 0
#define COUNT_SEQUENCES 1
#define COUNT_LOGIT_ROWS 2

// The step's batch. Its arrays lie at addresses that depend on nothing but the bucket of rows that the batch is in, so
// that a recorded step can be replayed for another batch.
struct Batch {
  const uint32_t* counts;       // rows, sequences, logit rows
  const uint32_t* tokens;       // (rows), NONE where the host writes the row
  const uint32_t* positions;    // (rows)
  const uint32_t* axes;         // (rows, 3): what turns pairs of time, height, width
  const uint32_t* types;        // (rows)
  const uint32_t* adapters;     // (rows), NONE without
  const uint32_t* sequence_of;  // (rows)
  const uint32_t* slots;        // (rows, groups)
  const uint32_t* spans;        // (sequences, 4): first row, rows, context, state
  const uint32_t* tables;       // (sequences, groups, 2): where in `blocks`, and which block of the sequence is first there
  const uint32_t* logit_rows;   // (logit rows)
  const uint32_t* blocks;
  uint32_t groups, unused;
};

// Rows of a matrix that are of one type, as stored.
struct Part {
  const uint8_t* bytes;
  uint32_t type, row_first, rows, row_bytes;
};

// Parts stacked by rows.
struct Stack {
  const Part* parts;
  const uint8_t* codebooks;  // of the types that look numbers up; null where no part has one
  uint32_t count, rows, cols, unused;
};

// How rows are in pieces: in three of BF16 instead of two halves; and word by word, as groups of four warps multiply them.
#define IN_BF16S 1
#define BY_WORDS 2

// Where rows go in pieces; nowhere without `pieces`.
struct PiecesTo {
  uint8_t* pieces;
  float* inverses;
  float* sums;
  uint32_t blocks, form;  // of columns; and as above
};

struct NormParams {
  Batch batch;
  float* residual;  // added to and normed, where there is one
  const float* x;
  float* out;
  const float* weight;
  const float* bias;
  PiecesTo cut;  // of `out` too
  uint32_t x_stride, out_stride;
  uint32_t width, repeats;  // columns of a part; 1 if all parts have the same weights
  float eps;
  uint32_t centered;
};

struct RowParams {
  Batch batch;
  float* out;
  const float* x;
  const float* base;
  const float* weights;
  uint32_t op, cols, x_cols, first;
  float a, b, c;
  uint32_t width, tail, unused;
};

struct EmbedParams {
  Batch batch;
  Stack table;
  float* out;
  float scale;
  uint32_t ids, offset, adds;
};

struct MatmulParams {
  Batch batch;
  Stack weights;
  const float* x;
  float* out;
  const float* bias;
  uint32_t x_stride, out_stride;
  uint32_t activation, adds;  // NONE: none
  uint32_t logits, adapter;   // rows are the batch's logit rows; rows of this adapter alone, or NONE
  float scale;
  uint32_t unused;
};

struct PiecesParams {
  Batch batch;
  const float* x;
  uint8_t* pieces;
  float* inverses;
  float* sums;
  uint32_t x_stride, cols;
  uint32_t logits, form;
};

struct ProductParams {
  Batch batch;
  Stack weights;
  const uint8_t* pieces;  // of x, as `pieces` makes them
  const float* inverses;
  const float* sums;
  float* out;
  const float* bias;
  uint32_t out_stride, segments;
  uint32_t activation, adds;  // as above
  uint32_t logits, adapter;
  float scale;
  uint32_t bf16s;  // all weights are in BF16
};

struct HeadParams {
  Batch batch;
  float* q;            // rows of heads to be turned in place
  float* k;            // likewise, or to the cache
  const float* v;
  const float* q_weight;
  const float* k_weight;
  const float* inv_freq;
  uint8_t* key_plane;  // null: keys stay where they are
  uint8_t* value_plane;
  uint32_t q_stride, kv_stride;
  uint32_t heads, kv_heads, head_dim, turned_first;  // elements of a head before those that are turned
  uint32_t q_normed, k_normed;                       // elements from the first on
  uint32_t pairs, interleaved;
  uint32_t norm_after, values_normed;
  uint32_t sections[3], sections_interleaved;        // pairs of each axis; all in the last where rows turn by one position
  uint32_t kv_type, group;
  uint32_t slot_bytes, scale_every;                  // 0: queries are not scaled
  float scale_factor;
  uint32_t scale_offset;
  float eps, magnitude;
  uint32_t two_tables;                               // a second table stands behind the first: rows of another type than 0 turn by it
  float long_magnitude;
};

struct AttentionParams {
  Batch batch;
  const float* q;
  const uint8_t* key_plane;
  const uint8_t* value_plane;
  float* out;
  const float* sinks;
  const float* slopes;
  float* parts;  // (rows, heads, spans): a maximum, a total, and value_dim sums; null: blocks have all spans of their row
  uint32_t* arrived;  // a counter for each tile, zero between launches: the last of its blocks brings parts together; null: another kernel does
  PiecesTo cut;  // of `out` too
  uint32_t q_stride, out_stride;
  uint32_t heads, kv_heads, head_dim, value_dim;
  uint32_t kv_type, group;
  uint32_t slot_bytes, window;  // 0: no window
  uint32_t chunked;
  float scale, softcap;         // 0: no cap
  uint32_t row_first, row_end;  // of the step's rows: these alone
  uint32_t spans;
  uint32_t short_rows, unused;  // of tiles: sequences of up to so many are the kernel's for few queries, others the one's for many; 0: all
};

struct WholeAttentionParams {
  Batch batch;
  const float* qkv;
  float* out;
  const float* table;    // slopes, biases by distance, or keys by bucket
  const float* queries;  // by bucket
  const uint32_t* bucket_of;
  uint32_t heads, kv_heads, head_dim, bias;
  uint32_t reach, bias_reach;  // NONE: the whole sequence
  float scale;
  uint32_t unused;
};

struct RouteParams {
  Batch batch;
  const float* scores;
  const float* correction;
  const float* expert_scale;
  uint32_t* chosen;  // (rows, used)
  float* weights;    // (rows, used)
  uint32_t experts, used, softmax, normalized;
  float scale;
  uint32_t by_weight, groups, groups_used, best;
  float reach;  // above 0: experts weigh beside those near them
};

struct ExpertParams {
  Batch batch;
  const Stack* experts;  // two of each expert: gate and up, down
  const uint32_t* chosen;
  const float* weights;
  const float* x;
  float* hidden;
  float* out;
  const float* up_bias;
  const float* down_bias;
  uint32_t used, cols, ffn, gated, activation, scales_input;
};

struct GroupParams {
  Batch batch;
  const uint32_t* chosen;
  uint32_t* places;  // (rows, used)
  uint32_t* units;   // (units_max, 4): expert, first tile, pairs; without pairs behind the last
  uint32_t experts, used;
  uint32_t unit_bits, units_max;  // pairs of a unit as a power of two
};

struct ExpertPiecesParams {
  Batch batch;
  const uint32_t* places;
  const float* weights;  // null: rows are not scaled
  const float* x;        // (pairs / pairs_of_row, cols)
  uint8_t* pieces;
  float* inverses;
  float* sums;
  uint32_t used, cols, pairs_of_row, bf16s;
};

struct ExpertHiddenParams {
  Batch batch;
  const uint32_t* chosen;
  const uint32_t* places;
  const float* products;  // (places, ffn), of gates and then of ups where experts are gated
  const float* bias;
  float* hidden;          // (pairs, ffn); null: in pieces
  uint8_t* pieces;
  float* inverses;
  float* sums;
  uint32_t used, ffn, gated, activation, bf16s, unused;
};

struct ExpertProductParams {
  Batch batch;
  const Stack* experts;
  const uint32_t* units;
  const uint8_t* pieces;  // of tiles
  const float* inverses;
  const float* sums;
  float* out;             // (places, outputs)
  uint32_t cols, segments, outputs;
  uint32_t down;          // 1: the second of an expert's stacks
  uint32_t bf16s, unused;
};

struct ExpertSumParams {
  Batch batch;
  const uint32_t* chosen;
  const uint32_t* places;
  const float* weights;   // null: of 1
  const float* products;  // (places, cols)
  const float* bias;
  float* out;
  uint32_t used, cols;
};

struct SharedParams {
  Batch batch;
  const float* gate;
  const float* x;
  const float* shared;
  float* out;
  uint32_t cols, x_cols;
};

struct GateParams {
  Batch batch;
  const float* both;
  float* hidden;
  PiecesTo cut;  // of `hidden` too
  uint32_t width, activation;
};

// What a launch for few rows does besides with what it has written, where the last of its blocks that wrote some of it comes: a norm of the row,
// activations of one half times the other, or what is done to heads.
#define THEN_NOTHING 0
#define THEN_NORM 1
#define THEN_GATE 2
#define THEN_HEADS 3
#define THEN_TILES_MAX 32  // of a block
struct Then {
  uint32_t* arrived;  // a counter for each of the groups, zero between launches
  uint32_t what;
  uint32_t groups;    // of columns that are done apart: the row, blocks of columns, heads
  uint32_t at_once;   // heads of a block
  uint32_t unused;
  union {
    NormParams norm;
    GateParams gate;
    HeadParams heads;
  } of;
};

struct FewParams {
  ProductParams product;
  Then then;
};

struct ConvolveParams {
  Batch batch;
  float* x;
  float* inputs;  // (states, taps - 1, channels)
  const float* weight;
  const float* bias;
  uint32_t x_stride, channels, taps, activates;
};

struct RecurParams {
  Batch batch;
  const float* x;
  float* heads;  // (states, value heads, key_dim, value_dim)
  float* out;
  const float* decay;
  const float* step_bias;
  const float* skip;
  float step_min, step_max;
  uint32_t x_stride, out_stride;
  uint32_t delta, value_heads, key_heads, key_dim, value_dim, tiled;
  uint32_t query_column, key_column, value_column, step_column, beta_column, unused;
};

struct OutputGateParams {
  Batch batch;
  const float* gate;
  float* out;
  const float* weight;  // null: no norm
  uint32_t gate_stride, cols, part, weights;
  float eps;
  uint32_t silu, before_gate, unused;
};

struct ChangeOutputsParams {
  Batch batch;
  float* out;
  const float* x;  // as wide as `out`; null: `out` itself
  const float* factors;
  const float* addends;
  uint32_t cols, first, count;
  uint32_t logits, adapter, unused;
};

struct UnfoldParams {
  Batch batch;
  const float* x;
  float* out;
  uint32_t cols, window;
};

// How a row's token is drawn.
struct DrawSpec {
  double uniform;
  float temperature, top_p, min_p;
  uint32_t top_k, by_host;
  // What is done to its logits before: words of `DrawParams::edits`, counts of words and of changes of three words each.
  uint32_t edited;
  float softcap, repetition;        // 0: none; 1: none
  uint32_t mask, mask_words;        // NONE: none
  uint32_t seen, seen_words;
  uint32_t changes, changes_count;  // token, whether it multiplies, by or of what
};

struct DrawParams {
  Batch batch;
  float* logits;  // (logit rows, vocab)
  const DrawSpec* specs;
  uint32_t* tokens;       // (logit rows); NONE where there is none
  const uint32_t* edits;  // of all rows
  uint32_t vocab, unused;
};

// Ranks that meet, at most.
#define RANKS_MAX 8

struct MeetParams {
  Batch batch;
  uint64_t* flags[RANKS_MAX];         // of each rank: which turn the others have come to, (ranks)
  uint64_t* turn;                     // of this rank, the last
  uint32_t* arrived;                  // blocks, zero between launches
  uint32_t* late;                     // 1 where a trial has heard nothing of another
  const float* sources[RANKS_MAX];    // (rows, source_stride)
  float* out;                         // (rows, out_stride)
  uint32_t rank, ranks;               // 0: nobody is met
  uint32_t count, width;              // of sources, and their columns
  uint32_t source_stride, out_stride;
  uint32_t by_fours;                  // columns stand at multiples of 16 bytes
  uint32_t patience_ms, is_trial, unused;
};
