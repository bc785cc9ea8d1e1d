//! Intel AMX: products of 16 x 64 by 64 x 16 bytes in one instruction, for prefill.
//!
//! A panel is already what the unit wants for its second operand: 16 rows of 64 bytes, each four consecutive inputs of
//! 16 weight rows. Activations, 16 columns of 64 bytes, are the first as they lie; the product's row is a column's 16
//! outputs. The sums are the same integers as those of the AVX-512 kernels, and what follows them in floating point is
//! the same too, so results have the same bits as on the tier below.
//!
//! In blocks of 256 the small scales of the sub-blocks are multiplied into the codes beforehand, once for all columns:
//! `scale * code` has up to 13 bits, so it goes into two planes of bytes, low and high, whose products are joined
//! afterwards. A block then needs one pass of floating point, not eight or sixteen. Blocks of 32 have factors on both
//! sides, so each is a product on its own, of half the unit's depth.
//!
//! Floats are products of bfloat16: see `floats`, and `attention` for attention inside sequences.
//!
//! The intrinsics are not stable yet, so the instructions are assembly. No compiled code touches the tile
//! registers, so nothing needs to be declared as clobbered.

#![allow(unsafe_op_in_unsafe_fn)] // The contract is that of `lanes`, and what `Job` promises.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use super::gemm::{self, Columns, Kind};
use super::lanes::Lanes;
use super::lanes::avx512::Avx512;
use super::matrix::{PANEL_ROWS, PanelKind};

/// Columns from which the unit is worth the preparation of integer operands: sixteen sequences decode at 0.65 of the
/// vectors' speed by the unit, 24 at the same, 32 faster.
const COLUMNS_MIN: usize = 24;
/// Panels of integers that are prepared together, so that a column's bytes are used twice.
const PANELS_MAX: usize = 2;
/// Bytes of planes that one thread needs for integers: `(PANELS_MAX, 2, 4, 16, 64)`, or 1024 inputs of one panel.
const CODE_PLANES: usize = PANELS_MAX * PANEL_PLANES;
/// Bytes of planes that one thread needs.
pub(super) const PLANE_BYTES: usize =
    if CODE_PLANES > floats::PLANE_BYTES { CODE_PLANES } else { floats::PLANE_BYTES };
const PANEL_PLANES: usize = 2 * PLANE;
/// One plane of a block: 256 inputs of 16 rows.
const PLANE: usize = 4096;
/// Blocks of 32 whose prepared codes fit the planes.
const RUN: usize = CODE_PLANES / 512;
/// i32s of a tile.
const TILE: usize = 256;

type V = Avx512<true>;

/// Sums to compute. The maker vouches for `panels` panels of `blocks` blocks of `kind` at `panel`, `column_count`
/// columns prepared for it and this tier, sums of `(panels, column_count, 16)`, and PLANE_BYTES of planes.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) kind: PanelKind,
    pub(super) panel: *const u8,
    pub(super) panel_stride: usize,
    pub(super) panels: usize,
    pub(super) blocks: usize,
    /// Whether all weights are finite as bfloat16 too.
    pub(super) finite: bool,
    pub(super) columns: Columns,
    pub(super) column_count: usize,
    pub(super) sums: *mut f32,
    pub(super) planes: *mut u8,
}

/// Whether the processor has the unit, for bytes and bfloat16, and the kernel lets this process use it. Asks once.
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

/// Whether products of so many columns are the unit's. Those of floats are, whatever their number, because they have
/// other bits than those of vectors.
pub(super) const fn takes(kind: PanelKind, columns: usize) -> bool {
    use PanelKind::*;
    match kind {
        F32 | F16 | Bf16 => true,
        Stored(_) => false,
        _ => columns >= COLUMNS_MIN,
    }
}

/// Computes a job's sums.
///
/// # Safety
/// `is_available()`, `takes(job.kind, job.column_count)`, and what `Job` promises.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn panel_sums(job: &Job) {
    match job.kind {
        PanelKind::F32 => floats::sums::<gemm::F32>(job),
        PanelKind::F16 => floats::sums::<gemm::F16>(job),
        PanelKind::Bf16 => floats::sums::<gemm::Bf16>(job),
        _ => code_sums(job),
    }
    asm!("tilerelease", options(nostack, preserves_flags, nomem));
}

