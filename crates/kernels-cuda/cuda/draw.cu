// A token for each row of logits, as crates/kernels/src/sampling.rs says, of rows that ask for nothing but a soft cap, a mask, penalties and
// adjustments, a temperature, top-k, top-p and min-p: (logit rows). Weights take the place of logits. All of it is sums of integers and plain operations in a fixed order, so that the
// host draws the same.
#include "prelude.cuh"

#define DRAW_THREADS 1024
#define DRAW_WARPS (DRAW_THREADS / 32)
#define DIGITS 2048
#define FLOAT_MAX 3.4028234663852886e38f
// Lots that ids are in, of whose largest logits the k-th bounds the k largest of all; and how many are wanted where k is not said.
#define LOTS 256
#define WANTED 128

struct DrawRoom {
  uint64_t sums[DRAW_THREADS], coarse[32];
  union {
    uint64_t histogram[DIGITS];
    struct {
      uint64_t keys[DRAW_THREADS], masses[DRAW_THREADS];
    } list;
  };
  uint64_t bound;
  uint32_t count, token, unsure, unused;
};

// The last value and id that a selection keeps.
struct Cut {
  float value;
  uint32_t id;
  __device__ __forceinline__ bool keeps(float of, uint32_t of_id) const { return of > value || (of == value && of_id <= id); }
};

// A number that orders as the value does.
__device__ __forceinline__ uint32_t ordered(float value) {
  const uint32_t bits = dev::to_bits(dev::plus(value, 0.0f));  // -0 becomes +0
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float of_ordered(uint32_t bits) { return dev::from_bits(bits >> 31 ? bits & 0x7fffffffu : ~bits); }

// e^x of what is not positive, as the host computes it.
__device__ __forceinline__ float exp_nonpositive(float x) {
  const float round = 12582912.0f;
  const float shifted = dev::plus(dev::times(x, 1.44269504088896340736f), round), n = dev::plus(shifted, -round);
  const float r = dev::plus(dev::plus(x, -dev::times(n, 0.6933594f)), dev::times(n, 2.1219444e-4f));
  float p = 1.9875691e-4f;
  p = dev::plus(dev::times(p, r), 1.3982e-3f);
  p = dev::plus(dev::times(p, r), 8.333452e-3f);
  p = dev::plus(dev::times(p, r), 4.1665796e-2f);
  p = dev::plus(dev::times(p, r), 1.6666665e-1f);
  p = dev::plus(dev::times(p, r), 0.5f);
  const float y = dev::plus(dev::plus(dev::times(dev::times(p, r), r), r), 1.0f);
  const uint32_t exponent = (dev::to_bits(shifted) - dev::to_bits(round) + 127) << 23;
  return x < -87.0f ? 0.0f : dev::times(y, dev::from_bits(exponent));
}

// A weight, 0 to 1, as an integer: the nearest multiple of 2^-40.
__device__ __forceinline__ uint64_t mass(float weight) {
  const double magic = 4096.0;
  return dev::to_bits((double)weight + magic) - dev::to_bits(magic);
}

// Calls `f` with ids from `first` on, so many apart, and their values: several are on their way at once.
template <class F>
__device__ __forceinline__ void for_each(const float* values, uint32_t first, uint32_t end, uint32_t apart, F f) {
  constexpr uint32_t COUNT = 6;
  for (uint32_t base = first; base < end; base += COUNT * apart) {
    float own[COUNT];
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) own[i] = base + i * apart < end ? values[base + i * apart] : 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) {
      if (base + i * apart < end) f(base + i * apart, own[i]);
    }
  }
}

// What all threads have, brought together.
template <class Op>
__device__ __forceinline__ uint64_t combine(DrawRoom& room, uint64_t value, Op op) {
  __syncthreads();
  room.sums[threadIdx.x] = value;
  __syncthreads();
  for (uint32_t apart = DRAW_THREADS / 2; apart > 0; apart /= 2) {
    if (threadIdx.x < apart) room.sums[threadIdx.x] = op(room.sums[threadIdx.x], room.sums[threadIdx.x + apart]);
    __syncthreads();
  }
  return room.sums[0];
}
__device__ __forceinline__ uint64_t total_of(DrawRoom& room, uint64_t value) {
  return combine(room, value, [](uint64_t a, uint64_t b) { return a + b; });
}

