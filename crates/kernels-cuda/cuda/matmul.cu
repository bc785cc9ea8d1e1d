// out[r][m] = activate(Σ_k w[m][k] x[r][k] + bias[m]), or out[r][m] += scale * Σ_k w[m][k] x[r][k]; and tables of embeddings.
//
// Columns are cut into as many segments as a block has warps, by the matrix's shape alone. Within one, groups of 32 columns are multiplied
// on the tensor cores and added up in order; segments are added up in order. So a row's numbers are the same to the bit whichever of
// the kernels below computes them, and whatever shares its batch: one for a few rows, in which each warp of a block has a segment;
// one for more rows, likewise; and one for many, in which each warp has outputs of its own and reads weights once for 64 rows.
#include "weights.cuh"

#define TILE_ROWS 16
#define TILE_OUTPUTS 8
// Any type, looked at for every group.
#define ANY 0xfffffffeu

// Columns 8 * (lane % 4) to that + 7 of a group of a row; zeros without one.
__device__ __forceinline__ void load_x(const float* x, uint32_t column, uint32_t cols, bool even, float out[8]) {
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) out[i] = 0.0f;
  if (!x) return;
  if (even && column + 8 <= cols) {
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      uint32_t words[4];
      dev::load16(reinterpret_cast<const uint8_t*>(x + column + 4 * i), words);
#pragma unroll
      for (uint32_t j = 0; j < 4; j++) out[4 * i + j] = dev::from_bits(words[j]);
    }
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    if (column + i < cols) out[i] = x[column + i];
  }
}

// What a lane multiplies: an output of each tile of outputs, and two rows of each tile of rows.
template <int TILES, int OUTPUTS>
struct Factors {
  const uint8_t* weights[OUTPUTS];
  uint32_t types[OUTPUTS];
  const float* x[2 * TILES];  // null: not there
  uint32_t cols;
  bool even;                  // rows of x and weights begin at multiples of 16 bytes
};

// Of each tile of outputs and rows.
template <int TILES, int OUTPUTS>
struct Sums {
  float of[OUTPUTS][TILES][4];
};

// Adds the products of groups `from` to `to` - 1 to sums, the weights of AHEAD groups loaded before they are used.
template <uint32_t TYPE, int AHEAD, int TILES, int OUTPUTS>
__device__ __forceinline__ void add_groups(const Factors<TILES, OUTPUTS>& factors, uint32_t from, uint32_t to, bool is_short, Sums<TILES, OUTPUTS>& sums) {
  const uint32_t quarter = threadIdx.x % 4;
  for (uint32_t group = from; group + AHEAD <= to; group += AHEAD) {
    float w[AHEAD][OUTPUTS][8];
#pragma unroll
    for (uint32_t ahead = 0; ahead < AHEAD; ahead++) {
      const uint32_t left = factors.cols - 32 * (group + ahead);
#pragma unroll
      for (int o = 0; o < OUTPUTS; o++) {
        const uint32_t type = TYPE == ANY ? factors.types[o] : TYPE;
        const uint32_t there = TYPE == ANY && left < 32 ? left : 32;
        load8(type, factors.weights[o], TYPE == ANY ? factors.even : true, group + ahead, quarter, there, w[ahead][o]);
      }
    }
#pragma unroll
    for (uint32_t ahead = 0; ahead < AHEAD; ahead++) {
      const uint32_t column = 32 * (group + ahead) + 8 * quarter;
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        float above[8], below[8];
        load_x(factors.x[2 * tile], column, factors.cols, factors.even, above);
        load_x(factors.x[2 * tile + 1], column, factors.cols, factors.even, below);
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) dev::multiply(above, below, w[ahead][o], TYPE == F16 || TYPE == BF16 || (TYPE == ANY && is_short), sums.of[o][tile]);
      }
    }
  }
}

