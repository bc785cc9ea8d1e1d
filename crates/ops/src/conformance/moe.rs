//! Checks of `moe`.
//!
//! The choice of experts is not continuous in the scores: if the last chosen and the first other expert are within
//! rounding of each other, two right backends may choose differently. So rows are drawn until the reference's choice
//! is clear: each chosen score exceeds each other by more than the errors of both. (The order among the chosen matters
//! less: if two are swapped, the same sum is added in another order.) Exact ties are made with scores that are zero on
//! any device, from router rows of zeros.

use super::bounds::{CaseErrors, FLOAT, dot_sigma, operand_sigma, same_bits};
use super::extent::every;
use super::linear::gather;
use super::mlp::{ACTIVATIONS, mlp_outputs};
use super::random::Random;
use super::rig::{Rig, ok, rows_batch};
use super::weights::{Weights, quantised, supported};
use crate::quant::can_quantize;
use crate::reference::formulas::{apart, dot, expert_keys, route};
use crate::{
    Activation, AnyBackend, DType, ExpertGroups, ExpertParts, ExpertScoring, MatrixShape, MatrixSource,
    MoeOperands, MoeParams, Operands, Rounding,
};

/// Experts of rows, and the inputs of their down products.
type Seen = (Vec<u32>, Vec<f32>);

/// Largest batch of these checks.
const ROWS_MAX: usize = 70;
/// Widest matrix of these checks.
const WIDTH_MAX: usize = 1024;
const EXPERTS_MAX: usize = 64;
const USED_MAX: usize = 8;
/// Number of rows drawn before giving up on a router that never chooses clearly.
const DRAWS_MAX: usize = 10_000;

/// Checks `moe` for every supported type: parts and experts of different types, gated or not, all scorings, several
/// numbers of experts and rows, ragged shapes, and rows that all go to one expert.
///
/// # Panics
/// If a number is out of bounds.
pub fn check_moe(make: &dyn Fn() -> AnyBackend) {
    let mut rig = Rig::for_experts(make(), ROWS_MAX, WIDTH_MAX, EXPERTS_MAX, USED_MAX);
    let mut random = Random::new(21);
    let types = supported(&rig.backend);
    let plain = plain(&types);
    for (i, &dtype) in types.iter().enumerate() {
        let (other, third) = (types[(i + 1) % types.len()], types[random.below(types.len())]);
        let router = if can_quantize(dtype) { dtype } else { plain };
        let params = params(i);
        // Gate and up of one type, down of another; then gate and up of different types, and experts too.
        let moe = Moe::random(router, |_| [dtype, dtype, other], (5, 256, 256), params, &mut random);
        moe.check(&mut rig, 9, &mut random);
        if i % 4 == 0 {
            rig.with_sums(|rig| moe.check(rig, 3, &mut random));
        }
        if i % every(4) != 0 {
            continue;
        }
        let mixed = |expert: usize| if expert.is_multiple_of(2) { [dtype, other, third] } else { [dtype; 3] };
        let moe = Moe::random(plain, mixed, (4, 256, 512), self::params(i + 1), &mut random);
        moe.check(&mut rig, 13, &mut random);
    }
    for (i, &dtype) in types.iter().filter(|dtype| dtype.block_weights() <= 32).enumerate() {
        // Widths that fill no tile, if a type allows them.
        let unit = if quantised(dtype) { 32 } else { 10 };
        let shapes = [(2, 1, 1), (3, 3, 2), (8, 2, 33), (7, 4, 20)];
        for (experts, used, rows) in shapes.into_iter().skip(i % every(2)).step_by(every(2)) {
            let params = MoeParams { experts_used: used, ..params(i + experts) };
            let shape = (experts, 3 * unit, 7 * unit);
            Moe::random(plain, |_| [dtype; 3], shape, params, &mut random).check(&mut rig, rows, &mut random);
        }
    }
    // Some experts with many rows, some with one or none.
    let shapes = [(64, 8, plain), (64, 8, types[types.len() / 2]), (8, 2, plain)];
    for (experts, used, dtype) in shapes.into_iter().skip(every(2) - 1) {
        for i in every(2) - 1..2 {
            let params = MoeParams { experts_used: used, ..params(2 * i + experts / 64) };
            let mut moe = Moe::random(plain, |_| [dtype; 3], (experts, 256, 256), params, &mut random);
            if i == 1 {
                moe.favour(2, 6.0);
            }
            moe.check(&mut rig, ROWS_MAX, &mut random);
        }
    }
}