// Which of `count` sums, one after the other, is the first to pass `left`, less those before it; the last where none does.
__device__ __forceinline__ uint32_t pass(const uint64_t* sums, uint32_t count, uint64_t& left) {
  uint32_t at = 0;
  while (at + 1 < count && left >= sums[at]) left -= sums[at++];
  return at;
}

// The first id, in their order, at which the running sum of what `of(id, value)` gives passes `left`, which is less than all of them.
template <class Of>
__device__ __forceinline__ uint32_t place_of(DrawRoom& room, const float* values, uint32_t count, uint64_t left, Of of) {
  // A piece for each warp, of which a piece for each thread: it is looked for among the sums of both.
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, piece = (count + DRAW_WARPS - 1) / DRAW_WARPS;
  __syncthreads();
  if (threadIdx.x < DRAW_WARPS) room.coarse[threadIdx.x] = 0;
  __syncthreads();
  const uint32_t end = (warp + 1) * piece < count ? (warp + 1) * piece : count;
  uint64_t sum = 0;
  for_each(values, warp * piece + lane, end, 32, [&](uint32_t id, float value) { sum += of(id, value); });
  dev::add_shared(&room.coarse[warp], sum);
  __syncthreads();
  const uint32_t first = pass(room.coarse, DRAW_WARPS, left) * piece, last = first + piece < count ? first + piece : count;
  const uint32_t part = (piece + DRAW_THREADS - 1) / DRAW_THREADS;
  sum = 0;
  for (uint32_t id = first + threadIdx.x * part; id < last && id < first + (threadIdx.x + 1) * part; id++) sum += of(id, values[id]);
  __syncthreads();
  if (threadIdx.x < DRAW_WARPS) room.coarse[threadIdx.x] = 0;
  __syncthreads();
  room.sums[threadIdx.x] = sum;
  dev::add_shared(&room.coarse[warp], sum);
  __syncthreads();
  uint32_t at = 32 * pass(room.coarse, DRAW_WARPS, left);
  at += pass(room.sums + at, 32, left);
  uint32_t id = first + at * part;
  for (; id + 1 < last; id++) {
    const uint64_t amount = of(id, values[id]);
    if (left < amount) break;
    left -= amount;
  }
  return id;
}

// What a token amounts to, and a number that orders as its value does.
struct Amount {
  uint64_t of;
  uint32_t bits;
};

// The value at which the sum of amounts reaches `wanted`, 1 to all of it, from the largest value down and of equals from the lowest id up, and its
// id. Equals amount to the same.
template <class Of>
__device__ __forceinline__ uint32_t find_cut(DrawRoom& room, const float* values, uint32_t count, uint64_t wanted, Of of, uint32_t* id) {
  uint32_t found = 0;
  // Eleven bits at a time, and at last ten.
#pragma unroll 1
  for (int step = 0; step < 3; step++) {
    const uint32_t shift = step == 0 ? 21 : step == 1 ? 10 : 0, digits = step == 2 ? 1024 : DIGITS;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < DIGITS; i += DRAW_THREADS) room.histogram[i] = 0;
    if (threadIdx.x < 32) room.coarse[threadIdx.x] = 0;
    __syncthreads();
    for_each(values, threadIdx.x, count, DRAW_THREADS, [&](uint32_t, float value) {
      const Amount amount = of(value);
      const bool is_in = step == 0 || (step == 1 ? amount.bits >> 21 : amount.bits >> 10) == found;
      // The largest stand first.
      if (amount.of > 0 && is_in) dev::add_shared(&room.histogram[digits - 1 - (amount.bits >> shift) % digits], amount.of);
    });
    __syncthreads();
    uint64_t sum = 0;
    for (uint32_t i = 0; i < DIGITS / DRAW_THREADS; i++) sum += room.histogram[DIGITS / DRAW_THREADS * threadIdx.x + i];
    room.sums[threadIdx.x] = sum;
    dev::add_shared(&room.coarse[threadIdx.x / 32], sum);
    __syncthreads();
    // Reaching is passing one less.
    uint64_t left = wanted - 1;
    uint32_t at = 32 * pass(room.coarse, DRAW_WARPS, left);
    at += pass(room.sums + at, 32, left);
    at *= DIGITS / DRAW_THREADS;
    at += pass(room.histogram + at, DIGITS / DRAW_THREADS, left);
    wanted = left + 1;
    found = found * digits + digits - 1 - at;
  }
  *id = place_of(room, values, count, wanted - 1, [&](uint32_t, float value) {
    const Amount amount = of(value);
    return amount.bits == found ? amount.of : 0;
  });
  return found;
}