// As above, with a loop of its own for types that many models have where loads are what is waited for.
template <int AHEAD, int TILES, int OUTPUTS>
__device__ __forceinline__ void add_segment(const Factors<TILES, OUTPUTS>& factors, uint32_t type, uint32_t from, uint32_t to, Sums<TILES, OUTPUTS>& sums) {
  const uint32_t whole = factors.cols / 32 < to ? factors.cols / 32 : to;
  uint32_t done = from;
  if (AHEAD > 1 && factors.even && whole > from) {
    const uint32_t ahead = from + (whole - from) / AHEAD * AHEAD;
    switch (type) {
      case F16: add_groups<F16, AHEAD>(factors, from, ahead, true, sums); done = ahead; break;
      case BF16: add_groups<BF16, AHEAD>(factors, from, ahead, true, sums); done = ahead; break;
      case Q4_0: add_groups<Q4_0, AHEAD>(factors, from, ahead, false, sums); done = ahead; break;
      case Q8_0: add_groups<Q8_0, AHEAD>(factors, from, ahead, false, sums); done = ahead; break;
      case Q4_K: add_groups<Q4_K, AHEAD>(factors, from, ahead, false, sums); done = ahead; break;
      case Q6_K: add_groups<Q6_K, AHEAD>(factors, from, ahead, false, sums); done = ahead; break;
    }
  }
  add_groups<ANY, 1>(factors, done, to, is_short(type), sums);
}

// SPLIT: a warp of a block has a segment of the columns, and the block OUTPUTS tiles of outputs; else a warp has all segments.
template <int AHEAD, int TILES, int OUTPUTS, bool SPLIT>
__device__ __forceinline__ void multiply_rows(const MatmulParams& p, float* room) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t rows = p.batch.counts[p.logits ? COUNT_LOGIT_ROWS : COUNT_ROWS];
  const uint32_t first = blockIdx.y * TILES * TILE_ROWS;
  const uint32_t output_first = (SPLIT ? blockIdx.x : blockIdx.x * WARPS + warp) * OUTPUTS * TILE_OUTPUTS;
  if (first >= rows || (!SPLIT && output_first >= p.weights.rows)) return;

  Factors<TILES, OUTPUTS> factors;
  factors.cols = p.weights.cols;
  factors.even = (size_t)p.x % 16 == 0 && p.x_stride % 4 == 0;
  bool wanted[2 * TILES], any = p.adapter == NONE;
#pragma unroll
  for (uint32_t i = 0; i < 2 * TILES; i++) {
    const uint32_t at = first + 8 * i + lane / 4;
    const uint32_t row = at >= rows ? 0 : p.logits ? p.batch.logit_rows[at] : at;
    wanted[i] = at < rows && (p.adapter == NONE || p.batch.adapters[row] == p.adapter);
    factors.x[i] = wanted[i] ? p.x + (size_t)row * p.x_stride : nullptr;
  }
  // All of a warp, and all warps of a block, look at the same rows.
  for (uint32_t at = first; !any && at < rows && at < first + TILES * TILE_ROWS; at++) any = p.batch.adapters[p.logits ? p.batch.logit_rows[at] : at] == p.adapter;
  if (!any) return;
  const uint32_t last = p.weights.rows - 1;
#pragma unroll
  for (uint32_t o = 0; o < OUTPUTS; o++) {
    const uint32_t output = output_first + o * TILE_OUTPUTS + lane / 4;
    const Part& part = part_of(p.weights, output < last ? output : last);
    factors.weights[o] = row_of(part, output < last ? output : last);
    factors.types[o] = part.type;
  }
  // Where all outputs of the warp are of one part, their type is known.
  const uint32_t output_last = output_first + OUTPUTS * TILE_OUTPUTS - 1;
  const Part& part = part_of(p.weights, output_first < last ? output_first : last);
  const bool is_one = &part == &part_of(p.weights, output_last < last ? output_last : last);
  factors.even = factors.even && is_one && (size_t)part.bytes % 16 == 0 && (part.type > F16 && part.type != BF16 || part.row_bytes % 16 == 0);
  const uint32_t type = is_one ? part.type : NONE;

  const uint32_t groups = (p.weights.cols + 31) / 32;
  float totals[OUTPUTS][TILES][4] = {};