/// `panel_sums` of integers, as many panels at a time as there are planes for.
#[inline(always)]
unsafe fn code_sums(job: &Job) {
    for first in (0..job.panels).step_by(PANELS_MAX) {
        few_code_sums(&Job {
            panel: job.panel.add(first * job.panel_stride),
            panels: PANELS_MAX.min(job.panels - first),
            sums: job.sums.add(first * job.column_count * PANEL_ROWS),
            ..*job
        });
    }
}

#[inline(always)]
unsafe fn few_code_sums(job: &Job) {
    match job.kind {
        PanelKind::Q4 => blocks_of_32::<gemm::Q4>(job),
        PanelKind::Q4Min => blocks_of_32::<gemm::Q4Min>(job),
        PanelKind::Q5 => blocks_of_32::<gemm::Q5>(job),
        PanelKind::Q5Min => blocks_of_32::<gemm::Q5Min>(job),
        PanelKind::Q8 => blocks_of_32::<gemm::Q8>(job),
        PanelKind::Nl4 => blocks_of_32::<gemm::Nl4>(job),
        PanelKind::Mx4 => blocks_of_32::<gemm::Mx4>(job),
        PanelKind::Q2K => blocks_of_256::<gemm::Q2K>(job),
        PanelKind::Q3K => blocks_of_256::<gemm::Q3K>(job),
        PanelKind::Q4K => blocks_of_256::<gemm::Q4K>(job),
        PanelKind::Q5K => blocks_of_256::<gemm::Q5K>(job),
        PanelKind::Q6K => blocks_of_256::<gemm::Q6K>(job),
        PanelKind::Nl4K => blocks_of_256::<gemm::Nl4K>(job),
        PanelKind::F32 | PanelKind::F16 | PanelKind::Bf16 | PanelKind::Stored(_) => {}
    }
}

/// The shapes of the eight tile registers, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// Loads shapes given as (rows, bytes of a row) of registers 0 to 7, which become zeros.
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

/// `sum += a · b`, signed bytes by what `$op` says.
macro_rules! tile_dot {
    ($op:literal, $sum:literal, $a:literal, $b:literal) => {
        asm!(concat!($op, " ", $sum, ", ", $a, ", ", $b), options(nostack, preserves_flags, nomem))
    };
}

// After the macros, which they use.
pub(super) mod attention;
pub(super) mod floats;

/// Four products of full tiles of zeros, `rounds` times, none waiting for another: the unit's peak. Returns the
/// operations, a multiplication and an addition being two.
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

/// One block of one panel by up to 32 columns, multiplied but not yet added.
#[derive(Clone, Copy)]
struct Unit {
    /// The block's scales.
    scales: *const u8,
    block: usize,
    column: usize,
    /// Columns, up to 32.
    count: usize,
    sums: *mut f32, // (columns, 16)
}

impl Unit {
    /// The sums so far; before block 0 they are zeros, whatever lies there.
    #[inline(always)]
    unsafe fn before(&self, sums: *const f32) -> __m512 {
        if self.block == 0 { V::splat(0.0) } else { V::load(sums) }
    }
}

