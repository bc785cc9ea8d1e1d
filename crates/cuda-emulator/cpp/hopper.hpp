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

// Products that a thread has asked for: 16 columns of its four warps' 64 rows of a by rows of b. What lies in shared memory is found by
// descriptors, a row's columns side by side, or where products are across, a column's rows.
constexpr int PRODUCT_COLUMNS = 16, PRODUCT_ROWS_MAX = 128, NUMBERS_MAX = PRODUCT_ROWS_MAX / 2;
struct Asked {
  float* c;
  int rows;
  const uint32_t* a;  // a lane's own, or null
  uint32_t a_was[4];
  uint64_t a_shared, b, group;
  bool bf16s, added, across;
  bool is_like(const Asked& other) const {
    return rows == other.rows && (a == nullptr) == (other.a == nullptr) && a_shared == other.a_shared && b == other.b && group == other.group && bf16s == other.bf16s &&
           added == other.added && across == other.across;
  }
};
// What they are added to, until they are there.
struct Sums {
  float* c;
  unsigned asked;
  int count;
  float numbers[NUMBERS_MAX];
};
struct Multiplier {
  std::vector<Asked> asked;
  std::vector<Sums> sums;
  std::vector<unsigned char*> written;  // by the thread, in 16 bytes each, and not shown to products
  uint64_t groups = 0;  // that are closed
  size_t count = 0;     // of all that were asked for
  bool settled = false;

  Sums& sums_of(float* c, int rows) {
    for (Sums& of : sums) {
      if (of.c == c) return of;
    }
    sums.push_back({c, 0, rows / 2, {}});
    __builtin_memcpy(sums.back().numbers, c, sizeof(float) * sums.back().count);
    return sums.back();
  }
};

// A block's.
struct Asynchronous {
  std::map<const void*, Barrier> barriers;
  std::vector<Multiplier> threads;
  std::vector<std::vector<Asked>> asked;  // by four warps, of the first that came
  std::vector<char> unseen;               // of each 16 bytes of shared memory: written, and not shown to products
};

