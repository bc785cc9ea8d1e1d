// out[r][m] = activate(Σ_k w[m][k] x[r][k] + bias[m]), or out[r][m] += scale * Σ_k w[m][k] x[r][k], of matrices that have weights in F32,
// or in BF16 and other types (product.cu has the others); and tables of embeddings.
//
// Columns are cut into as many segments as a block has warps, by the matrix's shape alone. Within one, groups of 32 columns are multiplied
// on the tensor cores and added up in order; segments are added up in order. So a row's numbers are the same to the bit whichever of
// the kernels below computes them, and whatever shares its batch: some for a few rows, in which each warp of a block has a segment;
// one for more rows, likewise; and one for many, in which each warp has outputs of its own and reads weights once for 64 rows.
#include "gate.cuh"
#include "weights.cuh"

#define TILE_ROWS 16
#define TILE_OUTPUTS 8

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
  const uint8_t* codebooks;
  const float* x[2 * TILES];  // null: not there
  uint32_t cols;
  uint32_t wanted;            // which of the rows, by bits
  int pieces;                 // that the weights of all of the matrix's outputs go to the cores in
  bool even;                  // rows of x and weights begin at multiples of 16 bytes
};

// Of each tile of outputs and rows.
template <int TILES, int OUTPUTS>
struct Sums {
  float of[OUTPUTS][TILES][4];
};

// Adds the products of groups `from` to `to` - 1 to sums.
template <bool BELOW, int TILES, int OUTPUTS>
__device__ __forceinline__ void add_groups(const Factors<TILES, OUTPUTS>& factors, uint32_t from, uint32_t to, Sums<TILES, OUTPUTS>& sums) {
  const uint32_t quarter = threadIdx.x % 4;
  for (uint32_t group = from; group < to; group++) {
    const uint32_t left = factors.cols - 32 * group, column = 32 * group + 8 * quarter;
    float w[OUTPUTS][8];
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) load_any8(factors.types[o], factors.weights[o], factors.codebooks, factors.even, group, quarter, left < 32 ? left : 32, w[o]);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      float above[8], below[8];
      load_x(factors.x[2 * tile], column, factors.cols, factors.even, above);
      if (BELOW) load_x(factors.x[2 * tile + 1], column, factors.cols, factors.even, below);
      const dev::Fragment x = dev::fragment<BELOW>(above, below);
#pragma unroll
      for (int o = 0; o < OUTPUTS; o++) dev::multiply(x, w[o], factors.pieces, sums.of[o][tile]);
    }
  }
}

// Which rows and outputs a lane has; false where nothing of the block's rows is wanted.
template <int TILES, int OUTPUTS>
__device__ __forceinline__ bool find_factors(const MatmulParams& p, uint32_t first, uint32_t output_first, Factors<TILES, OUTPUTS>& factors) {
  const uint32_t lane = threadIdx.x % 32, rows = p.batch.counts[p.logits ? COUNT_LOGIT_ROWS : COUNT_ROWS];
  if (first >= rows) return false;
  factors.cols = p.weights.cols;
  factors.codebooks = p.weights.codebooks;
  factors.wanted = 0;
  bool any = p.adapter == NONE;
#pragma unroll
  for (uint32_t i = 0; i < 2 * TILES; i++) {
    const uint32_t at = first + 8 * i + lane / 4;
    const uint32_t row = at >= rows ? 0 : p.logits ? p.batch.logit_rows[at] : at;
    const bool wanted = at < rows && (p.adapter == NONE || p.batch.adapters[row] == p.adapter);
    factors.x[i] = wanted ? p.x + (size_t)row * p.x_stride : nullptr;
    factors.wanted |= (uint32_t)wanted << i;
  }
  // All warps of a block look at the same rows.
  for (uint32_t at = first; !any && at < rows && at < first + TILES * TILE_ROWS; at++) any = p.batch.adapters[p.logits ? p.batch.logit_rows[at] : at] == p.adapter;
  if (!any) return false;
  factors.pieces = ONE_PIECE;
  for (uint32_t at = 0; at < p.weights.count; at++) {
    const int pieces = pieces_of(p.weights.parts[at].type);
    factors.pieces = pieces > factors.pieces ? pieces : factors.pieces;
  }
  const uint32_t last = p.weights.rows - 1;
#pragma unroll
  for (uint32_t o = 0; o < OUTPUTS; o++) {
    // Those that are not there are the last one again, and nobody's.
    const uint32_t output = output_first + o * TILE_OUTPUTS + lane / 4;
    const Part& part = part_of(p.weights, output < last ? output : last);
    factors.weights[o] = row_of(part, output < last ? output : last);
    factors.types[o] = part.type;
  }
  // Where all outputs of the warp are of one part, their type is known.
  const uint32_t output_last = output_first + OUTPUTS * TILE_OUTPUTS - 1;
  const Part& part = part_of(p.weights, output_first < last ? output_first : last);
  const bool is_one = &part == &part_of(p.weights, output_last < last ? output_last : last);
  const bool is_even = (size_t)part.bytes % 16 == 0 && ((part.type > F16 && part.type != BF16) || part.row_bytes % 16 == 0);
  factors.even = is_one && is_even && (size_t)p.x % 16 == 0 && p.x_stride % 4 == 0;
  return true;
}