/// While the products of a unit are under way the one before is added, a quarter after each quarter, so that the matrix
/// unit and the vectors work at once: the processor looks only some hundred instructions ahead.
#[inline(always)]
unsafe fn blocks_of_256<K: Kind>(job: &Job) {
    let signed = !K::KIND.has_min();
    // A code of 2 bits times a scale of 4 leaves the high plane empty.
    let narrow = matches!(K::KIND, PanelKind::Q2K);

    let mut tiles = MaybeUninit::<[__m512i; 4 * TILE / 16]>::uninit();
    let tiles = tiles.as_mut_ptr().cast::<i32>();
    let x = &job.columns;
    let mut shape = (0, 0);
    let mut before = Unit {
        scales: job.panel.add(job.kind.scales_at(job.blocks, 0)),
        block: 0,
        column: 0,
        count: 0,
        sums: job.sums,
    };
    for block in 0..job.blocks {
        for p in 0..job.panels {
            let panel = job.panel.add(p * job.panel_stride);
            let codes = panel.add(job.kind.codes_at(block));
            let scales = panel.add(job.kind.scales_at(job.blocks, block));
            planes::<K>(codes, scales, job.planes.add(p * PANEL_PLANES));
        }
        for column in (0..job.column_count).step_by(32) {
            let left = job.column_count - column;
            let counts = (left.min(16), left.saturating_sub(16).min(16));
            // Where there is no second group, one row of the first stands in for it and goes nowhere.
            let rows = (counts.0 as u8, counts.1.max(1) as u8);
            if rows != shape {
                shape = rows;
                let (a, b) = (rows.0, rows.1);
                Shapes::load([(a, 64), (a, 64), (b, 64), (b, 64), (a, 64), (b, 64), (16, 64), (16, 64)]);
            }
            let one = x.codes.add(column * x.codes_stride + 256 * block);
            let two = if counts.1 > 0 { one.add(16 * x.codes_stride) } else { one };
            for p in 0..job.panels {
                if block + 1 == job.blocks {
                    x.ask::<V>(p, column, column + left.min(32));
                }
                let low = job.planes.add(p * PANEL_PLANES);
                let high = low.add(PLANE);
                let scales = BlockScales::load::<K>(before.scales);
                tile_zero!("tmm0", "tmm1", "tmm2", "tmm3");
                for k in 0..4 {
                    tile_load!("tmm4", one.add(64 * k), x.codes_stride);
                    tile_load!("tmm6", low.add(1024 * k), 64usize);
                    tile_dot!("tdpbsud", "tmm0", "tmm4", "tmm6");
                    tile_load!("tmm5", two.add(64 * k), x.codes_stride);
                    tile_dot!("tdpbsud", "tmm2", "tmm5", "tmm6");
                    if !narrow {
                        tile_load!("tmm7", high.add(1024 * k), 64usize);
                    }
                    if narrow {
                    } else if signed {
                        tile_dot!("tdpbssd", "tmm1", "tmm4", "tmm7");
                        tile_dot!("tdpbssd", "tmm3", "tmm5", "tmm7");
                    } else {
                        tile_dot!("tdpbsud", "tmm1", "tmm4", "tmm7");
                        tile_dot!("tdpbsud", "tmm3", "tmm5", "tmm7");
                    }
                    scales.finish::<K>(&before, x, 8 * k, before.count.min(8 * k + 8), tiles);
                }
                tile_store!("tmm0", tiles);
                tile_store!("tmm1", tiles.add(TILE));
                tile_store!("tmm2", tiles.add(2 * TILE));
                tile_store!("tmm3", tiles.add(3 * TILE));
                before = Unit {
                    scales: job.panel.add(p * job.panel_stride + job.kind.scales_at(job.blocks, block)),
                    block,
                    column,
                    count: left.min(32),
                    sums: job.sums.add((p * job.column_count + column) * PANEL_ROWS),
                };
            }
        }
    }
    BlockScales::load::<K>(before.scales).finish::<K>(&before, x, 0, before.count, tiles);
}

/// The integer sum of one column: `low + 256 * high`. Of each 16 columns the low parts are a tile, then the high.
#[inline(always)]
unsafe fn joined(tiles: *const i32, column: usize) -> __m512i {
    let low = tiles.add(column / 16 * 2 * TILE + 16 * (column % 16));
    let high = _mm512_loadu_si512(low.add(TILE).cast());
    let low = _mm512_loadu_si512(low.cast());
    _mm512_add_epi32(low, _mm512_slli_epi32::<8>(high))
}

/// Products of even and of odd bytes, as words, into their low and high bytes.
#[inline(always)]
unsafe fn split(even: __m512i, odd: __m512i, low: *mut u8) {
    let byte = _mm512_set1_epi16(0xff);
    let lows = _mm512_or_si512(_mm512_and_si512(even, byte), _mm512_slli_epi16::<8>(odd));
    let highs = _mm512_or_si512(_mm512_srli_epi16::<8>(even), _mm512_andnot_si512(byte, odd));
    _mm512_storeu_si512(low.cast(), lows);
    _mm512_storeu_si512(low.add(PLANE).cast(), highs);
}

/// A row's scale in both words of its lane.
#[inline(always)]
unsafe fn twice(scale: __m512i) -> __m512i {
    _mm512_or_si512(_mm512_and_si512(scale, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32::<16>(scale))
}

/// Makes the planes of a block: codes less their zero, times their small scales. Where there are minimums nothing is
/// negative, and both planes are unsigned; otherwise the high one is signed.
#[inline(always)]
unsafe fn planes<K: Kind>(codes: *const u8, scales: *const u8, planes: *mut u8) {
    let zero = _mm512_set1_epi8(K::KIND.zero() as i8);
    for group in 0..8 {
        let (low, high) = if K::KIND.group() == 32 {
            let scale = twice(gemm::group_scale::<V>(K::KIND, scales, group));
            (scale, scale)
        } else {
            let one = gemm::group_scale::<V>(K::KIND, scales, 2 * group);
            let two = gemm::group_scale::<V>(K::KIND, scales, 2 * group + 1);
            (twice(one), twice(two))
        };
        for (j, w) in gemm::unpack::<V>(K::KIND, codes, group).into_iter().enumerate() {
            let scale = if j < 4 { low } else { high };
            let w = _mm512_sub_epi8(w, zero);
            let even = _mm512_mullo_epi16(_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(w)), scale);
            let odd = _mm512_mullo_epi16(_mm512_srai_epi16::<8>(w), scale);
            split(even, odd, planes.add(64 * (8 * group + j)));
        }
    }
}

