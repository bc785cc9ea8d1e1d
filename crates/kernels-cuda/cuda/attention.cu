// softmax(softcap(scale * q·k) - slope * distance, sink) · v (arxiv.org/abs/2205.14135), by spans of 128 keys, which begin at absolute
// positions. A span has a maximum, a total and sums of its own, brought together of its four warps' blocks of 32 keys, and spans
// are folded into one another from the first that a row sees on. So the order of sums depends on where keys and rows stand in
// their sequence and on nothing else: not on how a prompt was cut, and not on how many blocks of threads share a row's spans
// (arxiv.org/abs/2311.01282).
//
// A block of threads has some heads of one row, which share keys and values: (rows, kv_heads * tiles of heads). Alone it goes through
// all spans; beside others, one for each span, it leaves its span to `attention_join`. Shared: the queries, what was folded, and
// for each warp its sums, a block's weights and slots, and its maxima and totals.
#include "attention.cuh"
#include "pieces.cuh"

// Keys and pairs of numbers whose loads are under way at once.
#define KEYS_AT_ONCE 16
#define WORDS_AT_ONCE 8

// query · key of each head, of `count` numbers in their order.
template <uint32_t HEADS>
__device__ __forceinline__ void dot_keys(uint32_t type, const float* queries, const uint8_t* key, uint32_t count, float dots[HEADS]) {
#pragma unroll
  for (uint32_t h = 0; h < HEADS; h++) dots[h] = 0.0f;
  const auto eight = [&](uint32_t i, const uint32_t words[4]) {
    float numbers[8];
#pragma unroll
    for (int j = 0; j < 8; j++) numbers[j] = dev::from_half((uint16_t)(words[j / 2] >> (16 * (j % 2))));
#pragma unroll
    for (uint32_t h = 0; h < HEADS; h++) {
      uint32_t query[2][4];
      const unsigned char* at = reinterpret_cast<const unsigned char*>(queries + h * count + i);
      dev::shared16(at, query[0]);
      dev::shared16(at + 16, query[1]);
#pragma unroll
      for (int j = 0; j < 8; j++) dots[h] = fmaf(dev::from_bits(query[j / 4][j % 4]), numbers[j], dots[h]);
    }
  };
  if (type == KV_F16 && (size_t)key % 16 == 0 && count % 8 == 0) {
    uint32_t i = 0;
    for (; i + 8 * WORDS_AT_ONCE <= count; i += 8 * WORDS_AT_ONCE) {
      uint32_t words[WORDS_AT_ONCE][4];
#pragma unroll
      for (int k = 0; k < WORDS_AT_ONCE; k++) dev::load16(key + 2 * (i + 8 * k), words[k]);
#pragma unroll
      for (int k = 0; k < WORDS_AT_ONCE; k++) eight(i + 8 * k, words[k]);
    }
    for (; i < count; i += 8) {
      uint32_t words[4];
      dev::load16(key + 2 * i, words);
      eight(i, words);
    }
    return;
  }
  for (uint32_t i = 0; i < count; i += 4) {
    float numbers[4];
    kv_four(type, key, i, count, numbers);
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
      if (i + j >= count) break;
#pragma unroll
      for (uint32_t h = 0; h < HEADS; h++) dots[h] = fmaf(queries[h * count + i + j], numbers[j], dots[h]);
    }
  }
}

