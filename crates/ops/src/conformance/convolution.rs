//! Checks of convolutions over grids, and of activations of single numbers.

use super::bounds::{CaseErrors, FLOAT, hold, operand_sigma, same_bits};
use super::extent::every;
use super::random::Random;
use super::rig::{Rig, whole_batch};
use super::weights::Weights;
use crate::reference::ReferenceBackend;
use crate::{
    Activation, AnyBackend, Batch, ConvParams, DType, Handle, KernelUse, MatrixShape, Op, PointActivation,
};

/// Rows of the sequences of a batch.
const LENGTHS: [u32; 4] = [23, 1, 5, 70];
/// Largest addition of an activation to the magnitude of a number.
const RAISED: f32 = 2.0;

/// A convolution. Channels and outputs are those of all groups together.
#[derive(Clone, Copy, Debug)]
struct Case {
    channels: usize,
    outputs: usize,
    params: ConvParams,
    transposed: bool,
    /// Places of a row.
    places: usize,
    activation: usize,
    /// Whether a bias and, unless it is transposed, numbers of a buffer are added.
    added: bool,
}

/// Operands of a case on the host.
struct Numbers {
    weight: Weights,
    x: Vec<f32>,
    bias: Vec<f32>,
    alpha: Vec<f32>,
    affine: Vec<f32>, // (sequences, 2 * channels)
    add: Vec<f32>,
}

/// Sizes along lines.
fn line(taps: usize, stride: usize, dilation: usize, padding: [usize; 2]) -> ConvParams {
    let (stride, dilation) = ([1, 1, stride], [1, 1, dilation]);
    ConvParams { stride, dilation, padding: [[0; 2], [0; 2], padding], ..ConvParams::along(taps) }
}

/// Every kind of kernel: of few channels and many, short and long, dilated, over steps, causal, in groups, and of pictures.
fn cases() -> Vec<Case> {
    let case = |channels: usize, outputs: usize, params: ConvParams, transposed, places: usize| {
        let activation = channels + params.taps() + places + outputs / 4 * 4;
        let added = (outputs + places).is_multiple_of(2);
        Case { channels, outputs, params, transposed, places, activation, added }
    };
    let plane = ConvParams {
        stride: [1, 2, 1],
        padding: [[0; 2], [1, 0], [0, 1]],
        dilation: [1, 1, 2],
        groups: 2,
        ..ConvParams::plane([3, 0], [3, 2])
    };
    vec![
        case(3, 5, line(3, 1, 1, [1, 1]), false, 2),
        case(1, 1, line(1, 1, 1, [0, 0]), false, 4),
        case(2, 3, ConvParams { input: [1, 1, 3], ..line(3, 1, 1, [1, 1]) }, false, 4),
        case(48, 51, line(3, 1, 1, [1, 1]), false, 3),
        case(50, 48, line(5, 1, 2, [8, 0]), false, 1),
        case(48, 48, line(7, 1, 3, [9, 9]), false, 2),
        case(64, 49, line(11, 1, 5, [25, 25]), false, 1),
        case(48, 48, line(12, 1, 1, [11, 0]), false, 3),
        case(20, 7, line(7, 1, 4, [12, 12]), false, 2),
        case(8, 6, line(4, 2, 1, [2, 1]), false, 1),
        case(50, 64, line(3, 2, 1, [1, 1]), false, 2),
        case(6, 6, ConvParams { groups: 6, ..line(3, 1, 3, [3, 3]) }, false, 2),
        case(8, 6, line(4, 2, 1, [1, 1]), true, 3),
        case(48, 3, line(16, 8, 1, [4, 4]), true, 1),
        case(5, 4, line(3, 2, 1, [1, 0]), true, 2),
        case(4, 6, ConvParams { groups: 2, ..line(5, 3, 2, [1, 0]) }, true, 1),
        case(4, 6, plane, false, 6),
        case(4, 2, ConvParams { padding: [[0; 2], [1, 1], [0, 1]], ..plane }, true, 6),
    ]
}

impl Case {
    fn grids(&self, lengths: &[u32]) -> Vec<ConvParams> {
        lengths.iter().map(|&rows| self.params.of(rows as usize, self.places)).collect()
    }

