//! Checks of `add_low_rank` and `gate`: the effect of adapters on products.

use super::bounds::{CaseErrors, FLOAT, dot_sigma, hold, operand_sigma, same_bits};
use super::linear::gather;
use super::mlp::ACTIVATIONS;
use super::random::Random;
use super::rig::{Rig, ok};
use super::weights::Weights;
use crate::reference::formulas::{activate, dot};
use crate::{
    AnyBackend, Batch, DType, Handle, HeadOperands, LowRankPair, LowRankShape, MatrixSource, OutputChange,
    OutputDelta, Rounding, RowSource, SampleSpec, SampleSpecs, SequenceSpan,
};

const ROWS_MAX: usize = 40;
const TYPES: [DType; 3] = [DType::BF16, DType::F16, DType::F32];

/// Change by an adapter to one matrix.
#[derive(Default)]
struct Delta {
    changes: Vec<ChangedOutputs>,
    pairs: Vec<WeightPair>,
}

/// An element-wise change with its numbers.
struct ChangedOutputs {
    first: usize,
    factors: Vec<f32>,
    addends: Vec<f32>,
    reads_input: bool,
}

/// A pair with its matrices.
struct WeightPair {
    a: Option<Weights>,
    b: Weights,
    scale: f32,
    first: usize,
}

/// Position of a random pair, with a rank or without A.
#[derive(Clone, Copy)]
struct PairPlace {
    rank: Option<usize>,
    first: usize,
    outputs: usize,
}

impl ChangedOutputs {
    fn random(first: usize, outputs: usize, random: &mut Random) -> Self {
        let factors = random.normals(outputs);
        Self { first, factors, addends: random.normals(outputs), reads_input: false }
    }

    fn source(&self) -> OutputChange<'_> {
        let Self { first, factors, addends, reads_input } = self;
        OutputChange { first: *first, factors, addends, reads_input: *reads_input }
    }
}

impl WeightPair {
    fn source(&self) -> LowRankPair<'_> {
        let Self { a, b, scale, first } = self;
        LowRankPair { a: a.as_ref().map(Weights::source), b: b.source(), scale: *scale, first: *first }
    }
}

/// Changes and pairs in the contract's form.
struct DeltaSources<'a> {
    changes: Vec<OutputChange<'a>>,
    pairs: Vec<LowRankPair<'a>>,
}

impl DeltaSources<'_> {
    fn delta(&self) -> OutputDelta<'_> {
        OutputDelta { changes: &self.changes, pairs: &self.pairs }
    }
}

/// A matrix's inputs and outputs, and the adapters' changes to it.
struct AdaptedMatrix {
    cols: usize,
    outputs: usize,
    deltas: Vec<Option<Delta>>,
}

impl Delta {
    /// Random pairs at these positions.
    fn random(dtype: DType, cols: usize, pairs: &[PairPlace], random: &mut Random) -> Self {
        let pair = |&PairPlace { rank, first, outputs }: &PairPlace| WeightPair {
            a: rank.map(|rank| Weights::random(dtype, rank, cols, random)),
            b: Weights::random(dtype, outputs, rank.unwrap_or(cols), random),
            scale: 0.5 + 4.0 * random.uniform(),
            first,
        };
        Self { changes: Vec::new(), pairs: pairs.iter().map(pair).collect() }
    }

    /// The same with an additional change of so many outputs, from `first` on.
    fn changed(mut self, first: usize, outputs: usize, random: &mut Random) -> Self {
        self.changes.push(ChangedOutputs::random(first, outputs, random));
        self
    }

    fn sources(&self) -> DeltaSources<'_> {
        DeltaSources {
            changes: self.changes.iter().map(ChangedOutputs::source).collect(),
            pairs: self.pairs.iter().map(WeightPair::source).collect(),
        }
    }

    fn rank(&self) -> usize {
        self.pairs.iter().filter_map(|pair| pair.a.as_ref()).map(|a| a.shape.rows).sum()
    }

    /// A row after the op, each number with its σ.
    fn expected(&self, rounding: Rounding, x: &[f32], before: &[f32]) -> Vec<(f64, f64)> {
        let unchanged = |&value: &f32| (f64::from(value), FLOAT * f64::from(value).abs());
        let mut row: Vec<(f64, f64)> = before.iter().map(unchanged).collect();
        for ChangedOutputs { first, factors, addends, reads_input } in &self.changes {
            for (i, (&factor, &addend)) in factors.iter().zip(addends).enumerate() {
                let y = f64::from(if *reads_input { x[first + i] } else { before[first + i] });
                let scaled = f64::from(factor) * y;
                let sigma = FLOAT * (scaled.abs() + f64::from(addend).abs());
                row[first + i] = (scaled + f64::from(addend), sigma);
            }
        }
        for pair in &self.pairs {
            let (low, variances) = pair.narrowed(rounding, x);
            for output in 0..pair.b.shape.rows {
                let weights = pair.b.row(output);
                let own = dot_sigma(rounding, weights, &low, false).powi(2);
                let carried: f64 =
                    weights.iter().zip(&variances).map(|(&w, v)| f64::from(w).powi(2) * v).sum();
                let scale = f64::from(pair.scale);
                let (value, sigma) = &mut row[pair.first + output];
                *value += scale * dot(weights, &low);
                *sigma = sigma.hypot(scale * (own + carried).sqrt()).hypot(FLOAT * *value);
            }
        }
        row
    }
}