/// What the last pass needs of a block's scales, in registers.
struct BlockScales {
    d: __m512,
    dmin: __m512,
    /// Minimums of groups of 32, as `minimums` reads them.
    mins: [__m512i; 4],
    at: *const u8,
}

impl BlockScales {
    #[inline(always)]
    unsafe fn load<K: Kind>(at: *const u8) -> BlockScales {
        let mut scales =
            BlockScales { d: V::load_f16(at.cast()), dmin: V::splat(0.0), mins: [V::splat_i(0); 4], at };
        if K::KIND.has_min() {
            scales.dmin = V::load_f16(at.add(32).cast());
            if K::KIND.group() == 32 {
                for (pair, mins) in scales.mins.iter_mut().enumerate() {
                    *mins = _mm512_cvtepu8_epi16(_mm256_loadu_si256(at.add(192 + 32 * pair).cast()));
                }
            }
        }
        scales
    }

    /// Adds the integer sums of columns `from..to` of a unit, which lie in its tiles, with the steps of `gemm::Block256`.
    #[inline(always)]
    unsafe fn finish<K: Kind>(&self, unit: &Unit, x: &Columns, from: usize, to: usize, tiles: *const i32) {
        let factors = x.scales.add(unit.column * x.scales_stride + unit.block);
        for c in from..to {
            let factor = factors.add(c * x.scales_stride).read();
            let at = unit.sums.add(c * PANEL_ROWS);
            let scale = V::mul(self.d, V::splat(factor));
            let mut sum = V::fma(V::to_f(joined(tiles, c)), scale, unit.before(at));
            if K::KIND.has_min() && K::KIND.group() == 32 {
                let totals = x.sums.add((unit.column + c) * x.sums_stride + 8 * unit.block);
                let total = minimums(&self.mins, totals);
                sum = V::fnma(V::to_f(total), V::mul(self.dmin, V::splat(factor)), sum);
            } else if K::KIND.has_min() {
                let offsets = x.offsets.add((unit.column + c) * x.offsets_stride + 16 * unit.block);
                let mut total = V::splat_i(0);
                for group in 0..16 {
                    let min = gemm::group_min::<V>(self.at, group);
                    total = V::mul_add(V::splat_i(offsets.add(group).read()), min, total);
                }
                sum = V::fma(V::to_f(total), V::mul(self.dmin, V::splat(factor * (1.0 / 32.0))), sum);
            }
            V::store(at, sum);
        }
    }
}

/// The eight minimums of a block times the eight sums of a column. Assembly because the compiler takes the
/// instruction apart into a product and a sum, for a latency that does not matter here.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn minimums(mins: &[__m512i; 4], sums: *const i16) -> __m512i {
    let mut total = _mm512_setzero_si512();
    asm!(
        "vpdpwssd {total}, {m0}, dword ptr [{sums}]{{1to16}}",
        "vpdpwssd {total}, {m1}, dword ptr [{sums} + 4]{{1to16}}",
        "vpdpwssd {total}, {m2}, dword ptr [{sums} + 8]{{1to16}}",
        "vpdpwssd {total}, {m3}, dword ptr [{sums} + 12]{{1to16}}",
        total = inout(zmm_reg) total,
        m0 = in(zmm_reg) mins[0],
        m1 = in(zmm_reg) mins[1],
        m2 = in(zmm_reg) mins[2],
        m3 = in(zmm_reg) mins[3],
        sums = in(reg) sums,
        options(pure, readonly, nostack, preserves_flags)
    );
    total
}

