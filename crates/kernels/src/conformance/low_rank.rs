//! Checks of `add_low_rank` and `gate`: what adapters add to products.

use super::bounds::{CaseErrors, FLOAT, dot_sigma, hold, operand_sigma, same_bits};
use super::linear::gather;
use super::mlp::ACTIVATIONS;
use super::random::Random;
use super::rig::{Rig, ok};
use super::weights::Weights;
use crate::reference::formulas::{activate, dot};
use crate::{Backend, Batch, DType, LowRankPair, LowRankShape, MatrixSource, RowSource, SequenceSpan};

const ROWS_MAX: usize = 40;
const TYPES: [DType; 3] = [DType::BF16, DType::F16, DType::F32];

/// One adapter of one matrix.
struct Delta {
    pairs: Vec<(Weights, Weights, f32, usize)>, // A, B, scale, first output
}

fn source((a, b, scale, first): &(Weights, Weights, f32, usize)) -> LowRankPair<'_> {
    LowRankPair { a: a.source(), b: b.source(), scale: *scale, first: *first }
}

/// A matrix's inputs and outputs, and what adapters add to it.
struct Adapted {
    cols: usize,
    outputs: usize,
    deltas: Vec<Option<Delta>>,
}

impl Delta {
    /// Pairs of these (rank, first output, outputs).
    fn random(dtype: DType, cols: usize, pairs: &[(usize, usize, usize)], random: &mut Random) -> Self {
        let pair = |&(rank, first, outputs): &(usize, usize, usize)| {
            let a = Weights::random(dtype, rank, cols, random);
            let b = Weights::random(dtype, outputs, rank, random);
            (a, b, 0.5 + 4.0 * random.uniform(), first)
        };
        Self { pairs: pairs.iter().map(pair).collect() }
    }

    fn sources(&self) -> Vec<LowRankPair<'_>> {
        self.pairs.iter().map(source).collect()
    }

    fn rank(&self) -> usize {
        self.pairs.iter().map(|(a, ..)| a.shape.rows).sum()
    }
}

impl Adapted {
    fn name(&self) -> String {
        format!("add_low_rank to [{}, {}]", self.outputs, self.cols)
    }

    fn on<B: Backend>(&self, backend: &B) -> Vec<Option<B::LowRank>> {
        let delta = |delta: &Delta| ok("low_rank", backend.low_rank(&delta.sources()));
        self.deltas.iter().map(|of| of.as_ref().map(delta)).collect()
    }

    /// `out` after the op, of sequences of so many rows with these adapters.
    fn run<B: Backend>(
        &self,
        rig: &mut Rig<B>,
        sequences: &[(usize, Option<u32>)],
        x: &[f32],
        before: &[f32],
    ) -> Vec<f32> {
        let deltas = self.on(&rig.backend);
        let rows = x.len() / self.cols;
        let rank = self.deltas.iter().flatten().map(Delta::rank).max().unwrap_or(1);
        let (x, mut low) = (rig.upload(x, self.cols), rig.blank(rows, rank + 3));
        let mut out = rig.upload(before, self.outputs);
        rig.step(&adapted_batch(sequences), |rig| {
            rig.backend.add_low_rank(&deltas, &x, &mut low, &mut out);
        });
        rig.download("low", &low, rows, rank + 3);
        rig.download("add_low_rank", &out, rows, self.outputs)
    }

    /// What is added to a row, and its σ.
    fn expected<B: Backend>(&self, rig: &Rig<B>, delta: &Delta, x: &[f32]) -> Vec<(f64, f64)> {
        let mut added = vec![(0.0, 0.0); self.outputs];
        for (a, b, scale, first) in &delta.pairs {
            let mut low = Vec::new();
            let mut variances = Vec::new();
            for rank in 0..a.shape.rows {
                let value = dot(a.row(rank), x);
                let sigma = dot_sigma(rig.rounding, a.row(rank), x, false);
                low.push(value as f32);
                variances.push(sigma.powi(2) + (operand_sigma(rig.rounding) * value).powi(2));
            }
            for output in 0..b.shape.rows {
                let row = b.row(output);
                let own = dot_sigma(rig.rounding, row, &low, false).powi(2);
                let carried: f64 = row.iter().zip(&variances).map(|(&w, v)| f64::from(w).powi(2) * v).sum();
                let scale = f64::from(*scale);
                added[first + output] = (scale * dot(row, &low), scale * (own + carried).sqrt());
            }
        }
        added
    }

