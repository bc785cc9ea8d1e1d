// Counts bytes of the device's memory that kernels read and write, each once. Kernels that are compiled as for ThreadSanitizer call these
// functions for each read and write; the host says which memory counts. A kernel that begins early must read nothing before it waits that any
// kernel writes, and write nothing.
#include "emulator.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace {

constexpr size_t CHUNK_BYTES = 4096;
using emulator::STACK_BYTES;

// Of each byte what was done to it: by a launch, what is forgotten when it has been counted, and by all.
enum Touch { READ, WRITTEN, READ_EARLY, LAUNCH_TOUCHES, EVER_WRITTEN = LAUNCH_TOUCHES, EVER_EARLY, TOUCHES };
// And of each chunk, whether anything was done to it.
struct Range {
  uint64_t first, end;
  uint8_t* touched[TOUCHES];
  std::vector<uint8_t> chunks, ever;
};
// In order; threads that run blocks look at them and write the same ones.
std::vector<Range> ranges;

// Other threads may do the same.
void put(uint8_t& byte) { __atomic_store_n(&byte, 1, __ATOMIC_RELAXED); }

void count(const void* at, size_t bytes, Touch which) {
  const uint64_t first = reinterpret_cast<uint64_t>(at);
  // Most are of the fiber's own stack, which is nobody's memory.
  if (first / STACK_BYTES == reinterpret_cast<uint64_t>(__builtin_frame_address(0)) / STACK_BYTES) return;
  size_t low = 0, high = ranges.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (ranges[middle].end <= first) low = middle + 1;
    else high = middle;
  }
  if (low == ranges.size() || first < ranges[low].first) return;
  Range& range = ranges[low];
  const size_t from = first - range.first, to = std::min(from + bytes, size_t(range.end - range.first));
  const bool early = emulator::fiber()->early;
  for (size_t i = from; i < to; i++) {
    put(range.touched[which][i]);
    if (which == WRITTEN) put(range.touched[EVER_WRITTEN][i]);
    if (!early) continue;
    put(range.touched[READ_EARLY][i]);
    put(range.touched[EVER_EARLY][i]);
  }
  for (size_t chunk = from / CHUNK_BYTES; chunk <= (to - 1) / CHUNK_BYTES; chunk++) put(range.chunks[chunk]), put(range.ever[chunk]);
}

}  // namespace

#define HOST_CALLS extern "C" __attribute__((visibility("default")))

// From here on memory counts from `bounds[2 * i]` to before `bounds[2 * i + 1]`, in order.
HOST_CALLS void emulator_count(const uint64_t* bounds, size_t number) {
  for (Range& range : ranges) {
    for (uint8_t* touched : range.touched) free(touched);
  }
  ranges.clear();
  for (size_t i = 0; i < number; i++) {
    const size_t bytes = bounds[2 * i + 1] - bounds[2 * i];
    const auto zeros = [&] { return static_cast<uint8_t*>(calloc(bytes, 1)); };
    const std::vector<uint8_t> chunks(bytes / CHUNK_BYTES + 1);
    ranges.push_back({bounds[2 * i], bounds[2 * i + 1], {zeros(), zeros(), zeros(), zeros(), zeros()}, chunks, chunks});
  }
}
// Bytes that were read since, written, and touched by kernels that had not waited for earlier ones; what comes then counts anew. And bytes that
// such a kernel has ever touched and one has written, whichever came first.
HOST_CALLS void emulator_counted(uint64_t counts[LAUNCH_TOUCHES + 1]) {
  std::fill_n(counts, LAUNCH_TOUCHES + 1, 0);
  for (Range& range : ranges) {
    const size_t bytes = range.end - range.first;
    const auto for_bytes = [&](size_t chunk, auto&& look) {
      for (size_t i = CHUNK_BYTES * chunk; i < CHUNK_BYTES * (chunk + 1) && i < bytes; i++) look(i);
    };
    for (size_t chunk = 0; chunk < range.chunks.size(); chunk++) {
      if (range.chunks[chunk]) {
        range.chunks[chunk] = 0;
        for_bytes(chunk, [&](size_t i) {
          for (int which = 0; which < LAUNCH_TOUCHES; which++) counts[which] += range.touched[which][i], range.touched[which][i] = 0;
        });
      }
      if (range.ever[chunk]) for_bytes(chunk, [&](size_t i) { counts[LAUNCH_TOUCHES] += range.touched[EVER_WRITTEN][i] & range.touched[EVER_EARLY][i]; });
    }
  }
}

#define COUNTS(bytes)                                                                         \
  void __tsan_read##bytes(void* at) { count(at, bytes, READ); }                       \
  void __tsan_write##bytes(void* at) { count(at, bytes, WRITTEN); }                   \
  void __tsan_unaligned_read##bytes(void* at) { count(at, bytes, READ); }             \
  void __tsan_unaligned_write##bytes(void* at) { count(at, bytes, WRITTEN); }
extern "C" {
COUNTS(1)
COUNTS(2)
COUNTS(4)
COUNTS(8)
COUNTS(16)
void __tsan_read_range(void* at, size_t bytes) { count(at, bytes, READ); }
void __tsan_write_range(void* at, size_t bytes) { count(at, bytes, WRITTEN); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
uint8_t __tsan_atomic8_load(const volatile uint8_t* at, int) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
uint32_t __tsan_atomic32_load(const volatile uint32_t* at, int) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
uint64_t __tsan_atomic64_load(const volatile uint64_t* at, int) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
void __tsan_atomic32_store(volatile uint32_t* at, uint32_t value, int) { __atomic_store_n(at, value, __ATOMIC_SEQ_CST); }
void __tsan_atomic64_store(volatile uint64_t* at, uint64_t value, int) { __atomic_store_n(at, value, __ATOMIC_SEQ_CST); }
uint32_t __tsan_atomic32_fetch_add(volatile uint32_t* at, uint32_t value, int) { return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST); }
uint64_t __tsan_atomic64_fetch_add(volatile uint64_t* at, uint64_t value, int) { return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST); }
}