// How much mass the heaviest tokens must have.
__device__ __forceinline__ uint64_t target_of(const DrawSpec& spec, uint64_t total) {
  const double wanted = ceil((double)spec.top_p * (double)total);
  return wanted < 1.0 ? 1 : wanted >= (double)total ? total : (uint64_t)wanted;
}
// Where a draw falls in the mass that is left.
__device__ __forceinline__ uint64_t point_of(const DrawSpec& spec, uint64_t left) {
  const uint64_t at = (uint64_t)(spec.uniform * (double)left);
  return at < left ? at : left - 1;
}

// Draws among a few of the largest, where these are all that matter: a thread each. False where they are not, or too many.
__device__ __forceinline__ bool draw_among_few(DrawRoom& room, const DrawSpec& spec, const float* logits, uint32_t vocab, float largest, uint64_t own, uint32_t* token) {
  const bool has_top_k = spec.top_k > 0 && spec.top_k < vocab;
  const uint32_t wanted = has_top_k ? spec.top_k : WANTED;
  if (wanted > LOTS || !(has_top_k || spec.top_p < 1.0f)) return false;
  // The largest of each lot, and of these the one that as many are not below.
  __syncthreads();
  room.sums[threadIdx.x] = own;
  if (threadIdx.x == 0) room.bound = room.count = room.unsure = 0, room.token = NONE;
  __syncthreads();
  if (threadIdx.x < LOTS) {
    for (uint32_t i = threadIdx.x; i < DRAW_THREADS; i += LOTS) own = room.sums[i] > own ? room.sums[i] : own;
  }
  __syncthreads();
  room.sums[threadIdx.x] = own;
  __syncthreads();
  if (threadIdx.x < LOTS) {
    uint32_t above = 0;
    for (uint32_t i = 0; i < LOTS; i++) above += room.sums[i] > own;
    if (own != 0 && above == wanted - 1) room.bound = own;
  }
  __syncthreads();
  const uint64_t bound = room.bound;
  const float floor = bound == 0 ? -INFINITY : of_ordered(bound >> 32), factor = spec.temperature;
  const auto weight_of = [&](float logit) { return exp_nonpositive(dev::plus(logit, -largest) / factor); };
  uint64_t total = 0;
  for_each(logits, threadIdx.x, vocab, DRAW_THREADS, [&](uint32_t id, float logit) {
    if (!has_top_k) total += mass(weight_of(logit));
    if (logit < floor) return;
    const uint64_t key = (uint64_t)ordered(logit) << 32 | ~id;
    if (key < bound) return;
    const uint32_t at = dev::count_shared(&room.count);
    if (at < DRAW_THREADS) room.list.keys[at] = key;
  });
  __syncthreads();
  const uint32_t count = room.count;
  if (count > DRAW_THREADS) return false;
  const uint64_t key = threadIdx.x < count ? room.list.keys[threadIdx.x] : 0;
  uint32_t above = 0;
  if (threadIdx.x < count) {
    for (uint32_t i = 0; i < count; i++) above += room.list.keys[i] > key;
  }
  const uint32_t id = ~(uint32_t)key;
  const bool is_in = threadIdx.x < count && (!has_top_k || above < spec.top_k);
  const float weight = is_in ? weight_of(of_ordered(key >> 32)) : 0.0f;
  const uint64_t own_mass = mass(weight), heaviness = (uint64_t)dev::to_bits(weight) << 32 | ~id;
  const uint64_t listed = total_of(room, own_mass);
  total = has_top_k ? listed : total_of(room, total);
  const uint64_t target = spec.top_p < 1.0f ? target_of(spec, total) : ~0ull;
  room.list.keys[threadIdx.x] = heaviness;
  room.list.masses[threadIdx.x] = own_mass;
  __syncthreads();
  uint64_t before = 0;
  for (uint32_t i = 0; i < count; i++) before += room.list.keys[i] > heaviness ? room.list.masses[i] : 0;
  const bool is_heavy = own_mass > 0 && before < target;
  // A token beyond the bound may weigh as much as what is at it.
  const float least = weight_of(floor);
  if (!has_top_k && (listed < target || (is_heavy && !(weight > least)))) room.unsure = 1;
  __syncthreads();
  if (room.unsure) return false;
  const uint64_t kept = is_heavy && !(weight < spec.min_p) ? own_mass : 0;
  room.list.masses[threadIdx.x] = kept;
  const uint64_t left = total_of(room, kept);
  if (left > 0) {
    const uint64_t point = point_of(spec, left);
    before = 0;
    for (uint32_t i = 0; i < count; i++) before += ~(uint32_t)room.list.keys[i] < id ? room.list.masses[i] : 0;
    if (before <= point && point < before + kept) room.token = id;
  }
  __syncthreads();
  *token = room.token;
  return true;
}