    fn check<B: Backend>(
        &self,
        rig: &mut Rig<B>,
        sequences: &[(usize, Option<u32>)],
        random: &mut Random,
    ) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let rows: usize = sequences.iter().map(|(rows, _)| rows).sum();
        let (mut x, mut before) = (random.normals(rows * self.cols), random.normals(rows * self.outputs));
        hold(rig.rounding, &mut x);
        hold(rig.rounding, &mut before);
        let found = self.run(rig, sequences, &x, &before);
        let mut errors = CaseErrors::of_operands(self.name(), rig.rounding);
        let adapters = sequences.iter().flat_map(|&(rows, adapter)| std::iter::repeat_n(adapter, rows));
        for (row, adapter) in adapters.enumerate() {
            let delta = adapter.and_then(|adapter| self.deltas[adapter as usize].as_ref());
            let at = row * self.outputs..(row + 1) * self.outputs;
            let Some(delta) = delta else {
                let what = format!("{}, a row without an adapter", self.name());
                same_bits(&what, &found[at.clone()], &before[at], self.outputs);
                continue;
            };
            let added = self.expected(rig, delta, &x[row * self.cols..][..self.cols]);
            for (col, (added, sigma)) in added.into_iter().enumerate() {
                let base = f64::from(before[row * self.outputs + col]);
                let sigma = sigma.hypot(FLOAT * base);
                errors.check(
                    (row, col),
                    found[row * self.outputs + col],
                    (base + added) as f32,
                    sigma,
                    1e-30,
                );
            }
        }
        errors.finish();
        (x, before, found)
    }
}

/// `add_low_rank` of every float type, ranks and widths that fill no vector, parts that leave outputs between them, batches of
/// several adapters, of ones with nothing to add and of none; the same bits for a row whatever is beside it, and what is no
/// pair is refused by the tensor's name.
///
/// # Panics
/// If a number is out of bounds, a bit differs, or a bad pair is taken.
pub fn check_low_rank<B: Backend>(make: &impl Fn() -> B) {
    let mut rig = Rig::for_rows(make(), ROWS_MAX, 1024, 1);
    let mut random = Random::new(90);
    for (dtype, &other) in TYPES.into_iter().zip(TYPES.iter().cycle().skip(1)) {
        for (cols, outputs) in [(256, 512), (33, 70), (80, 16), (1000, 40)] {
            // As of queries and values beside keys; then of all of it by other ranks.
            let (third, rest) = (outputs / 4, outputs - outputs / 4);
            let mut delta = |dtype, pairs: &[_]| Some(Delta::random(dtype, cols, pairs, &mut random));
            let deltas = vec![
                delta(dtype, &[(16, 0, third), (3, rest, third)]),
                None,
                delta(other, &[(7, 0, third), (1, third, rest - third), (33, rest, outputs - rest)]),
                delta(dtype, &[(64, third, outputs - third)]),
            ];
            let adapted = Adapted { cols, outputs, deltas };
            let sequences = [
                (1, Some(3)),
                (7, Some(0)),
                (1, None),
                (1, Some(1)),
                (2, Some(2)),
                (19, Some(3)),
                (1, Some(0)),
            ];
            let (x, before, found) = adapted.check(&mut rig, &sequences, &mut random);
            // Each row alone, and some of them together in another order.
            let adapters: Vec<Option<u32>> =
                sequences.iter().flat_map(|&(rows, adapter)| std::iter::repeat_n(adapter, rows)).collect();
            let order = random.permutation(adapters.len());
            for size in [1, 2, 3, 5, 13] {
                for rows in order.chunks(size) {
                    let one_by_one: Vec<_> = rows.iter().map(|&row| (1, adapters[row])).collect();
                    let (x, before) = (gather(&x, cols, rows), gather(&before, outputs, rows));
                    let alone = adapted.run(&mut rig, &one_by_one, &x, &before);
                    same_bits(&adapted.name(), &alone, &gather(&found, outputs, rows), outputs);
                }
            }
            let none = [(5, None), (1, None)];
            adapted.check(&mut rig, &none, &mut random);
        }
    }
    check_refusals(&rig.backend, &mut random);
}