impl WeightPair {
    /// Inputs of B, and their variances.
    fn narrowed(&self, rounding: Rounding, x: &[f32]) -> (Vec<f32>, Vec<f64>) {
        let Some(a) = &self.a else { return (x.to_vec(), vec![0.0; x.len()]) };
        let of_rank = |rank: usize| {
            let value = dot(a.row(rank), x);
            let sigma = dot_sigma(rounding, a.row(rank), x, false);
            (value as f32, sigma.powi(2) + (operand_sigma(rounding) * value).powi(2))
        };
        (0..a.shape.rows).map(of_rank).unzip()
    }
}

impl AdaptedMatrix {
    fn name(&self) -> String {
        format!("add_low_rank to [{}, {}]", self.outputs, self.cols)
    }

    fn on(&self, backend: &AnyBackend) -> Vec<Option<crate::LowRank>> {
        let delta = |delta: &Delta| ok("low_rank", backend.low_rank(&delta.sources().delta()));
        self.deltas.iter().map(|of| of.as_ref().map(delta)).collect()
    }

    /// `out` after the op, for sequences of so many rows with these adapters.
    fn run(&self, rig: &mut Rig, sequences: &[(usize, Option<u32>)], x: &[f32], before: &[f32]) -> Vec<f32> {
        let deltas = self.on(&rig.backend);
        let rows = x.len() / self.cols;
        let rank = self.deltas.iter().flatten().map(Delta::rank).max().unwrap_or(0);
        let (x, mut low) = (rig.upload(x, self.cols), rig.blank(rows, rank + 3));
        let mut out = rig.upload(before, self.outputs);
        rig.step(&adapted_batch(sequences), |rig| {
            let low = (rank > 0).then_some(&mut low);
            rig.backend.add_low_rank(&deltas, &x, low, &mut out);
        });
        rig.download("low", &low, rows, rank + 3);
        rig.download("add_low_rank", &out, rows, self.outputs)
    }

    fn check(
        &self,
        rig: &mut Rig,
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
            let expected =
                delta.expected(rig.rounding, &x[row * self.cols..][..self.cols], &before[at.clone()]);
            for (col, (expected, sigma)) in expected.into_iter().enumerate() {
                errors.check(row, col, found[at.start + col], expected as f32, sigma, 1e-30);
            }
        }
        errors.finish();
        (x, before, found)
    }
}

