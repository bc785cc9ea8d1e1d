// What kernels name, on the device: the same names as the emulator's (crates/cuda-emulator/cpp/emulator.hpp). Every
// instruction that is not plain C++ stands here. No header but the compiler's own is needed.
#pragma once
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

// What is called, so that it has registers of its own.
#define CALLED __device__ __noinline__

#define TABLE(type, name, count) __device__ const type name[count]
#define SHARED(type, name) extern __shared__ __align__(16) unsigned char shared_bytes[]; type* name = reinterpret_cast<type*>(shared_bytes)
#define KERNEL(name, Params, threads) \
  extern "C" __global__ void __launch_bounds__(threads) kernel_##name(const __grid_constant__ Params p)
// One of which so many blocks must fit a multiprocessor: it may have the registers that leaves.
#define WIDE_KERNEL(name, Params, threads, blocks) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) kernel_##name(const __grid_constant__ Params p)

namespace dev {

// Cards of compute capability 9.0 and above may begin a kernel while those before it still run (programmatic dependent launch). One that makes use
// of it says so first, and reads nothing that a kernel may have written before it waits until all of those are done, as each of its threads
// must. Every other kernel waits when it begins: ptx/early.py puts it there; or it waits first, and says later when those behind it may begin. Older cards are given kernels without these instructions.
__device__ __forceinline__ void begins_early() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void later_may_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void wait_for_earlier() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) value = value + __shfl_xor_sync(0xffffffffu, value, apart);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, apart));
  return value;
}
__device__ __forceinline__ int warp_max(int value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) {
    int other = __shfl_xor_sync(0xffffffffu, value, apart);
    value = value > other ? value : other;
  }
  return value;
}
__device__ __forceinline__ int warp_min(int value) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) {
    int other = __shfl_xor_sync(0xffffffffu, value, apart);
    value = value < other ? value : other;
  }
  return value;
}
// Memory that nothing writes while the kernel runs, at a multiple of so many bytes.
__device__ __forceinline__ uint32_t load2(const uint8_t* from) { return __ldg(reinterpret_cast<const uint16_t*>(from)); }
__device__ __forceinline__ uint32_t load4(const uint8_t* from) { return __ldg(reinterpret_cast<const uint32_t*>(from)); }
__device__ __forceinline__ void load16(const uint8_t* from, uint32_t to[4]) {
  const uint4 words = __ldg(reinterpret_cast<const uint4*>(from));
  to[0] = words.x;
  to[1] = words.y;
  to[2] = words.z;
  to[3] = words.w;
}
__device__ __forceinline__ void load8(const uint8_t* from, uint32_t to[2]) {
  const uint2 words = __ldg(reinterpret_cast<const uint2*>(from));
  to[0] = words.x;
  to[1] = words.y;
}
__device__ __forceinline__ void store16(uint8_t* to, const uint32_t from[4]) { *reinterpret_cast<uint4*>(to) = make_uint4(from[0], from[1], from[2], from[3]); }
// Copies 16 bytes to shared memory some time before their group is waited for: those since the last `brought`. The card's cache is to
// have the whole line of 128 bytes, the rest of which is asked for soon.
__device__ __forceinline__ void bring16(unsigned char* to, const uint8_t* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void brought() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATEST>
__device__ __forceinline__ void wait_for_all_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LATEST) : "memory");
}
__device__ __forceinline__ void shared16(const unsigned char* from, uint32_t to[4]) {
  const uint4 words = *reinterpret_cast<const uint4*>(from);
  to[0] = words.x;
  to[1] = words.y;
  to[2] = words.z;
  to[3] = words.w;
}
__device__ __forceinline__ uint32_t to_bits(float value) { return __float_as_uint(value); }
__device__ __forceinline__ uint64_t to_bits(double value) { return (uint64_t)__double_as_longlong(value); }
// What the lane beside has.
__device__ __forceinline__ float from_beside(float value) { return __shfl_xor_sync(0xffffffffu, value, 1); }
__device__ __forceinline__ float from_bits(uint32_t word) { return __uint_as_float(word); }
__device__ __forceinline__ float from_half(uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}
__device__ __forceinline__ uint16_t to_half(float value) {
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}
// Four of the bytes of two words, the first those of `a`: which, by the digits of `places`.
__device__ __forceinline__ uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t places) { return __byte_perm(a, b, places); }
// Two halves each.
__device__ __forceinline__ uint32_t add_halves(uint32_t a, uint32_t b) {
  uint32_t sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}
