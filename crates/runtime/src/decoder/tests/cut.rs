//! Decoders that devices share: wherever they are cut they compute the bits of one device, and each takes what is planned of it.

use hanzo_engine_ops as ops;
use hanzo_engine_ops::{AnyBackend, Pipeline, PipelineCut};

use super::*;

/// With heads, windows, latents, streams, caches that layers share, states, experts and slopes; with a head of its own or not.
pub(super) const SHARED: &[&str] = &[
    "tiny/qwen3",
    "tiny/llama-linear",
    "tiny/qwen3-moe",
    "dense/gemma3",
    "dense/gemma3n",
    "dense/gemma4-e",
    "dense/olmo2",
    "dense/baichuan-alibi",
    "mixtures/deepseek-v3",
    "mixtures/gpt-oss",
    "states/qwen3-next",
    "states/nemotron-h",
];

pub(super) fn cpu() -> AnyBackend {
    let tier = Tier::available().last().expect("the portable tier always is");
    AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(1)), tier))
}

#[test]
fn a_network_computes_the_same_wherever_it_is_cut() {
    for &case in SHARED {
        let folder = data(case);
        let (golden, files) = (Golden::read(&folder), ModelFiles::open(&folder).unwrap());
        let text = golden.text();
        let bits = |logits: Vec<f32>| logits.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
        let expected = bits(Runner::new(cpu(), &files).prefill(&text));
        let layers = files.spec.layers.len();
        let cuts: Vec<PipelineCut> = (0..=layers).filter_map(|layers| files.spec.cut(layers).ok()).collect();
        // In two at each of them, and in as many as there can be.
        for cuts in cuts.iter().map(|&cut| vec![cut]).chain([cuts.clone()]) {
            let devices = (0..=cuts.len()).map(|_| cpu()).collect();
            let pipeline = AnyBackend::of_executor(Pipeline::new(devices, cuts.clone()));
            let mut runner = Runner::new(pipeline, &files);
            assert!(bits(runner.prefill(&text)) == expected, "{case}, cut at {cuts:?}");
            let tokens = runner.greedy(&golden.prompt, 7, golden.greedy.len().min(8), |_, _| false);
            assert_eq!(tokens, golden.greedy[..tokens.len()], "{case}, cut at {cuts:?}");
        }
        let (shares, cuts) =
            (files.spec.layers.iter().any(|layer| layer.attention.shares.is_some()), cuts.len());
        assert!(if shares { cuts > 1 && cuts <= layers } else { cuts == layers + 1 }, "{case}: {cuts} cuts");
    }
}

#[test]
fn rows_cross_where_layers_change_hands() {
    // The sum and its norm go on, and embeddings that are the head come back; the head reads the norm alone.
    for (case, inputs, crossed) in
        [("tiny/llama-linear", true, [1, 2, 1]), ("dense/gemma3", false, [0, 3, 2])]
    {
        let files = ModelFiles::open(&data(case)).unwrap();
        let layers = files.spec.layers.len();
        for (layers, crossed) in [0, 1, layers].into_iter().zip(crossed) {
            let cut = files.spec.cut(layers).unwrap();
            let pipeline = Pipeline::new(vec![cpu(), cpu()], vec![cut]);
            let mut runner = Runner::new(AnyBackend::of_executor(pipeline), &files);
            for step in 1..=2 {
                runner.prefill(&[1, 2, 3]);
                let pipeline = runner.backend.executor_ref::<Pipeline>().expect("a pipeline");
                assert_eq!(pipeline.passes(), step * crossed, "{case}, {cut:?}");
            }
            assert_eq!(cut.inputs, inputs, "{case}");
        }
    }
}

/// Numbers of what is on each of three devices.
fn numbers(parts: Vec<Option<usize>>) -> [usize; 3] {
    let counts: Vec<usize> = parts.into_iter().map(Option::unwrap_or_default).collect();
    counts.try_into().expect("three devices")
}

#[test]
fn what_each_device_takes_is_planned_to_the_byte() {
    for case in
        ["tiny/qwen3", "tiny/llama-linear", "dense/gemma3", "dense/gemma3n", "dense/gemma4-e", "dense/olmo2"]
    {
        let files = ModelFiles::open(&data(case)).unwrap();
        let cuts = (0..=files.spec.layers.len()).filter_map(|layers| files.spec.cut(layers).ok());
        let cuts: Vec<PipelineCut> = cuts.collect();
        for cuts in cuts.iter().zip(cuts.iter().skip(1).chain(cuts.last())).map(|(&a, &b)| vec![a, b]) {
            let devices = || (0..3).map(|_| AnyBackend::new(ReferenceBackend::new())).collect();
            let make = || Pipeline::new(devices(), cuts.clone());
            let backend = AnyBackend::of_executor(make());
            let pipeline = backend.executor_ref::<Pipeline>().expect("a pipeline");
            let network = Decoder::load(&backend, &files, &mut |_| ()).unwrap().network;
            let (vectors, norms) = network.vectors_and_norms();
            let biases = norms.iter().filter_map(|norm| norm.bias.as_ref());
            let vectors = vectors.into_iter().chain(norms.iter().map(|norm| &norm.weight)).chain(biases);
            let length = |device: &AnyBackend, own: &ops::Vector| {
                device.read_vector::<ReferenceBackend, _>(own, Vec::len).expect("a reference's")
            };
            let vectors = vectors.map(|vector| numbers(pipeline.read_vector(vector, length)));
            let elements = |device: &AnyBackend, own: &ops::Matrix| {
                let elements = device.read_matrix::<ReferenceBackend, _>(own, |of| of.rows() * of.cols());
                elements.expect("a reference's")
            };
            let matrices = network.matrices().into_iter();
            let matrices = matrices.map(|matrix| numbers(pipeline.read_matrix(matrix, elements)));
            let held = vectors.chain(matrices).fold([0; 3], |a, b| [0, 1, 2].map(|at| a[at] + b[at]));
            let planned = |backend| Decoder::plan(&backend, &files).weights_bytes;
            let planned = [0, 1, 2].map(|device| planned(AnyBackend::of_executor(make().counting(device))));
            assert_eq!(planned, held.map(|numbers| 4 * numbers as u64), "{case}, cut at {cuts:?}");
        }
    }
}
