//! Adapters of every kind beside PEFT, on every family: magnitudes, biases, embeddings, heads, and weights in place of the model's.
//! tests/data/make_adapted_kinds.py says how its log probabilities were made.

use hanzo_engine_ops::{AnyBackend, TensorParallel};
use serde_json::Value;

use super::families::last_log_probabilities;
use super::*;

/// Models as GGUF that refuse a kind, and words of the reason.
const KINDS_REFUSED_ON_GGUF: &[(&str, &str)] = &[
    ("states/falcon-h1", "load the model from safetensors"),
    ("states/falcon-h1-norm", "load the model from safetensors"),
    ("states/qwen3_5", "load the model from safetensors"),
    ("states/qwen3_5-moe", "load the model from safetensors"),
    ("", "GGUF files have this family's norms in another form"),
];

/// Modules that an adapter changes.
struct ChangedModules {
    kind: String,
    pairs: Vec<String>,
    weights: Vec<String>,
    biases: Vec<String>,
}

/// Numbers of an adapter's file.
struct NamedNumbers {
    name: String,
    shape: Vec<usize>,
    numbers: Vec<f32>,
}

impl ChangedModules {
    fn read(label: &str, metadata: &Value, published: &Published) -> Self {
        let (model, kind) = label.split_once(' ').unwrap();
        let parts: Value = serde_json::from_str(metadata[model].as_str().unwrap()).unwrap();
        let names = |key: &str| -> Vec<String> {
            let names = parts[key].as_array().into_iter().flatten();
            names.map(|name| name.as_str().unwrap().to_owned()).collect()
        };
        let (mut pairs, mut weights, mut biases) = (names("pairs"), Vec::new(), Vec::new());
        match kind {
            "embeddings" => pairs.extend(names("ends")),
            "biases" => biases = names("biases"),
            "saved" => {
                weights = [names("ends"), names("norms")].concat();
                let has = |name: &&String| {
                    published.tensors.iter().any(|tensor| tensor.name == format!("{name}.bias"))
                };
                biases = weights.iter().filter(has).cloned().collect();
            }
            _ => {}
        }
        Self { kind: kind.to_owned(), pairs, weights, biases }
    }

    /// The adapter's tensors as PEFT saves them.
    fn tensors(&self, published: &Published) -> Vec<NamedNumbers> {
        let mut tensors = Vec::new();
        for (index, name) in self.pairs.iter().enumerate() {
            let is_embedding = self.kind == "embeddings" && index + 2 == self.pairs.len();
            let [outputs, inputs] = published.shape(name);
            let base = format!("base_model.model.{name}");
            let mut put = |suffix: &str, shape: Vec<usize>, half: u64, plus: f32| {
                let count = shape.iter().product();
                let numbers = numbers(name, half, count).into_iter().map(|number| number + plus).collect();
                tensors.push(NamedNumbers { name: format!("{base}.{suffix}"), shape, numbers });
            };
            match is_embedding {
                true => {
                    put("lora_embedding_A", vec![RANK, outputs], 1, 0.0);
                    put("lora_embedding_B", vec![inputs, RANK], 2, 0.0);
                    continue;
                }
                false => {
                    put("lora_A.weight", vec![RANK, inputs], 1, 0.0);
                    put("lora_B.weight", vec![outputs, RANK], 2, 0.0);
                }
            }
            match self.kind.as_str() {
                "dora" => put("lora_magnitude_vector", vec![outputs], 3, 0.5),
                "biases" => put("lora_B.bias", vec![outputs], 6, 0.0),
                _ => {}
            }
        }
        for (names, suffix, half) in [(&self.weights, "weight", 5), (&self.biases, "bias", 4)] {
            for name in names {
                let own = published.tensor(name, suffix);
                let more = numbers(name, half, own.elements());
                let numbers = own.to_f32().unwrap().iter().zip(more).map(|(own, more)| own + more).collect();
                let between = if suffix == "bias" && self.pairs.contains(name) { "base_layer." } else { "" };
                let name = format!("base_model.model.{name}.{between}{suffix}");
                tensors.push(NamedNumbers { name, shape: own.shape.clone(), numbers });
            }
        }
        tensors
    }

