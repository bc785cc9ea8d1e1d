//! Blocks of 32 on the matrix unit: each is a separate product of half the unit's depth.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::{AmxJob, CODE_PLANES, Shapes, TILE, V};
use crate::cpu::gemm::{self, PanelType};
use crate::cpu::lanes::Lanes;
use crate::cpu::matrix::{PANEL_ROWS, PanelKind};

/// Number of blocks whose prepared codes fit the planes.
const RUN: usize = CODE_PLANES / 512;

/// Computes each block of 32 as one product, with four products in flight; a group of 16 columns keeps its sums in
/// registers.
#[inline(always)]
pub(super) unsafe fn sums<K: PanelType>(job: &AmxJob) {
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
    job: &'a AmxJob,
    panel: *const u8,
    tiles: *mut i32,
    column: usize,
    count: usize,
}

impl Group<'_> {
    #[inline(always)]
    unsafe fn run<K: PanelType>(&self, first: usize, end: usize) {
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
            x.prefetch_out::<V>(panel_index, self.column, self.column + self.count);
        }
        let place = |block: usize| (codes.add(32 * block), self.job.planes.add(512 * (block - first)));
        // Each register's product is in flight while its previous one is added.
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

    /// Adds one block's products, in the order and with the operations of `gemm::Block32`.
    #[inline(always)]
    unsafe fn finish<K: PanelType>(&self, block: usize, tile: *const i32, sums: &mut [__m512; 16]) {
        let x = &self.job.columns;
        let kind = if matches!(K::KIND, PanelKind::Affine { .. }) { self.job.kind } else { K::KIND };
        let scales = self.panel.add(kind.scales_at(self.job.blocks, block));
        let d = gemm::scale_of_32::<V>(K::KIND, scales);
        for (c, sum) in sums.iter_mut().enumerate() {
            // Columns past the last repeat it, and their results are not stored.
            let column = self.column + c.min(self.count - 1);
            let dot = _mm512_loadu_si512(tile.add(16 * c).cast());
            let factor = x.scales.add(column * x.scales_stride + block).read();
            *sum = V::fma(V::to_f(dot), V::mul(d, V::splat(factor)), *sum);
            if K::KIND.has_min() {
                let min = gemm::min_of_32::<V>(K::KIND, scales);
                let total = gemm::total_of_32(x.offsets.add(column * x.offsets_stride + block).read());
                *sum = V::fma(min, V::splat(factor * total), *sum);
            }
        }
    }
}
