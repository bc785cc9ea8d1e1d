//! Adapters of every family beside PEFT: tests/data/make_adapted.py says how its log probabilities were made.

use super::*;

/// Log probabilities of the last rows of logits.
pub(super) fn last_log_probabilities(logits: &[f32], vocab: usize, count: usize) -> Vec<f32> {
    let rows = logits[logits.len() - count..].chunks_exact(vocab);
    let of_row = |row: &[f32]| {
        let most = row.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = row.iter().map(|&logit| f64::from(logit - most).exp()).sum();
        row.iter().map(|&logit| logit - most - sum.ln() as f32).collect::<Vec<f32>>()
    };
    rows.flat_map(of_row).collect()
}

#[test]
fn every_family_computes_what_peft_does() {
    let bytes = fs::read(data("adapters").join("families.safetensors")).unwrap();
    let length = u64::from_le_bytes(*bytes.first_chunk::<8>().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let tensors = crate::safetensors::parse("families", &bytes.into()).unwrap();
    assert!(tensors.len() > 70, "{} models", tensors.len());
    let mut failed = Vec::new();
    for tensor in tensors {
        let names = header["__metadata__"][tensor.name.as_str()].as_str().unwrap();
        let names: Vec<String> = serde_json::from_str(names).unwrap();
        let folder = data(&tensor.name);
        let published = Published::open(folder.clone());
        let mut modules = published.modules();
        modules.retain(|module| names.contains(&module.name));
        assert_eq!(modules.len(), names.len(), "{}: modules", tensor.name);
        let golden = tensor.to_f32().unwrap();
        // Golden ones have 11 binary digits.
        let largest = golden.iter().map(|value| value.abs()).fold(0.0, f32::max);
        let allowed = TOLERANCE * range(&golden) + largest / 2048.0;
        let text = Golden::read(&folder).text();
        let gguf = folder.join("model.gguf");
        for path in [folder.clone()].into_iter().chain(gguf.exists().then_some(gguf)) {
            let files = ModelFiles::open(&path).unwrap();
            let label = format!("{} ({})", tensor.name, files.info.format);
            let adapter = match published.adapter(&modules, &files) {
                Ok(adapter) => adapter,
                Err(error) => {
                    let known = |&(name, words): &(&str, &str)| {
                        name == tensor.name && error.to_string().contains(words)
                    };
                    if path == folder || !REFUSED_ON_GGUF.iter().any(known) {
                        failed.push(format!("{label}: {error}"));
                    }
                    continue;
                }
            };
            let tier = Tier::available().last().unwrap();
            let mut runner =
                Runner::new(AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier)), &files);
            runner.decoder.adapt(&mut runner.backend, 3, &adapter).unwrap();
            let work = [Work { tokens: &text, rows: text.len(), blocks: &scattered(0) }];
            let logits = runner.adapted_step(&work, &[Some(3)]);
            let found = last_log_probabilities(&logits, files.spec.vocab, golden.len());
            let off = largest_difference(&found, &golden);
            println!("PEFT {label}: {} modules, |Δ log p| {off:.1e}, allowed {allowed:.1e}", modules.len());
            if off.is_nan() || off > allowed {
                failed.push(format!("{label}: log probabilities differ by {off}, allowed are {allowed}"));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
