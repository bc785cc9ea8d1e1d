// Layers that keep a state of each sequence: short convolutions, gated delta nets (arxiv.org/abs/2412.06464) and
// Mamba 2 (arxiv.org/abs/2405.21060), token after token in the order of their positions.
#include "prelude.cuh"

#define TAPS_MAX 8

// (sequences, channels / THREADS): a thread has a channel.
KERNEL(convolve, ConvolveParams, THREADS) {
  const uint32_t sequence = blockIdx.x, channel = blockIdx.y * THREADS + threadIdx.x;
  if (sequence >= p.batch.counts[COUNT_SEQUENCES] || channel >= p.channels) return;
  const uint32_t* span = p.batch.spans + 4 * sequence;
  const uint32_t before = p.taps - 1;
  float* inputs = p.inputs + (size_t)span[3] * before * p.channels + channel;
  const bool fresh = span[1] == span[2];
  // The newest last, so that indices are known when this is compiled.
  float seen[TAPS_MAX - 1], weight[TAPS_MAX];
#pragma unroll
  for (uint32_t i = 0; i < TAPS_MAX - 1; i++) {
    const int tap = (int)i + (int)before - (TAPS_MAX - 1);
    seen[i] = tap < 0 || fresh ? 0.0f : inputs[(size_t)tap * p.channels];
  }
#pragma unroll
  for (uint32_t i = 0; i < TAPS_MAX; i++) {
    const int tap = (int)i + (int)p.taps - TAPS_MAX;
    weight[i] = tap < 0 ? 0.0f : p.weight[(size_t)tap * p.channels + channel];
  }
  for (uint32_t row = span[0]; row < span[0] + span[1]; row++) {
    float* x = p.x + (size_t)row * p.x_stride + channel;
    const float own = *x;
    float sum = p.bias ? p.bias[channel] : 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < TAPS_MAX - 1; i++) sum = fmaf(weight[i], seen[i], sum);
    sum = fmaf(weight[TAPS_MAX - 1], own, sum);
    *x = p.activates ? activate(SILU, sum) : sum;
#pragma unroll
    for (uint32_t i = 0; i + 1 < TAPS_MAX - 1; i++) seen[i] = seen[i + 1];
    seen[TAPS_MAX - 2] = own;
  }
#pragma unroll
  for (uint32_t i = 0; i < TAPS_MAX - 1; i++) {
    const int tap = (int)i + (int)before - (TAPS_MAX - 1);
    if (tap >= 0) inputs[(size_t)tap * p.channels] = seen[i];
  }
}

// (sequences, value heads): a thread has a column of the head's state. Shared: query, key, and a number for each warp.
KERNEL(recur, RecurParams, THREADS) {
  SHARED(float, query);
  const uint32_t sequence = blockIdx.x, head = blockIdx.y;
  if (sequence >= p.batch.counts[COUNT_SEQUENCES]) return;
  float* key = query + p.key_dim;
  float* room = key + p.key_dim;
  const uint32_t* span = p.batch.spans + 4 * sequence;
  const uint32_t key_head = p.tiled ? head % p.key_heads : head / (p.value_heads / p.key_heads);
  float* state = p.heads + ((size_t)span[3] * p.value_heads + head) * p.key_dim * p.value_dim;
  if (span[1] == span[2]) {
    for (uint32_t column = threadIdx.x; column < p.value_dim; column += THREADS) {
      for (uint32_t i = 0; i < p.key_dim; i++) state[(size_t)i * p.value_dim + column] = 0.0f;
    }
  }
  for (uint32_t row = span[0]; row < span[0] + span[1]; row++) {
    const float* x = p.x + (size_t)row * p.x_stride;
    __syncthreads();  // the last row's query and key have been read
    float q_squares = 0.0f, k_squares = 0.0f;
    for (uint32_t i = threadIdx.x; i < p.key_dim; i += THREADS) {
      const float q = x[p.query_column + key_head * p.key_dim + i], k = x[p.key_column + key_head * p.key_dim + i];
      query[i] = q;
      key[i] = k;
      q_squares = fmaf(q, q, q_squares);
      k_squares = fmaf(k, k, k_squares);
    }
    float q_length = 1.0f, k_length = 1.0f;
    if (p.delta) {
      q_length = sqrtf(block_sum(q_squares, room) + 1e-6f) * sqrtf((float)p.key_dim);
      k_length = sqrtf(block_sum(k_squares, room) + 1e-6f);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < p.key_dim; i += THREADS) {
      query[i] /= q_length;
      key[i] /= k_length;
    }
    __syncthreads();
    const float raw = x[p.step_column + head] + p.step_bias[head];
    // softplus, whose exponential must not overflow.
    const float softplus = fmaxf(raw, 0.0f) + log1pf(expf(-fabsf(raw)));
    const float step = fminf(fmaxf(softplus, p.step_min), p.step_max);
    const float kept = expf(p.decay[head] * step);
    const float beta = p.delta ? sigmoid(x[p.beta_column + head]) : 0.0f;
    for (uint32_t column = threadIdx.x; column < p.value_dim; column += THREADS) {
      const float v = x[p.value_column + head * p.value_dim + column];
      float added = step * v;
      if (p.delta) {
        float said = 0.0f;
#pragma unroll 1
        for (uint32_t i = 0; i < p.key_dim; i++) said = fmaf(key[i], kept * state[(size_t)i * p.value_dim + column], said);
        added = beta * (v - said);
      }
      float given = p.skip ? p.skip[head] * v : 0.0f;
#pragma unroll 1
      for (uint32_t i = 0; i < p.key_dim; i++) {
        float* at = state + (size_t)i * p.value_dim + column;
        const float now = fmaf(key[i], added, kept * *at);
        *at = now;
        given = fmaf(query[i], now, given);
      }
      p.out[(size_t)row * p.out_stride + head * p.value_dim + column] = given;
    }
  }
}

__device__ __forceinline__ float gated(const OutputGateParams& p, float x, float gate) {
  return x * (p.silu ? activate(SILU, gate) : sigmoid(gate));
}

// (rows, parts): out *= gate, normed before or after it.
KERNEL(gate_output, OutputGateParams, THREADS) {
  SHARED(float, room);
  const uint32_t row = blockIdx.x, first = blockIdx.y * p.part;
  if (row >= p.batch.counts[COUNT_ROWS]) return;
  const float* gate = p.gate + (size_t)row * p.gate_stride + first;
  float* out = p.out + (size_t)row * p.cols + first;
  if (!p.weight) {
    for (uint32_t i = threadIdx.x; i < p.part; i += THREADS) out[i] = gated(p, out[i], gate[i]);
    return;
  }
  float squares = 0.0f;
  for (uint32_t i = threadIdx.x; i < p.part; i += THREADS) {
    if (!p.before_gate) out[i] = gated(p, out[i], gate[i]);
    squares = fmaf(out[i], out[i], squares);
  }
  const float factor = 1.0f / sqrtf(block_sum(squares, room) / p.part + p.eps);
  for (uint32_t i = threadIdx.x; i < p.part; i += THREADS) {
    const float normed = out[i] * factor * p.weight[(first + i) % p.weights];
    out[i] = p.before_gate ? gated(p, normed, gate[i]) : normed;
  }
}