// Draws among all, whose weights take the place of their logits.
__device__ __forceinline__ uint32_t draw_among_all(DrawRoom& room, const DrawSpec& spec, float* logits, uint32_t vocab, float largest) {
  Cut cut = {-INFINITY, NONE};
  if (spec.top_k > 0 && spec.top_k < vocab) {
    cut.value = of_ordered(find_cut(room, logits, vocab, spec.top_k, [](float logit) { return Amount{1, ordered(logit)}; }, &cut.id));
  }
  __syncthreads();
  uint64_t total = 0;
  for_each(logits, threadIdx.x, vocab, DRAW_THREADS, [&](uint32_t id, float logit) {
    const float weight = cut.keeps(logit, id) ? exp_nonpositive(dev::plus(logit, -largest) / spec.temperature) : 0.0f;
    logits[id] = weight;
    total += mass(weight);
  });
  total = total_of(room, total);
  cut = {spec.min_p > 0.0f ? spec.min_p : -INFINITY, NONE};
  if (spec.top_p < 1.0f) {
    Cut heaviest;
    heaviest.value = dev::from_bits(find_cut(room, logits, vocab, target_of(spec, total), [](float weight) { return Amount{mass(weight), dev::to_bits(weight)}; }, &heaviest.id));
    if (!(heaviest.value < spec.min_p)) cut = heaviest;
  }
  const auto kept = [&](uint32_t id, float weight) { return cut.keeps(weight, id) ? mass(weight) : 0; };
  uint64_t left = 0;
  for_each(logits, threadIdx.x, vocab, DRAW_THREADS, [&](uint32_t id, float weight) { left += kept(id, weight); });
  left = total_of(room, left);
  return left == 0 ? NONE : place_of(room, logits, vocab, point_of(spec, left), kept);
}

