//! Epilogues of products: bias, activation and storing sums in their rows, or joining gate and up.

use crate::cpu::lanes::{Kernel, Lanes};
use crate::cpu::math;
use crate::cpu::matrix::PANEL_ROWS;
use hanzo_engine_ops::Activation;

/// Adds the bias, applies the activation and writes sums to their rows.
pub(super) struct StoreSums {
    pub(super) sums: *const f32, // (panels, columns, 16)
    pub(super) columns: usize,
    pub(super) rows: usize,
    pub(super) bias: Option<*const f32>, // (rows)
    pub(super) activation: Option<Activation>,
    pub(super) out: *mut f32, // (columns, stride)
    pub(super) stride: usize,
}

impl Kernel for StoreSums {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        for row in (0..self.rows).step_by(PANEL_ROWS) {
            let count = PANEL_ROWS.min(self.rows - row);
            let mut bias = [0.0; PANEL_ROWS];
            if let Some(from) = self.bias {
                // SAFETY: there is one bias a row.
                unsafe { std::ptr::copy_nonoverlapping(from.add(row), bias.as_mut_ptr(), count) };
            }
            for column in 0..self.columns {
                // SAFETY: the sums are whole panels; `count` outputs of the column belong to this item.
                unsafe {
                    let sum = L::load(self.sums.add((row / PANEL_ROWS * self.columns + column) * PANEL_ROWS));
                    let sum = if self.bias.is_some() { L::add(sum, L::load(bias.as_ptr())) } else { sum };
                    let sum = match self.activation {
                        Some(activation) => math::activate::<L>(activation, sum),
                        None => sum,
                    };
                    put::<L>(self.out.add(column * self.stride + row), sum, count);
                }
            }
        }
    }
}

/// Joins gate and up.
pub(super) struct GateSums {
    /// `(panels, columns, 16)`. None: gate's outputs are in `out`.
    pub(super) gate: Option<*const f32>,
    pub(super) up: *const f32, // (panels, columns, 16)
    /// Biases of gate, unless already added, and of up.
    pub(super) biases: [Option<*const f32>; 2], // (rows)
    pub(super) columns: usize,
    pub(super) rows: usize,
    pub(super) activation: Activation,
    pub(super) out: *mut f32, // (columns, stride)
    pub(super) stride: usize,
}

impl Kernel for GateSums {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        for row in (0..self.rows).step_by(PANEL_ROWS) {
            let count = PANEL_ROWS.min(self.rows - row);
            let mut biases = [[0.0; PANEL_ROWS]; 2];
            for (from, bias) in self.biases.iter().zip(&mut biases) {
                if let Some(from) = from {
                    // SAFETY: there is one bias a row.
                    unsafe { std::ptr::copy_nonoverlapping(from.add(row), bias.as_mut_ptr(), count) };
                }
            }
            let add = |sum: L::F, of: usize| {
                // SAFETY: inside `vectorize`; a bias is a whole vector.
                unsafe {
                    if self.biases[of].is_some() { L::add(sum, L::load(biases[of].as_ptr())) } else { sum }
                }
            };
            for column in 0..self.columns {
                let at = (row / PANEL_ROWS * self.columns + column) * PANEL_ROWS;
                // SAFETY: as in `StoreSums`.
                unsafe {
                    let out = self.out.add(column * self.stride + row);
                    let gate = match self.gate {
                        Some(gate) => L::load(gate.add(at)),
                        None => get::<L>(out, count),
                    };
                    let gate = math::activate::<L>(self.activation, add(gate, 0));
                    let up = math::factor::<L>(self.activation, add(L::load(self.up.add(at)), 1));
                    put::<L>(out, L::mul(gate, up), count);
                }
            }
        }
    }
}

/// Writes the first `count` lanes.
///
/// # Safety
/// Inside `L::vectorize`; `count` numbers at `to` may be written.
#[inline(always)]
pub(in crate::cpu) unsafe fn put<L: Lanes>(to: *mut f32, x: L::F, count: usize) {
    // SAFETY: the caller's promise; a whole vector is written only where all its lanes are wanted.
    unsafe {
        if count == PANEL_ROWS {
            L::store(to, x);
        } else {
            let mut lanes = [0.0; PANEL_ROWS];
            L::store(lanes.as_mut_ptr(), x);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count);
        }
    }
}

/// The first `count` numbers at `from`, then zeros.
///
/// # Safety
/// Inside `L::vectorize`; `count` numbers at `from` may be read.
#[inline(always)]
pub(in crate::cpu) unsafe fn get<L: Lanes>(from: *const f32, count: usize) -> L::F {
    // SAFETY: the caller's promise; a whole vector is read only where all its lanes are there.
    unsafe {
        if count == PANEL_ROWS {
            return L::load(from);
        }
        let mut lanes = [0.0; PANEL_ROWS];
        std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), count);
        L::load(lanes.as_ptr())
    }
}
