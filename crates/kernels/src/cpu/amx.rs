//! Intel AMX: products of 16 x 64 by 64 x 16 bytes in one instruction, for prefill.
//!
//! A panel already has the form of the unit's second operand: 16 rows of 64 bytes, each with four consecutive inputs
//! of 16 weight rows. Activations, 16 columns of 64 bytes, are the first operand as they are stored. A row of the
//! product holds a column's 16 outputs. The integer sums equal those of the AVX-512 kernels, and the floating-point
//! operations after them are the same too, so results have the same bits as on the tier below.
//!
//! In blocks of 256, the small scales of the sub-blocks are multiplied into the codes beforehand, once for all
//! columns, as two planes of bytes whose products are joined afterwards: see `block256`. A block then needs one
//! floating-point pass instead of eight or sixteen. Blocks of 32 have factors on both sides, so each is a separate
//! product of half the unit's depth: see `block32`.
//!
//! Floats are products of bfloat16: see `floats`, and `attention` for attention inside sequences.
//!
//! The intrinsics are not stable yet, so the instructions are assembly. No compiled code touches the tile registers,
//! so nothing needs to be declared as clobbered.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and what `AmxJob` promises.

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

use super::gemm::{self, Columns};
use super::lanes::avx512::Avx512;
use super::matrix::{PANEL_ROWS, PanelKind};

/// Columns from which the unit pays off for Q4_K and Q5_K, whose planes are cheap to prepare: at 9 columns it is 1.1
/// to 1.6 times as fast as vectors.
const COLUMNS_MIN_HALVES: usize = 9;
/// Columns from which it pays off for other blocks of 256: 1.0 times as fast at 12 columns, 1.2 at 16.
const COLUMNS_MIN_256: usize = 12;
/// Columns from which it pays off for blocks of 32.
pub(super) const COLUMNS_MIN: usize = 24;
/// Integer panels that are prepared together, so that a column's bytes are used twice.
const PANELS_MAX: usize = 2;
/// Bytes of planes that one thread needs for integers: `(PANELS_MAX, 2, 4, 16, 64)`, or 1024 inputs of one panel.
const CODE_PLANES: usize = PANELS_MAX * PANEL_PLANES;
/// Bytes of planes that one thread needs.
pub(super) const PLANE_BYTES: usize =
    if CODE_PLANES > floats::PLANE_BYTES { CODE_PLANES } else { floats::PLANE_BYTES };
const PANEL_PLANES: usize = 2 * PLANE;
/// Plane of a block: 256 inputs of 16 rows.
const PLANE: usize = 4096;
/// i32s of a tile.
const TILE: usize = 256;

type V = Avx512<true>;

/// Sums to compute. The creator guarantees `panels` panels of `blocks` blocks of `kind` at `panel`, `column_count`
/// columns prepared for this kind and tier, sums of `(panels, column_count, 16)`, and PLANE_BYTES of planes.
#[derive(Clone, Copy)]
pub(super) struct AmxJob {
    pub(super) kind: PanelKind,
    pub(super) panel: *const u8,
    pub(super) panel_stride: usize,
    pub(super) panels: usize,
    /// Blocks; for floats, inputs.
    pub(super) blocks: usize,
    /// Whether all weights are finite as bfloat16 too.
    pub(super) finite: bool,
    pub(super) columns: Columns,
    pub(super) column_count: usize,
    pub(super) sums: *mut f32,
    pub(super) planes: *mut u8,
}

/// Whether the processor has the unit, for bytes and bfloat16, and the kernel lets this process use it. The answer is
/// cached.
pub(super) fn is_available() -> bool {
    static ASKED: OnceLock<bool> = OnceLock::new();
    *ASKED.get_or_init(|| {
        const BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
        const ARCH_PRCTL: i64 = 158;
        const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
        const XFEATURE_XTILEDATA: u64 = 18;
        if !(is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512bf16")) || __cpuid_count(7, 0).edx & BF16_TILE_INT8 != BF16_TILE_INT8 {
            return false;
        }
        let mut result = ARCH_PRCTL;
        // SAFETY: a system call that takes two numbers and touches no memory of this process; it clobbers rcx and
        // r11, as all do. An old kernel answers with an error.
        unsafe {
            asm!("syscall", inlateout("rax") result, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") XFEATURE_XTILEDATA,
                lateout("rcx") _, lateout("r11") _, options(nostack));
        }
        result == 0
    })
}

/// Whether the unit computes products of so many columns. It always computes those of floats, because its float
/// results have other bits than those of vectors.
pub(super) const fn takes(kind: PanelKind, columns: usize) -> bool {
    use PanelKind::*;
    match kind {
        F32 | F16 | Bf16 | Fp8 { .. } => true,
        Stored(_) => false,
        Q4K | Q5K => columns >= COLUMNS_MIN_HALVES,
        Q2K | Q3K | Q6K | Nl4K => columns >= COLUMNS_MIN_256,
        _ => columns >= COLUMNS_MIN,
    }
}

/// Computes a job's sums.
///
/// # Safety
/// `is_available()`, `takes(job.kind, job.column_count)`, and what `AmxJob` promises.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn panel_sums(job: &AmxJob) {
    match job.kind {
        PanelKind::F32 => floats::sums::<gemm::F32>(job),
        PanelKind::F16 => floats::sums::<gemm::F16>(job),
        PanelKind::Bf16 => floats::sums::<gemm::Bf16>(job),
        PanelKind::Fp8 { block: 32 } => {
            floats::sums::<gemm::Fp8<32>>(&AmxJob { blocks: 32 * job.blocks, ..*job })
        }
        PanelKind::Fp8 { .. } => floats::sums::<gemm::Fp8<128>>(&AmxJob { blocks: 128 * job.blocks, ..*job }),
        _ => code_sums(job),
    }
    asm!("tilerelease", options(nostack, preserves_flags, nomem));
}