__device__ __forceinline__ uint32_t multiply_add_halves(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t sum;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}
// As they stand: no product is added to before it is rounded.
__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float plus(float a, float b) { return __fadd_rn(a, b); }
// To a number in shared memory that others add to.
__device__ __forceinline__ void add_shared(uint64_t* to, uint64_t number) { atomicAdd(to, number); }
__device__ __forceinline__ uint32_t count_shared(uint32_t* counter) { return atomicAdd(counter, 1u); }
// What blocks of one launch have of each other. Behind a barrier that stands after all that a block has written, one of its threads counts
// it, and hears whether that was the last of so many; behind another, all of its threads read what the others have written. The last one
// leaves the counter as it was before the first.
__device__ __forceinline__ bool is_last_of(uint32_t* counter, uint32_t count) {
  __threadfence();
  if (atomicAdd(counter, 1u) + 1 < count) return false;
  *counter = 0;
  __threadfence();
  return true;
}
__device__ __forceinline__ float others(const float* from) { return __ldcg(from); }
__device__ __forceinline__ void others16(const uint8_t* from, uint32_t to[4]) {
  const uint4 words = __ldcg(reinterpret_cast<const uint4*>(from));
  to[0] = words.x;
  to[1] = words.y;
  to[2] = words.z;
  to[3] = words.w;
}
// What devices have of each other. One that tells has all that it was asked for before seen by whoever hears it; who hears nothing for so long
// is told so.
__device__ __forceinline__ void tell(uint64_t* flag, uint64_t turn) { asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(turn) : "memory"); }
__device__ __forceinline__ uint64_t now_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
__device__ __forceinline__ bool hears(const uint64_t* flag, uint64_t turn, uint32_t patience_ms) {
  const uint64_t begun = now_ns();
  for (uint64_t told = 0; told < turn;) {
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(told) : "l"(flag) : "memory");
    if (told < turn && now_ns() - begun > patience_ms * 1000000ull) return false;
  }
  return true;
}
// Ends all as a failure.
__device__ __forceinline__ void give_up() { __trap(); }
// c += a · b on the tensor cores: (16, 8) by (8, 8), of numbers with 11 significant bits; further bits are cut off.
__device__ __forceinline__ void mma(float c[4], const float a[4], const float b[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}
// The first 11 significant bits, and the rest, of which the cores look at 11 bits more: nothing of what is infinite.
__device__ __forceinline__ float upper(float value) { return __uint_as_float(__float_as_uint(value) & 0xffffe000u); }
__device__ __forceinline__ float lower(float value) {
  const float rest = value - upper(value);
  return rest == rest ? rest : 0.0f;
}

// Eight columns of 16 rows, for each of four steps: the numbers' first bits, and the rest.
struct Fragment {
  float upper[4][4], lower[4][4];
};
// Lane l brings columns 8 * (l % 4) to that + 7 of rows l / 4 and l / 4 + 8.
template <bool BELOW>
__device__ __forceinline__ Fragment fragment(const float above[8], const float below[8]) {
  Fragment x;
#pragma unroll
  for (int s = 0; s < 4; s++) {
    const float of[4] = {above[2 * s], BELOW ? below[2 * s] : 0.0f, above[2 * s + 1], BELOW ? below[2 * s + 1] : 0.0f};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      x.upper[s][i] = BELOW || i % 2 == 0 ? upper(of[i]) : 0.0f;
      x.lower[s][i] = BELOW || i % 2 == 0 ? lower(of[i]) : 0.0f;
    }
  }
  return x;
}

// Loads behind this are not begun before it, which would take registers that there are not.
__device__ __forceinline__ void one_by_one() { asm volatile("" ::: "memory"); }
// The same number, of which nothing is computed before this, for the same reason.
__device__ __forceinline__ uint32_t not_before(uint32_t number) {
  asm volatile("" : "+r"(number));
  return number;
}
// Of a tile in shared memory, FRAGMENT_BYTES for each.
#define FRAGMENT_BYTES (32 * sizeof(dev::Fragment))
__device__ __forceinline__ void put(const Fragment& x, unsigned char* room) {
  const float* numbers = &x.upper[0][0];
#pragma unroll
  for (int i = 0; i < 8; i++) reinterpret_cast<float4*>(room)[32 * i + threadIdx.x % 32] = make_float4(numbers[4 * i], numbers[4 * i + 1], numbers[4 * i + 2], numbers[4 * i + 3]);
}
__device__ __forceinline__ Fragment fragment_at(const unsigned char* room) {
  Fragment x;
  float* numbers = &x.upper[0][0];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const float4 four = reinterpret_cast<const float4*>(room)[32 * i + threadIdx.x % 32];
    numbers[4 * i] = four.x;
    numbers[4 * i + 1] = four.y;
    numbers[4 * i + 2] = four.z;
    numbers[4 * i + 3] = four.w;
  }
  return x;
}

