// CUDA C++ on the CPU: what kernels name, computed by fibers, one for each CUDA thread of a block.
//
// A fiber runs until it must wait for others: at a barrier of its block, or at a collective of its warp, which the last
// lane to come computes for all. Nothing else switches, so that a missing barrier shows as a warp that has run ahead.
// Shared memory has the size that the launch says, and holds NaN; so does what is copied to it until the copy is waited for, which
// is when it is made. Not emulated: what other blocks do meanwhile.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "watch.hpp"

#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict

namespace emulator {

struct Dim {
  unsigned x = 1, y = 1, z = 1;
};

enum class Meeting : unsigned { None, Sync, Sum, Max, MaxOf, MinOf, Multiply, MultiplyHalves, MultiplyBf16s, Beside, Multiply16, Squares, Turn, QuadMax, QuadSum, Products };

// 16 bytes on their way to shared memory, and the number of the group that they are of.
struct Copy {
  unsigned char* to;
  const uint8_t* from;
  uint64_t group;
};

struct Warp;
struct Asynchronous;  // what of a block is done some time later (hopper.hpp)
// Where a block is, and what it shares.
struct Place {
  Dim index, threads, grid;
  char* shared_memory;
  size_t shared_bytes;
  unsigned planted;  // which fault of those that are compiled in is there; 0: none
  mutable std::shared_ptr<Asynchronous> asynchronous;
};

struct Fiber {
  void* stack_pointer;
  char* stack;
  const Place* place;
  Warp* warp;
  const Fiber* warp_end;  // behind its last lane
  Dim thread;
  unsigned lane;
  bool begun, done, early;
  const uint64_t* waits_for;  // a generation that must move on, or null
  uint64_t generation;
  std::vector<Copy> copies;
  uint64_t groups;  // of copies, that are closed
  watch::Stack watched;
};

constexpr int WORDS_MAX = 24;

struct Warp {
  uint64_t generation = 0;
  unsigned arrived = 0;
  Meeting meeting = Meeting::None;
  uint32_t in[2][32][WORDS_MAX];
  uint32_t out[2][32][4];
  char told[2];  // places that stand for what barriers order
};

// Stacks begin at multiples of their size, so that where a fiber runs says which it is: asking costs next to nothing, which a variable of
// a thread's in a library does not. Lines of memory that stacks have at the same place would push each other out of the processor's
// cache, so each stack has them elsewhere than its neighbours.
constexpr uintptr_t STACK_BYTES = 64 << 10;
__attribute__((always_inline)) inline uintptr_t apart(uintptr_t stack) { return stack / STACK_BYTES % 64 * 64; }
__attribute__((always_inline)) inline Fiber*& fiber_of(uintptr_t stack) { return *reinterpret_cast<Fiber**>(stack + apart(stack)); }
__attribute__((always_inline)) inline Fiber* fiber() {
#ifdef __x86_64__
  uintptr_t within;
  asm("movq %%rsp, %0" : "=r"(within));
#else
  const uintptr_t within = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
#endif
  return fiber_of(within / STACK_BYTES * STACK_BYTES);
}

void wait_for(const uint64_t* generation, uint64_t value);
[[noreturn]] void fail(const char* what);
void barrier();
// Whether another card has come to a turn, for which this one stands still; false where it never will (driver.cpp).
bool hears(const uint64_t* flag, uint64_t turn);
// Makes the fiber's copies of groups below this one.
void make_copies(uint64_t group);

// Every lane of a warp brings words; the last to come computes for all. `compute(in, out)`.
template <class Compute>
inline const uint32_t* meet(Meeting meeting, const uint32_t* words, int count, Compute compute) {
  const watch::Aside aside;
  const Fiber& own = *fiber();
  Warp& warp = *own.warp;
  const unsigned page = warp.generation & 1;
  // The one collective that orders memory.
  if (meeting == Meeting::Sync) watch::tells(&warp.told[page]);
  if (warp.arrived == 0) warp.meeting = meeting;
  if (warp.meeting != meeting) fail("lanes of a warp meet at different collectives");
  if (count > 0) __builtin_memcpy(warp.in[page][own.lane], words, sizeof(uint32_t) * count);
  const uint64_t generation = warp.generation;
  if (++warp.arrived == 32) {
    compute(warp.in[page], warp.out[page]);
    warp.arrived = 0;
    warp.generation++;
  } else {
    wait_for(&warp.generation, generation);
  }
  if (meeting == Meeting::Sync) watch::hears(&warp.told[page]);
  return warp.out[page][own.lane];
}

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// A value that all lanes combine, in the order of a butterfly: lane l has op(v[l], v[l ^ 16]), then 8, 4, 2, 1.
template <class T, class Op>
inline T butterfly(Meeting meeting, T value, Op op) {
  const uint32_t word = bits<uint32_t>(value);
  return bits<T>(meet(meeting, &word, 1, [op](auto& in, auto& out) {
    T now[32], next[32];
    for (int lane = 0; lane < 32; lane++) now[lane] = bits<T>(in[lane][0]);
    for (int apart = 16; apart > 0; apart /= 2) {
      for (int lane = 0; lane < 32; lane++) next[lane] = op(now[lane], now[lane ^ apart]);
      for (int lane = 0; lane < 32; lane++) now[lane] = next[lane];
    }
    for (int lane = 0; lane < 32; lane++) out[lane][0] = bits<uint32_t>(now[lane]);
  })[0]);
}

// The same of four lanes side by side: 1 apart, then 2.
template <class Op>
inline float quad(Meeting meeting, float value, Op op) {
  const uint32_t word = bits<uint32_t>(value);
  return bits<float>(meet(meeting, &word, 1, [op](auto& in, auto& out) {
    const auto pair = [&](int lane) { return op(bits<float>(in[lane][0]), bits<float>(in[lane ^ 1][0])); };
    for (int lane = 0; lane < 32; lane++) out[lane][0] = bits<uint32_t>(op(pair(lane), pair(lane ^ 2)));
  })[0]);
}

struct Kernel {
  Kernel(const char* name, size_t bytes, unsigned threads, void (*run)(const void*));
  const char* name;
  size_t bytes;
  unsigned threads;
  void (*run)(const void*);
  Kernel* next;
};

}  // namespace emulator