inline Asynchronous& asynchronous() {
  const Place& place = *fiber()->place;
  if (!place.asynchronous) {
    place.asynchronous = std::make_shared<Asynchronous>();
    place.asynchronous->threads.resize(place.threads.x);
    place.asynchronous->asked.resize((place.threads.x + 127) / 128);
    place.asynchronous->unseen.resize((place.shared_bytes + 15) / 16);
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

// Eight numbers side by side, as a card finds them by a descriptor: those of "Asynchronous Warpgroup Level Matrix Shared Memory Layout" in the
// manual of PTX. Where columns are side by side they are of a row, the first or second of 16; else of one of 16 columns, in eights of rows.
inline const unsigned char* eight_at(const Place& place, uint64_t descriptor, bool across, unsigned row, unsigned eight) {
  const uint64_t start = (descriptor & 0x3fff) << 4, apart = (descriptor >> 16 & 0x3fff) << 4, eights_apart = (descriptor >> 32 & 0x3fff) << 4;
  const unsigned mode = descriptor >> 62;
  if ((descriptor >> 49 & 7) != 0) fail("a descriptor with an offset of its base is not emulated");
  uint64_t at = start + row % 8 * 16;
  if (mode == 0) {
    at += across ? row / 8 * apart + eight * eights_apart : row / 8 * eights_apart + eight * apart;
  } else {
    // Rows of 128, 64 or 32 bytes, whose parts of 16 bytes are mixed by where they are. Of a row's columns those here are within one.
    const uint64_t width = 256 >> mode, parts = width / 16;
    at = start + row / 8 * eights_apart + row % 8 * width + (across ? eight / parts * apart + eight % parts * 16 : 16 * eight);
    at ^= at >> 3 & (width - 16);
  }
  if (at + 16 > place.shared_bytes) fail("a product reads behind shared memory");
  return reinterpret_cast<const unsigned char*>(place.shared_memory) + at;
}
inline void check_seen(const Place& place, uint64_t descriptor, bool across, unsigned rows) {
  const unsigned eights = across ? rows / 8 : PRODUCT_COLUMNS / 8;
  for (unsigned row = 0; row < (across ? PRODUCT_COLUMNS : rows); row++) {
    for (unsigned eight = 0; eight < eights; eight++) {
      const unsigned char* at = eight_at(place, descriptor, across, row, eight);
      if (place.asynchronous->unseen[(at - reinterpret_cast<const unsigned char*>(place.shared_memory)) / 16]) fail("products of what was written and not shown to them");
    }
  }
}

}  // namespace emulator

#define SHARED_ROWS(name) SHARED(unsigned char, name)

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

// What lies in shared memory was shown to products by those who wrote it.
inline void ask(float* c, int rows, const uint32_t* a, uint64_t a_shared, uint64_t b, bool bf16s, bool added, bool across) {
  const watch::Aside aside;
  emulator::Multiplier& own = multiplier();
  if (!own.settled) emulator::fail("products are asked for before what they multiply is settled");
  emulator::Asked asked{c, rows, a, {}, a_shared, b, own.groups, bf16s, added, across};
  if (a) __builtin_memcpy(asked.a_was, a, sizeof asked.a_was);
  auto& group = emulator::asynchronous().asked[emulator::fiber()->thread.x / 128];
  if (own.count == group.size()) {
    const emulator::Place& place = *emulator::fiber()->place;
    if (!a) emulator::check_seen(place, a_shared, false, 64);
    emulator::check_seen(place, b, across, rows);
    group.push_back(asked);
  }
  if (own.count > group.size() || !group[own.count].is_like(asked)) emulator::fail("four warps ask for different products");
  own.count++;
  own.sums_of(c, rows).asked++;
  own.asked.push_back(asked);
  for (int i = 0; i < rows / 2; i++) c[i] = NAN;
}
template <bool BF16S, bool ADDED>
inline void ask_products(float (&c)[64], const uint32_t (&a)[4], uint64_t b) {
  ask(c, 128, a, 0, b, BF16S, ADDED, false);
}
template <bool ADDED>
inline void ask_products_of(float (&c)[64], uint64_t a, uint64_t b) {
  ask(c, 128, nullptr, a, b, false, ADDED, false);
}
template <bool ADDED>
inline void ask_products_across(float (&c)[32], const uint32_t (&a)[4], uint64_t b) {
  ask(c, 64, a, 0, b, false, ADDED, true);
}

// Of a warp's products, the last lane to come computes those of all. What comes is named, as compilers need it.
template <int LATEST, int... COUNTS>
inline void wait_for_products_but(float (&... c)[COUNTS]) {
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
    float sums[PRODUCT_ROWS_MAX][16];
    // Where a number of a row of a and one of b is: of which lane, and which of its own.
    const auto each = [&](size_t at, auto move) {
      const int rows = lanes[0]->asked[at].rows;
      Sums* of[32];
      for (int lane = 0; lane < 32; lane++) of[lane] = &lanes[lane]->sums_of(lanes[lane]->asked[at].c, rows);
      for (int row = 0; row < rows; row++) {
        for (int output = 0; output < 16; output++) {
          move(sums[row][output], of[output % 8 * 4 + row % 8 / 2]->numbers[row / 8 * 4 + output / 8 * 2 + row % 2]);
        }
      }
    };
    const size_t count = lanes[0]->asked.size();
    for (int lane = 1; lane < 32; lane++) {
      if (lanes[lane]->asked.size() != count) fail("lanes of a warp ask for different products");
    }
    const unsigned row_first = fiber()->thread.x % 128 / 32 * 16;  // of a
    for (size_t at = 0; at < count && lanes[0]->asked[at].group < until; at++) {
      const Asked& asked = lanes[0]->asked[at];
      if (at == 0 || lanes[0]->asked[at - 1].c != asked.c) each(at, [](float& sum, float& number) { sum = number; });
      bool any = false;  // of the last eight numbers is not zero
      const auto eight = [&](const unsigned char* from, float numbers[8]) {
        uint32_t words[4];
        __builtin_memcpy(words, from, sizeof words);
        any = ((words[0] | words[1] | words[2] | words[3]) & 0x7fff7fff) != 0;
        if (asked.bf16s) eight_numbers(words, dev::Bf16s(), numbers);
        else eight_numbers(words, dev::Halves(), numbers);
        // What nobody has brought makes no number of anything, and costs nothing here.
        return (words[0] & words[1] & words[2] & words[3]) != 0xffffffffu;
      };
      dev::Sixteen a[PRODUCT_COLUMNS];
      const auto number = [&](uint32_t word) { return asked.bf16s ? dev::Bf16s()(word) : dev::Halves()(word); };
      for (int lane = 0; asked.a && lane < 32; lane++) {
        const Asked& of = lanes[lane]->asked[at];
        if (__builtin_memcmp(of.a, of.a_was, sizeof of.a_was) != 0) fail("what products multiply was changed before they were waited for");
        for (int i = 0; i < 4; i++) {
          const int output = lane / 4 + i % 2 * 8, column = lane % 4 * 2 + i / 2 * 8;
          a[column][output] = number(of.a_was[i] & 0xffff);
          a[column + 1][output] = number(of.a_was[i] >> 16);
        }
      }
      for (int output = 0; !asked.a && output < 16; output++) {
        float numbers[16];
        for (int half = 0; half < 2; half++) eight(eight_at(place, asked.a_shared, false, row_first + output, half), numbers + 8 * half);
        for (int column = 0; column < PRODUCT_COLUMNS; column++) a[column][output] = numbers[column];
      }
      bool finite = true;
      for (const dev::Sixteen& column : a) {
        for (int output = 0; output < 16; output++) finite &= std::isfinite(column[output]);
      }
      const auto add = [](dev::Sixteen& sums, float value, const dev::Sixteen& a) { sums += value * a; };
      if (!asked.added) memset(sums, 0, sizeof *sums * asked.rows);
      // Of eight rows, 16 columns are added up before they are added.
      for (int first = 0; first < asked.rows; first += 8) {
        float values[8];
        dev::Sixteen of_16[8] = {};
        bool there[8];
        for (bool& row : there) row = true;
        for (int row = 0; !asked.across && row < 8; row++) {
          for (int half = 0; half < 2; half++) {
            there[row] &= eight(eight_at(place, asked.b, false, first + row, half), values);
            // Zeros cost nothing here; but nothing times what is no number is none.
            if (!there[row] || (finite && !any)) continue;
            for (int i = 0; i < 8; i++) add(of_16[row], values[i], a[8 * half + i]);
          }
        }
        for (int column = 0; asked.across && column < PRODUCT_COLUMNS; column++) {
          const bool all = eight(eight_at(place, asked.b, true, column, first / 8), values);
          for (int row = 0; row < 8; row++) {
            there[row] &= all;
            if (all && (any || !finite)) add(of_16[row], values[row], a[column]);
          }
        }
        for (int row = 0; row < 8; row++) {
          dev::Sixteen sum;
          __builtin_memcpy(&sum, sums[first + row], sizeof sum);
          sum += there[row] ? of_16[row] : dev::Sixteen{} + NAN;
          __builtin_memcpy(sums[first + row], &sum, sizeof sum);
        }
      }
      if (at + 1 == count || lanes[0]->asked[at + 1].group >= until || lanes[0]->asked[at + 1].c != asked.c) each(at, [](float& sum, float& number) { number = sum; });
      for (Multiplier* lane : lanes) lane->sums_of(lane->asked[at].c, asked.rows).asked--;
    }
  });
  const watch::Aside aside;
  size_t done = 0;
  while (done < own.asked.size() && own.asked[done].group < until) done++;
  own.asked.erase(own.asked.begin(), own.asked.begin() + done);
  for (size_t at = own.sums.size(); at-- > 0;) {
    if (own.sums[at].asked > 0) continue;
    if (!((own.sums[at].c == c) || ...)) emulator::fail("numbers come that are not waited for by name");
    __builtin_memcpy(own.sums[at].c, own.sums[at].numbers, sizeof(float) * own.sums[at].count);
    own.sums.erase(own.sums.begin() + at);
  }
}