// sums[h][i] = Σ weights[h][j] * value j's number i, of keys `start..last` in their order. A lane has four numbers of each 128.
template <uint32_t HEADS>
__device__ __forceinline__ void sum_values(const AttentionParams& p, const uint8_t* values, const float* weights, const uint32_t* slots, uint32_t start, uint32_t last, float* sums) {
  const uint32_t lane = threadIdx.x % 32, count = p.value_dim;
  const bool words = p.kv_type == KV_F16 && count % 4 == 0 && (size_t)values % 8 == 0 && p.slot_bytes % 8 == 0;
  for (uint32_t i = 4 * lane; i < count; i += 128) {
    float own[HEADS][4] = {};
    const auto add = [&](uint32_t j, const float numbers[4]) {
#pragma unroll
      for (uint32_t h = 0; h < HEADS; h++) {
        const float weight = weights[32 * h + j];
#pragma unroll
        for (int n = 0; n < 4; n++) own[h][n] = fmaf(weight, numbers[n], own[h][n]);
      }
    };
    const auto add_halves = [&](uint32_t j, const uint32_t halves[2]) {
      float numbers[4];
#pragma unroll
      for (int n = 0; n < 4; n++) numbers[n] = dev::from_half((uint16_t)(halves[n / 2] >> (16 * (n % 2))));
      add(j, numbers);
    };
    uint32_t j = start;
    if (words) {
      for (; j + KEYS_AT_ONCE <= last; j += KEYS_AT_ONCE) {
        uint32_t halves[KEYS_AT_ONCE][2];
#pragma unroll
        for (int k = 0; k < KEYS_AT_ONCE; k++) dev::load8(values + (size_t)slots[j + k] * p.slot_bytes + 2 * i, halves[k]);
#pragma unroll
        for (int k = 0; k < KEYS_AT_ONCE; k++) add_halves(j + k, halves[k]);
      }
      for (; j < last; j++) {
        uint32_t halves[2];
        dev::load8(values + (size_t)slots[j] * p.slot_bytes + 2 * i, halves);
        add_halves(j, halves);
      }
    } else {
#pragma unroll 4
      for (; j < last; j++) {
        float numbers[4];
        kv_four(p.kv_type, values + (size_t)slots[j] * p.slot_bytes, i, count, numbers);
        add(j, numbers);
      }
    }
#pragma unroll
    for (uint32_t h = 0; h < HEADS; h++) {
#pragma unroll
      for (uint32_t n = 0; n < 4; n++) {
        if (i + n < count) sums[h * count + i + n] = own[h][n];
      }
    }
  }
}

template <uint32_t HEADS>
__device__ __forceinline__ void attend(const AttentionParams& p, float* queries) {
  const uint32_t row = p.row_first + blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  const uint32_t sequence = p.batch.sequence_of[row];
  const uint32_t* table = p.batch.tables + 2 * (sequence * p.batch.groups + p.group);
  const Seen seen = seen_by(p, row, p.batch.spans + 4 * sequence);
  if (p.parts && blockIdx.z >= seen.spans) return;
  const uint32_t of_each = p.heads / p.kv_heads, tiles = (of_each + HEADS - 1) / HEADS, kv_head = blockIdx.y / tiles;
  const uint32_t head_first = kv_head * of_each + blockIdx.y % tiles * HEADS, heads_left = (kv_head + 1) * of_each - head_first;
  // Where there are fewer, the first is computed again, for nobody.
  const auto head = [&](uint32_t h) { return head_first + (h < heads_left ? h : 0); };
  const size_t key_at = kv_head * kv_bytes(p.kv_type, p.head_dim), value_at = kv_head * kv_bytes(p.kv_type, p.value_dim);
  const uint32_t room = HEADS * (p.value_dim + 32 + 2) + 32;
  float* sums_folded = queries + HEADS * p.head_dim;
  float* rooms = sums_folded + HEADS * p.value_dim;
  float* sums = rooms + warp * room;
  float* weights = sums + HEADS * p.value_dim;
  float* states = weights + HEADS * 32;
  uint32_t* slots = reinterpret_cast<uint32_t*>(states + HEADS * 2);
  for (uint32_t h = 0; h < HEADS; h++) {
    const float* query = p.q + (size_t)row * p.q_stride + head(h) * p.head_dim;
    for (uint32_t i = threadIdx.x; i < p.head_dim; i += THREADS) queries[h * p.head_dim + i] = query[i];
    for (uint32_t i = threadIdx.x; i < p.value_dim; i += THREADS) sums_folded[h * p.value_dim + i] = 0.0f;
  }
  __syncthreads();
  Folded folded[HEADS];
#pragma unroll
  for (uint32_t h = 0; h < HEADS; h++) folded[h] = nothing_folded(p.sinks, head(h));
  const uint32_t span_first = seen.first / SPAN + (p.parts ? blockIdx.z : 0), span_end = p.parts ? span_first + 1 : seen.first / SPAN + seen.spans;
  for (uint32_t span = span_first; span < span_end; span++) {
    const uint32_t block = SPAN * span + 32 * warp, key = block + lane;
    float dots[HEADS];
    const bool sees = key >= seen.first && key < seen.end;
    if (sees) {
      const uint32_t slot = slot_of(p.batch, table, key);
      slots[lane] = slot;
      dot_keys<HEADS>(p.kv_type, queries, p.key_plane + (size_t)slot * p.slot_bytes + key_at, p.head_dim, dots);
    }
#pragma unroll
    for (uint32_t h = 0; h < HEADS; h++) {
      float score = sees ? p.scale * dots[h] : -INFINITY;
      if (sees && p.softcap != 0.0f) score = p.softcap * tanhf(score / p.softcap);
      if (sees && p.slopes) score -= p.slopes[head(h)] * (float)(seen.position - key);
      const float largest = dev::warp_max(score);
      const float weight = score == -INFINITY ? 0.0f : expf(score - largest);
      const float sum = dev::warp_sum(weight);
      if (lane == 0) states[2 * h] = largest, states[2 * h + 1] = sum;
      weights[32 * h + lane] = weight;
    }
    __syncwarp();
    const uint32_t last = seen.end <= block ? 0 : seen.end - block < 32 ? seen.end - block : 32, start = seen.first > block ? seen.first - block : 0;
    if (start < last) sum_values<HEADS>(p, p.value_plane + value_at, weights, slots, start, last, sums);
    __syncthreads();
#pragma unroll
    for (uint32_t h = 0; h < HEADS; h++) {
      float largest = -INFINITY, total = 0.0f, shares[WARPS];
#pragma unroll
      for (uint32_t of = 0; of < WARPS; of++) largest = fmaxf(largest, rooms[of * room + HEADS * (p.value_dim + 32) + 2 * h]);
#pragma unroll
      for (uint32_t of = 0; of < WARPS; of++) {
        // A warp without keys has seen nothing, and has no sums.
        const float* state = rooms + of * room + HEADS * (p.value_dim + 32) + 2 * h;
        shares[of] = state[0] == -INFINITY ? 0.0f : expf(state[0] - largest);
        total = fmaf(shares[of], state[1], total);
      }
      const auto sum_of = [&](uint32_t i) {
        float sum = 0.0f;
#pragma unroll
        for (uint32_t of = 0; of < WARPS; of++) {
          if (shares[of] != 0.0f) sum = fmaf(shares[of], rooms[of * room + h * p.value_dim + i], sum);
        }
        return sum;
      };
      if (p.parts) {
        float* part = p.parts + ((size_t)(blockIdx.x * p.heads + head(h)) * p.spans + blockIdx.z) * (p.value_dim + 2);
        if (h < heads_left) {
          for (uint32_t i = threadIdx.x; i < p.value_dim + 2; i += THREADS) part[i] = i == 0 ? largest : i == 1 ? total : sum_of(i - 2);
        }
      } else {
        fold(folded[h], largest, total);
        float* to = sums_folded + h * p.value_dim;
        for (uint32_t i = threadIdx.x; i < p.value_dim; i += THREADS) to[i] = fold_sum(folded[h], to[i], sum_of(i));
      }
    }
    __syncthreads();
  }
  if (p.parts) return;
#pragma unroll
  for (uint32_t h = 0; h < HEADS; h++) {
    float* out = p.out + (size_t)row * p.out_stride + head(h) * p.value_dim;
    if (h < heads_left) {
      for (uint32_t i = threadIdx.x; i < p.value_dim; i += THREADS) out[i] = sums_folded[h * p.value_dim + i] / folded[h].total;
    }
  }
}