template <int TILES, int OUTPUTS>
__device__ __forceinline__ void write_totals(const MatmulParams& p, uint32_t first, uint32_t output_first, const Factors<TILES, OUTPUTS>& factors, const Sums<TILES, OUTPUTS>& totals) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t o = 0; o < OUTPUTS; o++) {
#pragma unroll
    for (uint32_t tile = 0; tile < TILES; tile++) {
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        const uint32_t output = output_first + o * TILE_OUTPUTS + 2 * (lane % 4) + i % 2;
        if ((factors.wanted >> (2 * tile + i / 2) & 1) == 0 || output >= p.weights.rows) continue;
        float* out = p.out + (size_t)(first + TILE_ROWS * tile + 8 * (i / 2) + lane / 4) * p.out_stride + output;
        const float total = totals.of[o][tile][i];
        *out = p.adds ? fmaf(p.scale, total, *out) : activate(p.activation, total + (p.bias ? p.bias[output] : 0.0f));
      }
    }
  }
}

// Where a segment begins, in groups.
__device__ __forceinline__ uint32_t segment_first(const MatmulParams& p, uint32_t segment) { return (p.weights.cols + 31) / 32 * segment / WARPS; }

// A warp of a block has a segment of the columns, and the block OUTPUTS tiles of outputs. Without BELOW there are eight rows at
// most, and none in the lower half of a tile.
template <bool BELOW, int TILES, int OUTPUTS>
__device__ __forceinline__ void multiply_split(const MatmulParams& p, float* room) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t first = blockIdx.y * TILES * TILE_ROWS, output_first = blockIdx.x * OUTPUTS * TILE_OUTPUTS;
  Factors<TILES, OUTPUTS> factors;
  if (!find_factors(p, first, output_first, factors)) return;
  Sums<TILES, OUTPUTS> totals = {};
  add_groups<BELOW>(factors, segment_first(p, warp), segment_first(p, warp + 1), totals);
  // (warps, numbers of a lane, lanes)
  float* numbers = &totals.of[0][0][0];
#pragma unroll
  for (int i = 0; i < OUTPUTS * TILES * 4; i++) room[(warp * OUTPUTS * TILES * 4 + i) * 32 + lane] = numbers[i];
  __syncthreads();
  if (warp > 0) return;
#pragma unroll
  for (int i = 0; i < OUTPUTS * TILES * 4; i++) {
    float total = 0.0f;
#pragma unroll
    for (int other = 0; other < WARPS; other++) total += room[(other * OUTPUTS * TILES * 4 + i) * 32 + lane];
    numbers[i] = total;
  }
  write_totals(p, first, output_first, factors, totals);
}