// Whether this launch has a fault (`Sources::with_planted` puts them where they are).
#define PLANTED(fault) (emulator::fiber()->place->planted == fault)

#define threadIdx (emulator::fiber()->thread)
#define blockIdx (emulator::fiber()->place->index)
#define blockDim (emulator::fiber()->place->threads)
#define gridDim (emulator::fiber()->place->grid)
inline void __syncthreads() { emulator::barrier(); }
inline void __syncwarp() {
  emulator::meet(emulator::Meeting::Sync, nullptr, 0, [](auto&, auto&) {});
}

// What stands by itself on a card.
#define CALLED __attribute__((noinline)) inline

#define TABLE(type, name, count) static const type name[count]
#define SHARED(type, name) type* name = reinterpret_cast<type*>(emulator::fiber()->place->shared_memory)
#define KERNEL(name, Params, threads)                                                   \
  static void kernel_##name(const Params& p);                                           \
  static emulator::Kernel registered_##name("kernel_" #name, sizeof(Params), threads,   \
      [](const void* p) { kernel_##name(*static_cast<const Params*>(p)); });            \
  static void kernel_##name(const Params& p)

#define WIDE_KERNEL(name, Params, threads, blocks) KERNEL(name, Params, threads)

namespace dev {

// What is read between these is looked at by `count.cpp`; who does not wait is found out at a kernel's end. Nothing runs before its time here.
inline void begins_early() { emulator::fiber()->early = true; }
inline void wait_for_earlier() { emulator::fiber()->early = false; }
inline void later_may_begin() {}

inline float warp_sum(float value) {
  return emulator::butterfly(emulator::Meeting::Sum, value, [](float a, float b) { return a + b; });
}
inline float warp_max(float value) {
  return emulator::butterfly(emulator::Meeting::Max, value, [](float a, float b) { return fmaxf(a, b); });
}
inline int warp_max(int value) {
  return emulator::butterfly(emulator::Meeting::MaxOf, value, [](int a, int b) { return a > b ? a : b; });
}
inline int warp_min(int value) {
  return emulator::butterfly(emulator::Meeting::MinOf, value, [](int a, int b) { return a < b ? a : b; });
}
// Loads that a card refuses at other places than multiples of so many bytes.
template <class Word>
inline Word load(const uint8_t* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(Word) != 0) emulator::fail("a load of several bytes at a place that is no multiple of them");
  Word word;
  __builtin_memcpy(&word, from, sizeof word);
  return word;
}
inline uint32_t load2(const uint8_t* from) { return load<uint16_t>(from); }
inline uint32_t load4(const uint8_t* from) { return load<uint32_t>(from); }
inline void load16(const uint8_t* from, uint32_t to[4]) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) emulator::fail("a load of 16 bytes at a place that is no multiple of them");
  __builtin_memcpy(to, from, 16);
}
inline void load8(const uint8_t* from, uint32_t to[2]) {
  const uint64_t words = load<uint64_t>(from);
  __builtin_memcpy(to, &words, 8);
}
inline void store16(uint8_t* to, const uint32_t from[4]) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0) emulator::fail("a store of 16 bytes at a place that is no multiple of them");
  __builtin_memcpy(to, from, 16);
}
inline void bring16(unsigned char* to, const uint8_t* from) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 != 0) emulator::fail("a copy of 16 bytes from or to a place that is no multiple of them");
  memset(to, 0xff, 16);
  emulator::Fiber& own = *emulator::fiber();
  own.copies.push_back({to, from, own.groups});
}
inline void brought() { emulator::fiber()->groups++; }
template <int LATEST>
inline void wait_for_all_but() {
  const uint64_t groups = emulator::fiber()->groups;
  emulator::make_copies(groups > LATEST ? groups - LATEST : 0);
}
inline void shared16(const unsigned char* from, uint32_t to[4]) { load16(from, to); }
inline uint32_t to_bits(float value) { return emulator::bits<uint32_t>(value); }
inline uint64_t to_bits(double value) { return emulator::bits<uint64_t>(value); }
inline float from_beside(float value) {
  const uint32_t word = emulator::bits<uint32_t>(value);
  return emulator::bits<float>(emulator::meet(emulator::Meeting::Beside, &word, 1, [](auto& in, auto& out) {
    for (int lane = 0; lane < 32; lane++) out[lane][0] = in[lane ^ 1][0];
  })[0]);
}
inline float from_bits(uint32_t word) { return emulator::bits<float>(word); }
// By name: what becomes a double would be made by a function else, and the header that has these instructions takes the compiler as long as a
// file of kernels.
#ifdef __F16C__
typedef int Four __attribute__((vector_size(16)));
inline float from_half(uint16_t half) {
  float value __attribute__((vector_size(16)));
  asm("vcvtph2ps %1, %0" : "=x"(value) : "x"(Four{half}));
  return value[0];
}
inline uint16_t to_half(float value) {
  Four half;
  asm("vcvtps2ph $0, %1, %0" : "=x"(half) : "x"(value));
  return static_cast<uint16_t>(half[0]);
}
#else
inline float from_half(uint16_t half) { return static_cast<float>(emulator::bits<_Float16>(half)); }
inline uint16_t to_half(float value) { return emulator::bits<uint16_t>(static_cast<_Float16>(value)); }
#endif
inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t places) {
#ifdef __SSSE3__
  typedef char Bytes __attribute__((vector_size(16)));
  typedef int Four __attribute__((vector_size(16)));
  const uint32_t each = (places & 7) | (places & 0x70) << 4 | (places & 0x700) << 8 | (places & 0x7000) << 12;
  const Four from = {static_cast<int>(a), static_cast<int>(b)}, by = {static_cast<int>(each)};
  return reinterpret_cast<Four>(__builtin_ia32_pshufb128(reinterpret_cast<Bytes>(from), reinterpret_cast<Bytes>(by)))[0];
#else
  const uint64_t both = a | static_cast<uint64_t>(b) << 32;
  uint32_t picked = 0;
  for (int i = 0; i < 4; i++) picked |= (both >> (8 * (places >> (4 * i) & 7)) & 255) << (8 * i);
  return picked;
#endif
}
// Two halves each, of which a sum of a product is rounded once. What lies between two floats becomes the one whose last bit is set, which no half
// is and no middle of two: a half is rounded of it as of the number itself, by instructions that there are for floats alone.
#ifdef __F16C__
inline uint32_t multiply_add_halves(uint32_t a, uint32_t b, uint32_t c) {
  typedef float Floats __attribute__((vector_size(16)));
  const auto of = [](uint32_t word) {
    Floats values;
    asm("vcvtph2ps %1, %0" : "=x"(values) : "x"(Four{static_cast<int>(word)}));
    return values;
  };
  // A float holds the product, and another what its sum is off by.
  const Floats product = of(a) * of(b), other = of(c), sum = product + other;
  const Floats added = sum - product, off = (product - (sum - added)) + (other - added);
  const Four words = reinterpret_cast<Four>(sum), between = (off < 0.0f) | (off > 0.0f);
  const Four larger = (reinterpret_cast<Four>(off) ^ words) >> 31;  // all bits of those that lie behind the number
  const Four odd = (between & ((words + larger) | 1)) | (~between & words);
  Four halves;
  asm("vcvtps2ph $0, %1, %0" : "=x"(halves) : "x"(reinterpret_cast<Floats>(odd)));
  return halves[0];
}
#else
inline uint16_t to_half(double value) {
  const float near = static_cast<float>(value);
  uint32_t word = emulator::bits<uint32_t>(near);
  if (static_cast<double>(near) != value) word = (word - (fabs(static_cast<double>(near)) > fabs(value))) | 1;
  return to_half(emulator::bits<float>(word));
}
inline uint32_t multiply_add_halves(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t sums = 0;
  for (int i = 0; i < 32; i += 16) {
    const auto of = [i](uint32_t word) { return static_cast<double>(from_half(static_cast<uint16_t>(word >> i))); };
    sums |= static_cast<uint32_t>(to_half(of(a) * of(b) + of(c))) << i;
  }
  return sums;
}
#endif
inline uint32_t add_halves(uint32_t a, uint32_t b) { return multiply_add_halves(a, 0x3c003c00u, b); }
inline float times(float a, float b) { return a * b; }
inline float plus(float a, float b) { return a + b; }
inline void add_shared(uint64_t* to, uint64_t number) { __atomic_fetch_add(to, number, __ATOMIC_RELAXED); }
inline uint32_t count_shared(uint32_t* counter) { return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }
// To sanitizers, all that was before a count is before what the last that is counted does next.
inline bool is_last_of(uint32_t* counter, uint32_t count) {
  const watch::Aside aside;
  watch::tells(counter);
  if (__atomic_fetch_add(counter, 1, __ATOMIC_ACQ_REL) + 1 < count) return false;
  watch::hears(counter);
  __atomic_store_n(counter, 0, __ATOMIC_RELAXED);
  return true;
}
inline float others(const float* from) { return *from; }
inline void others16(const uint8_t* from, uint32_t to[4]) { load16(from, to); }
inline float upper(float value) { return emulator::bits<float>(emulator::bits<uint32_t>(value) & 0xffffe000u); }
inline float lower(float value) {
  const float rest = value - upper(value);
  return rest == rest ? rest : 0.0f;
}
struct Fragment {
  float above[8], below[8];
};
template <bool BELOW>
inline Fragment fragment(const float above[8], const float below[8]) {
  Fragment x = {};
  __builtin_memcpy(x.above, above, sizeof x.above);
  if (BELOW) __builtin_memcpy(x.below, below, sizeof x.below);
  return x;
}
inline void one_by_one() {}
inline uint32_t not_before(uint32_t number) { return number; }
#define FRAGMENT_BYTES (32 * sizeof(dev::Fragment))
inline void put(const Fragment& x, unsigned char* room) { reinterpret_cast<Fragment*>(room)[threadIdx.x % 32] = x; }
inline Fragment fragment_at(const unsigned char* room) { return reinterpret_cast<const Fragment*>(room)[threadIdx.x % 32]; }

}  // namespace dev

