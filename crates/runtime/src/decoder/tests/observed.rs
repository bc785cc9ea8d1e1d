//! What matrices met, as an importance matrix has it: the same on the reference and on the processor, and as many rows as went
//! there.

use super::*;
use crate::network::ActivationSums;
use crate::spec::{LayerPart, Part};

/// A file of each way that layers read: heads, gates, latents, states, experts with what is beside them.
const MODELS: [&str; 8] = [
    "tiny/qwen3",
    "mixtures/qwen2-moe",
    "mixtures/deepseek-v3/model.gguf",
    "mixtures/gpt-oss",
    "mixtures/phimoe",
    "dense/gemma4-moe",
    "states/qwen3-next",
    "states/nemotron-h-moe",
];

/// What each part met, by columns and rows.
type Found = BTreeMap<Part, (Vec<f64>, u64)>;

fn met(backend: AnyBackend, files: &ModelFiles, tokens: &[u32]) -> (Found, Vec<f32>) {
    let mut runner = Runner::new(backend, files);
    runner.decoder.observe(&mut runner.backend).unwrap();
    let logits = runner.prefill(tokens);
    let owned = |(part, met): (Part, ActivationSums<'_>)| (part, (met.squares.to_vec(), met.rows));
    (runner.decoder.observed().unwrap().into_iter().map(owned).collect(), logits)
}

#[test]
fn what_matrices_met_is_what_rows_went_there() {
    let tokens: Vec<u32> = (3..23).collect();
    for case in MODELS {
        let files = ModelFiles::open(&data("").join(case)).unwrap();
        let tier = Tier::available().last().unwrap();
        let cpu = || AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier));
        let (found, logits) = met(cpu(), &files, &tokens);
        assert_eq!(
            logits,
            Runner::new(cpu(), &files).prefill(&tokens),
            "{case}: looked at, it computes the same"
        );
        let (expected, _) = met(AnyBackend::new(ReferenceBackend::new()), &files, &tokens);
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{case}");
        for (part, (squares, rows)) in &found {
            let (wanted, wanted_rows) = &expected[part];
            let shape = &files.tensors.get(part.weight()).shape;
            let width = if files.spec.is_transposed(*part) { shape[0] } else { shape[shape.len() - 1] };
            let of_heads = matches!(part, Part::Layer(_, LayerPart::LatentKeyUp | LayerPart::LatentValueUp));
            let heads = if of_heads { files.spec.attending().head_shape().heads } else { 1 };
            assert_eq!(squares.len(), heads * width, "{case} {part:?}: columns");
            assert_eq!(rows, wanted_rows, "{case} {part:?}");
            let most = wanted.iter().fold(0.0, |most: f64, &sum| most.max(sum));
            for (sum, wanted) in squares.iter().zip(wanted) {
                assert!((sum - wanted).abs() <= 2e-3 * most, "{case} {part:?}: {sum}, not {wanted}");
            }
        }
        for (layer, spec) in files.spec.layers.iter().enumerate() {
            let Some(experts) = spec.mlp.experts() else { continue };
            let of = |part| &found[&Part::Layer(layer, part)];
            let all = (0..experts.count).map(LayerPart::ExpertUp);
            let rows: u64 = all.clone().map(|part| of(part).1).sum();
            assert_eq!(rows, (tokens.len() * experts.used) as u64, "{case}: experts of layer {layer}");
            let (router, seen) = of(LayerPart::Router);
            assert_eq!(*seen, tokens.len() as u64);
            // Each row went to so many experts, and where the router reads what they do their sums are its own.
            for (column, &sum) in router.iter().enumerate().filter(|_| !experts.apart) {
                let sums: f64 = all.clone().map(|part| of(part).0[column]).sum();
                assert!((sums - experts.used as f64 * sum).abs() <= 1e-3 * sums, "{case}: column {column}");
            }
            assert_eq!(
                spec.mlp.shared().is_some(),
                found.contains_key(&Part::Layer(layer, LayerPart::SharedDown))
            );
        }
    }
}
