// Devices that compute each layer together and reach each other's memory (src/peers.rs): where they meet, and bring each other's columns.
#include "prelude.cuh"

// Numbers that a thread has on their way to it: they come from other devices.
#define ON_THEIR_WAY 4

// `count` numbers of T, from wherever `source(i)` says to where `target(i)` does, by all blocks.
template <class T, class Load, class Store>
__device__ __forceinline__ void bring(uint32_t count, Load load, Store store) {
  const uint32_t step = gridDim.x * THREADS;
  for (uint32_t first = blockIdx.x * THREADS + threadIdx.x; first < count; first += ON_THEIR_WAY * step) {
    T numbers[ON_THEIR_WAY];
#pragma unroll
    for (uint32_t i = 0; i < ON_THEIR_WAY; i++) {
      if (first + i * step < count) load(first + i * step, numbers[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < ON_THEIR_WAY; i++) {
      if (first + i * step < count) store(first + i * step, numbers[i]);
    }
  }
}

struct Four {
  uint32_t words[4];
};

// out[row][source * width + column] = sources[source][row][column], once all ranks have come to this turn, where they meet: each tells the
// others when all before it has been done, and waits until they have told it. One that writes what others read here meets them once more before.
KERNEL(meet, MeetParams, THREADS) {
  dev::wait_for_earlier();
  uint64_t turn = 0;
  if (p.ranks > 0) {
    turn = *p.turn + 1;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      for (uint32_t other = 0; other < p.ranks; other++) dev::tell(p.flags[other] + p.rank, turn);
    }
    if (threadIdx.x < p.ranks && !dev::hears(p.flags[p.rank] + threadIdx.x, turn, p.patience_ms)) {
      if (!p.is_trial) dev::give_up();
      *p.late = 1;
    }
    __syncthreads();
  }
  // No sooner: who waits on a card that has no room left for whom it waits for, where both are on it, would wait for ever.
  dev::later_may_begin();
  const uint32_t each = p.by_fours ? 4 : 1, width = p.width / each;
  const auto place = [&](uint32_t i, const float*& from, float*& to) {
    const uint32_t column = i % width, source = i / width % p.count, row = i / width / p.count;
    from = p.sources[source] + (size_t)row * p.source_stride + each * column;
    to = p.out + (size_t)row * p.out_stride + source * p.width + each * column;
  };
  const uint32_t count = p.batch.counts[COUNT_ROWS] * p.count * width;
  const float* from;
  float* to;
  if (p.by_fours) {
    bring<Four>(
        count,
        [&](uint32_t i, Four& four) {
          place(i, from, to);
          dev::others16(reinterpret_cast<const uint8_t*>(from), four.words);
        },
        [&](uint32_t i, const Four& four) {
          place(i, from, to);
          dev::store16(reinterpret_cast<uint8_t*>(to), four.words);
        });
  } else {
    bring<float>(
        count,
        [&](uint32_t i, float& number) {
          place(i, from, to);
          number = dev::others(from);
        },
        [&](uint32_t i, float number) {
          place(i, from, to);
          *to = number;
        });
  }
  if (p.ranks == 0) return;
  __syncthreads();
  if (threadIdx.x == 0 && dev::is_last_of(p.arrived, gridDim.x)) *p.turn = turn;
}