/// `panel_sums` of integers, as many panels at a time as there are planes for.
#[inline(always)]
unsafe fn code_sums(job: &AmxJob) {
    for first in (0..job.panels).step_by(PANELS_MAX) {
        few_code_sums(&AmxJob {
            panel: job.panel.add(first * job.panel_stride),
            panels: PANELS_MAX.min(job.panels - first),
            sums: job.sums.add(first * job.column_count * PANEL_ROWS),
            ..*job
        });
    }
}

#[inline(always)]
unsafe fn few_code_sums(job: &AmxJob) {
    match job.kind {
        PanelKind::Q4 => block32::sums::<gemm::Q4>(job),
        PanelKind::Q4Min => block32::sums::<gemm::Q4Min>(job),
        PanelKind::Q5 => block32::sums::<gemm::Q5>(job),
        PanelKind::Q5Min => block32::sums::<gemm::Q5Min>(job),
        PanelKind::Q8 => block32::sums::<gemm::Q8>(job),
        PanelKind::Nl4 => block32::sums::<gemm::Nl4>(job),
        PanelKind::Mx4 => block32::sums::<gemm::Mx4>(job),
        PanelKind::Affine { bits, .. } => affine_sums(bits, job),
        PanelKind::Q2K => block256::sums::<gemm::Q2K>(job),
        PanelKind::Q3K => block256::sums::<gemm::Q3K>(job),
        PanelKind::Q4K => block256::sums::<gemm::Q4K>(job),
        PanelKind::Q5K => block256::sums::<gemm::Q5K>(job),
        PanelKind::Q6K => block256::sums::<gemm::Q6K>(job),
        PanelKind::Nl4K => block256::sums::<gemm::Nl4K>(job),
        PanelKind::F32 | PanelKind::F16 | PanelKind::Bf16 | PanelKind::Fp8 { .. } | PanelKind::Stored(_) => {}
    }
}

#[inline(always)]
unsafe fn affine_sums(bits: u8, job: &AmxJob) {
    match bits {
        2 => block32::sums::<gemm::AffinePanel<2>>(job),
        3 => block32::sums::<gemm::AffinePanel<3>>(job),
        4 => block32::sums::<gemm::AffinePanel<4>>(job),
        5 => block32::sums::<gemm::AffinePanel<5>>(job),
        6 => block32::sums::<gemm::AffinePanel<6>>(job),
        _ => block32::sums::<gemm::AffinePanel<8>>(job),
    }
}

/// Shapes of the eight tile registers, in the form that `ldtilecfg` reads.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// Loads shapes, given as (rows, bytes of a row), for registers 0 to 7, and sets the registers to zero.
    #[inline(always)]
    unsafe fn load(shapes: [(u8, u16); 8]) {
        let mut config =
            Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (i, (rows, bytes)) in shapes.into_iter().enumerate() {
            config.rows[i] = rows;
            config.row_bytes[i] = bytes;
        }
        asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, preserves_flags, readonly));
    }
}

macro_rules! tile_load {
    ($tile:literal, $from:expr, $stride:expr) => {
        asm!(concat!("tileloadd ", $tile, ", [{from} + {stride}]"), from = in(reg) $from, stride = in(reg) $stride,
            options(nostack, preserves_flags, readonly))
    };
}

macro_rules! tile_store {
    ($tile:literal, $to:expr) => {
        tile_store!($tile, $to, 64usize)
    };
    ($tile:literal, $to:expr, $stride:expr) => {
        asm!(concat!("tilestored [{to} + {stride}], ", $tile), to = in(reg) $to, stride = in(reg) $stride,
            options(nostack, preserves_flags))
    };
}

macro_rules! tile_zero {
    ($($tile:literal),+) => {
        $(asm!(concat!("tilezero ", $tile), options(nostack, preserves_flags, nomem));)+
    };
}

/// `sum += a · b` of bytes, signed or unsigned as `$op` says.
macro_rules! tile_dot {
    ($op:literal, $sum:literal, $a:literal, $b:literal) => {
        asm!(concat!($op, " ", $sum, ", ", $a, ", ", $b), options(nostack, preserves_flags, nomem))
    };
}

// After the macros, which these modules use.
pub(super) mod attention;
mod block256;
mod block32;
pub(super) mod floats;

/// Multiplies full tiles of zeros, four independent products `rounds` times: the unit's peak. Returns the number of
/// operations, counting a multiplication and an addition as two.
///
/// # Safety
/// `is_available()`.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn multiply_only(rounds: usize) -> u64 {
    Shapes::load([(16, 64); 8]);
    for _ in 0..rounds {
        tile_dot!("tdpbssd", "tmm0", "tmm4", "tmm6");
        tile_dot!("tdpbssd", "tmm1", "tmm4", "tmm7");
        tile_dot!("tdpbssd", "tmm2", "tmm5", "tmm6");
        tile_dot!("tdpbssd", "tmm3", "tmm5", "tmm7");
    }
    asm!("tilerelease", options(nostack, preserves_flags, nomem));
    2 * (rounds * 4 * 16 * 16 * 64) as u64
}
