// Mixtures of experts. `route` chooses, and a pair is a row with one that it has chosen. Products in pieces are computed expert by expert:
// `group` gives each pair a place, in tiles that have pairs of one expert alone; rows are cut into pieces there, multiplied, activated,
// cut again, multiplied, and what a row's places have is added up in the order of choice. A place's numbers are the same whichever
// it is. `expert_up` and `expert_down` multiply pair by pair: weights in F32, and mixtures of BF16 with others.
#include "multiply.cuh"

// At most, of the one block that groups pairs.
#define GROUP_THREADS 1024

// w[row] · (factor * x), by a warp.
__device__ __forceinline__ float dot_one(const Stack& stack, uint32_t row, const float* x, float factor) {
  const Part& part = part_of(stack, row);
  const uint8_t* bytes = row_of(part, row);
  const uint32_t groups = (stack.cols + 31) / 32;
  float w[32], sum = 0.0f;
  const bool fp8 = is_fp8(part.type);
  if (fp8 || has_few_bits(part.type)) {
    for (uint32_t eight = threadIdx.x % 32; eight < 4 * groups; eight += 32) {
      if (fp8) load_fp8(part.type, bytes, eight / 4, eight % 4, w);
      else load_few_bits(part.type, bytes, stack.codebooks, eight / 4, eight % 4, w);
#pragma unroll
      for (uint32_t i = 0; i < 8; i++) sum = fmaf(w[i], factor * x[8 * eight + i], sum);
    }
    return dev::warp_sum(sum);
  }
  for (uint32_t group = threadIdx.x % 32; group < groups; group += 32) {
    const uint32_t left = stack.cols - 32 * group, there = left < 32 ? left : 32;
    load32(part.type, bytes, group, there, w);
    sum = dot32(w, x + 32 * group, there, factor, sum);
  }
  return dev::warp_sum(sum);
}

// (rows), one warp each. Shared: keys and weights, (2, experts), and the worth of each group.
// The best by key, of equal ones the lower index; keys are the scores, or the weights where a correction or the worth of
// groups asks for them.
KERNEL(route, RouteParams, 32) {
  SHARED(float, room);
  const uint32_t row = blockIdx.x, lane = threadIdx.x;
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  float* keys = room;
  float* weights = room + p.experts;
  float* worths = weights + p.experts;
  const float* scores = p.scores + (size_t)row * p.experts;
  uint32_t* chosen = p.chosen + (size_t)row * p.used;
  float* out = p.weights + (size_t)row * p.used;

  float largest = -INFINITY, none = 0.0f;
  for (uint32_t e = lane; e < p.experts; e += 32) {
    none = scores[e] != scores[e] ? 1.0f : none;
    largest = fmaxf(largest, scores[e]);
  }
  largest = dev::warp_max(largest);
  if (dev::warp_max(none) > 0.0f) {
    // A score that is no number: so is what comes of it.
    for (uint32_t i = lane; i < p.used; i += 32) {
      chosen[i] = i;
      out[i] = NAN;
    }
    return;
  }
  float total = 0.0f;
  for (uint32_t e = lane; e < p.experts; e += 32) total += expf(scores[e] - largest);
  total = dev::warp_sum(total);
  for (uint32_t e = lane; e < p.experts; e += 32) {
    weights[e] = p.softmax ? expf(scores[e] - largest) / total : sigmoid(scores[e]);
    keys[e] = (p.by_weight ? weights[e] : scores[e]) + (p.correction ? p.correction[e] : 0.0f);
  }
  __syncwarp();
  if (p.groups > 0) {
    const uint32_t size = p.experts / p.groups;
    for (uint32_t g = lane; g < p.groups; g += 32) {
      float first = -INFINITY, second = -INFINITY;
      for (uint32_t e = g * size; e < (g + 1) * size; e++) {
        if (keys[e] > first) {
          second = first;
          first = keys[e];
        } else if (keys[e] > second) {
          second = keys[e];
        }
      }
      worths[g] = p.best > 1 ? first + second : first;
    }
    __syncwarp();
    for (uint32_t g = lane; g < p.groups; g += 32) {
      uint32_t better = 0;
      for (uint32_t other = 0; other < p.groups; other++) {
        better += worths[other] > worths[g] || (worths[other] == worths[g] && other < g);
      }
      for (uint32_t e = g * size; better >= p.groups_used && e < (g + 1) * size; e++) keys[e] = -INFINITY;
    }
    __syncwarp();
  }
  float sum = 0.0f;
  for (uint32_t i = 0; i < p.used; i++) {
    // NaN marks those that are chosen: no key is one.
    float best = -INFINITY;
    for (uint32_t e = lane; e < p.experts; e += 32) best = keys[e] > best ? keys[e] : best;
    best = dev::warp_max(best);
    int at = 0x7fffffff;
    for (uint32_t e = lane; e < p.experts; e += 32) at = keys[e] == best && (int)e < at ? (int)e : at;
    at = dev::warp_min(at);
    float near = 0.0f;
    for (uint32_t e = lane; p.reach > 0.0f && e < p.experts; e += 32) {
      const bool far = (best - scores[e]) / fmaxf(fabsf(scores[e]), best) > p.reach;
      if (keys[e] == keys[e] && !far) near += expf(scores[e] - best);
    }
    near = dev::warp_sum(near);
    __syncwarp();
    if (lane == 0) {
      chosen[i] = at;
      out[i] = p.reach > 0.0f ? 1.0f / near : weights[at];
      keys[at] = NAN;
    }
    sum += weights[at];
    __syncwarp();
  }
  for (uint32_t i = lane; i < p.used; i += 32) {
    const float weight = (p.normalized && sum != 0.0f ? out[i] / sum : out[i]) * p.scale;
    out[i] = p.expert_scale ? weight * p.expert_scale[chosen[i]] : weight;
  }
}