#include "cores.hpp"

namespace dev {

// `put(to, square, rows)`, where `to` are lanes' words, for each of the squares, of whose rows it is told where they are.
template <class Put>
inline void shared_rows(emulator::Meeting meeting, const unsigned char* row, uint32_t to[4], Put put) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) emulator::fail("a load of 16 bytes at a place that is no multiple of them");
  watch::reads16(row);
  uint32_t words[2];
  __builtin_memcpy(words, &row, sizeof words);
  const uint32_t* own = emulator::meet(meeting, words, 2, [put](auto& in, auto& out) {
    for (int square = 0; square < 4; square++) {
      const void* rows[8];
      for (int row = 0; row < 8; row++) __builtin_memcpy(rows + row, in[8 * square + row], sizeof *rows);
      put(out, square, rows);
    }
  });
  __builtin_memcpy(to, own, 16);
}
inline void shared_squares(const unsigned char* row, uint32_t to[4]) {
  shared_rows(emulator::Meeting::Squares, row, to, [](auto& to, int square, const void* const rows[8]) {
    for (int lane = 0; lane < 32; lane++) __builtin_memcpy(to[lane] + square, static_cast<const char*>(rows[lane / 4]) + 4 * (lane % 4), 4);
  });
}
inline void shared_turned(const unsigned char* row, uint32_t to[4]) {
  shared_rows(emulator::Meeting::Turn, row, to, [](auto& to, int square, const void* const rows[8]) {
    uint32_t columns[8][4];
    turn(rows, columns);
    for (int lane = 0; lane < 32; lane++) to[lane][square] = columns[lane / 4][lane % 4];
  });
}
inline float quad_max(float value) {
  return emulator::quad(emulator::Meeting::QuadMax, value, [](float a, float b) { return fmaxf(a, b); });
}
inline float quad_sum(float value) {
  return emulator::quad(emulator::Meeting::QuadSum, value, [](float a, float b) { return a + b; });
}

// What is told is there for whoever hears it.
inline void tell(uint64_t* flag, uint64_t turn) { __atomic_store_n(flag, turn, __ATOMIC_RELEASE); }
inline bool hears(const uint64_t* flag, uint64_t turn, uint32_t) { return emulator::hears(flag, turn); }
inline void give_up() { emulator::fail("a rank waits for another that nobody asks"); }

}  // namespace dev