#define ATTENTION(name, heads)                        \
  WIDE_KERNEL(name, AttentionParams, THREADS, 4) {    \
    SHARED(float, room);                              \
    attend<heads>(p, room);                           \
  }
ATTENTION(attention, 1)
ATTENTION(attention_two, 2)
ATTENTION(attention_four, 4)
#undef ATTENTION

// What blocks have left of the spans of a row, of the launch's, folded: a number.
__device__ __forceinline__ float joined(const AttentionParams& p, uint32_t row, uint32_t head, uint32_t i) {
  const uint32_t spans = seen_by(p, row, p.batch.spans + 4 * p.batch.sequence_of[row]).spans;
  const float* parts = p.parts + (size_t)((row - p.row_first) * p.heads + head) * p.spans * (p.value_dim + 2);
  Folded folded = nothing_folded(p.sinks, head);
  float sum = 0.0f;
#pragma unroll 8
  for (uint32_t span = 0; span < spans; span++) {
    const float* part = parts + span * (p.value_dim + 2);
    fold(folded, part[0], part[1]);
    sum = fold_sum(folded, sum, part[2 + i]);
  }
  return sum / folded.total;
}

// (rows, heads)
KERNEL(attention_join, AttentionParams, THREADS) {
  const uint32_t row = p.row_first + blockIdx.x, head = blockIdx.y;
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  float* out = p.out + (size_t)row * p.out_stride + head * p.value_dim;
  for (uint32_t i = threadIdx.x; i < p.value_dim; i += THREADS) out[i] = joined(p, row, head, i);
}

