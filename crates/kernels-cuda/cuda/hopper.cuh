// What kernels for compute capability 9.0 name beside device.cuh: products of groups of four warps, which read what they multiply rows with
// from shared memory and are waited for, and copies that tell a barrier when they are there. The emulator's are in
// crates/cuda-emulator/cpp/hopper.hpp.
#pragma once
#ifndef __CUDACC__
#include "hopper.hpp"
#else
// Shared memory from a multiple of 1,024 bytes on.
#define SHARED_ROWS(name) extern __shared__ __align__(1024) unsigned char shared_rows[]; unsigned char* name = shared_rows

namespace dev {

__device__ __forceinline__ uint32_t shared_address(const void* at) { return (uint32_t)__cvta_generic_to_shared(at); }

// A barrier in shared memory, whose phases end when so many threads have arrived and all bytes are there that they expect.
__device__ __forceinline__ void begin_barrier(uint64_t* barrier, uint32_t threads) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(threads) : "memory");
}
// Copies see barriers that were begun before this.
__device__ __forceinline__ void barriers_begun() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void arrive_expecting(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// Until the phase of this number, even or odd, has ended.
__device__ __forceinline__ void wait_for_phase(uint64_t* barrier, uint32_t odd) {
  asm volatile(
      "{\n.reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
      "@!ended bra again;\n}" ::"r"(shared_address(barrier)), "r"(odd) : "memory");
}
// Copies a multiple of 16 bytes, which the barrier hears of.
__device__ __forceinline__ void bring_bytes(unsigned char* to, const uint8_t* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

// Where numbers of 16 bits are in shared memory: squares of eight rows by 16 bytes, row behind row, so many bytes apart along columns and along rows.
__device__ __forceinline__ uint64_t squares(const unsigned char* at, uint32_t columns_apart, uint32_t rows_apart) {
  return (uint64_t)(shared_address(at) >> 4 & 0x3fff) | (uint64_t)(columns_apart >> 4) << 16 | (uint64_t)(rows_apart >> 4) << 32;
}
// Numbers that products are added to, or that they multiply, are as they stand before this.
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_asked() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// The compiler sees no numbers that come by themselves: none is looked at before this.
template <int COUNT>
__device__ __forceinline__ void have_come(float (&c)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(c[i])::"memory");
}
// All but so many of the latest groups that were asked for have been computed, and what these are added to is there.
template <int LATEST, int... COUNTS>
__device__ __forceinline__ void wait_for_products_but(float (&... c)[COUNTS]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LATEST) : "memory");
  (have_come(c), ...);
}

// Asks four warps for c += a · bᵀ, or c = a · bᵀ where nothing is `ADDED`: of 16 outputs of weights each by 128 rows in shared memory over 16
// columns. Lanes bring and have what those of `multiply_halves` do: of outputs lane / 4 and that + 8, in turn, columns 2 * (lane % 4) and that
// + 1 and those 8 behind them.
#define ASK(type) \
  asm volatile( \
      "{\n.reg .pred added;\nsetp.ne.b32 added, %69, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63 " \
      "}, {%64, %65, %66, %67}, %68, added, 1, 1, 0;\n}" \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), \
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), \
        "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), \
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]), \
        "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), \
        "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), \
        "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]), \
        "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63]) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADDED ? 1 : 0))
template <bool BF16S, bool ADDED>
__device__ __forceinline__ void ask_products(float (&c)[64], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (BF16S) ASK("bf16");
  else ASK("f16");
}
#undef ASK

// The same of 64 rows of a that lie in shared memory too, of which each warp has 16.
template <bool ADDED>
__device__ __forceinline__ void ask_products_of(float (&c)[64], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred added;\nsetp.ne.b32 added, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63 "
      "}, %64, %65, added, 1, 1, 0, 0;\n}"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
        "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
        "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
        "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
        "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
        "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
      : "l"(a), "l"(b), "n"(ADDED ? 1 : 0));
}
// c += a · b of halves, where a lane brings 16 columns of a as above, and 16 rows of b lie in shared memory, 64 columns side by side.
template <bool ADDED>
__device__ __forceinline__ void ask_products_across(float (&c)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{\n.reg .pred added;\nsetp.ne.b32 added, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31 "
      "}, {%32, %33, %34, %35}, %36, added, 1, 1, 1;\n}"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
        "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
        "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADDED ? 1 : 0));
}

// Rows of 128 bytes, one behind the other from a multiple of 1,024 bytes on, whose parts of 16 bytes are mixed (`mixed_part`) so that those of
// eight rows are in banks of their own. From 32 bytes further on are the next 16 columns, and from 16 rows further on the next 16 rows.
#define MIXED_ROW_BYTES 128
__device__ __forceinline__ uint64_t mixed_rows(const unsigned char* at) {
  return (uint64_t)(shared_address(at) >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(8 * MIXED_ROW_BYTES >> 4) << 32 | (uint64_t)1 << 62;
}
// What threads write to shared memory by stores or copies of 16 bytes, products see where the thread that wrote it says so behind that, before
// it tells those that ask for them.
__device__ __forceinline__ void seen_by_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void store_for_products(unsigned char* to, const uint32_t from[4]) { store16(to, from); }
// As `bring16`, or zeros from nowhere.
__device__ __forceinline__ void bring_for_products(unsigned char* to, const uint8_t* from, bool there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
// Two floats as halves.
__device__ __forceinline__ uint32_t to_halves(float a, float b) {
  uint32_t halves;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(b), "f"(a));
  return halves;
}

// Four warps have so many registers a thread from here on: fewer, which others may take, or more, when those are there.
template <int COUNT>
__device__ __forceinline__ void leave_registers_but() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

}  // namespace dev
#endif
