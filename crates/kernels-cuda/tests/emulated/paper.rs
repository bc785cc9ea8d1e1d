//! Tests of the counted traffic of a token: the bytes that kernels of a decoder's step would read and write, according
//! to a device without memory, equal those that a counting device measures.

use hanzo_engine_cuda_emulator::{CountedLaunch, EmulatedDevice, Sources};
use hanzo_engine_kernels_cuda::{CudaBackend, Device, Kernel, Ledger};
use hanzo_engine_ops::{AnyBackend, HeadShape, KvType, RowSource, SampleSpec};
use hanzo_engine_runtime::OpenedModel;
use hanzo_engine_runtime::decoder::Decoder;
use hanzo_engine_runtime::step::Step;

use crate::early::begins_early;

#[path = "../../examples/paper/network.rs"]
mod network;
pub(crate) use network::Weights;
use network::{Network, Size};

/// Rows that do not end with a block of columns, and a vocabulary that does not end with a tile.
const SMALL: Size = Size {
    layers: 2,
    hidden: 320,
    ffn: 576,
    heads: HeadShape { heads: 4, kv_heads: 2, head_dim: 64 },
    vocab: 71,
    tied: true,
};
/// Rows of whole blocks, for types with blocks of 256.
pub(crate) const WHOLE: Size = Size {
    hidden: 256,
    ffn: 512,
    heads: HeadShape { heads: 8, kv_heads: 2, head_dim: 64 },
    tied: false,
    ..SMALL
};

pub(crate) const KERNELS: [&str; 7] =
    ["norm.cu", "matmul.cu", "product.cu", "heads.cu", "attention.cu", "attention_tiles.cu", "draw.cu"];
/// Bytes of a row's sampling parameters: greedy sampling needs fewer, and compilers omit unused ones.
const SPEC_BYTES: u64 = 64;

pub(crate) fn step<D: Device>(
    device: D,
    size: Size,
    weights: Weights,
    kv_type: KvType,
    batch: (usize, usize),
) -> u64 {
    let mut network = Network::new(device, size, weights, kv_type, batch).expect("memory");
    network.step().expect("a step");
    network.weight_bytes()
}

#[test]
fn kernels_read_and_write_what_is_said_on_paper() {
    let (paper, counting) = (Ledger::default(), EmulatedDevice::counting(Sources::default().only(&KERNELS)));
    let cases = [
        (SMALL, Weights::Bf16, KvType::F16),
        (SMALL, Weights::F16, KvType::Q8_0),
        (WHOLE, Weights::Fp8, KvType::F16),
        (WHOLE, Weights::Q4KM, KvType::F16),
    ];
    // For one sequence, for a long one whose keys blocks share, for several, and for more rows than a block of
    // products has, with floats and with blocks.
    let batches = [(1, 20), (1, 300), (3, 290), (13, 17), (70, 33)];
    for (size, weights, kv_type) in cases {
        let many = kv_type == KvType::F16 && weights != Weights::Fp8;
        for batch in batches.into_iter().filter(|&(sequences, _)| many || sequences < 64) {
            let case = format!("{size:?}, {weights:?}, {kv_type}, {batch:?}");
            let weight_bytes = step(paper.clone(), size, weights, kv_type, batch);
            step(counting.clone(), size, weights, kv_type, batch);
            let (said, found) = (paper.take(), counting.counted());
            let kernels: Vec<Kernel> = said.iter().map(|entry| entry.kernel).collect();
            let launched: Vec<Kernel> = found.iter().map(|launch| launch.kernel).collect();
            assert_eq!(kernels, launched, "{case}");
            for (at, (entry, counted)) in said.iter().zip(&found).enumerate() {
                let &CountedLaunch { kernel, read, written, early, too_early } = counted;
                let more = if kernel == Kernel::Draw { SPEC_BYTES * batch.0 as u64 } else { 0 };
                let what = format!("{case}: launch {at}, {kernel:?}");
                let said = entry.traffic;
                assert!((read..=read + more).contains(&said.read()), "{what} reads {read}, not {said:?}");
                assert_eq!(written, said.written, "{what} writes, {said:?}");
                // More than the number of rows, and nothing of another kernel.
                assert_eq!(early > 64, begins_early(kernel), "{what} reads {early} bytes early");
                assert_eq!(too_early, 0, "{what}, or one before it, reads early what a kernel writes");
            }
            let weights: u64 = said.iter().map(|entry| entry.traffic.weights).sum();
            assert!(weights > weight_bytes, "{case}: all matrices are read, {weights} of {weight_bytes}");
        }
    }
}

/// Inner width of the demo model.
const FFN: usize = 768;

/// Checks that the counted network launches the same kernels as the engine's, for the demo model.
#[test]
fn the_network_on_paper_is_the_engines() {
    let demo: &[u8] = include_bytes!("../../../../models/hanzo-demo/hanzo-demo-Q8_0.gguf");
    let opened = OpenedModel::from_static("hanzo-demo", demo).expect("the embedded model is sound");
    let files = opened.decoder().expect("a decoder");
    for (sequences, context) in [(1, 20_usize), (1, 200), (5, 60)] {
        let each = context.div_ceil(16);
        let paper = Ledger::default();
        let mut backend = AnyBackend::new(CudaBackend::new(paper.clone()));
        let mut decoder = Decoder::load(&backend, files, &mut |_| ()).expect("addresses");
        let spec = decoder.spec().clone();
        decoder.prepare(&mut backend, &spec.step_limits(sequences, sequences, context)).expect("addresses");
        let mut kv = backend.kv(&spec.kv_spec(sequences * each, KvType::F16, sequences)).expect("addresses");
        let mut own = Step::default();
        for sequence in 0..sequences {
            own.batch.sources.push(RowSource::Token(sequence as u32));
            own.batch.push_sequence(1, context, |_, at| (sequence * each + at) as u32);
            own.batch.logit_rows.push(sequence as u32);
        }
        own.draws.rows = vec![SampleSpec::default(); sequences];
        let mut room = vec![0.0; sequences * spec.vocab];
        let ticket = decoder.submit(&mut backend, &mut own, &mut kv, &mut room).expect("a step");
        backend.wait(ticket, &mut Vec::new()).expect("a step");
        let engines = paper.take();

        let layers = engines.iter().filter(|entry| entry.kernel == Kernel::AttentionFew).count();
        let size = Size {
            layers,
            hidden: spec.hidden,
            ffn: FFN,
            heads: spec.heads(),
            vocab: spec.vocab,
            tied: true,
        };
        let network = Ledger::default();
        step(network.clone(), size, Weights::Q8_0, KvType::F16, (sequences, context));
        assert_eq!(engines, network.take(), "{size:?}, {sequences} of {context}");
    }
}