// (rows, blocks of columns): the same, cut into pieces too. Shared: the block's columns.
WIDE_KERNEL(attention_join_pieces, AttentionParams, BLOCK_COLS, 4) {
  SHARED(float, whole);
  const uint32_t row = blockIdx.x, column = BLOCK_COLS * blockIdx.y + threadIdx.x, head = column / p.value_dim;
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  const float value = head < p.heads ? joined(p, row, head, column % p.value_dim) : 0.0f;
  if (head < p.heads) p.out[(size_t)row * p.out_stride + column] = value;
  whole[threadIdx.x] = value;
  __syncthreads();
  if (threadIdx.x < 32) cut_shared(p.cut, row, blockIdx.y, whole);
}

#define BIAS_NONE 0
#define BIAS_ALIBI 1
#define BIAS_BY_DISTANCE 2
#define BIAS_DISENTANGLED 3

__device__ __forceinline__ uint32_t clamped(int distance, uint32_t reach) {
  const int far = (int)reach;
  return (uint32_t)((distance < -far ? -far : distance > far ? far : distance) + far);
}

__device__ __forceinline__ float dot_of(const float* a, const float* b, uint32_t count) {
  float dot = 0.0f;
  for (uint32_t i = 0; i < count; i++) dot = fmaf(a[i], b[i], dot);
  return dot;
}

struct Running {
  float largest, total;
};

// Makes a lane's score its weight, and scales what was summed up before.
__device__ __forceinline__ float weigh(Running& running, float score, float* sums, uint32_t count, float* weights) {
  const uint32_t lane = threadIdx.x % 32;
  const float largest = fmaxf(running.largest, dev::warp_max(score));
  // Nothing has been seen yet: nothing is scaled.
  const float keeps = running.largest == -INFINITY ? 0.0f : expf(running.largest - largest);
  const float weight = score == -INFINITY ? 0.0f : expf(score - largest);
  running.total = fmaf(running.total, keeps, dev::warp_sum(weight));
  running.largest = largest;
  for (uint32_t i = lane; i < count; i += 32) sums[i] *= keeps;
  __syncwarp();
  weights[lane] = weight;
  __syncwarp();
  return weight;
}

// Inside whole sequences, without a cache: (rows, heads).
KERNEL(attention_whole, WholeAttentionParams, 32) {
  SHARED(float, query);
  const uint32_t row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x, dim = p.head_dim;
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  float* sums = query + dim;
  float* weights = sums + dim;
  const uint32_t* span = p.batch.spans + 4 * p.batch.sequence_of[row];
  const uint32_t i = row - span[0], rows = span[1], width = (p.heads + 2 * p.kv_heads) * dim;
  const uint32_t first = p.reach >= i ? 0 : i - p.reach, end = p.reach >= rows - 1 - i ? rows : i + p.reach + 1;
  const uint32_t kv_head = head * p.kv_heads / p.heads;
  const float* q = p.qkv + (size_t)row * width + head * dim;
  for (uint32_t at = lane; at < dim; at += 32) {
    query[at] = q[at];
    sums[at] = 0.0f;
  }
  __syncwarp();
  Running running = {-INFINITY, 0.0f};
  for (uint32_t block = first / 32 * 32; block < end; block += 32) {
    const uint32_t j = block + lane;
    float score = -INFINITY;
    if (j >= first && j < end) {
      const float* k = p.qkv + (size_t)(span[0] + j) * width + (p.heads + kv_head) * dim;
      const int distance = (int)i - (int)j;
      score = p.scale * dot_of(query, k, dim);
      if (p.bias == BIAS_ALIBI) score -= p.table[head] * fabsf((float)distance);
      if (p.bias == BIAS_BY_DISTANCE) score += p.table[(size_t)head * (2 * p.bias_reach + 1) + clamped(-distance, p.bias_reach)];
      if (p.bias == BIAS_DISENTANGLED) {
        const size_t at = ((size_t)p.bucket_of[clamped(distance, p.bias_reach)] * p.heads + head) * dim;
        float both = p.table ? dot_of(query, p.table + at, dim) : 0.0f;
        if (p.queries) both += dot_of(k, p.queries + at, dim);
        score = fmaf(p.scale, both, score);
      }
    }
    weigh(running, score, sums, dim, weights);
    const uint32_t last = end - block < 32 ? end - block : 32;
    for (uint32_t k = first > block ? first - block : 0; k < last; k++) {
      const float* v = p.qkv + (size_t)(span[0] + block + k) * width + (p.heads + p.kv_heads + kv_head) * dim;
      for (uint32_t at = lane; at < dim; at += 32) sums[at] = fmaf(weights[k], v[at], sums[at]);
    }
    __syncwarp();
  }
  float* out = p.out + ((size_t)row * p.heads + head) * dim;
  for (uint32_t at = lane; at < dim; at += 32) out[at] = sums[at] / running.total;
}