/// Checks `moe` with equal scores, and with scores that are not numbers.
///
/// # Panics
/// If an expert with a higher index is chosen before its equal, a row without an order of experts has an output that
/// is a number, or such a row changes another.
pub fn check_moe_choice(make: &dyn Fn() -> AnyBackend) {
    let mut rig = Rig::for_experts(make(), ROWS_MAX, WIDTH_MAX, EXPERTS_MAX, USED_MAX);
    let mut random = Random::new(22);
    let plain = plain(&supported(&rig.backend));
    for (i, (experts, used)) in [(4, 1), (6, 3), (19, 8), (64, 8)].into_iter().enumerate() {
        let params = MoeParams { experts_used: used, ..params(i) };
        let mut moe = Moe::random(plain, |_| [plain; 3], (experts, 32, 48), params, &mut random);
        // All scores are zero; then one is above, and the rest are equal.
        moe.router = Weights::of(plain, experts, 32, &vec![0.0; experts * 32]);
        moe.check_rows(&mut rig, &random.normals(5 * 32), "all experts equal");
        moe.favour(experts - 2, 1.0);
        let x: Vec<f32> = random.normals(5 * 32).iter().map(|x| x.abs() + 0.1).collect();
        moe.check_rows(&mut rig, &x, "all experts but one equal");
        moe.check_not_numbers(&mut rig, &mut random);
        moe.favour(experts - 1, f32::NAN);
        let packed = moe.pack(&rig);
        let found = moe.run(&mut rig, &packed, &x);
        assert!(found.iter().all(|v| v.is_nan()), "{}: numbers made of a score that is none", moe.name());
    }
}

/// Checks the routing variants of model families: choices by corrected weights and from groups, biases, scaled inputs
/// and clamps.
///
/// # Panics
/// If a number is out of bounds, or a bit depends on the batch.
pub fn check_moe_routing(make: &dyn Fn() -> AnyBackend) {
    let mut rig = Rig::for_experts(make(), ROWS_MAX, WIDTH_MAX, EXPERTS_MAX, USED_MAX);
    let mut random = Random::new(24);
    let types = supported(&rig.backend);
    let plain = plain(&types);
    let deepseek2 = Some(ExpertGroups { count: 4, used: 2, best: 1 });
    let deepseek3 = Some(ExpertGroups { count: 4, used: 2, best: 2 });
    let with =
        |groups, scoring, used| MoeParams { groups, scoring, experts_used: used, gated: true, ..params(4) };
    let (softmax, sigmoid) = (ExpertScoring::Softmax, ExpertScoring::Sigmoid);
    let oai = MoeParams { activation: Activation::ClampedSwish, ..with(None, softmax, 3) };
    let cases = [
        (with(deepseek2, softmax, 4), false, false),
        (with(deepseek3, sigmoid, 4), true, false),
        (with(None, sigmoid, 3), true, false),
        (with(deepseek3, softmax, 3), false, false),
        (oai, false, true),
        (MoeParams { normalized: false, ..with(None, ExpertScoring::Near { reach: 0.5 }, 2) }, false, false),
        (MoeParams { gated: false, activation: Activation::Silu, ..oai }, false, true),
        (MoeParams { scales_input: true, normalized: false, ..with(None, sigmoid, 1) }, false, false),
        (
            MoeParams { activation: Activation::GeluTanh, normalized: true, ..with(None, softmax, 4) },
            false,
            false,
        ),
    ];
    for (i, (params, corrected, biased)) in cases.into_iter().enumerate() {
        let (experts, scaled) = (16, i == 6 || i == 8);
        let other = types[(3 * i + 1) % types.len()];
        for dtype in [plain, other] {
            let mut moe = Moe::random(plain, |_| [dtype; 3], (experts, 256, 256), params, &mut random);
            let outputs = experts * 256 * if params.gated { 2 } else { 1 };
            let mut numbers = |there: bool, count: usize| there.then(|| random.normals(count));
            moe.vectors = Vectors {
                router: numbers(biased, experts),
                correction: numbers(corrected, experts),
                // Some reach the clamps.
                up: numbers(biased, outputs).map(|up| up.iter().map(|up| 4.0 * up).collect()),
                down: numbers(biased, experts * 256),
                scale: numbers(scaled, experts),
                // A power of two, which rounds nothing.
                routed: scaled.then_some(-0.5),
            };
            moe.check(&mut rig, 7, &mut random);
            let x = random.normals(40 * 256);
            let packed = moe.pack(&rig);
            let all = moe.run(&mut rig, &packed, &x);
            let alone = moe.run(&mut rig, &packed, &x[5 * 256..6 * 256]);
            same_bits(&format!("{}, one row", moe.name()), &alone, &all[5 * 256..6 * 256], 256);
        }
    }
}