    fn adapter(&self, published: &Published, files: &ModelFiles) -> Result<Adapter, LoadError> {
        let tensors = self.tensors(published);
        let bytes: Vec<Vec<u8>> = tensors
            .iter()
            .map(|tensor| tensor.numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
            .collect();
        let views = tensors.iter().zip(&bytes).map(|(tensor, bytes)| {
            (tensor.name.as_str(), TensorView::new(Dtype::F32, tensor.shape.clone(), bytes).unwrap())
        });
        let weights = safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap();
        let is_biases = self.kind == "biases";
        let config = json!({
            "peft_type": "LORA", "r": RANK, "lora_alpha": SCALE * RANK as f32, "target_modules": "all-linear",
            "fan_in_fan_out": published.inputs_first, "use_dora": self.kind == "dora", "lora_bias": is_biases,
            "bias": if is_biases { "all" } else { "none" }, "modules_to_save": self.weights,
        });
        Adapter::from_peft("adapter", config.to_string().as_bytes(), &weights.into(), &files.adapter_base())
    }
}

/// The numbers of a half of a module.
fn numbers(name: &str, half: u64, count: usize) -> Vec<f32> {
    let module = Module { name: name.to_owned(), outputs: 0, inputs: 0 };
    (0..count).map(|at| number(module.seed(half) + at as u64)).collect()
}

impl Published {
    /// A tensor of a module; of a tied head the embedding.
    fn tensor(&self, module: &str, suffix: &str) -> &crate::tensor::Tensor {
        let find = |name: &str| self.tensors.iter().find(|tensor| tensor.name == name);
        let is_embedding = |tensor: &&crate::tensor::Tensor| {
            [
                "embed_tokens.weight",
                "embeddings.weight",
                "wte.weight",
                "embed_in.weight",
                "word_embeddings.weight",
            ]
            .iter()
            .any(|end| tensor.name.ends_with(end) && !tensor.name.contains("layers."))
        };
        let own = if module == "lm_head" { "embed_out" } else { module };
        find(&format!("{module}.{suffix}"))
            .or_else(|| find(&format!("{own}.{suffix}")))
            .or_else(|| self.tensors.iter().find(is_embedding))
            .unwrap_or_else(|| panic!("{}: no {module}.{suffix}", self.folder.display()))
    }

