// What kernels of attention over the cache share: spans of keys, which of them a row sees, and how one is folded into those before it.
#pragma once
#include "kv.cuh"

// Keys of a span, which begins at an absolute position.
#define SPAN (32 * WARPS)

// Of what was folded: how much of it is kept, and how much of what comes is taken, where that is folded into it.
struct Folded {
  float largest, total, kept, taken;
};

__device__ __forceinline__ void fold(Folded& folded, float largest, float total) {
  const float both = fmaxf(folded.largest, largest);
  // Nothing has been seen yet: nothing is kept, or taken.
  folded.kept = folded.largest == -INFINITY ? 0.0f : expf(folded.largest - both);
  folded.taken = largest == -INFINITY ? 0.0f : expf(largest - both);
  folded.total = fmaf(total, folded.taken, dev::times(folded.total, folded.kept));
  folded.largest = both;
}

__device__ __forceinline__ float fold_sum(const Folded& folded, float sum, float comes) {
  return fmaf(comes, folded.taken, dev::times(sum, folded.kept));
}

// A sink is as a key that was seen before all others, and has no value.
__device__ __forceinline__ Folded nothing_folded(const float* sinks, uint32_t head) {
  return {sinks ? sinks[head] : -INFINITY, sinks ? 1.0f : 0.0f, 0.0f, 0.0f};
}

// The keys that a row sees.
struct Seen {
  uint32_t position, first, end, spans;
};

__device__ __forceinline__ Seen seen_by(const AttentionParams& p, uint32_t row, const uint32_t* span) {
  const uint32_t position = span[2] - span[1] + row - span[0], end = position + 1;
  const uint32_t first = p.window == 0 ? 0 : p.chunked ? position / p.window * p.window : end > p.window ? end - p.window : 0;
  return {position, first, end, position / SPAN - first / SPAN + 1};
}
