//! Tests of fused kernels: the number of launches for a token, and that they give the bits of separate kernels.

use hanzo_engine_cuda_emulator::EmulatedDevice;
use hanzo_engine_kernels_cuda::{CudaBackend, CudaBuffer, CudaMatrix, CudaVector, Device, Kernel};
use hanzo_engine_ops::{
    Activation, AttentionParams, Backend, Batch, BufferRole, DType, DeviceMemory, HeadShape, KvLayout,
    KvSpec, KvType, LogitsHead, MatrixShape, MatrixSource, QkvParams, Rope, RopeKind, RowSource, StepLimits,
    quant::quantize_row,
};

use crate::driver::card;
use crate::replay::{limits, numbers};
use crate::typed::TypedOps;

const LAYERS: usize = 2;
const ROWS: usize = 70;
const CONTEXT: usize = 272;
const VOCAB: usize = 32;
const BLOCKS_OF_EACH: usize = CONTEXT / 16;
const EPS: f32 = 1e-6;

/// A decoder's layers.
#[derive(Clone, Copy, Debug)]
struct Setting {
    shape: HeadShape,
    hidden: usize,
    ffn: usize,
    dtype: DType,
    kv_type: KvType,
    activation: Activation,
}

const fn heads(heads: usize, kv_heads: usize, head_dim: usize) -> HeadShape {
    HeadShape { heads, kv_heads, head_dim }
}

/// Layers like Qwen3's, except for their size: two heads of 128 for each key-value head.
const QWEN3: Setting = Setting {
    shape: heads(4, 2, 128),
    hidden: 320,
    ffn: 524,
    dtype: DType::F16,
    kv_type: KvType::F16,
    activation: Activation::Silu,
};

/// Widths for which products have eight segments and outputs are whole tiles, so that nothing between products is a
/// separate launch.
const WIDE: Setting = Setting { shape: heads(8, 2, 128), hidden: 96, ffn: 1040, ..QWEN3 };

/// Rows that end within a block of columns, within a word of 16 bytes, and with a block; heads that fill blocks of
/// columns and that do not, and more of them than a tile has queries; split precision of three pieces, of two with and
/// without sums; and none.
const SETTINGS: [Setting; 8] = [
    QWEN3,
    WIDE,
    Setting { dtype: DType::Q8_0, kv_type: KvType::Q8_0, ffn: 1024, ..WIDE },
    Setting { dtype: DType::BF16, shape: heads(4, 2, 64), hidden: 257, ffn: 259, ..QWEN3 },
    Setting {
        dtype: DType::Q4_1,
        shape: heads(8, 1, 32),
        hidden: 256,
        ffn: 544,
        kv_type: KvType::Q8_0,
        activation: Activation::GeluTanh,
    },
    Setting { shape: heads(2, 1, 256), activation: Activation::ClampedSwish, ..QWEN3 },
    Setting { dtype: DType::Q8_0, shape: heads(20, 1, 32), ffn: 512, kv_type: KvType::Fp8, ..QWEN3 },
    Setting { dtype: DType::F32, ..QWEN3 },
];

/// Rows of sequences up to a context, as (sequence, rows, context): a prompt of more than two spans in chunks, a short
/// one, rows together with a prompt, and tokens of one sequence and of several.
const STEPS: [&[(usize, usize, usize)]; 10] = [
    &[(0, 70, 70)],
    &[(0, 70, 140)],
    &[(0, 70, 210)],
    &[(0, 60, 270)],
    &[(0, 1, 271)],
    &[(1, 17, 17)],
    &[(1, 1, 18)],
    &[(2, 9, 9), (1, 1, 19)],
    &[(1, 1, 20), (2, 1, 10)],
    &[(0, 1, 272), (1, 1, 21), (2, 1, 11)],
];

struct Layer<D: Device> {
    norms: [CudaVector<D>; 4], // before attention and the MLP, of queries and of keys
    qkv: CudaMatrix<D>,
    output: CudaMatrix<D>,
    gate_up: CudaMatrix<D>,
    down: CudaMatrix<D>,
}

/// Layers with a cache, and the buffers of a network.
struct Bench<D: Device> {
    backend: CudaBackend<D>,
    setting: Setting,
    layers: Vec<Layer<D>>,
    inv_freq: CudaVector<D>,
    head: CudaMatrix<D>,
    kv: <CudaBackend<D> as DeviceMemory>::Kv,
    residual: CudaBuffer<D>,
    normed: CudaBuffer<D>,
    own: CudaBuffer<D>,
    attended: CudaBuffer<D>,
    branch: CudaBuffer<D>,
    inner: CudaBuffer<D>,
}

/// A matrix whose products are about as large as their inputs.
fn matrix<D: Device>(
    backend: &CudaBackend<D>,
    (rows, cols): (usize, usize),
    dtype: DType,
    seed: usize,
) -> CudaMatrix<D> {
    let even = (cols as f32).sqrt().recip();
    let values: Vec<f32> = numbers(seed, rows * cols).iter().map(|value| value * even).collect();
    let mut bytes = vec![0; dtype.bytes_of(values.len()).expect("whole blocks")];
    quantize_row(dtype, &values, &mut bytes);
    let shape = MatrixShape { rows, cols, dtype };
    backend.pack(&[MatrixSource { name: "numbers", shape, bytes: &bytes }]).expect("memory")
}