/// Checks `add_shared` with a gate and without.
///
/// # Panics
/// If a number is out of bounds, or a bit depends on the batch.
pub fn check_add_shared(make: &dyn Fn() -> AnyBackend) {
    let mut rig = Rig::for_rows(make(), ROWS_MAX, WIDTH_MAX, 1);
    let mut random = Random::new(25);
    for (rows, cols, gated) in [(1, 64, true), (1, 64, false), (9, 33, true), (70, 300, true), (5, 40, false)]
    {
        let gate: Vec<f32> = random.normals(cols).iter().map(|g| g / (cols as f32).sqrt()).collect();
        let [x, shared, before] = [0; 3].map(|_| random.normals(rows * cols));
        let vector = gated.then(|| rig.vector(&gate));
        let run = |rig: &mut Rig, rows: std::ops::Range<usize>| {
            let part = |of: &[f32]| of[rows.start * cols..rows.end * cols].to_vec();
            let count = rows.len();
            let buffers = [part(&x), part(&shared)].map(|of| rig.upload(&of, cols));
            let mut out = rig.upload_sum(&part(&before), cols);
            rig.step(&rows_batch(&vec![0; count]), |rig| {
                rig.backend.add_shared(vector.as_ref(), &buffers[0], &buffers[1], &mut out);
            });
            rig.download("add_shared", &out, count, cols)
        };
        let all = run(&mut rig, 0..rows);
        let what = format!("add_shared [{rows}, {cols}], gate {gated}");
        let mut errors = CaseErrors::new(what.clone());
        for (at, &found) in all.iter().enumerate() {
            let x = &x[at / cols * cols..][..cols];
            let (score, sigma) = (dot(&gate, x), dot_sigma(rig.rounding, &gate, x, false));
            let factor = if gated { 1.0 / (1.0 + (-score).exp()) } else { 1.0 };
            let (shared, before) = (f64::from(shared[at]), f64::from(before[at]));
            let sigma = (sigma * shared.abs()).hypot(FLOAT * (shared.abs() + before.abs()));
            let sigma = sigma.hypot(operand_sigma(rig.rounding) * shared);
            errors.check(at / cols, at % cols, found, (before + factor * shared) as f32, sigma, 1e-30);
        }
        errors.finish();
        let last = run(&mut rig, rows - 1..rows);
        same_bits(&what, &last, &all[(rows - 1) * cols..], cols);
    }
}

/// Checks for each supported type that a row has the same bits alone, among others, and in any order.
///
/// # Panics
/// If a bit differs.
pub fn check_moe_invariance(make: &dyn Fn() -> AnyBackend) {
    let mut rig = Rig::for_experts(make(), ROWS_MAX, WIDTH_MAX, EXPERTS_MAX, USED_MAX);
    let mut random = Random::new(23);
    let types = supported(&rig.backend);
    for (i, &dtype) in types.iter().enumerate() {
        let other = types[(i + 5) % types.len()];
        let router = if can_quantize(dtype) { dtype } else { plain(&types) };
        let parts = |expert| if expert == 1 { [dtype, other, other] } else { [dtype; 3] };
        let moe = Moe::random(router, parts, (6, 256, 256), params(i), &mut random);
        let x = random.normals(ROWS_MAX * 256);
        let packed = moe.pack(&rig);
        let all = moe.run(&mut rig, &packed, &x);
        for batch in [1, 1, 2, 7, 8, 9, 23, 40, ROWS_MAX].into_iter().step_by(every(3)) {
            let chosen = &random.permutation(ROWS_MAX)[..batch];
            let found = moe.run(&mut rig, &packed, &gather(&x, 256, chosen));
            same_bits(&format!("{}, batch of {batch}", moe.name()), &found, &gather(&all, 256, chosen), 256);
        }
    }
}