    /// Numbers of the output of these grids.
    fn output(&self, lengths: &[u32]) -> usize {
        let of = |params: ConvParams| match self.transposed {
            false => params.output(),
            true => params.output_transposed(),
        };
        let places = self.grids(lengths).into_iter().map(|params| of(params).iter().product::<usize>());
        places.sum::<usize>() * self.outputs
    }

    fn shape(&self) -> (usize, usize) {
        let (taps, groups) = (self.params.taps(), self.params.groups);
        match self.transposed {
            false => (self.outputs, self.channels / groups * taps),
            true => (self.channels, self.outputs / groups * taps),
        }
    }

    fn numbers(&self, random: &mut Random) -> Numbers {
        let (rows, cols) = self.shape();
        let places = LENGTHS.iter().sum::<u32>() as usize * self.places;
        Numbers {
            weight: Weights::of(DType::F32, rows, cols, &random.normals(rows * cols)),
            x: random.normals(places * self.channels),
            bias: random.normals(self.outputs),
            alpha: (0..self.channels).map(|_| 0.5 + random.uniform()).collect(),
            affine: (0..LENGTHS.len() * 2 * self.channels).map(|_| 0.5 + random.uniform()).collect(),
            add: random.normals(self.output(&LENGTHS)),
        }
    }

    /// Output of a device for these grids, whose input and addends begin with those of `numbers` from some number on.
    fn run(
        &self,
        make: &dyn Fn() -> AnyBackend,
        numbers: &Numbers,
        lengths: &[u32],
        (sequence, first, first_add): (usize, usize, usize),
    ) -> Vec<f32> {
        let (rows, total) = (lengths.iter().sum::<u32>() as usize, self.output(lengths));
        let mut rig = Rig::for_rows(make(), rows.max(total / self.outputs), 16, 1);
        let of = KernelUse { params: self.params, transposed: self.transposed };
        let weight = rig.backend.pack_kernel(&numbers.weight.source(), &of).expect("a kernel is packed");
        let (bias, alpha) = (rig.vector(&numbers.bias), rig.vector(&numbers.alpha));
        let cols = self.places * self.channels;
        let x = rig.upload(&numbers.x[first..][..rows * cols], cols);
        let add = rig.upload(&numbers.add[first_add..][..total], self.outputs);
        let out = rig.blank(total / self.outputs, self.outputs);
        let of_sequences =
            &numbers.affine[sequence * 2 * self.channels..][..lengths.len() * 2 * self.channels];
        let mut affine = of_sequences.to_vec();
        affine.resize(rows * 2 * self.channels, 0.0);
        let affine = rig.upload(&affine, 2 * self.channels);
        let before = match self.activation % 4 {
            0 => None,
            1 => Some(PointActivation::LeakyRelu { slope: 0.1 }),
            2 => Some(PointActivation::Snake { alpha: alpha.id() }),
            _ => Some(PointActivation::Elu { alpha: 1.0 }),
        };
        let (bias, params) = (self.added.then(|| bias.id()), self.params);
        let affine = (self.activation / 4 % 2 == 1).then(|| affine.id());
        let (x, weight, add, to) = (x.id(), weight.id(), self.added.then(|| add.id()), out.id());
        let op = match self.transposed {
            false => Op::Conv { x, affine, before, weight, bias, params, add, out: to },
            true => Op::ConvTranspose { x, affine, before, weight, bias, params, out: to },
        };
        rig.step(&whole_batch(lengths), |rig| rig.backend.run(&op));
        rig.download("conv", &out, total / self.outputs, self.outputs)
    }

    /// Sums of the magnitudes of the products of each output, and a little more.
    fn magnitudes(&self, Numbers { weight, x, bias, alpha, affine, add }: &Numbers) -> Vec<f32> {
        let absolute = |numbers: &[f32], more: f32| numbers.iter().map(|x| x.abs() + more).collect();
        let MatrixShape { rows, cols, .. } = weight.shape;
        let weights: Vec<f32> = absolute(&weight.floats, 0.0);
        let numbers = Numbers {
            weight: Weights::of(DType::F32, rows, cols, &weights),
            // A scale is at most 1.5, and so is a shift.
            x: absolute(x, RAISED).into_iter().map(|x: f32| 1.5 * x + 1.5).collect(),
            bias: absolute(bias, 0.0),
            alpha: alpha.clone(),
            affine: affine.clone(),
            add: absolute(add, 0.0),
        };
        Case { activation: 0, ..*self }.run(&reference, &numbers, &LENGTHS, (0, 0, 0))
    }