#define MIXED_ROW_BYTES 128
inline uint64_t mixed_rows(const unsigned char* at) {
  return (shared_address(at) >> 4 & 0x3fff) | uint64_t(1) << 16 | uint64_t(8 * MIXED_ROW_BYTES >> 4) << 32 | uint64_t(1) << 62;
}
// What is written is shown where it is there, and not on its way.
inline void seen_by_products() {
  const watch::Aside aside;
  const emulator::Fiber& fiber = *emulator::fiber();
  std::vector<unsigned char*>& written = multiplier().written;
  size_t left = 0;
  for (unsigned char* at : written) {
    bool there = true;
    for (const emulator::Copy& copy : fiber.copies) there &= copy.to != at;
    if (there) emulator::asynchronous().unseen[shared_address(at) / 16] = false;
    else written[left++] = at;
  }
  written.resize(left);
}
inline void written_for_products(unsigned char* to) {
  const watch::Aside aside;
  emulator::asynchronous().unseen[shared_address(to) / 16] = true;
  multiplier().written.push_back(to);
}
inline void store_for_products(unsigned char* to, const uint32_t from[4]) {
  store16(to, from);
  written_for_products(to);
}
inline void bring_for_products(unsigned char* to, const uint8_t* from, bool there) {
  static const uint32_t zeros[4] = {};
  bring16(to, there ? from : reinterpret_cast<const uint8_t*>(zeros));
  written_for_products(to);
}
inline uint32_t to_halves(float a, float b) { return to_half(a) | static_cast<uint32_t>(to_half(b)) << 16; }

template <int COUNT>
inline void leave_registers_but() {
  static_assert(COUNT % 8 == 0 && COUNT >= 24 && COUNT <= 256, "as many registers as four warps may have");
}
template <int COUNT>
inline void take_registers() {
  leave_registers_but<COUNT>();
}

}  // namespace dev