/// Checks `add_low_rank` for every float type: ranks and widths that fill no vector, parts that leave outputs between
/// them, and batches of several adapters, of adapters with nothing to add and of none. A row has the same bits
/// whatever is beside it, and matrices that form no pair are refused by the tensor's name.
///
/// # Panics
/// If a number is out of bounds, a bit differs, or a bad pair is taken.
pub fn check_low_rank(make: &dyn Fn() -> AnyBackend) {
    let mut rig = Rig::for_rows(make(), ROWS_MAX, 1024, 1);
    let mut random = Random::new(90);
    for (dtype, &other) in TYPES.into_iter().zip(TYPES.iter().cycle().skip(1)) {
        for (cols, outputs) in [(256, 512), (33, 70), (80, 16), (1000, 40)] {
            // Adapters of queries and values but not of keys; then of everything, with other ranks.
            let (third, rest) = (outputs / 4, outputs - outputs / 4);
            let mut delta = |dtype, pairs: &[(Option<usize>, usize, usize)]| {
                let place = |&(rank, first, outputs)| PairPlace { rank, first, outputs };
                let places: Vec<PairPlace> = pairs.iter().map(place).collect();
                Delta::random(dtype, cols, &places, &mut random)
            };
            let (middle, last) = (rest - third, outputs - rest);
            let mut deltas = vec![
                Some(delta(dtype, &[(Some(16), 0, third), (Some(3), rest, third)])),
                None,
                Some(delta(other, &[(Some(7), 0, third), (Some(1), third, middle), (Some(33), rest, last)])),
                Some(delta(dtype, &[(Some(64), third, outputs - third)])),
                // Changes before pairs, as in DoRA; a replaced matrix beside a pair; changes alone.
                Some(delta(dtype, &[(Some(5), 0, third), (Some(16), third, middle)])),
                Some(delta(other, &[(None, 0, third), (Some(4), rest, last)])),
                Some(Delta::default()),
            ];
            for (of, first, count) in [(4, 0, third), (4, third, middle), (5, 0, third), (6, 1, outputs - 2)]
            {
                let delta = deltas[of].take().unwrap_or_default();
                deltas[of] = Some(delta.changed(first, count, &mut random));
            }
            if let Some(delta) = &mut deltas[5] {
                delta.changes[0].factors.fill(0.0);
            }
            let adapted = AdaptedMatrix { cols, outputs, deltas };
            let sequences = [
                (1, Some(3)),
                (5, Some(0)),
                (1, None),
                (1, Some(1)),
                (2, Some(2)),
                (13, Some(3)),
                (1, Some(0)),
                (3, Some(4)),
                (1, Some(6)),
                (6, Some(5)),
                (1, Some(4)),
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
    check_changes_of_inputs(&mut rig, &mut random);
    check_refusals(&rig.backend, &mut random);
}

/// Checks changes that read inputs rather than outputs, as for a replaced norm.
fn check_changes_of_inputs(rig: &mut Rig, random: &mut Random) {
    for width in [33, 80, 256] {
        let mut change = ChangedOutputs::random(0, width, random);
        change.reads_input = true;
        let replaces = Delta { changes: vec![change], pairs: Vec::new() };
        let adapted = AdaptedMatrix { cols: width, outputs: width, deltas: vec![None, Some(replaces)] };
        adapted.check(rig, &[(2, Some(1)), (1, None), (9, Some(1)), (1, Some(0))], random);
    }
}

/// Adapter of each row of these sequences.
fn adapters_of(sequences: &[(usize, Option<u32>)]) -> Vec<Option<u32>> {
    sequences.iter().flat_map(|&(rows, adapter)| std::iter::repeat_n(adapter, rows)).collect()
}

/// Checks `logits` and `sample` with a head that adapters change: the rows of each adapter and no others, the same
/// bits whichever other rows are requested, and tokens drawn from the changed logits.
///
/// # Panics
/// If a number is out of bounds, a bit differs, or a token is not of the changed logits.
pub fn check_adapted_logits(make: &dyn Fn() -> AnyBackend) {
    let (vocab, cols) = (333, 80);
    let mut rig = Rig::for_rows(make(), ROWS_MAX, 256, vocab);
    let mut random = Random::new(92);
    let sequences = [(3, Some(1)), (1, None), (5, Some(2)), (1, Some(0)), (1, Some(3)), (2, Some(1))];
    let adapters = adapters_of(&sequences);
    let rows = adapters.len();
    for dtype in TYPES {
        let place = |rank| [PairPlace { rank, first: 0, outputs: vocab }];
        let mut replaced =
            Delta::random(dtype, cols, &place(None), &mut random).changed(0, vocab, &mut random);
        replaced.changes[0].factors.fill(0.0);
        let deltas = vec![
            None,
            Some(Delta::random(dtype, cols, &place(Some(7)), &mut random)),
            Some(replaced),
            Some(Delta::random(dtype, cols, &place(Some(3)), &mut random).changed(0, vocab, &mut random)),
        ];
        let adapted = AdaptedMatrix { cols, outputs: vocab, deltas };
        let on_device = adapted.on(&rig.backend);
        let on_device: Vec<_> = on_device.iter().map(|delta| delta.as_ref().map(Handle::id)).collect();
        let head = rig.matrix(&[Weights::random(dtype, vocab, cols, &mut random)]);
        let mut x = random.normals(rows * cols);
        hold(rig.rounding, &mut x);
        let buffer = rig.upload(&x, cols);
        let mut run = |wanted: &[u32], adapts: bool| {
            let mut batch = adapted_batch(&sequences);
            batch.logit_rows = wanted.to_vec();
            let mut out = vec![f32::NAN; wanted.len() * vocab];
            let low = rig.blank(rows, 8);
            let adapted = adapts.then(|| (on_device.clone(), low.id()));
            let head = HeadOperands { matrix: head.id(), adapted };
            rig.step(&batch, |rig| ok("logits", rig.backend.logits(&head, buffer.id(), &mut out)));
            out
        };
        let every: Vec<u32> = (0..rows as u32).collect();
        let (before, found) = (run(&every, false), run(&every, true));
        for wanted in [&[12][..], &[0], &[2, 3, 8, 9], &[1, 4, 10, 11]] {
            let chosen: Vec<usize> = wanted.iter().map(|&row| row as usize).collect();
            same_bits("adapted logits", &run(wanted, true), &gather(&found, vocab, &chosen), vocab);
        }
        let mut errors = CaseErrors::of_operands("adapted logits".to_owned(), rig.rounding);
        for (row, adapter) in adapters.iter().enumerate() {
            let at = row * vocab..(row + 1) * vocab;
            let Some(delta) = adapter.and_then(|adapter| adapted.deltas[adapter as usize].as_ref()) else {
                same_bits("adapted logits, a row without an adapter", &found[at.clone()], &before[at], vocab);
                continue;
            };
            let expected = delta.expected(rig.rounding, &x[row * cols..][..cols], &before[at.clone()]);
            for (col, (expected, sigma)) in expected.into_iter().enumerate() {
                errors.check(row, col, found[at.start + col], expected as f32, sigma, 1e-30);
            }
        }
        errors.finish();
        let mut batch = adapted_batch(&sequences);
        batch.logit_rows = every;
        let low = rig.blank(rows, 8);
        let head = HeadOperands { matrix: head.id(), adapted: Some((on_device, low.id())) };
        check_drawn(&mut rig, &batch, &head, &buffer, &found);
    }
}

/// Checks that tokens drawn at temperature 0 have the largest of these logits.
fn check_drawn(rig: &mut Rig, batch: &Batch, head: &HeadOperands, x: &crate::Buffer, logits: &[f32]) {
    let (rows, mut specs, mut drawn) = (batch.logit_rows.len(), SampleSpecs::default(), Vec::new());
    let vocab = logits.len() / rows;
    specs.rows.resize(rows, SampleSpec::default());
    let mut room = vec![0.0; rows * vocab];
    ok("begin", rig.backend.begin(batch));
    ok("sample", rig.backend.sample(head, x.id(), &specs, &mut room));
    let ticket = ok("submit", rig.backend.submit());
    ok("wait", rig.backend.wait(ticket, &mut drawn));
    for (row, (drawn, logits)) in drawn.iter().zip(logits.chunks_exact(vocab)).enumerate() {
        let most = logits.iter().copied().fold(f32::MIN, f32::max);
        let token = drawn.as_ref().map(|drawn| logits[drawn.token as usize]);
        assert_eq!(token, Some(most), "sample of adapted logits, row {row}");
    }
}

fn check_refusals(backend: &AnyBackend, random: &mut Random) {
    let delta = Delta::random(DType::F16, 32, &[PairPlace { rank: Some(4), first: 0, outputs: 8 }], random);
    let sources = delta.sources();
    let [good] = sources.pairs[..] else { panic!("one pair") };
    let (shape, good_a) = (good.shape(), good.a.expect("a pair of a rank"));
    let (least, found) = (2 * (4 * 32 + 8 * 4), backend.low_rank_bytes(&[shape], &[]));
    assert!((least..=64 * least).contains(&found), "low_rank_bytes of {shape:?} is {found}");
    let twice = backend.low_rank_bytes(&[shape, shape], &[]);
    assert_eq!(twice, 2 * found, "low_rank_bytes of two");
    let whole = LowRankShape { a: None, b: shape.b };
    assert!(backend.low_rank_bytes(&[whole], &[]) < found, "low_rank_bytes without A");
    let changed = backend.low_rank_bytes(&[shape], &[8, 16]) - found;
    assert!((8 * 24..=64 * 24).contains(&changed), "low_rank_bytes of changes is {changed}");
    let refused =
        |pair: LowRankPair<'_>| match backend.low_rank(&OutputDelta { changes: &[], pairs: &[pair] }) {
            Ok(_) => panic!("low_rank took a bad pair of {:?}", pair.shape()),
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("the_bad_one"), "the error does not name the tensor: {error}");
            }
        };
    let a = MatrixSource { name: "the_bad_one", bytes: &good_a.bytes[2..], ..good_a };
    refused(LowRankPair { a: Some(a), ..good });
    let narrower = Weights::random(DType::F16, 8, 3, random);
    let b = MatrixSource { name: "the_bad_one", ..narrower.source() };
    refused(LowRankPair { b, ..good });
}

/// Checks `gate` for every activation, and that between two products it gives bit for bit the results of `gated_mlp`.
///
/// # Panics
/// If a bit differs.
pub fn check_gate(make: &dyn Fn() -> AnyBackend) {
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
                    // If the activation is almost zero, the rest of it is lost.
                    let sigma = FLOAT * (expected.abs() + (gate * up).abs());
                    errors.check(row, i, gated[row * inner + i], expected as f32, sigma, 1e-30);
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