/// Each block of 32 is one product, four of them under way at a time; a group of 16 columns keeps its
/// sums in registers.
#[inline(always)]
unsafe fn blocks_of_32<K: Kind>(job: &Job) {
    let mut tiles = MaybeUninit::<[__m512i; 4 * TILE / 16]>::uninit();
    let tiles = tiles.as_mut_ptr().cast::<i32>();
    let mut shape = 0;
    for p in 0..job.panels {
        let panel = job.panel.add(p * job.panel_stride);
        for run in (0..job.blocks).step_by(RUN) {
            let end = job.blocks.min(run + RUN);
            let zero = _mm512_set1_epi8(K::KIND.zero() as i8);
            for block in run..end {
                let codes = panel.add(K::KIND.codes_at(block));
                for (vector, w) in gemm::unpack::<V>(K::KIND, codes, 0).into_iter().enumerate() {
                    let at = 512 * (block - run) + 64 * vector;
                    V::store_w(job.planes.add(at), _mm512_sub_epi8(w, zero));
                }
            }
            for column in (0..job.column_count).step_by(16) {
                let count = (job.column_count - column).min(16);
                if count as u8 != shape {
                    shape = count as u8;
                    let (sum, a, b) = ((shape, 64), (shape, 32), (8, 64));
                    Shapes::load([sum, sum, sum, sum, a, a, b, b]);
                }
                let group = Group { job, panel, tiles, column, count };
                group.run::<K>(run, end);
            }
        }
    }
}

/// Up to 16 columns of a panel of blocks of 32.
struct Group<'a> {
    job: &'a Job,
    panel: *const u8,
    tiles: *mut i32,
    column: usize,
    count: usize,
}

impl Group<'_> {
    #[inline(always)]
    unsafe fn run<K: Kind>(&self, first: usize, end: usize) {
        let x = &self.job.columns;
        let panel_index = self.panel.offset_from_unsigned(self.job.panel) / self.job.panel_stride;
        let sums = self.job.sums.add((panel_index * self.job.column_count + self.column) * PANEL_ROWS);
        let codes = x.codes.add(self.column * x.codes_stride);
        let mut all = [V::splat(0.0); 16];
        if first > 0 {
            for (c, sum) in all.iter_mut().enumerate() {
                *sum = V::load(sums.add(c.min(self.count - 1) * PANEL_ROWS));
            }
        }
        if end == self.job.blocks {
            x.ask::<V>(panel_index, self.column, self.column + self.count);
        }
        let place = |block: usize| (codes.add(32 * block), self.job.planes.add(512 * (block - first)));
        // Each register's product is under way while the one it held before is added.
        macro_rules! next {
            ($block:expr, $register:literal, $sum:literal, $a:literal, $b:literal) => {
                let block = $block + $register;
                let tile = self.tiles.add($register * TILE);
                if block < end {
                    let (a, b) = place(block);
                    tile_zero!($sum);
                    tile_load!($a, a, x.codes_stride);
                    tile_load!($b, b, 64usize);
                    tile_dot!("tdpbssd", $sum, $a, $b);
                }
                if block >= first + 4 && block - 4 < end {
                    self.finish::<K>(block - 4, tile, &mut all);
                }
                if block < end {
                    tile_store!($sum, tile);
                }
            };
        }
        for block in (first..end + 4).step_by(4) {
            next!(block, 0, "tmm0", "tmm4", "tmm6");
            next!(block, 1, "tmm1", "tmm5", "tmm7");
            next!(block, 2, "tmm2", "tmm4", "tmm6");
            next!(block, 3, "tmm3", "tmm5", "tmm7");
        }
        for (c, &sum) in all.iter().enumerate().take(self.count) {
            V::store(sums.add(c * PANEL_ROWS), sum);
        }
    }

    /// Adds one block's products, in the order and with the steps of `gemm::Block32`.
    #[inline(always)]
    unsafe fn finish<K: Kind>(&self, block: usize, tile: *const i32, sums: &mut [__m512; 16]) {
        let x = &self.job.columns;
        let scales = self.panel.add(K::KIND.scales_at(self.job.blocks, block));
        let d = gemm::scale_of_32::<V>(K::KIND, scales);
        for (c, sum) in sums.iter_mut().enumerate() {
            // Columns past the last repeat it; what becomes of them is not stored.
            let column = self.column + c.min(self.count - 1);
            let dot = _mm512_loadu_si512(tile.add(16 * c).cast());
            let factor = x.scales.add(column * x.scales_stride + block).read();
            *sum = V::fma(V::to_f(dot), V::mul(d, V::splat(factor)), *sum);
            if K::KIND.has_min() {
                let min = V::load_f16(scales.add(32).cast());
                let total = gemm::total_of_32(x.offsets.add(column * x.offsets_stride + block).read());
                *sum = V::fma(min, V::splat(factor * total), *sum);
            }
        }
    }
}
