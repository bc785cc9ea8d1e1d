//! Measurement of the machine's limits for kernels: loops that only read memory, and loops that only multiply.
//!
//! They run on the same pool and tier as the kernels, so a kernel's speed can be given as a fraction of the speed that
//! the same threads reach with the same instructions. There is no clock here: a loop returns its amount of work, and
//! the caller measures time.

use std::hint::black_box;
use std::sync::Arc;

use super::aligned::{AlignedArray, SharedPointer};
use super::lanes::{Kernel, Lanes, dispatch};
use super::pool::ThreadPool;
use super::tier::Tier;
use hanzo_engine_ops::KernelError;

/// Bytes that one item of a reading loop reads.
const CHUNK_BYTES: usize = 1 << 20;
/// Parts of a chunk that are read in parallel: a single stream does not keep enough loads in flight.
const STREAMS: usize = 8;
const STREAM_BYTES: usize = CHUNK_BYTES / STREAMS;
/// Prefetch distance of each stream, in bytes.
const AHEAD: usize = 1024;
/// Items that each thread of a multiplying loop has on average, so that losing a core costs only its share.
const ITEMS_PER_THREAD: usize = 16;
/// Bytes of activations that the int8 loop reads; well inside the first-level cache.
const ACTIVATION_BYTES: usize = 4096;

/// The measuring loops, and the memory that one of them reads.
#[derive(Debug)]
pub struct Probe {
    pool: Arc<ThreadPool>,
    tier: Tier,
    memory: AlignedArray<u64>, // whole chunks
}

impl Probe {
    /// Allocates and fills `bytes` of memory, rounded up to whole mebibytes and at least one. It should be many times
    /// the size of the last-level cache.
    ///
    /// # Errors
    /// If there is not enough memory.
    ///
    /// # Panics
    /// If this processor does not have the tier ([`Tier::is_available`]).
    pub fn new(pool: Arc<ThreadPool>, tier: Tier, bytes: usize) -> Result<Probe, KernelError> {
        assert!(tier.is_available(), "this processor has no {tier}");
        let chunks = bytes.div_ceil(CHUNK_BYTES).max(1);
        let words = CHUNK_BYTES / size_of::<u64>();
        let mut memory = AlignedArray::<u64>::zeroed(chunks.saturating_mul(words), "memory to read")?;
        let shared = memory.shared();
        // Pages never written would all map to one page of zeros, which stays in the cache.
        pool.turn().run(chunks, 1, &|_, range| {
            for chunk in range {
                // SAFETY: the memory is whole chunks, and each is one item of one thread.
                let words = unsafe { std::slice::from_raw_parts_mut(shared.get().add(chunk * words), words) };
                words.fill(0x5555_aaaa_3333_cccc ^ chunk as u64);
            }
        });
        Ok(Probe { pool, tier, memory })
    }

    /// Reads all of the memory once. Returns the bytes read.
    pub fn read(&mut self) -> u64 {
        let bytes = std::mem::size_of_val(&self.memory[..]);
        let first = SharedPointer::new_const(self.memory.as_ptr());
        let tier = self.tier;
        self.pool.turn().run(bytes / CHUNK_BYTES, 4, &|_, range| {
            for chunk in range {
                let first = first.get().cast_const().cast::<u8>().wrapping_add(chunk * CHUNK_BYTES);
                // SAFETY: the tier is there (`new`), and the memory holds the chunk.
                unsafe { dispatch(tier, ReadKernel { first }) };
            }
        });
        bytes as u64
    }

    /// Multiplies and adds bytes in registers, `rounds` times in each of some items. Returns the number of operations,
    /// counting a multiplication and an addition as two.
    pub fn multiply_int8(&mut self, rounds: usize) -> u64 {
        let tier = self.tier;
        self.items(|| {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            if tier == Tier::Amx {
                // SAFETY: the tier is there (`new`).
                return unsafe { super::amx::multiply_only(rounds) };
            }
            #[cfg(target_arch = "aarch64")]
            if tier == Tier::NeonI8mm {
                // SAFETY: as above.
                return unsafe { super::lanes::neon::multiply_only(rounds) };
            }
            // SAFETY: the tier is there (`new`); the kernel asks for nothing else.
            unsafe { dispatch(tier, Int8 { rounds }) }
        })
    }

    /// Same as `multiply_int8` in f32, with fused operations if the tier has them.
    pub fn multiply_f32(&mut self, rounds: usize) -> u64 {
        let tier = self.tier;
        // SAFETY: as above.
        self.items(|| unsafe { dispatch(tier, Float { rounds }) })
    }

    /// Runs `item` many times on all threads and returns the total of the operations that it reports.
    fn items(&self, item: impl Fn() -> u64 + Sync) -> u64 {
        use std::sync::atomic::{AtomicU64, Ordering};
        let done = AtomicU64::new(0);
        self.pool.turn().run(self.pool.threads() * ITEMS_PER_THREAD, 1, &|_, range| {
            for _ in range {
                done.fetch_add(item(), Ordering::Relaxed);
            }
        });
        done.into_inner()
    }
}

/// Kernel that reads CHUNK_BYTES at `first`.
struct ReadKernel {
    first: *const u8,
}

impl Kernel for ReadKernel {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: inside `vectorize`; every load is within the chunk.
        unsafe {
            let mut all = [L::load_w(self.first); STREAMS];
            for at in (0..STREAM_BYTES).step_by(64) {
                for (stream, all) in all.iter_mut().enumerate() {
                    let from = self.first.add(stream * STREAM_BYTES + at);
                    L::prefetch(from.wrapping_add(AHEAD));
                    *all = L::or(*all, L::load_w(from));
                }
            }
            let mut seen = [0; 64];
            for all in all {
                L::store_w(seen.as_mut_ptr(), all);
                black_box(&seen);
            }
        }
    }
}