/// Parameters in turn: scorings and activations.
fn params(i: usize) -> MoeParams {
    MoeParams {
        experts_used: 2,
        scoring: [ExpertScoring::Softmax, ExpertScoring::Sigmoid][i % 2],
        normalized: i % 4 < 2,
        scale: [1.0, 2.5, 1.0][i % 3],
        activation: ACTIVATIONS[i % 3],
        gated: i % 5 < 3,
        groups: None,
        scales_input: false,
    }
}

/// The type that loses the fewest bits, for routers.
fn plain(types: &[DType]) -> DType {
    let plain = |dtype: &&DType| dtype.block_weights() == 1;
    *types.iter().find(plain).expect("a backend supports one of the plain types")
}

#[derive(Default)]
struct Vectors {
    router: Option<Vec<f32>>,     // (experts)
    correction: Option<Vec<f32>>, // (experts)
    up: Option<Vec<f32>>,         // (experts, outputs of the first product)
    down: Option<Vec<f32>>,       // (experts, width)
    scale: Option<Vec<f32>>,      // (experts)
    /// Factor between the router's rows and the experts' rows, if the router reads separate rows.
    routed: Option<f32>,
}

struct Moe {
    params: MoeParams,
    vectors: Vectors,
    router: Weights,
    gate_up: Vec<Vec<Weights>>, // (experts): gate and up, or up
    down: Vec<Weights>,         // (experts)
}

/// The mixture on a device.
struct PackedMixture {
    router: crate::Matrix,
    experts: crate::Experts,
    vectors: [Option<crate::Vector>; 5],
}

impl Moe {
    /// Experts of `(experts, width, hidden)`, with gate, up and down of the types given for each.
    fn random(
        router: DType,
        types: impl Fn(usize) -> [DType; 3],
        (experts, width, hidden): (usize, usize, usize),
        params: MoeParams,
        random: &mut Random,
    ) -> Self {
        // Scores of variance 2: some experts get much larger weights than others.
        let factor = (2.0 / width as f32).sqrt();
        let numbers: Vec<f32> = random.normals(experts * width).iter().map(|w| w * factor).collect();
        let parts = if params.gated { 2 } else { 1 };
        let gate_up: Vec<Vec<Weights>> = (0..experts)
            .map(|expert| {
                types(expert)[..parts]
                    .iter()
                    .map(|&dtype| Weights::random(dtype, hidden, width, random))
                    .collect()
            })
            .collect();
        let down =
            (0..experts).map(|expert| Weights::random(types(expert)[2], width, hidden, random)).collect();
        let router = Weights::of(router, experts, width, &numbers);
        Self { params, vectors: Vectors::default(), router, gate_up, down }
    }

    /// Adds to an expert's score for each first input above zero (rows drawn by `clear` have one).
    fn favour(&mut self, expert: usize, by: f32) {
        let cols = self.width();
        let mut numbers = self.router.floats.clone();
        numbers[expert * cols] += by;
        self.router = Weights::of(self.router.shape.dtype, self.router.shape.rows, cols, &numbers);
    }

    fn width(&self) -> usize {
        self.router.shape.cols
    }

    fn name(&self) -> String {
        let parts: Vec<String> = self.gate_up[0].iter().map(|part| part.shape.dtype.to_string()).collect();
        format!(
            "moe, {:?}, router {}, gate and up {}, down {} [{}, {}], {} experts",
            self.params,
            self.router.shape.dtype,
            parts.join(" and "),
            self.down[0].shape.dtype,
            self.down[0].shape.rows,
            self.down[0].shape.cols,
            self.down.len()
        )
    }

