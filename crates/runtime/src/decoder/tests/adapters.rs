//! Adapters against PEFT (tests/data/make_adapters.py says how its numbers were made), in both formats on models of both
//! formats; and that sequences of one step with several adapters and none compute what each does alone.

use super::*;
use crate::adapter::Adapter;

fn adapter(case: &str, gguf: bool, files: &ModelFiles) -> Adapter {
    let folder = data("adapters").join(case);
    Adapter::open(&if gguf { folder.join("adapter.gguf") } else { folder }, &files.adapter_base()).unwrap()
}

fn golden(case: &str) -> Vec<f32> {
    let bytes = fs::read(data("adapters").join(case).join("golden.safetensors")).unwrap();
    let tensors = crate::safetensors::parse("golden", &bytes.into()).unwrap();
    tensors[0].to_f32().unwrap()
}

/// The models of a case: as safetensors, and as GGUF.
fn models(model: &str) -> [ModelFiles; 2] {
    let folder = data("tiny").join(model);
    [folder.clone(), folder.join("model.gguf")].map(|path| ModelFiles::open(&path).unwrap())
}

#[test]
fn adapters_compute_what_peft_does() {
    for (case, model, gguf) in [
        ("llama3-all", "llama3", true),
        ("llama3-some", "llama3", false),
        ("qwen3-all", "qwen3", true),
        ("qwen3-layer", "qwen3", true),
        ("qwen3-moe-attention", "qwen3-moe", true),
    ] {
        let (text, golden) = (Golden::open(model).text(), golden(case));
        let allowed = TOLERANCE * range(&golden);
        for files in models(model) {
            for gguf in [false, true].into_iter().filter(|of| gguf || !of) {
                let adapter = adapter(case, gguf, &files);
                on_every_backend!(
                    &files,
                    format!("{case} {} on {}", adapter.format, files.info.format),
                    |runner, label| {
                        runner.decoder.adapt(&mut runner.backend, 3, &adapter).unwrap();
                        let work = [Work { tokens: &text, rows: text.len(), blocks: &scattered(0) }];
                        let found = largest_difference(&runner.adapted_step(&work, &[Some(3)]), &golden);
                        assert!(found <= allowed, "{label}: logits differ by {found}, allowed are {allowed}");
                        let without = largest_difference(&runner.prefill(&text), &golden);
                        assert!(without > 20.0 * allowed, "{label}: the adapter changes nothing");
                        runner.decoder.unadapt(3);
                        let gone = runner.adapted_step(&work, &[Some(3)]);
                        assert!(gone == runner.prefill(&text), "{label}: an empty slot adds something");
                    }
                );
            }
        }
    }
}

#[test]
fn adapters_and_the_model_in_one_batch_compute_what_each_does_alone() {
    let [files, _] = models("qwen3");
    let (all, layer) = (adapter("qwen3-all", false, &files), adapter("qwen3-layer", true, &files));
    let text = Golden::open("qwen3").text();
    let vocab = files.spec.vocab;
    on_every_backend!(&files, "qwen3 with adapters", |runner, label| {
        let base = runner.prefill(&text);
        runner.decoder.adapt(&mut runner.backend, 0, &all).unwrap();
        runner.decoder.adapt(&mut runner.backend, 2, &layer).unwrap();
        assert!(runner.prefill(&text) == base, "{label}: adapters that nobody asks for change something");
        let adapters = [Some(2), None, Some(0), None, Some(2)];
        let mut alone = Vec::new();
        for adapter in adapters {
            let work = [Work { tokens: &text, rows: text.len(), blocks: &scattered(0) }];
            alone.push(runner.adapted_step(&work, &[adapter]));
        }
        assert!(alone[1] == base, "{label}: without an adapter beside ones");
        assert!(alone[0] != base && alone[2] != base && alone[0] != alone[2], "{label}: adapters differ");
        // Prompts in chunks of several lengths, then tokens one by one, five sequences side by side.
        let blocks: Vec<Vec<u32>> = (0..5).map(|i| (8 * i..8 * i + 8).rev().collect()).collect();
        let (mut done, mut found) = ([0; 5], vec![Vec::new(); 5]);
        for chunk in [[7, 1, 16, 3, 9], [1, 20, 2, 30, 9], [1; 5], [1; 5]] {
            let works: Vec<Work<'_>> = (0..5)
                .map(|i| Work { tokens: &text[..done[i] + chunk[i]], rows: chunk[i], blocks: &blocks[i] })
                .collect();
            let logits = runner.adapted_step(&works, &adapters);
            let mut rest = &logits[..];
            for i in 0..5 {
                let (own, after) = rest.split_at(chunk[i] * vocab);
                found[i].extend_from_slice(own);
                (rest, done[i]) = (after, done[i] + chunk[i]);
            }
        }
        for (i, found) in found.iter().enumerate() {
            assert!(found[..] == alone[i][..found.len()], "{label}: sequence {i} in company differs");
        }
    });
}

#[test]
fn what_adapters_take_is_counted() {
    let [files, _] = models("qwen3");
    let adapter = adapter("qwen3-all", false, &files);
    let backend =
        AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(1)), Tier::available().last().unwrap()));
    let (bytes, buffers) = Decoder::adapter_bytes(&backend, &files.spec, &adapter, 32);
    // All of its widths fill vectors, so that nothing is added to what it has.
    assert_eq!(bytes, adapter.size_bytes);
    assert_eq!(buffers, 4 * 32 * (3 * crate::limits::ADAPTER_RANK_MAX as u64 + 2 * 96));
}