/// Kernel with products of bytes as in a tile of a matrix product, with all operands except the activations in
/// registers.
struct Int8 {
    rounds: usize,
}

impl Kernel for Int8 {
    type Out = u64;

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) -> u64 {
        let activations = black_box([3i8; ACTIVATION_BYTES]);
        // SAFETY: inside `vectorize`; the tiles read what `activations` holds.
        unsafe {
            // With few registers, one vector of weights; else two, so that a broadcast serves two products.
            if L::COLS == 8 {
                int8_tile::<L, 8, 2>(self.rounds, &activations)
            } else {
                int8_tile::<L, 4, 1>(self.rounds, &activations)
            }
        }
    }
}

/// # Safety
/// Inside `L::vectorize`.
#[inline(always)]
unsafe fn int8_tile<L: Lanes, const COLS: usize, const WEIGHTS: usize>(
    rounds: usize,
    activations: &[i8; ACTIVATION_BYTES],
) -> u64 {
    const { assert!(COLS * 512 <= ACTIVATION_BYTES && COLS <= 8 && (WEIGHTS == 1 || WEIGHTS == 2)) };
    let codes = black_box([5u8; 64]);
    // SAFETY: inside `vectorize`; a column walks over 512 bytes of its own.
    unsafe {
        // The same weights everywhere: that does not change the speed, and registers are needed for sums.
        let weights = [[L::load_w(codes.as_ptr()); 8]; WEIGHTS];
        let mut sums = [[L::splat_i(0); WEIGHTS]; COLS];
        // Unrolled by hand, because only sums at constant indices stay in registers.
        macro_rules! columns {
            ($at:expr; $($column:literal),*) => {
                $(if $column < COLS {
                    let from = activations.as_ptr().add(512 * $column + $at);
                    sums[$column % COLS][0] = L::dot32::<4>(sums[$column % COLS][0], &weights[0], from);
                    if WEIGHTS == 2 {
                        sums[$column % COLS][WEIGHTS - 1] =
                            L::dot32::<4>(sums[$column % COLS][WEIGHTS - 1], &weights[WEIGHTS - 1], from);
                    }
                })*
            };
        }
        for round in 0..rounds {
            columns!(round % 16 * 32; 0, 1, 2, 3, 4, 5, 6, 7);
        }
        let mut seen = [0.0; 16];
        for sum in sums.iter().flatten() {
            L::store(seen.as_mut_ptr(), L::to_f(*sum));
            black_box(&seen);
        }
    }
    2 * (rounds * COLS * WEIGHTS * 32 * 16) as u64
}

/// Kernel with fused multiply-adds on independent sums.
struct Float {
    rounds: usize,
}

impl Kernel for Float {
    type Out = u64;

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) -> u64 {
        // SAFETY: inside `vectorize`.
        unsafe {
            if L::COLS == 8 { float_sums::<L, 16>(self.rounds) } else { float_sums::<L, 6>(self.rounds) }
        }
    }
}

/// # Safety
/// Inside `L::vectorize`.
#[inline(always)]
unsafe fn float_sums<L: Lanes, const SUMS: usize>(rounds: usize) -> u64 {
    // SAFETY: inside `vectorize`.
    unsafe {
        // Each sum converges to 2: neither subnormal nor infinite.
        let (factor, addend) = (L::splat(black_box(0.5)), L::splat(black_box(1.0)));
        let mut sums = [L::splat(black_box(1.5)); SUMS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = L::fma(*sum, factor, addend);
            }
        }
        let mut seen = [0.0; 16];
        for sum in sums {
            L::store(seen.as_mut_ptr(), sum);
            black_box(&seen);
        }
    }
    2 * (rounds * SUMS * 16) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Units per second of the best of a few calls.
    fn rate(mut call: impl FnMut() -> u64) -> f64 {
        let one = || {
            let began = Instant::now();
            let units = call();
            units as f64 / began.elapsed().as_secs_f64()
        };
        std::iter::repeat_with(one).take(5).fold(0.0, f64::max)
    }

    #[test]
    fn every_tier_has_positive_and_finite_limits() {
        for tier in Tier::available() {
            let mut probe = Probe::new(Arc::new(ThreadPool::new(2)), tier, 3 << 20).unwrap();
            let rates = [
                rate(|| probe.read()),
                rate(|| probe.multiply_int8(2000)),
                rate(|| probe.multiply_f32(2000)),
            ];
            println!("{tier}: {rates:?}");
            for rate in rates {
                // No machine that runs this is slower than a million operations a second or faster than 10^18.
                assert!(rate > 1e6 && rate < 1e18, "{tier}: {rates:?}");
            }
        }
    }

    #[test]
    fn a_loop_says_what_it_did() {
        for tier in Tier::available() {
            let mut probe = Probe::new(Arc::new(ThreadPool::new(3)), tier, (2 << 20) + 1).unwrap();
            assert_eq!(probe.read(), 3 << 20);
            assert_eq!(probe.multiply_int8(20), 10 * probe.multiply_int8(2), "{tier}");
            assert_eq!(probe.multiply_f32(20), 10 * probe.multiply_f32(2), "{tier}");
            assert!(probe.multiply_int8(1) > 0 && probe.multiply_f32(1) > 0);
        }
    }

    #[test]
    fn memory_is_written_before_it_is_read() {
        let probe = Probe::new(Arc::new(ThreadPool::new(2)), Tier::Portable, 4 << 20).unwrap();
        assert!(probe.memory.iter().all(|&word| word != 0));
    }
}