// (ffn / WARPS, rows, used): hidden = activate(gate · x) * (up · x), or activate(up · x).
WIDE_KERNEL(expert_up, ExpertParams, THREADS, 4) {
  const uint32_t output = blockIdx.x * WARPS + threadIdx.x / 32, row = blockIdx.y, slot = blockIdx.z;
  if (output >= p.ffn || row >= p.batch.counts[COUNT_ROWS]) return;
  const uint32_t expert = p.chosen[row * p.used + slot];
  const Stack& stack = p.experts[2 * expert];
  const float* x = p.x + (size_t)row * p.cols;
  const float factor = p.scales_input ? p.weights[row * p.used + slot] : 1.0f;
  const float* bias = p.up_bias ? p.up_bias + (size_t)expert * stack.rows : nullptr;
  float products[2] = {0.0f, 0.0f};
  // One copy of the loop serves both.
#pragma unroll 1
  for (uint32_t i = 0; i < (p.gated ? 2 : 1); i++) {
    const uint32_t at = i * p.ffn + output;
    const float product = dot_one(stack, at, x, factor);
    (i == 0 ? products[0] : products[1]) = bias ? product + bias[at] : product;
  }
  float hidden = activate(p.activation, products[0]);
  if (p.gated) hidden *= gate_factor(p.activation, products[1]);
  if (threadIdx.x % 32 == 0) p.hidden[((size_t)row * p.used + slot) * p.ffn + output] = hidden;
}

// (cols / WARPS, rows): out = Σ weight * (down · hidden), in the order of choice.
KERNEL(expert_down, ExpertParams, THREADS) {
  const uint32_t output = blockIdx.x * WARPS + threadIdx.x / 32, row = blockIdx.y;
  if (output >= p.cols || row >= p.batch.counts[COUNT_ROWS]) return;
  float sum = 0.0f;
  for (uint32_t slot = 0; slot < p.used; slot++) {
    const size_t at = (size_t)row * p.used + slot;
    const uint32_t expert = p.chosen[at];
    float one = dot_one(p.experts[2 * expert + 1], output, p.hidden + at * p.ffn, 1.0f);
    if (p.down_bias) one += p.down_bias[(size_t)expert * p.cols + output];
    // Scaled inputs carry the weight, and what is no number with it.
    sum = fmaf(p.scales_input ? 1.0f : p.weights[at], one, sum);
  }
  if (threadIdx.x % 32 == 0) p.out[(size_t)row * p.cols + output] = sum;
}

// A number of places of an expert, in whole tiles: what a block multiplies.
struct Unit {
  uint32_t expert, tile, pairs, unused;
};

__device__ __forceinline__ Unit unit_at(const uint32_t* units, uint32_t at) {
  uint32_t words[4];
  dev::load16(reinterpret_cast<const uint8_t*>(units + 4 * at), words);
  return {words[0], words[1], words[2], 0};
}

