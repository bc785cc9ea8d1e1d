// softmax(softcap(scale * q·k) - slope * distance, sink) · v, by blocks of 32 keys with a running maximum
// (arxiv.org/abs/2205.14135). A block of threads has one head of one row: (rows, heads); each warp has every fourth block of keys, and
// what the warps have is brought together in their order. Blocks of keys begin at absolute positions, so that the order of sums
// does not depend on how a prompt was cut. Shared: the query, and for each warp its sums, a block's weights and slots, and its state.
#include "kv.cuh"

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

// query · key, of `count` numbers in their order.
__device__ __forceinline__ float dot_key(uint32_t type, const float* query, const uint8_t* key, uint32_t count) {
  float dot = 0.0f;
  if (type == KV_F16 && (size_t)key % 16 == 0 && count % 8 == 0) {
#pragma unroll 4
    for (uint32_t i = 0; i < count; i += 8) {
      uint32_t words[4];
      dev::load16(key + 2 * i, words);
#pragma unroll
      for (uint32_t j = 0; j < 8; j++) dot = fmaf(query[i + j], dev::from_half((uint16_t)(words[j / 2] >> (16 * (j % 2)))), dot);
    }
    return dot;
  }
  for (uint32_t i = 0; i < count; i++) dot = fmaf(query[i], kv_at(type, key, i), dot);
  return dot;
}

KERNEL(attention, AttentionParams, THREADS) {
  SHARED(float, query);
  const uint32_t row = blockIdx.x, head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  const uint32_t room = p.value_dim + 64 + 2;
  float* sums = query + p.head_dim + warp * room;
  float* weights = sums + p.value_dim;
  uint32_t* slots = reinterpret_cast<uint32_t*>(weights + 32);
  const uint32_t sequence = p.batch.sequence_of[row];
  const uint32_t* span = p.batch.spans + 4 * sequence;
  const uint32_t* table = p.batch.tables + 2 * (sequence * p.batch.groups + p.group);
  const uint32_t position = span[2] - span[1] + row - span[0], end = position + 1;
  const uint32_t first = p.window == 0 ? 0 : p.chunked ? position / p.window * p.window : end > p.window ? end - p.window : 0;
  const uint32_t kv_head = (uint64_t)head * p.kv_heads / p.heads;
  const size_t key_at = kv_head * kv_bytes(p.kv_type, p.head_dim), value_at = kv_head * kv_bytes(p.kv_type, p.value_dim);
  for (uint32_t i = threadIdx.x; i < p.head_dim; i += THREADS) query[i] = p.q[(size_t)row * p.q_stride + head * p.head_dim + i];
  for (uint32_t i = lane; i < p.value_dim; i += 32) sums[i] = 0.0f;
  __syncthreads();
  Running running = {-INFINITY, 0.0f};
  if (p.sinks && warp == 0) running = {p.sinks[head], 1.0f};
  for (uint32_t block = (first / 32 + (warp + WARPS - first / 32 % WARPS) % WARPS) * 32; block < end; block += 32 * WARPS) {
    const uint32_t key = block + lane;
    float score = -INFINITY;
    if (key >= first && key < end) {
      const uint32_t slot = slot_of(p.batch, table, key);
      slots[lane] = slot;
      score = p.scale * dot_key(p.kv_type, query, p.key_plane + (size_t)slot * p.slot_bytes + key_at, p.head_dim);
      if (p.softcap != 0.0f) score = p.softcap * tanhf(score / p.softcap);
      if (p.slopes) score -= p.slopes[head] * (float)(position - key);
    }
    weigh(running, score, sums, p.value_dim, weights);
    const uint32_t last = end - block < 32 ? end - block : 32, start = first > block ? first - block : 0;
    const uint8_t* values = p.value_plane + value_at;
    for (uint32_t i = lane; i < p.value_dim; i += 32) {
      float sum = sums[i];
#pragma unroll 8
      for (uint32_t j = start; j < last; j++) sum = fmaf(weights[j], kv_at(p.kv_type, values + (size_t)slots[j] * p.slot_bytes, i), sum);
      sums[i] = sum;
    }
    __syncwarp();
  }
  float* states = sums + p.value_dim + 64;
  states[0] = running.largest;
  states[1] = running.total;
  __syncthreads();
  float largest = -INFINITY, total = 0.0f, shares[WARPS];
  const float* rooms = query + p.head_dim;
#pragma unroll
  for (uint32_t of = 0; of < WARPS; of++) largest = fmaxf(largest, rooms[of * room + p.value_dim + 64]);
#pragma unroll
  for (uint32_t of = 0; of < WARPS; of++) {
    // A warp without keys has seen nothing.
    const float seen = rooms[of * room + p.value_dim + 64];
    shares[of] = seen == -INFINITY ? 0.0f : expf(seen - largest);
    total = fmaf(shares[of], rooms[of * room + p.value_dim + 65], total);
  }
  float* out = p.out + (size_t)row * p.out_stride + head * p.value_dim;
  for (uint32_t i = threadIdx.x; i < p.value_dim; i += THREADS) {
    float sum = 0.0f;
#pragma unroll
    for (uint32_t of = 0; of < WARPS; of++) sum = fmaf(shares[of], rooms[of * room + i], sum);
    out[i] = sum / total;
  }
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