    fn pack(&self, rig: &Rig) -> PackedMixture {
        let parts = self.gate_up.iter().zip(&self.down).map(|(gate_up, down)| ExpertParts {
            gate_up: gate_up.iter().map(Weights::source).collect(),
            down: vec![down.source()],
        });
        let parts: Vec<ExpertParts<MatrixSource<'_>>> = parts.collect();
        let shapes_of = |sources: &[MatrixSource<'_>]| sources.iter().map(|source| source.shape).collect();
        let shapes: Vec<ExpertParts<MatrixShape>> = parts
            .iter()
            .map(|parts| ExpertParts { gate_up: shapes_of(&parts.gate_up), down: shapes_of(&parts.down) })
            .collect();
        let mut experts = ok("experts", rig.backend.experts(&shapes));
        for parts in &parts {
            ok("pack_expert", rig.backend.pack_expert(&mut experts, parts));
        }
        let Vectors { router, correction, up, down, scale, .. } = &self.vectors;
        let vectors = [router, correction, up, down, scale].map(|of| of.as_ref().map(|of| rig.vector(of)));
        PackedMixture { router: rig.matrix(std::slice::from_ref(&self.router)), experts, vectors }
    }

    fn run(&self, rig: &mut Rig, packed: &PackedMixture, x: &[f32]) -> Vec<f32> {
        self.run_seen(rig, packed, x).0
    }

    /// Output of the mixture, and the routing that the device reports, if it does.
    fn run_seen(&self, rig: &mut Rig, packed: &PackedMixture, x: &[f32]) -> (Vec<f32>, Option<Seen>) {
        let (width, hidden_width) = (self.width(), self.params.experts_used * self.down[0].shape.cols);
        let rows = x.len() / width;
        let buffer = rig.upload(x, width);
        let routed = self.vectors.routed.map(|factor| {
            let x: Vec<f32> = x.iter().map(|x| factor * x).collect();
            rig.upload(&x, width)
        });
        let mut hidden = rig.blank(rows, hidden_width);
        let mut out = rig.blank(rows, width);
        let seen = rig.step(&rows_batch(&vec![0; rows]), |rig| {
            let PackedMixture { router, experts, vectors } = packed;
            let [router_bias, correction, up_bias, down_bias, expert_scale] =
                vectors.each_ref().map(Option::as_ref);
            let weights = MoeOperands {
                router_bias,
                correction,
                up_bias,
                down_bias,
                expert_scale,
                routed: routed.as_ref(),
                ..MoeOperands::plain(router, experts)
            };
            rig.backend.moe(&weights, &self.params, &buffer, &mut hidden, &mut out);
            let mut seen = (vec![0; rows * self.params.experts_used], vec![f32::NAN; rows * hidden_width]);
            let told = rig.backend.read_experts(hidden.id(), &mut seen.0, &mut seen.1);
            told.ok().map(|()| seen)
        });
        rig.download("hidden", &hidden, rows, hidden_width);
        (rig.download("moe", &out, rows, width), seen)
    }

    /// Checks that the reported experts of each row are the right ones, and that their down products of the reported
    /// inputs give the output.
    fn check_seen(&self, x: &[f32], found: &[f32], (chosen, inner): &Seen) {
        let (width, used, ffn) = (self.width(), self.params.experts_used, self.down[0].shape.cols);
        for (row, x) in x.chunks_exact(width).enumerate() {
            let scores =
                self.scores(Rounding { operands: Operands::F32, bytes_before_quantised: false }, x).0;
            let mut expected = route(&scores, &self.params, self.vectors.correction.as_deref())
                .expect("scores of finite rows are numbers");
            let pairs = row * used..(row + 1) * used;
            let mut outputs = vec![(0.0, 0.0); width];
            for pair in pairs {
                let at = expected.iter().position(|(expert, _)| *expert == chosen[pair] as usize);
                let at = at.unwrap_or_else(|| {
                    panic!("{}: row {row} goes to {expected:?}, not to {}", self.name(), chosen[pair])
                });
                let (expert, weight) = expected.swap_remove(at);
                let weight =
                    weight * self.vectors.scale.as_ref().map_or(1.0, |scale| f64::from(scale[expert]));
                let weight = if self.params.scales_input { 1.0 } else { weight };
                let weights = self.down[expert].floats.chunks_exact(ffn);
                for (col, ((sum, size), weights)) in outputs.iter_mut().zip(weights).enumerate() {
                    let bias =
                        self.vectors.down.as_ref().map_or(0.0, |bias| f64::from(bias[expert * width + col]));
                    let inner = &inner[pair * ffn..][..ffn];
                    *sum += weight * (dot(weights, inner) + bias);
                    // The rounding of activations before quantised weights depends on the largest of them.
                    let most = inner.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                    let least = if quantised(self.down[expert].shape.dtype) { most } else { 0.0 };
                    let terms = weights.iter().zip(inner).map(|(w, x)| w.abs() * (x.abs() + least));
                    // A bias is added in f32, which loses far less.
                    *size += weight.abs() * (terms.map(f64::from).sum::<f64>() + 1e-4 * bias.abs());
                }
            }
            for (col, (sum, size)) in outputs.into_iter().enumerate() {
                let off = (sum - f64::from(found[row * width + col])).abs();
                assert!(
                    off <= 0.02 * size + 1e-6,
                    "{}: row {row}, column {col} is {off} off what experts read",
                    self.name()
                );
            }
        }
    }

    fn check(&self, rig: &mut Rig, rows: usize, random: &mut Random) {
        let x: Vec<f32> = (0..rows).flat_map(|_| self.clear(rig.rounding, random)).collect();
        self.check_rows(rig, &x, "clear choices");
    }

    fn check_rows(&self, rig: &mut Rig, x: &[f32], what: &str) {
        let width = self.width();
        let packed = self.pack(rig);
        let (found, seen) = self.run_seen(rig, &packed, x);
        if let Some(seen) = seen {
            self.check_seen(x, &found, &seen);
        }
        let what = format!("{}, {} rows, {what}", self.name(), x.len() / width);
        let mut errors = CaseErrors::of_operands(what, rig.rounding);
        for (row, x) in x.chunks_exact(width).enumerate() {
            for (col, (expected, sigma)) in self.expected(rig.rounding, x).into_iter().enumerate() {
                errors.check(row, col, found[row * width + col], expected as f32, sigma, 1e-30);
            }
        }
        errors.finish();
    }

    /// Checks rows with NaN and infinities among others: they change no other row, and a row with NaN has only NaN
    /// outputs.
    fn check_not_numbers(&self, rig: &mut Rig, random: &mut Random) {
        let (rows, width) = (11, self.width());
        let mut x = random.normals(rows * width);
        let packed = self.pack(rig);
        let before = self.run(rig, &packed, &x);
        for (row, value) in [(2, f32::NAN), (5, f32::INFINITY), (8, f32::NEG_INFINITY), (10, -f32::NAN)] {
            x[row * width + random.below(width)] = value;
        }
        let after = self.run(rig, &packed, &x);
        let others: Vec<usize> = (0..rows).filter(|row| ![2, 5, 8, 10].contains(row)).collect();
        let what = format!("{}, beside rows that are not numbers", self.name());
        same_bits(&what, &gather(&after, width, &others), &gather(&before, width, &others), width);
        let alone = self.run(rig, &packed, &gather(&x, width, &[10]));
        for out in [&after[2 * width..][..width], &after[10 * width..], &alone] {
            assert!(
                out.iter().all(|v| v.is_nan()),
                "{}: numbers made of a row with NaN: {out:?}",
                self.name()
            );
        }
    }

    /// Scores and their σ.
    fn scores(&self, rounding: Rounding, x: &[f32]) -> (Vec<f32>, Vec<f64>) {
        let x: Vec<f32> = x.iter().map(|x| self.vectors.routed.unwrap_or(1.0) * x).collect();
        let x = &x[..];
        let rows = self.router.floats.chunks_exact(self.width());
        let lossy = quantised(self.router.shape.dtype);
        let bias = |e: usize| self.vectors.router.as_ref().map_or(0.0, |bias| f64::from(bias[e]));
        let score = |(e, weights): (usize, &[f32])| {
            ((dot(weights, x) + bias(e)) as f32, dot_sigma(rounding, weights, x, lossy))
        };
        rows.enumerate().map(score).unzip()
    }

    /// Draws a row whose experts are clear.
    fn clear(&self, rounding: Rounding, random: &mut Random) -> Vec<f32> {
        for _ in 0..DRAWS_MAX {
            let mut x = random.normals(self.width());
            x[0] = 1.0 + x[0].abs();
            let (scores, sigmas) = self.scores(rounding, &x);
            let correction = self.vectors.correction.as_deref();
            let by_weight = self.params.chooses_by_weight(correction.is_some());
            let (keys, worths) = expert_keys(&scores, &self.params, correction);
            let mut order: Vec<usize> = (0..scores.len()).collect();
            order.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]));
            let (chosen, others) = order.split_at(self.params.experts_used);
            // The error of a weight is at most that of its score and of the scores that it is divided by.
            let all = if by_weight { 2.0 * sigmas.iter().fold(FLOAT, |m, &s| m.max(s)) } else { 0.0 };
            let sigma = |e: usize| if by_weight { all } else { sigmas[e] };
            let mut worths = worths;
            worths.sort_by(|a, b| b.total_cmp(a));
            let apart = |groups: ExpertGroups| match worths[groups.used - 1..] {
                [last, next, ..] => last - next > 32.0 * sigmas.iter().fold(all, |m, &s| m.max(s)),
                _ => true,
            };
            if !self.params.groups.is_none_or(apart) {
                continue;
            }
            // The largest errors that `CaseErrors` allows each of them.
            let apart = |a: usize, b: usize| keys[a] - keys[b] > 8.0 * (sigma(a) + sigma(b));
            if chosen.iter().all(|&a| others.iter().all(|&b| apart(a, b)))
                && self.near_is_clear(&scores, &sigmas, &order)
            {
                return x;
            }
        }
        panic!("{}: no row of {DRAWS_MAX} chooses its experts clearly", self.name());
    }

    /// Whether the choice of near experts, and the first among them, is clear despite the errors of both.
    fn near_is_clear(&self, scores: &[f32], sigmas: &[f64], order: &[usize]) -> bool {
        let ExpertScoring::Near { reach } = self.params.scoring else { return true };
        let off = |a: usize, b: usize| 8.0 * (sigmas[a] + sigmas[b]);
        order[..self.params.experts_used].iter().enumerate().all(|(at, &top)| {
            order[at + 1..].iter().all(|&other| {
                let size = f64::from(scores[other].abs().max(scores[top]));
                let margin = (apart(scores[other], scores[top]) - f64::from(reach)).abs() * size;
                margin > 2.0 * off(top, other) && f64::from(scores[top] - scores[other]) > off(top, other)
            })
        })
    }

    /// Outputs and their σ: the σ of the chosen experts' outputs times their weights, and the errors of the weights. A
    /// weight's relative error is that of its score and of the scores it is divided by, together at most twice the
    /// largest of them; a score's error counts as it is, whatever the score. Without a second factor, whose sign
    /// varies, rounding x moves all hidden units alike if weights are not 0 on average, so σ is doubled.
    fn expected(&self, rounding: Rounding, x: &[f32]) -> Vec<(f64, f64)> {
        let (scores, sigmas) = self.scores(rounding, x);
        let chosen = route(&scores, &self.params, self.vectors.correction.as_deref())
            .expect("scores of finite rows are numbers");
        let weight_error = 2.0 * sigmas.iter().fold(0.0f64, |m, &s| m.max(s)) + FLOAT;
        let alike = if self.params.gated { 1.0 } else { 2.0 };
        let mut outputs = vec![(0.0, 0.0, 0.0); self.width()]; // sum, variance, sum of magnitudes
        for (expert, weight) in chosen {
            let weight = weight * self.vectors.scale.as_ref().map_or(1.0, |scale| f64::from(scale[expert]));
            let (gate_up, down) = (&self.gate_up[expert], &self.down[expert]);
            let (before, weight) = if self.params.scales_input { (weight, 1.0) } else { (1.0, weight) };
            let x: Vec<f32> = x.iter().map(|&x| (before * f64::from(x)) as f32).collect();
            let part = |of: &'_ Option<Vec<f32>>, part: usize, each: usize| {
                of.as_ref().map_or(Vec::new(), |of| of[part * each..][..each].to_vec())
            };
            let (each, parts) = (down.shape.cols, gate_up.len());
            let biases = [
                part(&self.vectors.up, expert * parts, each),
                part(&self.vectors.up, expert * parts + parts - 1, each),
                part(&self.vectors.down, expert, self.width()),
            ];
            let biases = biases.each_ref().map(|bias| &bias[..]);
            let activation = self.params.activation;
            let parts = mlp_outputs(rounding, activation, &gate_up[0], gate_up.get(1), down, &x, biases);
            for ((sum, variance, size), (part, sigma)) in outputs.iter_mut().zip(parts) {
                *sum += weight * part;
                *variance += (alike * weight * sigma).powi(2) + (weight * part * weight_error).powi(2);
                *size += (weight * part).abs();
            }
        }
        let output =
            |(sum, variance, size): (f64, f64, f64)| (sum, (variance + (FLOAT * size).powi(2)).sqrt());
        outputs.into_iter().map(output).collect()
    }
}