// One block. Shared: (warps, experts), of each warp's rows how many go to each expert, then where its next one is; and (experts), how
// many all together. Experts have tiles one after the other, and pairs are in the order of rows: a row has no expert twice, so that
// no two lanes count the same.
KERNEL(group, GroupParams, GROUP_THREADS) {
  SHARED(uint32_t, room);
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32, rows = p.batch.counts[COUNT_ROWS];
  const uint32_t from = rows * warp / warps, to = rows * (warp + 1) / warps;
  // Rows that are loaded at once, a lane for each pair; of more than a warp's lanes, each lane has several.
  const uint32_t some = p.used < 32 ? 32 / p.used : 1, unit_pairs = 1u << p.unit_bits;
  uint32_t* own = room + warp * p.experts;
  uint32_t* counts = room + warps * p.experts;
  const auto for_pairs = [&](auto&& visit) {
    for (uint32_t row = from; row < to; row += some) {
      const uint32_t end = row + some < to ? row + some : to;
      for (uint32_t first = row * p.used; first < end * p.used; first += 32) {
        const uint32_t pair = first + lane, row_of = pair / p.used;
        const uint32_t expert = pair < end * p.used ? p.chosen[pair] : NONE;
        for (uint32_t at = row; at < end; at++) {
          if (row_of == at && expert != NONE) visit(pair, expert);
          __syncwarp();
        }
      }
    }
  };
  for (uint32_t i = threadIdx.x; i < warps * p.experts; i += blockDim.x) room[i] = 0;
  for (uint32_t i = threadIdx.x; i < 4 * p.units_max; i += blockDim.x) p.units[i] = 0;
  __syncthreads();
  for_pairs([&](uint32_t, uint32_t expert) { own[expert]++; });
  __syncthreads();
  for (uint32_t e = threadIdx.x; e < p.experts; e += blockDim.x) {
    uint32_t sum = 0;
    for (uint32_t of = 0; of < warps; of++) {
      const uint32_t count = room[of * p.experts + e];
      room[of * p.experts + e] = sum;
      sum += count;
    }
    counts[e] = sum;
  }
  __syncthreads();
  for (uint32_t e = threadIdx.x; e < p.experts; e += blockDim.x) {
    const uint32_t pairs = counts[e];
    if (pairs == 0) continue;
    uint32_t tile = 0, unit = 0;
    for (uint32_t other = 0; other < e; other++) {
      tile += (counts[other] + PRODUCT_ROWS - 1) / PRODUCT_ROWS;
      unit += (counts[other] + unit_pairs - 1) >> p.unit_bits;
    }
    for (uint32_t first = 0; first < pairs; first += unit_pairs) {
      uint32_t* to = p.units + 4 * unit++;
      to[0] = e;
      to[1] = tile + first / PRODUCT_ROWS;
      to[2] = pairs - first < unit_pairs ? pairs - first : unit_pairs;
    }
    for (uint32_t of = 0; of < warps; of++) room[of * p.experts + e] += PRODUCT_ROWS * tile;
  }
  __syncthreads();
  for_pairs([&](uint32_t pair, uint32_t expert) { p.places[pair] = own[expert]++; });
}

// (pairs, blocks of columns / WARPS): what pairs read in pieces at their places, times their weight where inputs are scaled.
KERNEL(expert_pieces, ExpertPiecesParams, THREADS) {
  const uint32_t pair = blockIdx.x, block = blockIdx.y * WARPS + threadIdx.x / 32, blocks = (p.cols + BLOCK_COLS - 1) / BLOCK_COLS;
  if (pair >= p.batch.counts[COUNT_ROWS] * p.used || block >= blocks) return;
  float own[8];
  load_columns(p.x + (size_t)(pair / p.pairs_of_row) * p.cols, BLOCK_COLS * block + 8 * (threadIdx.x % 32), p.cols, (size_t)p.x % 16 == 0 && p.cols % 4 == 0, own);
  if (p.weights) {
    const float weight = p.weights[pair];
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) own[i] *= weight;
  }
  cut_block<false>({p.pieces, p.inverses, p.sums, blocks, p.bf16s}, p.places[pair], block, own);
}

// (pairs, blocks of columns / WARPS): activate(gate + bias) * (up + bias), or activate(up + bias), of the products at their places, in
// pieces there, or as numbers in the order of pairs.
KERNEL(expert_hidden, ExpertHiddenParams, THREADS) {
  const uint32_t pair = blockIdx.x, block = blockIdx.y * WARPS + threadIdx.x / 32, blocks = (p.ffn + BLOCK_COLS - 1) / BLOCK_COLS;
  if (pair >= p.batch.counts[COUNT_ROWS] * p.used || block >= blocks) return;
  const uint32_t place = p.places[pair], column = BLOCK_COLS * block + 8 * (threadIdx.x % 32), outputs = p.gated ? 2 * p.ffn : p.ffn;
  const float* products = p.products + (size_t)place * outputs;
  const float* bias = p.bias ? p.bias + (size_t)p.chosen[pair] * outputs : nullptr;
  const bool whole = p.ffn % 4 == 0;
  float own[8], factors[8];
  load_columns(products, column, p.ffn, whole, own);
  if (p.gated) load_columns(products + p.ffn, column, p.ffn, whole, factors);
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    if (column + i >= p.ffn) break;
    if (bias) own[i] += bias[column + i];
    own[i] = activate(p.activation, own[i]);
    if (p.gated) own[i] *= gate_factor(p.activation, bias ? factors[i] + bias[p.ffn + column + i] : factors[i]);
    if (p.hidden) p.hidden[(size_t)pair * p.ffn + column + i] = own[i];
  }
  if (!p.hidden) cut_block<false>({p.pieces, p.inverses, p.sums, blocks, p.bf16s}, place, block, own);
}