#pragma unroll 1
  for (uint32_t segment = SPLIT ? warp : 0; segment < (SPLIT ? warp + 1 : WARPS); segment++) {
    Sums<TILES, OUTPUTS> sums = {};
    add_segment<AHEAD>(factors, type, groups * segment / WARPS, groups * (segment + 1) / WARPS, sums);
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++)
#pragma unroll
      for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++) totals[o][tile][i] = SPLIT ? sums.of[o][tile][i] : totals[o][tile][i] + sums.of[o][tile][i];
  }
  if (SPLIT) {
    // (warps, numbers of a lane, lanes)
#pragma unroll
    for (int i = 0; i < OUTPUTS * TILES * 4; i++) room[(warp * OUTPUTS * TILES * 4 + i) * 32 + lane] = (&totals[0][0][0])[i];
    __syncthreads();
    if (warp > 0) return;
#pragma unroll
    for (int i = 0; i < OUTPUTS * TILES * 4; i++) {
      float total = 0.0f;
#pragma unroll
      for (int other = 0; other < WARPS; other++) total += room[(other * OUTPUTS * TILES * 4 + i) * 32 + lane];
      (&totals[0][0][0])[i] = total;
    }
  }
#pragma unroll
  for (uint32_t o = 0; o < OUTPUTS; o++) {
#pragma unroll
    for (uint32_t tile = 0; tile < TILES; tile++) {
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        const uint32_t output = output_first + o * TILE_OUTPUTS + 2 * (lane % 4) + i % 2;
        if (!wanted[2 * tile + i / 2] || output > last) continue;
        float* out = p.out + (size_t)(first + TILE_ROWS * tile + 8 * (i / 2) + lane / 4) * p.out_stride + output;
        const float total = totals[o][tile][i];
        *out = p.adds ? fmaf(p.scale, total, *out) : activate(p.activation, total + (p.bias ? p.bias[output] : 0.0f));
      }
    }
  }
}

// (outputs / 8, rows / 16)
WIDE_KERNEL(matmul, MatmulParams, THREADS, 4) {
  SHARED(float, room);
  multiply_rows<4, 1, 1, true>(p, room);
}

// (outputs / 8, rows / 64)
WIDE_KERNEL(matmul_batch, MatmulParams, THREADS, 3) {
  SHARED(float, room);
  multiply_rows<1, 4, 1, true>(p, room);
}

// (outputs / 16 / WARPS, rows / 64)
WIDE_KERNEL(matmul_wide, MatmulParams, THREADS, 2) { multiply_rows<1, 4, 2, false>(p, nullptr); }

#define IDS_TOKENS 0
#define IDS_POSITIONS 1
#define IDS_TYPES 2

// (rows): out = scale * table[id], or out += table[id].
KERNEL(embed, EmbedParams, THREADS) {
  const uint32_t row = blockIdx.x;
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  uint32_t id = p.ids == IDS_TOKENS ? p.batch.tokens[row] : p.ids == IDS_TYPES ? p.batch.types[row] : p.batch.positions[row] + p.offset;
  if (id == NONE || id >= p.table.rows) return;
  const Part& part = part_of(p.table, id);
  const uint8_t* bytes = row_of(part, id);
  float* out = p.out + (size_t)row * p.table.cols;
  float w[32];
  for (uint32_t group = threadIdx.x; 32 * group < p.table.cols; group += THREADS) {
    const uint32_t left = p.table.cols - 32 * group, there = left < 32 ? left : 32;
    load32(part.type, bytes, group, there, w);
    for (uint32_t i = 0; i < there; i++) out[32 * group + i] = p.adds ? out[32 * group + i] + w[i] : p.scale * w[i];
  }
}

// (rows): hidden = activate(gate) * up
KERNEL(gate, GateParams, THREADS) {
  const uint32_t row = blockIdx.x;
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  const float* both = p.both + (size_t)row * 2 * p.width;
  float* hidden = p.hidden + (size_t)row * p.width;
  for (uint32_t i = threadIdx.x; i < p.width; i += THREADS) {
    hidden[i] = activate(p.activation, both[i]) * gate_factor(p.activation, both[p.width + i]);
  }
}