    /// Outputs and inputs of a module, or tokens and widths.
    fn shape(&self, module: &str) -> [usize; 2] {
        let tensor = self.tensor(module, "weight");
        let &[rows, cols] = tensor.shape.as_slice() else { panic!("{module} is no matrix") };
        let turns =
            self.inputs_first && module.split('.').any(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
        if turns { [cols, rows] } else { [rows, cols] }
    }
}

#[test]
fn every_kind_of_adapter_of_every_family_computes_what_peft_does() {
    let bytes = fs::read(data("adapters").join("kinds.safetensors")).unwrap();
    let length = u64::from_le_bytes(*bytes.first_chunk::<8>().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let tensors = crate::safetensors::parse("kinds", &bytes.into()).unwrap();
    assert!(tensors.len() > 250, "{} models and kinds", tensors.len());
    let mut failed = Vec::new();
    for tensor in tensors {
        let name = tensor.name.split_once(' ').unwrap().0;
        let folder = data(name);
        let published = Published::open(folder.clone());
        let changed = ChangedModules::read(&tensor.name, &header["__metadata__"], &published);
        let golden = tensor.to_f32().unwrap();
        // Golden ones have 11 binary digits.
        let largest = golden.iter().map(|value| value.abs()).fold(0.0, f32::max);
        let allowed = TOLERANCE * range(&golden) + largest / 2048.0;
        let text = Golden::read(&folder).text();
        let gguf = folder.join("model.gguf");
        for path in [folder.clone()].into_iter().chain(gguf.exists().then_some(gguf)) {
            let files = ModelFiles::open(&path).unwrap();
            let label = format!("{} ({})", tensor.name, files.info.format);
            let adapter = match changed.adapter(&published, &files) {
                Ok(adapter) => adapter,
                Err(error) => {
                    let known = |&(of, words): &(&str, &str)| {
                        (of.is_empty() || of == name) && error.to_string().contains(words)
                    };
                    if path == folder || !KINDS_REFUSED_ON_GGUF.iter().any(known) {
                        failed.push(format!("{label}: {error}"));
                    }
                    continue;
                }
            };
            let tier = Tier::available().last().unwrap();
            let mut runner =
                Runner::new(AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier)), &files);
            let alone = runner.prefill(&text);
            runner.decoder.adapt(&mut runner.backend, 3, &adapter).unwrap();
            let work = [Work { tokens: &text, rows: text.len(), blocks: &scattered(0) }];
            let logits = runner.adapted_step(&work, &[Some(3)]);
            let found = last_log_probabilities(&logits, files.spec.vocab, golden.len());
            let off = largest_difference(&found, &golden);
            println!("PEFT {label}: |Δ log p| {off:.1e}, allowed {allowed:.1e}");
            if off.is_nan() || off > allowed {
                failed.push(format!("{label}: log probabilities differ by {off}, allowed are {allowed}"));
            }
            // A sequence without an adapter beside one has the bits that it has alone, and so has the other.
            let [first, second] = [scattered(0), scattered(1)];
            let of = |blocks| Work { tokens: &text, rows: text.len(), blocks };
            let company = runner.adapted_step(&[of(&first), of(&second)], &[Some(3), None]);
            if company[..logits.len()] != logits[..] || company[logits.len()..] != alone[..] {
                failed.push(format!("{label}: sequences of one step change each other"));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Sequences of these adapters and of none in one step, and each alone: the bits are the same.
fn check_company(mut runner: Runner, adapters: &[Adapter], text: &[u32], label: &str) {
    let work = |blocks| Work { tokens: text, rows: text.len(), blocks };
    let own = scattered(0);
    for (slot, adapter) in (0..).zip(adapters) {
        runner.decoder.adapt(&mut runner.backend, slot, adapter).unwrap();
    }
    let base = runner.adapted_step(&[work(&own)], &[None]);
    let order = [Some(2), None, Some(0), Some(3), Some(1), None];
    let mut alone = Vec::new();
    for adapter in order {
        let logits = runner.adapted_step(&[work(&own)], &[adapter]);
        assert_eq!(logits == base, adapter.is_none(), "{label}: {adapter:?} alone");
        alone.extend(logits);
    }
    let blocks: Vec<Vec<u32>> = (0..order.len() as u32).map(|i| (4 * i..4 * i + 4).rev().collect()).collect();
    let works: Vec<Work<'_>> = blocks.iter().map(|blocks| work(blocks)).collect();
    assert!(runner.adapted_step(&works, &order) == alone, "{label}: sequences of one step change each other");
    for slot in 0..adapters.len() as u32 {
        runner.decoder.unadapt(slot);
    }
    let gone = runner.adapted_step(&[work(&own)], &[Some(2)]);
    assert!(gone == base, "{label}: an empty slot changes something");
}

#[test]
fn kinds_of_adapters_beside_each_other_compute_what_each_does_alone() {
    let bytes = fs::read(data("adapters").join("kinds.safetensors")).unwrap();
    let length = u64::from_le_bytes(*bytes.first_chunk::<8>().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    for case in ["tiny/qwen3", "dense/starcoder2"] {
        let folder = data(case);
        let (published, files) = (Published::open(folder.clone()), ModelFiles::open(&folder).unwrap());
        let adapters = ["dora", "biases", "saved", "embeddings"].map(|kind| {
            let label = format!("{case} {kind}");
            let changed = ChangedModules::read(&label, &header["__metadata__"], &published);
            changed.adapter(&published, &files).unwrap_or_else(|error| panic!("{label}: {error}"))
        });
        let text = &Golden::read(&folder).text()[..9];
        check_company(
            Runner::new(AnyBackend::new(ReferenceBackend::new()), &files),
            &adapters,
            text,
            "the reference",
        );
        for tier in Tier::available() {
            let backend = AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier));
            check_company(Runner::new(backend, &files), &adapters, text, &format!("{case} on {tier:?}"));
        }
        let ranks = (0..2).map(|_| CpuBackend::new(Arc::new(ThreadPool::new(1)), Tier::Portable)).collect();
        let ranks = TensorParallel::new(ranks, files.spec.undivided_caches().unwrap());
        let ranks = AnyBackend::of_executor(ranks);
        check_company(Runner::new(ranks, &files), &adapters, text, &format!("{case} on two ranks"));
    }
}