impl<D: Device> Bench<D> {
    fn new(mut backend: CudaBackend<D>, setting: Setting) -> Self {
        let Setting { shape, hidden, ffn, dtype, kv_type, .. } = setting;
        let HeadShape { kv_heads, head_dim, .. } = shape;
        let width = (2 * ffn).max(shape.qkv_width()).max(hidden);
        let own = StepLimits { rows: ROWS, context: CONTEXT, width, heads: shape, ..limits() };
        backend.reserve(&own).expect("memory");
        let layer = KvLayout::Heads { kv_heads, head_dim, window: None };
        let spec =
            KvSpec { layers: vec![layer; LAYERS], blocks: 3 * BLOCKS_OF_EACH, kv_type, ..KvSpec::default() };
        let kv = backend.kv(&spec).expect("memory");
        let norm = |seed, width| backend.vector(&numbers(seed, width)).expect("memory");
        let layers = (0..LAYERS).map(|layer| Layer {
            norms: [(1, hidden), (2, hidden), (3, head_dim), (4, head_dim)]
                .map(|(seed, width)| norm(100 * layer + seed, width)),
            qkv: matrix(&backend, (shape.qkv_width(), hidden), dtype, 100 * layer + 5),
            output: matrix(&backend, (hidden, shape.q_width()), dtype, 100 * layer + 6),
            gate_up: matrix(&backend, (2 * ffn, hidden), dtype, 100 * layer + 7),
            down: matrix(&backend, (hidden, ffn), dtype, 100 * layer + 8),
        });
        let layers = layers.collect();
        let inv_freq: Vec<f32> =
            (0..head_dim / 2).map(|pair| 1e4_f32.powf(-2.0 * pair as f32 / head_dim as f32)).collect();
        let inv_freq = backend.vector(&inv_freq).expect("memory");
        let head = matrix(&backend, (VOCAB, hidden), dtype, 9);
        let buffer = |role, cols| backend.buffer(role, ROWS, cols).expect("memory");
        Self {
            residual: buffer(BufferRole::Residual, hidden),
            normed: buffer(BufferRole::Operand, hidden),
            own: buffer(BufferRole::Operand, shape.qkv_width()),
            attended: buffer(BufferRole::Operand, shape.q_width()),
            branch: buffer(BufferRole::Residual, hidden),
            inner: buffer(BufferRole::Operand, ffn),
            backend,
            setting,
            layers,
            inv_freq,
            head,
            kv,
        }
    }

    /// Runs a layer of the open step, as in a network.
    fn layer(&mut self, index: usize) {
        let Setting { shape, activation, .. } = self.setting;
        let Self { backend, layers, inv_freq, kv, residual, normed, own, attended, branch, inner, .. } = self;
        let layer = &layers[index];
        let [_, middle, q_norm, k_norm] = &layer.norms;
        backend.matmul(&layer.qkv, normed, own);
        let rope =
            Rope { kind: RopeKind::Neox, inv_freq: &*inv_freq, magnitude: 1.0, axes: None, long: None };
        let (q_norm, k_norm) = (Some(q_norm), Some(k_norm));
        let params = QkvParams { q_norm, k_norm, rope: Some(rope), ..QkvParams::plain(shape) };
        backend.rope_to_cache(own, params, kv, index);
        let params = AttentionParams::of(shape, (shape.head_dim as f32).sqrt().recip());
        backend.attention(own, params, kv, index, attended);
        backend.matmul(&layer.output, attended, branch);
        backend.add_rms_norm(residual, branch, middle, EPS, normed);
        backend.gated_mlp([&layer.gate_up, &layer.down], activation, normed, inner, branch);
        let after = &layers[(index + 1) % LAYERS].norms[0];
        backend.add_rms_norm(residual, branch, after, EPS, normed);
    }

    /// Runs a step: the logits of the last row, the content of all buffers for its rows, and the kernels of the last
    /// layer.
    fn step(&mut self, parts: &[(usize, usize, usize)]) -> (Vec<f32>, Vec<Kernel>) {
        let mut batch = Batch::default();
        for &(sequence, rows, context) in parts {
            batch.sources.extend((0..rows).map(|row| RowSource::Token(row as u32)));
            batch.push_sequence(rows, context, |_, at| (sequence * BLOCKS_OF_EACH + at) as u32);
        }
        let rows = batch.rows();
        batch.logit_rows.push(rows as u32 - 1);
        let given = numbers(parts[0].2, rows * self.setting.hidden);
        self.backend.write_rows(&mut self.residual, 0, &given).expect("a copy");
        self.backend.begin(&batch).expect("a step");
        self.backend.rms_norm(&self.residual, &self.layers[0].norms[0], EPS, &mut self.normed);
        let mut before = 0;
        for index in 0..LAYERS {
            before = self.backend.planned().len();
            self.layer(index);
        }
        let kernels = self.backend.planned()[before..].to_vec();
        let mut all = vec![0.0; VOCAB];
        self.backend.logits(LogitsHead::of(&self.head), &self.normed, &mut all).expect("a copy");
        self.backend.end().expect("a step");
        let Setting { shape, hidden, ffn, .. } = self.setting;
        let buffers = [
            (&self.residual, hidden),
            (&self.normed, hidden),
            (&self.own, shape.qkv_width()),
            (&self.attended, shape.q_width()),
            (&self.branch, hidden),
            (&self.inner, ffn),
        ];
        for (buffer, cols) in buffers {
            let mut numbers = vec![0.0; rows * cols];
            self.backend.read_rows(buffer, 0, &mut numbers).expect("a copy");
            all.extend(numbers);
        }
        (all, kernels)
    }
}