__device__ __forceinline__ Pieces pieces_of_unit(const ExpertProductParams& p, const Unit& unit) {
  return {p.pieces, p.inverses, p.sums, (p.cols + BLOCK_COLS - 1) / BLOCK_COLS * 8, unit.tile, unit.pairs};
}

// `row` is one of the unit's, `output` one of the part's outputs or behind them.
__device__ __forceinline__ void write_expert(const ExpertProductParams& p, const Pieces& x, const Part& part, uint32_t row, uint32_t output, float total) {
  if (output < part.rows) p.out[(size_t)(PRODUCT_ROWS * x.tile_first + row) * p.outputs + part.row_first + output] = total;
}

template <int KIND>
__device__ __forceinline__ void multiply_expert_some(const ExpertProductParams& p, float* room) {
  const Unit unit = unit_at(p.units, blockIdx.y);
  if (unit.pairs == 0) return;
  const Pieces x = pieces_of_unit(p, unit);
  multiply_some<KIND, 2, 2>(p.experts[2 * unit.expert + p.down], {p.cols, p.segments}, p.bf16s, x, room, [&](const Part& part, uint32_t row, uint32_t output, float total) {
    write_expert(p, x, part, row, output, total);
  });
}

template <int KIND>
__device__ __forceinline__ void multiply_expert_many(const ExpertProductParams& p, unsigned char* room) {
  const Unit unit = unit_at(p.units, blockIdx.y);
  if (unit.pairs == 0) return;
  const Pieces x = pieces_of_unit(p, unit);
  multiply_rows<KIND, true>(p.experts[2 * unit.expert + p.down], {p.cols, p.segments}, x, blockIdx.x * WARPS + threadIdx.x / 32, room, [&](const Part& part, uint32_t row, uint32_t output, float total) {
    write_expert(p, x, part, row, output, total);
  });
}

// (blocks, units), of up to 16 pairs. Warps of a block are as many as segments, and blocks go from tile to tile of the outputs.
WIDE_KERNEL(expert_some, ExpertProductParams, 2 * THREADS, 2) {
  SHARED(float, room);
  multiply_expert_some<FLOATS>(p, room);
}

WIDE_KERNEL(expert_some_blocks, ExpertProductParams, 2 * THREADS, 2) {
  SHARED(float, room);
  multiply_expert_some<BLOCKS>(p, room);
}

// (tiles of outputs / WARPS, units), of up to 64 pairs
WIDE_KERNEL(expert_many, ExpertProductParams, THREADS, 2) {
  SHARED(unsigned char, room);
  multiply_expert_many<FLOATS>(p, room);
}

WIDE_KERNEL(expert_many_blocks, ExpertProductParams, THREADS, 2) {
  SHARED(unsigned char, room);
  multiply_expert_many<BLOCKS>(p, room);
}

// (cols / THREADS, rows): out = Σ weight * (products + bias), in the order of choice.
KERNEL(expert_sum, ExpertSumParams, THREADS) {
  const uint32_t column = blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y;
  if (column >= p.cols || row >= p.batch.counts[COUNT_ROWS]) return;
  float sum = 0.0f;
  for (uint32_t pair = row * p.used; pair < (row + 1) * p.used; pair++) {
    float one = p.products[(size_t)p.places[pair] * p.cols + column];
    if (p.bias) one += p.bias[(size_t)p.chosen[pair] * p.cols + column];
    // Scaled inputs carry the weight, and what is no number with it.
    sum = fmaf(p.weights ? p.weights[pair] : 1.0f, one, sum);
  }
  p.out[(size_t)row * p.cols + column] = sum;
}

// (rows): out += sigmoid(gate · x) * shared, or out += shared.
KERNEL(add_shared, SharedParams, THREADS) {
  SHARED(float, room);
  const uint32_t row = blockIdx.x;
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  float factor = 1.0f;
  if (p.gate) {
    const float* x = p.x + (size_t)row * p.x_cols;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < p.x_cols; i += THREADS) sum = fmaf(p.gate[i], x[i], sum);
    factor = sigmoid(block_sum(sum, room));
  }
  const float* shared = p.shared + (size_t)row * p.cols;
  float* out = p.out + (size_t)row * p.cols;
  for (uint32_t i = threadIdx.x; i < p.cols; i += THREADS) out[i] = fmaf(factor, shared[i], out[i]);
}
