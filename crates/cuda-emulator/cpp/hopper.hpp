// What emulator.hpp lacks of compute capability 9.0 (cuda/hopper.cuh says what each is): barriers that copies tell, and products of four warps,
// which read shared memory by descriptors.
//
// Both are done as late as a card may: a copy when somebody waits for its barrier, until when its destination holds NaN, and products when a
// warp waits for them, until when what they add to holds NaN; what they multiply is read then, and must be what it was.
#pragma once
#include <map>

#include "emulator.hpp"

namespace emulator {

struct BulkCopy {
  unsigned char* to;
  const uint8_t* from;
  uint32_t bytes;
};

struct Barrier {
  uint32_t threads = 0, arrived = 0;
  int64_t bytes = 0;   // that are expected and not there
  uint64_t phase = 0;  // how many have ended
  unsigned waiting = 0;
  bool seen = false;  // by copies
  std::vector<BulkCopy> copies;
};

// Products that a thread has asked for: 16 columns of its four warps' outputs by 128 rows.
constexpr int PRODUCT_COLUMNS = 16, PRODUCTS_ROWS = 128, NUMBERS = PRODUCTS_ROWS / 2;
struct Asked {
  float* c;
  const uint32_t* a;
  uint32_t a_was[4];
  uint64_t b, group;
  bool bf16s, added;
  bool is_like(const Asked& other) const { return b == other.b && group == other.group && bf16s == other.bf16s && added == other.added; }
};
// What they are added to, until they are there.
struct Sums {
  float* c;
  unsigned asked;
  float numbers[NUMBERS];
};
struct Multiplier {
  std::vector<Asked> asked;
  std::vector<Sums> sums;
  uint64_t groups = 0;  // that are closed
  size_t count = 0;     // of all that were asked for
  bool settled = false;

  Sums& sums_of(float* c) {
    for (Sums& of : sums) {
      if (of.c == c) return of;
    }
    sums.push_back({c, 0, {}});
    __builtin_memcpy(sums.back().numbers, c, sizeof sums.back().numbers);
    return sums.back();
  }
};

// A block's.
struct Asynchronous {
  std::map<const void*, Barrier> barriers;
  std::vector<Multiplier> threads;
  std::vector<std::vector<Asked>> asked;  // by four warps, of the first that came
};

inline Asynchronous& asynchronous() {
  const Place& place = *fiber()->place;
  if (!place.asynchronous) {
    place.asynchronous = std::make_shared<Asynchronous>();
    place.asynchronous->threads.resize(place.threads.x);
    place.asynchronous->asked.resize((place.threads.x + 127) / 128);
  }
  return *place.asynchronous;
}

inline Barrier& barrier_at(const uint64_t* at) {
  auto& barriers = asynchronous().barriers;
  const auto found = barriers.find(at);
  if (found == barriers.end()) fail("a barrier that was not begun");
  return found->second;
}
inline void end_phase_if_all_came(Barrier& of) {
  if (of.arrived > of.threads) fail("more threads arrive at a barrier than it has");
  if (of.arrived < of.threads || of.bytes != 0) return;
  of.arrived = 0;
  of.phase++;
}
inline void make_bulk_copies(Barrier& of) {
  for (const BulkCopy& copy : of.copies) {
    for (uint32_t at = 0; at < copy.bytes; at += 16) watch::reads16(copy.from + at);
    __builtin_memcpy(copy.to, copy.from, copy.bytes);
    of.bytes -= copy.bytes;
  }
  if (of.copies.empty()) return;
  of.copies.clear();
  end_phase_if_all_came(of);
}

// Eight numbers of a row, the first or second of 16, as a card finds them by a descriptor: those of "Asynchronous Warpgroup Level
// Matrix Shared Memory Layout" in the manual of PTX, with columns side by side.
inline const unsigned char* eight_at(const Place& place, uint64_t descriptor, unsigned row, unsigned eight) {
  const uint64_t start = (descriptor & 0x3fff) << 4, columns_apart = (descriptor >> 16 & 0x3fff) << 4, rows_apart = (descriptor >> 32 & 0x3fff) << 4;
  const unsigned mode = descriptor >> 62;
  if ((descriptor >> 49 & 7) != 0) fail("a descriptor with an offset of its base is not emulated");
  uint64_t at = start + row / 8 * rows_apart;
  if (mode == 0) {
    at += row % 8 * 16 + eight * columns_apart;
  } else {
    // Rows of 128, 64 or 32 bytes, whose parts of 16 bytes are mixed by where they are.
    const uint64_t width = 256 >> mode;
    at += row % 8 * width + 16 * eight;
    at ^= at >> 3 & (width - 16);
  }
  if (at + 16 > place.shared_bytes) fail("a product reads behind shared memory");
  return reinterpret_cast<const unsigned char*>(place.shared_memory) + at;
}

}  // namespace emulator