/// Checks every element of every buffer after each of the steps.
fn check_layers<D: Device>(make: &dyn Fn() -> CudaBackend<D>, setting: Setting) {
    let mut fused = Bench::new(make(), setting);
    let mut apart = Bench::new(make().without_fusion(), setting);
    for parts in STEPS {
        let ((found, kernels), (expected, others)) = (fused.step(parts), apart.step(parts));
        assert!(
            found.iter().all(|number| number.is_finite()),
            "layers of {setting:?}, {parts:?}: not a number"
        );
        let same = found.iter().zip(&expected).take_while(|(a, b)| a.to_bits() == b.to_bits()).count();
        assert_eq!(
            same,
            expected.len(),
            "layers of {setting:?}, {parts:?}: fused kernels leave other bits from there on"
        );
        // Rows that products read were split, except for matrices in F32.
        let cuts = |kernels: &[Kernel]| kernels.iter().filter(|&&kernel| kernel == Kernel::Pieces).count();
        let all = if setting.dtype == DType::F32 { 0 } else { 4 };
        assert_eq!(cuts(&others), all, "{setting:?}, {parts:?}");
        assert!(cuts(&kernels) <= all / 4, "{setting:?}, {parts:?}: {kernels:?}");
    }
}

/// Checks layers whose rows are all split by the kernels that write them.
pub(crate) fn check_fused_layers<D: Device>(make: &dyn Fn() -> CudaBackend<D>) {
    check_layers(make, QWEN3);
}

/// Checks layers whose products are fused with everything between them.
pub(crate) fn check_wide_layers<D: Device>(make: &dyn Fn() -> CudaBackend<D>) {
    check_layers(make, WIDE);
}

/// Results of all steps, as bits.
pub(crate) fn bits_of_layers<D: Device>(backend: CudaBackend<D>) -> Vec<u32> {
    let mut bench = Bench::new(backend, WIDE);
    STEPS.iter().flat_map(|parts| bench.step(parts).0).map(f32::to_bits).collect()
}

/// Runs tokens with fused products and with keys shared by blocks.
pub(crate) fn run_wide_layers(make: &dyn Fn() -> CudaBackend<EmulatedDevice>) {
    let mut bench = Bench::new(make(), WIDE);
    for parts in [&[(0, 1, 271)][..], &[(1, 1, 18), (2, 1, 5)]] {
        let (_, kernels) = bench.step(parts);
        assert!(!kernels.contains(&Kernel::Gate), "{kernels:?}");
    }
}

#[test]
fn fused_kernels_leave_the_bits_of_kernels_apart() {
    let card = card();
    for setting in SETTINGS {
        check_layers(&|| CudaBackend::new(card.clone()), setting);
    }
}

/// Checks the kernels of a token in a layer like Qwen3's: for a context of up to two spans of keys, and for a longer
/// one.
#[test]
fn a_layer_takes_as_many_kernels_as_is_said() {
    use Kernel::*;
    let device = EmulatedDevice::new();
    let counts = |backend: CudaBackend<EmulatedDevice>, setting: Setting| {
        let mut bench = Bench::new(backend, setting);
        [18, 271].map(|context| bench.step(&[(0, 1, context)]).1)
    };
    let [short, long] = counts(CudaBackend::new(device.clone()).without_fusion(), QWEN3);
    let products = [Pieces, ProductFew];
    let rest = [&products[..], &[Norm], &products, &[Gate], &products, &[Norm]].concat();
    assert_eq!(short, [&products[..], &[Heads, AttentionFew], &rest].concat());
    assert_eq!(long, [&products[..], &[Heads, AttentionFew, AttentionJoin], &rest].concat());
    assert_eq!((short.len(), long.len()), (13, 14));
    // Norms of rows from narrower products, and halves that end within a tile, are separate launches.
    let [short, long] = counts(CudaBackend::new(device.clone()), QWEN3);
    let rest = [ProductFew, Norm, ProductFew, Gate, ProductFew, Norm];
    assert_eq!(short, [&[ProductFew, AttentionFew][..], &rest].concat());
    assert_eq!(long, short);
    let [short, long] = counts(CudaBackend::new(device.clone()), WIDE);
    assert_eq!(short, [ProductFew, AttentionFew, ProductFew, ProductFew, ProductFew]);
    assert_eq!((long.len(), &long), (5, &short));
}