// A warp has outputs of its own and all segments; each of the four makes fragments of a tile of rows for all. Shared: the fragments of two
// groups, so that one barrier a group is enough; and each thread's totals.
template <int OUTPUTS>
__device__ __forceinline__ void multiply_many(const MatmulParams& p, unsigned char* room) {
  const uint32_t warp = threadIdx.x / 32, quarter = threadIdx.x % 4;
  const uint32_t first = blockIdx.y * WARPS * TILE_ROWS, output_first = (blockIdx.x * WARPS + warp) * OUTPUTS * TILE_OUTPUTS;
  Factors<WARPS, OUTPUTS> factors;
  if (!find_factors(p, first, output_first, factors)) return;
    const float *own_above = nullptr, *own_below = nullptr;
#pragma unroll
  for (int tile = 0; tile < WARPS; tile++) {
    if (tile == (int)warp) {
      own_above = factors.x[2 * tile];
      own_below = factors.x[2 * tile + 1];
    }
  }
  float* totals = reinterpret_cast<float*>(room + 2 * WARPS * FRAGMENT_BYTES) + threadIdx.x;
  uint32_t page = 0;
#pragma unroll 1
  for (uint32_t segment = 0; segment < WARPS; segment++) {
    Sums<WARPS, OUTPUTS> sums = {};
#pragma unroll 1
    for (uint32_t group = segment_first(p, segment); group < segment_first(p, segment + 1); group++) {
      const uint32_t left = factors.cols - 32 * group, there = left < 32 ? left : 32, column = 32 * group + 8 * quarter;
      float w[OUTPUTS][8], above[8], below[8];
#pragma unroll
      for (int o = 0; o < OUTPUTS; o++) load_any8(factors.types[o], factors.weights[o], factors.codebooks, factors.even, group, quarter, there, w[o]);
      load_x(own_above, column, factors.cols, factors.even, above);
      load_x(own_below, column, factors.cols, factors.even, below);
      unsigned char* fragments = room + page * WARPS * FRAGMENT_BYTES;
      dev::put(dev::fragment<true>(above, below), fragments + warp * FRAGMENT_BYTES);
      __syncthreads();
#pragma unroll
      for (int tile = 0; tile < WARPS; tile++) {
        dev::one_by_one();
        const dev::Fragment x = dev::fragment_at(fragments + tile * FRAGMENT_BYTES);
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) dev::multiply(x, w[o], factors.pieces, sums.of[o][tile]);
      }
      page ^= 1;
    }
#pragma unroll
    for (int i = 0; i < OUTPUTS * WARPS * 4; i++) totals[i * THREADS] = (segment == 0 ? 0.0f : totals[i * THREADS]) + (&sums.of[0][0][0])[i];
  }
  Sums<WARPS, OUTPUTS> all;
#pragma unroll
  for (int i = 0; i < OUTPUTS * WARPS * 4; i++) (&all.of[0][0][0])[i] = totals[i * THREADS];
  write_totals(p, first, output_first, factors, all);
}

// (outputs / 8, 1), of eight rows at most
WIDE_KERNEL(matmul_few, MatmulParams, THREADS, 3) {
  SHARED(float, room);
  multiply_split<false, 1, 1>(p, room);
}

// (outputs / 8, rows / 16)
WIDE_KERNEL(matmul, MatmulParams, THREADS, 4) {
  SHARED(float, room);
  multiply_split<true, 1, 1>(p, room);
}

// (outputs / 8, rows / 64)
WIDE_KERNEL(matmul_batch, MatmulParams, THREADS, 2) {
  SHARED(float, room);
  multiply_split<true, 4, 1>(p, room);
}

// (outputs / 16 / WARPS, rows / 64)
WIDE_KERNEL(matmul_wide, MatmulParams, THREADS, 2) {
  SHARED(unsigned char, room);
  multiply_many<2>(p, room);
}

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
  float w[8];
  for (uint32_t first = 8 * threadIdx.x; first < p.table.cols; first += 8 * THREADS) {
    const uint32_t group = first / 32, left = p.table.cols - 32 * group;
    load_any8(part.type, bytes, p.table.codebooks, (size_t)bytes % 16 == 0, group, first % 32 / 8, left < 32 ? left : 32, w);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
      if (first + i < p.table.cols) out[first + i] = p.adds ? out[first + i] + w[i] : p.scale * w[i];
    }
  }
}

// (rows, width / GATE_COLS): hidden = activate(gate) * up. Where it is cut into pieces, (rows, blocks of columns / WARPS): a warp has a block.
#define GATE_COLS (4 * THREADS)
KERNEL(gate, GateParams, THREADS) {
  const uint32_t row = blockIdx.x;
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  if (p.cut.pieces) {
    const uint32_t block = blockIdx.y * WARPS + threadIdx.x / 32;
    if (block < p.cut.blocks) gate_block<false>(p, row, block);
    return;
  }
  const float* both = p.both + (size_t)row * 2 * p.width;
  float* hidden = p.hidden + (size_t)row * p.width;
#pragma unroll
  for (uint32_t at = 0; at < GATE_COLS; at += THREADS) {
    const uint32_t i = blockIdx.y * GATE_COLS + at + threadIdx.x;
    if (i < p.width) hidden[i] = gated(p, both[i], both[p.width + i]);
  }
}