namespace dev {

inline uint32_t shared_address(const void* at) {
  const emulator::Place& place = *emulator::fiber()->place;
  const ptrdiff_t offset = static_cast<const char*>(at) - place.shared_memory;
  if (offset < 0 || static_cast<size_t>(offset) > place.shared_bytes) emulator::fail("an address that is not in shared memory");
  return static_cast<uint32_t>(offset);
}

inline void begin_barrier(uint64_t* barrier, uint32_t threads) {
  const watch::Aside aside;
  if (shared_address(barrier) % 8 != 0) emulator::fail("a barrier at a place that is no multiple of its bytes");
  emulator::asynchronous().barriers[barrier] = {};
  emulator::asynchronous().barriers[barrier].threads = threads;
}
inline void barriers_begun() {
  const watch::Aside aside;
  for (auto& [at, barrier] : emulator::asynchronous().barriers) barrier.seen = true;
}
inline void arrive_expecting(uint64_t* barrier, uint32_t bytes) {
  const watch::Aside aside;
  emulator::Barrier& of = emulator::barrier_at(barrier);
  of.bytes += bytes;
  of.arrived++;
  emulator::end_phase_if_all_came(of);
}
inline void arrive(uint64_t* barrier) { arrive_expecting(barrier, 0); }
inline void wait_for_phase(uint64_t* barrier, uint32_t odd) {
  const watch::Aside aside;
  emulator::Barrier& of = emulator::barrier_at(barrier);
  while (of.phase % 2 == odd) {
    const uint64_t phase = of.phase;
    emulator::make_bulk_copies(of);
    if (of.phase != phase) continue;
    of.waiting++;
    emulator::wait_for(&of.phase, phase);
    of.waiting--;
  }
}
inline void bring_bytes(unsigned char* to, const uint8_t* from, uint32_t bytes, uint64_t* barrier) {
  const watch::Aside aside;
  emulator::Barrier& of = emulator::barrier_at(barrier);
  if (!of.seen) emulator::fail("a copy tells a barrier that it cannot see");
  if (((reinterpret_cast<uintptr_t>(from) | shared_address(to) | bytes) & 15) != 0) emulator::fail("a copy of bytes from or to a place that is no multiple of 16");
  if (shared_address(to) + bytes > emulator::fiber()->place->shared_bytes) emulator::fail("a copy behind shared memory");
  memset(to, 0xff, bytes);
  of.copies.push_back({to, from, bytes});
  if (of.waiting > 0) emulator::make_bulk_copies(of);
}

inline uint64_t squares(const unsigned char* at, uint32_t columns_apart, uint32_t rows_apart) {
  return (shared_address(at) >> 4 & 0x3fff) | static_cast<uint64_t>(columns_apart >> 4) << 16 | static_cast<uint64_t>(rows_apart >> 4) << 32;
}
inline emulator::Multiplier& multiplier() { return emulator::asynchronous().threads[emulator::fiber()->thread.x]; }
inline void products_begin() {
  const watch::Aside aside;
  multiplier().settled = true;
}
inline void products_asked() {
  const watch::Aside aside;
  multiplier().groups++;
  multiplier().settled = false;
}

template <bool BF16S, bool ADDED>
inline void ask_products(float (&c)[emulator::NUMBERS], const uint32_t (&a)[4], uint64_t b) {
  const watch::Aside aside;
  emulator::Multiplier& own = multiplier();
  if (!own.settled) emulator::fail("products are asked for before what they multiply is settled");
  emulator::Asked asked{c, a, {a[0], a[1], a[2], a[3]}, b, own.groups, BF16S, ADDED};
  auto& group = emulator::asynchronous().asked[emulator::fiber()->thread.x / 128];
  if (own.count == group.size()) group.push_back(asked);
  if (own.count > group.size() || !group[own.count].is_like(asked)) emulator::fail("four warps ask for different products");
  own.count++;
  own.sums_of(c).asked++;
  own.asked.push_back(asked);
  for (float& number : c) number = NAN;
}

// Of a warp's products, the last lane to come computes those of all.
template <int LATEST>
inline void wait_for_products_but(float (&)[emulator::NUMBERS]) {
  emulator::Multiplier& own = multiplier();
  const uint64_t until = own.groups > LATEST ? own.groups - LATEST : 0;
  emulator::Multiplier* const pointer = &own;
  uint32_t words[2];
  __builtin_memcpy(words, &pointer, sizeof words);
  emulator::meet(emulator::Meeting::Products, words, 2, [until](auto& in, auto&) {
    using namespace emulator;
    const Place& place = *fiber()->place;
    Multiplier* lanes[32];
    for (int lane = 0; lane < 32; lane++) __builtin_memcpy(lanes + lane, in[lane], sizeof *lanes);
    float sums[PRODUCTS_ROWS][16];
    // Where a number of an output and a row is: of which lane, and which of its own.
    const auto each = [&](size_t at, auto move) {
      Sums* of[32];
      for (int lane = 0; lane < 32; lane++) of[lane] = &lanes[lane]->sums_of(lanes[lane]->asked[at].c);
      for (int row = 0; row < PRODUCTS_ROWS; row++) {
        for (int output = 0; output < 16; output++) {
          move(sums[row][output], of[output % 8 * 4 + row % 8 / 2]->numbers[row / 8 * 4 + output / 8 * 2 + row % 2]);
        }
      }
    };
    const size_t count = lanes[0]->asked.size();
    for (int lane = 1; lane < 32; lane++) {
      if (lanes[lane]->asked.size() != count) fail("lanes of a warp ask for different products");
    }
    for (size_t at = 0; at < count && lanes[0]->asked[at].group < until; at++) {
      const Asked& asked = lanes[0]->asked[at];
      if (at == 0 || lanes[0]->asked[at - 1].c != asked.c) each(at, [](float& sum, float& number) { sum = number; });
      dev::Sixteen a[PRODUCT_COLUMNS];
      const auto number = [&](uint32_t word) { return asked.bf16s ? dev::Bf16s()(word) : dev::Halves()(word); };
      for (int lane = 0; lane < 32; lane++) {
        const Asked& of = lanes[lane]->asked[at];
        if (__builtin_memcmp(of.a, of.a_was, sizeof of.a_was) != 0) fail("what products multiply was changed before they were waited for");
        for (int i = 0; i < 4; i++) {
          const int output = lane / 4 + i % 2 * 8, column = lane % 4 * 2 + i / 2 * 8;
          a[column][output] = number(of.a_was[i] & 0xffff);
          a[column + 1][output] = number(of.a_was[i] >> 16);
        }
      }
      for (int row = 0; row < PRODUCTS_ROWS; row++) {
        dev::Sixteen sum = {};
        if (asked.added) __builtin_memcpy(&sum, sums[row], sizeof sum);
        for (int eight = 0; eight < 2; eight++) {
          uint32_t words[4];
          __builtin_memcpy(words, eight_at(place, asked.b, row, eight), sizeof words);
          // What nobody has brought makes no number of anything, and costs nothing here.
          if ((words[0] & words[1] & words[2] & words[3]) == 0xffffffffu) {
            sum = dev::Sixteen{} + NAN;
            continue;
          }
          float values[8];
          if (asked.bf16s) eight_numbers(words, dev::Bf16s(), values);
          else eight_numbers(words, dev::Halves(), values);
          for (int i = 0; i < 8; i++) {
            if (values[i] != 0.0f) sum += values[i] * a[8 * eight + i];
          }
        }
        __builtin_memcpy(sums[row], &sum, sizeof sum);
      }
      if (at + 1 == count || lanes[0]->asked[at + 1].group >= until || lanes[0]->asked[at + 1].c != asked.c) each(at, [](float& sum, float& number) { number = sum; });
      for (Multiplier* lane : lanes) lane->sums_of(lane->asked[at].c).asked--;
    }
  });
  const watch::Aside aside;
  size_t done = 0;
  while (done < own.asked.size() && own.asked[done].group < until) done++;
  own.asked.erase(own.asked.begin(), own.asked.begin() + done);
  for (size_t at = own.sums.size(); at-- > 0;) {
    if (own.sums[at].asked > 0) continue;
    __builtin_memcpy(own.sums[at].c, own.sums[at].numbers, sizeof own.sums[at].numbers);
    own.sums.erase(own.sums.begin() + at);
  }
}

}  // namespace dev