fn check_refusals<B: Backend>(backend: &B, random: &mut Random) {
    let delta = Delta::random(DType::F16, 32, &[(4, 0, 8)], random);
    let [good] = delta.sources()[..] else { panic!("one pair") };
    let shape = LowRankShape { a: good.a.shape, b: good.b.shape };
    let (least, found) = (2 * (4 * 32 + 8 * 4), backend.low_rank_bytes(&[shape]));
    assert!((least..=64 * least).contains(&found), "low_rank_bytes of {shape:?} is {found}");
    let twice = backend.low_rank_bytes(&[shape, shape]);
    assert_eq!(twice, 2 * found, "low_rank_bytes of two");
    let refused = |pair: LowRankPair<'_>| match backend.low_rank(&[pair]) {
        Ok(_) => panic!("low_rank took a bad pair of {:?}", pair.shape()),
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains("the_bad_one"), "the error does not name the tensor: {error}");
        }
    };
    let a = MatrixSource { name: "the_bad_one", bytes: &good.a.bytes[2..], ..good.a };
    refused(LowRankPair { a, ..good });
    let narrower = Weights::random(DType::F16, 8, 3, random);
    let b = MatrixSource { name: "the_bad_one", ..narrower.source() };
    refused(LowRankPair { b, ..good });
}

/// `gate` for every activation, and that it gives between two products what `gated_mlp` does, bit for bit.
///
/// # Panics
/// If a bit differs.
pub fn check_gate<B: Backend>(make: &impl Fn() -> B) {
    let mut rig = Rig::for_rows(make(), ROWS_MAX, 1024, 1);
    let mut random = Random::new(91);
    for (dtype, activation) in
        TYPES.into_iter().chain([DType::Q8_0, DType::Q4_K]).zip(ACTIVATIONS.iter().cycle())
    {
        if !rig.backend.supports(dtype) {
            continue;
        }
        for (width, inner, rows) in [(256, 512, 11), (256, 256, 1), (512, 256, 33)] {
            let gate_up = [Weights::random(dtype, 2 * inner, width, &mut random)];
            let down = [Weights::random(dtype, width, inner, &mut random)];
            let x = random.normals(rows * width);
            let (gate_up, down) = (rig.matrix(&gate_up), rig.matrix(&down));
            let x = rig.upload(&x, width);
            let (mut hidden, mut fused) = (rig.blank(rows, inner), rig.blank(rows, width));
            let mut both = rig.blank_sum(rows, 2 * inner);
            let (mut gated, mut parted) = (rig.blank(rows, inner), rig.blank(rows, width));
            rig.step(&adapted_batch(&[(rows, None)]), |rig| {
                rig.backend.gated_mlp(&gate_up, &down, *activation, &x, &mut hidden, &mut fused);
                rig.backend.matmul(&gate_up, None, &x, &mut both);
                rig.backend.gate(*activation, &both, &mut gated);
                rig.backend.matmul(&down, None, &gated, &mut parted);
            });
            let what = format!("gate, {activation:?}, {dtype} [{inner}, {width}]");
            let both = rig.download(&what, &both, rows, 2 * inner);
            let gated = rig.download(&what, &gated, rows, inner);
            let mut errors = CaseErrors::of_operands(what.clone(), rig.rounding);
            for (row, both) in both.chunks_exact(2 * inner).enumerate() {
                for i in 0..inner {
                    let (gate, up) = (f64::from(both[i]), f64::from(both[inner + i]));
                    let expected = activate(*activation, gate) * up;
                    // Where the activation is all but zero, what is left of it is lost.
                    let sigma = FLOAT * (expected.abs() + (gate * up).abs());
                    errors.check((row, i), gated[row * inner + i], expected as f32, sigma, 1e-30);
                }
            }
            errors.finish();
            let parted = rig.download(&what, &parted, rows, width);
            let fused = rig.download(&what, &fused, rows, width);
            same_bits(&format!("{what}, beside gated_mlp"), &parted, &fused, width);
        }
    }
}

/// A batch of sequences of so many rows, each with its adapter.
fn adapted_batch(sequences: &[(usize, Option<u32>)]) -> Batch {
    let mut batch = Batch::default();
    for &(rows, adapter) in sequences {
        let (row_first, rows) = (batch.rows() as u32, rows as u32);
        batch.sources.extend((0..rows).map(RowSource::Token));
        batch.positions.extend(0..rows);
        batch.sequences.push(SequenceSpan { row_first, rows, context: rows, table_first: 0 });
        batch.adapters.push(adapter);
    }
    batch
}
