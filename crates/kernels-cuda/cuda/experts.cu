// Mixtures of experts, each row's experts by themselves: `route` chooses, `expert_up` and `expert_down` multiply.
#include "weights.cuh"

// w[row] · (factor * x), in the order of `dots`.
__device__ __forceinline__ float dot_one(const Stack& stack, uint32_t row, const float* x, float factor) {
  const Part& part = part_of(stack, row);
  const uint8_t* bytes = row_of(part, row);
  const uint32_t groups = (stack.cols + 31) / 32;
  float w[32], sum = 0.0f;
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