// In how many numbers of 11 bits weights go to the cores without loss: floats of 16 bits in one, blocks in two, other floats in three.
#define ONE_PIECE 1
#define TWO_PIECES 2
#define THREE_PIECES 3

// sums += x · wᵀ over 32 columns, of 16 rows and 8 outputs, by a warp. Lane l brings columns 8 * (l % 4) to that + 7 of output l / 4 too; it
// has the sums of rows l / 4 and l / 4 + 8 with outputs 2 * (l % 4) and that + 1. Products of the rest of x are with the first bits of w
// alone. What the cores cut off of a sum is cut off of eight columns', smallest products first, and no further.
__device__ __forceinline__ void multiply(const Fragment& x, const float w[8], int pieces, float sums[4]) {
  float c[4][4] = {};
#pragma unroll
  for (int s = 0; s < 4; s++) {
    float first[2], second[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      first[i] = pieces == ONE_PIECE ? w[2 * s + i] : upper(w[2 * s + i]);
      second[i] = w[2 * s + i] - first[i];
    }
    if (pieces == THREE_PIECES) {
      const float third[2] = {second[0] - upper(second[0]), second[1] - upper(second[1])};
      mma(c[s], x.upper[s], third);
    }
    mma(c[s], x.lower[s], first);
    if (pieces != ONE_PIECE) mma(c[s], x.upper[s], second);
    mma(c[s], x.upper[s], first);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) sums[i] += (c[0][i] + c[1][i]) + (c[2][i] + c[3][i]);
}

// c += a · bᵀ over 32 columns of halves, or of numbers in BF16: 16 outputs of weights by eight rows of x, which is a number of pieces,
// the last added first. Lane l brings columns 8 * (l % 4) to that + 7 of outputs l / 4 and l / 4 + 8 and of row l / 4; it has the sums
// of these outputs with rows 2 * (l % 4) and that + 1.
#define MULTIPLY(type) \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
      : "r"(above[2 * step]), "r"(below[2 * step]), "r"(above[2 * step + 1]), "r"(below[2 * step + 1]), "r"(x[piece][2 * step]), "r"(x[piece][2 * step + 1]))
template <int PIECES>
__device__ __forceinline__ void multiply_halves(const uint32_t above[4], const uint32_t below[4], const uint32_t (*x)[4], float c[4]) {
#pragma unroll
  for (int piece = PIECES - 1; piece >= 0; piece--) {
#pragma unroll
    for (int step = 0; step < 2; step++) MULTIPLY("f16");
  }
}
__device__ __forceinline__ void multiply_bf16s(const uint32_t above[4], const uint32_t below[4], const uint32_t (*x)[4], float c[4]) {
#pragma unroll
  for (int piece = 2; piece >= 0; piece--) {
#pragma unroll
    for (int step = 0; step < 2; step++) MULTIPLY("bf16");
  }
}
#undef MULTIPLY

// c += a · bᵀ of halves, 16 rows by 8 over 16 columns. Lane l brings columns 2 * (l % 4) and that + 1, then those 8 behind them: of rows l / 4
// and l / 4 + 8 of a, in turn, and of row l / 4 of b. It has the sums of rows l / 4 and l / 4 + 8 with rows 2 * (l % 4) and that + 1.
__device__ __forceinline__ void multiply_16(const uint32_t a[4], uint32_t b, uint32_t b_behind, float c[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(b_behind));
}
// Four squares of eight by eight halves in shared memory, of whose rows lane l says where number l is, eight for each square: lane l has of each
// columns 2 * (l % 4) and that + 1 of row l / 4.
__device__ __forceinline__ void shared_squares(const unsigned char* row, uint32_t to[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"((uint32_t)__cvta_generic_to_shared(row))
               : "memory");
}
// The same, turned: lane l has of each rows 2 * (l % 4) and that + 1 of column l / 4.
__device__ __forceinline__ void shared_turned(const unsigned char* row, uint32_t to[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"((uint32_t)__cvta_generic_to_shared(row))
               : "memory");
}
// Over four lanes side by side, the same bits in each.
__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
__device__ __forceinline__ float quad_sum(float value) {
  value = value + __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

}  // namespace dev