// `cap * tanh(logit / cap)`.
__device__ __forceinline__ float soft_cap(float cap, float logit) {
  const float ratio = logit / cap, size = ratio < 0.0f ? -ratio : ratio;
  const float e = exp_nonpositive(dev::times(-2.0f, size)), capped = dev::times(cap, dev::plus(1.0f, -e) / dev::plus(1.0f, e));
  const bool negative = dev::to_bits(logit) >> 31;
  return negative ? -capped : capped;
}
__device__ __forceinline__ float within_floats(float value) { return fminf(fmaxf(value, -FLOAT_MAX), FLOAT_MAX); }
__device__ __forceinline__ float penalized(float logit, float penalty) {
  return logit == -INFINITY ? logit : within_floats(logit > 0.0f ? logit / penalty : dev::times(logit, penalty));
}
__device__ __forceinline__ float added(float logit, float addend) {
  return logit == -INFINITY || addend == -INFINITY ? -INFINITY : within_floats(dev::plus(logit, addend));
}
__device__ __forceinline__ bool has_bit(const uint32_t* words, uint32_t count, uint32_t id) { return id / 32 < count && (words[id / 32] >> id % 32 & 1); }

// Does to a row's logits what its spec says. Whether this thread met one that is not a number below infinity.
__device__ __forceinline__ bool edit(const DrawSpec& spec, const uint32_t* edits, float* logits, uint32_t vocab) {
  bool broken = false;
  for_each(logits, threadIdx.x, vocab, DRAW_THREADS, [&](uint32_t id, float logit) {
    broken |= !(logit < INFINITY);
    const float before = logit;
    if (spec.softcap != 0.0f && logit > -INFINITY) logit = soft_cap(spec.softcap, logit);
    if (spec.mask != NONE && !has_bit(edits + spec.mask, spec.mask_words, id)) logit = -INFINITY;
    if (spec.repetition != 1.0f && has_bit(edits + spec.seen, spec.seen_words, id)) logit = penalized(logit, spec.repetition);
    if (logit != before) logits[id] = logit;
  });
  __syncthreads();
  // A thread for each token that is adjusted, in the order of its changes.
  const uint32_t* changes = edits + spec.changes;
  for (uint32_t i = threadIdx.x; i < spec.changes_count; i += DRAW_THREADS) {
    const uint32_t token = changes[3 * i];
    bool is_first = token < vocab;
    for (uint32_t earlier = 0; is_first && earlier < i; earlier++) is_first = changes[3 * earlier] != token;
    if (!is_first) continue;
    float logit = logits[token];
    for (uint32_t own = i; own < spec.changes_count; own++) {
      if (changes[3 * own] != token) continue;
      const float by = dev::from_bits(changes[3 * own + 2]);
      logit = changes[3 * own + 1] ? penalized(logit, by) : added(logit, by);
    }
    logits[token] = logit;
  }
  __syncthreads();
  return broken;
}

KERNEL(draw, DrawParams, DRAW_THREADS) {
  SHARED(DrawRoom, rooms);
  DrawRoom& room = *rooms;
  const uint32_t row = blockIdx.x, vocab = p.vocab;
  if (row >= p.batch.counts[COUNT_LOGIT_ROWS]) return;
  const DrawSpec spec = p.specs[row];
  if (spec.by_host) return;
  float* logits = p.logits + (size_t)row * vocab;
  // The largest logit and the lowest id that has it; above all where one is not a number below infinity.
  uint64_t own = spec.edited && edit(spec, p.edits, logits, vocab) ? ~0ull : 0;
  for_each(logits, threadIdx.x, vocab, DRAW_THREADS, [&](uint32_t id, float logit) {
    const uint64_t key = logit < INFINITY ? (uint64_t)ordered(logit) << 32 | ~id : ~0ull;
    own = key > own ? key : own;
  });
  const uint64_t most = combine(room, own, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  const float largest = of_ordered(most >> 32);
  uint32_t token = ~(uint32_t)most;
  if (most == ~0ull || largest == -INFINITY) {
    token = NONE;
  } else if (spec.temperature != 0.0f) {
    if (!draw_among_few(room, spec, logits, vocab, largest, own, &token)) token = draw_among_all(room, spec, logits, vocab, largest);
  }
  if (threadIdx.x == 0) p.tokens[row] = token;
}