    fn check(&self, make: &dyn Fn() -> AnyBackend, random: &mut Random) {
        let mut numbers = self.numbers(random);
        let rounding = make().facts().rounding;
        [&mut numbers.x, &mut numbers.add].into_iter().for_each(|numbers| hold(rounding, numbers));
        let found = self.run(make, &numbers, &LENGTHS, (0, 0, 0));
        let expected = self.run(&reference, &numbers, &LENGTHS, (0, 0, 0));
        let Case { channels, outputs, params, transposed, .. } = *self;
        let kind = if transposed { "conv_transpose" } else { "conv" };
        let what = format!("{kind} of {channels} to {outputs} channels, {params:?}, added {}", self.added);
        let mut errors = CaseErrors::of_operands(what.clone(), rounding);
        let sigma = FLOAT.hypot(2.0 * operand_sigma(rounding));
        let magnitudes = self.magnitudes(&numbers);
        for (at, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
            let sigma = sigma * f64::from(magnitudes[at]);
            errors.check(at / outputs, at % outputs, found, expected, sigma, 0.0);
        }
        errors.finish();
        let (mut first, mut done) = (0, 0);
        for (sequence, length) in LENGTHS.into_iter().enumerate() {
            let alone = self.run(make, &numbers, &[length], (sequence, first, done));
            same_bits(&what, &alone, &found[done..][..alone.len()], outputs);
            first += length as usize * self.places * channels;
            done += alone.len();
        }
    }
}

fn reference() -> AnyBackend {
    AnyBackend::new(ReferenceBackend::new())
}

/// Checks `conv` and `conv_transpose`: each kind of kernel against the reference, and each sequence alone.
///
/// # Panics
/// If a number is further off than f32 sums are, or a bit depends on the batch.
pub fn check_convolutions(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(61);
    cases().into_iter().for_each(|case| case.check(make, &mut random));
}

/// Checks `activate`.
///
/// # Panics
/// If a number is further off than functions in f32 are.
pub fn check_activate(make: &dyn Fn() -> AnyBackend) {
    let mut random = Random::new(62);
    for (rows, cols) in [(1, 1), (5, 33), (40, 64)].into_iter().step_by(every(2)) {
        let mut x = random.normals(rows * cols);
        let alpha: Vec<f32> = (0..cols).map(|_| 0.5 + random.uniform()).collect();
        for kind in 0..5 {
            let run = |backend: AnyBackend, x: &[f32]| {
                let mut rig = Rig::for_rows(backend, rows, cols, 1);
                let (alpha, out) = (rig.vector(&alpha), rig.upload(x, cols));
                let activation = match kind {
                    0 => PointActivation::LeakyRelu { slope: 0.1 },
                    1 => PointActivation::Snake { alpha: Handle::id(&alpha) },
                    2 => PointActivation::Elu { alpha: 1.5 },
                    3 => PointActivation::Tanh,
                    _ => PointActivation::Mlp(Activation::GeluErf),
                };
                let batch: Batch = whole_batch(&[rows as u32]);
                rig.step(&batch, |rig| rig.backend.run(&Op::Activate { activation, out: out.id() }));
                rig.download("activate", &out, rows, cols)
            };
            let rounding = make().facts().rounding;
            hold(rounding, &mut x);
            let (found, expected) = (run(make(), &x), run(reference(), &x));
            let mut errors =
                CaseErrors::of_operands(format!("activate {kind} of [{rows}, {cols}]"), rounding);
            for (at, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
                let sigma = FLOAT * (f64::from(x[at]).abs() + 1.0);
                errors.check(at / cols, at % cols, found, expected, sigma, 0.0);
            }
            errors.finish();
        }
    }
}
