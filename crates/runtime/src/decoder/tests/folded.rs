//! Adapters of every family and every projection: PEFT's own definition is that an adapter computes what the model computes whose
//! matrices are `W + scale · B · A`. Each tiny model is loaded so, under its published names, and beside it with the adapter, on
//! safetensors and on GGUF.

mod families;
mod kinds;

use serde_json::json;

use super::*;
use crate::adapter::Adapter;

/// Rank of all adapters here, and the factor on what they give.
const RANK: usize = 2;
const SCALE: f32 = 2.0;

/// Modules that take no adapters, by the end of their names, and words of the reason.
const REFUSED: &[(&str, &str)] = &[
    // Experts, their routers, and the MLP beside them.
    ("", "routers and experts take no adapters"),
    ("q_proj", "queries of latent attention take no adapters"),
    ("q_a_proj", "queries of latent attention take no adapters"),
    ("q_b_proj", "queries of latent attention take no adapters"),
    ("kv_b_proj", "keys and values of latents take no adapters"),
    // Gemma 3n's embeddings for each layer, and what makes and joins streams.
    ("", "laurel, AltUp and inputs of single layers take no adapters"),
];
/// GGUF files whose rows are not the published ones, and words of the reason.
const REFUSED_ON_GGUF: &[(&str, &str)] = &[
    ("states/falcon-h1", "load the model from safetensors"),
    ("states/falcon-h1-norm", "load the model from safetensors"),
    ("states/qwen3_5", "load the model from safetensors"),
    ("states/qwen3_5-moe", "load the model from safetensors"),
];

/// A matrix of a model as published.
struct Module {
    name: String, // without `.weight`
    outputs: usize,
    inputs: usize,
}

/// splitmix64, as a number of at most a quarter that every float type holds.
fn number(seed: u64) -> f32 {
    let z = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) % 129) as f32 / 256.0 - 0.25
}

impl Module {
    fn seed(&self, half: u64) -> u64 {
        self.name.bytes().fold(half, |seed, byte| seed.wrapping_mul(1099).wrapping_add(u64::from(byte))) << 20
    }

    /// (RANK, inputs)
    fn a(&self) -> Vec<f32> {
        (0..RANK * self.inputs).map(|at| number(self.seed(1) + at as u64)).collect()
    }

    /// (outputs, RANK)
    fn b(&self) -> Vec<f32> {
        (0..self.outputs * RANK).map(|at| number(self.seed(2) + at as u64)).collect()
    }

    /// (outputs, inputs)
    fn delta(&self) -> Vec<f32> {
        let (a, b) = (self.a(), self.b());
        let at = |row: usize, col: usize| {
            SCALE * (0..RANK).map(|k| b[row * RANK + k] * a[k * self.inputs + col]).sum::<f32>()
        };
        (0..self.outputs)
            .flat_map(|row| (0..self.inputs).map(move |col| (row, col)))
            .map(|(r, c)| at(r, c))
            .collect()
    }
}

/// A tiny model as published.
struct Published {
    folder: PathBuf,
    tensors: Vec<crate::tensor::Tensor>,
    inputs_first: bool,
}

impl Published {
    fn open(folder: PathBuf) -> Self {
        let bytes = fs::read(folder.join("model.safetensors")).unwrap();
        let tensors = crate::safetensors::parse("model", &bytes.into()).unwrap();
        let inputs_first = folder.ends_with("gpt2");
        Self { folder, tensors, inputs_first }
    }

    /// Matrices of layers.
    fn modules(&self) -> Vec<Module> {
        let of = |tensor: &crate::tensor::Tensor| {
            let name = tensor.name.strip_suffix(".weight")?;
            let in_layer = name.split('.').any(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
            let &[rows, cols] = tensor.shape.as_slice() else { return None };
            let [outputs, inputs] = if self.inputs_first { [cols, rows] } else { [rows, cols] };
            (in_layer && !name.contains("norm")).then(|| Module { name: name.to_owned(), outputs, inputs })
        };
        let mut modules: Vec<Module> = self.tensors.iter().filter_map(of).collect();
        modules.sort_by(|a, b| a.name.cmp(&b.name));
        modules
    }

    /// The model with `W + scale · B · A` in place of these matrices.
    fn folded(&self, modules: &[Module]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(&self.folder).unwrap().flatten() {
            if entry.path().extension().is_some_and(|ext| ext == "json" || ext == "model") {
                fs::copy(entry.path(), directory.path().join(entry.file_name())).unwrap();
            }
        }
        let values = |tensor: &crate::tensor::Tensor| {
            let mut values = tensor.to_f32().unwrap();
            let module =
                modules.iter().find(|module| tensor.name.strip_suffix(".weight") == Some(&module.name));
            for (at, delta) in module.into_iter().flat_map(|module| module.delta().into_iter().enumerate()) {
                let cols = tensor.shape[1];
                let at = match self.inputs_first {
                    true => at % tensor.shape[0] * cols + at / tensor.shape[0],
                    false => at,
                };
                values[at] += delta;
            }
            values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>()
        };
        let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = self
            .tensors
            .iter()
            .map(|tensor| (tensor.name.clone(), tensor.shape.clone(), values(tensor)))
            .collect();
        let views = tensors
            .iter()
            .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
        let bytes = safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap();
        fs::write(directory.path().join("model.safetensors"), bytes).unwrap();
        directory
    }

    fn adapter(&self, modules: &[Module], files: &ModelFiles) -> Result<Adapter, LoadError> {
        let bytes = |values: Vec<f32>| values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
        let halves = modules.iter().flat_map(|module| {
            let name = |half| format!("base_model.model.{}.{half}.weight", module.name);
            [
                (name("lora_A"), vec![RANK, module.inputs], bytes(module.a())),
                (name("lora_B"), vec![module.outputs, RANK], bytes(module.b())),
            ]
        });
        let halves: Vec<_> = halves.collect();
        let views = halves
            .iter()
            .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
        let weights = safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap();
        let config = json!({
            "peft_type": "LORA", "r": RANK, "lora_alpha": SCALE * RANK as f32, "target_modules": "all-linear",
            "fan_in_fan_out": self.inputs_first,
        });
        Adapter::from_peft("adapter", config.to_string().as_bytes(), &weights.into(), &files.adapter_base())
    }
}

/// Folders of tiny models with published weights.
fn folders() -> Vec<PathBuf> {
    let kinds = ["tiny", "dense", "mixtures", "states"].into_iter();
    let mut folders: Vec<PathBuf> = kinds
        .flat_map(|kind| fs::read_dir(data(kind)).unwrap().flatten().map(|entry| entry.path()))
        .filter(|folder| folder.join("model.safetensors").exists())
        .collect();
    folders.sort();
    folders
}

/// The end of a module's name, without the numbers of layers and experts.
fn kind_of(module: &str) -> String {
    let parts: Vec<&str> = module.split('.').collect();
    let last =
        parts.iter().rposition(|part| part.bytes().all(|byte| byte.is_ascii_digit())).map_or(0, |at| at + 1);
    let experts = if module.contains("experts.") { "experts." } else { "" };
    format!("{experts}{}", parts[last..].join("."))
}

#[test]
fn every_projection_of_every_family_takes_adapters_as_peft_makes_them() {
    let mut failed = Vec::new();
    for folder in folders() {
        let published = Published::open(folder.clone());
        let files = match ModelFiles::open(&folder) {
            Ok(files) => files,
            Err(error) => {
                failed.push(format!("{}: {error}", folder.display()));
                continue;
            }
        };
        let label = folder.strip_prefix(data("")).unwrap_or(&folder).display().to_string();
        let (mut taken, mut refused) = (Vec::new(), BTreeMap::new());
        for module in published.modules() {
            match published.adapter(std::slice::from_ref(&module), &files) {
                Ok(_) => taken.push(module),
                // PEFT adapts the keys and values that layers do not use, because they read those of another.
                Err(LoadError::Missing { what, .. }) if what.contains("any pair") => taken.push(module),
                Err(error) => _ = refused.insert(kind_of(&module.name), error.to_string()),
            }
        }
        for (kind, reason) in &refused {
            let known = REFUSED.iter().any(|(end, words)| kind.ends_with(end) && reason.contains(words));
            if !known {
                failed.push(format!("{label}: {kind} is refused: {reason}"));
            }
        }
        let text = Golden::read(&folder).text();
        let folded = ModelFiles::open(published.folded(&taken).path()).unwrap();
        let expected = Runner::new(AnyBackend::new(ReferenceBackend::new()), &folded).prefill(&text);
        let plain = Runner::new(AnyBackend::new(ReferenceBackend::new()), &files).prefill(&text);
        let allowed = TOLERANCE * range(&expected);
        if largest_difference(&plain, &expected) < 20.0 * allowed {
            failed.push(format!("{label}: the adapter changes nothing"));
        }
        let gguf = folder.join("model.gguf");
        for path in [folder.clone()].into_iter().chain(gguf.exists().then_some(gguf)) {
            let files = ModelFiles::open(&path).unwrap();
            let name = format!("{label} ({})", files.info.format);
            let adapter = match published.adapter(&taken, &files) {
                Ok(adapter) => adapter,
                Err(error) => {
                    let known = |&(folder, words): &(&str, &str)| {
                        folder == label && error.to_string().contains(words)
                    };
                    if path == folder || !REFUSED_ON_GGUF.iter().any(known) {
                        failed.push(format!("{name}: {error}"));
                    }
                    continue;
                }
            };
            let work = [Work { tokens: &text, rows: text.len(), blocks: &scattered(0) }];
            let mut on_reference = Runner::new(AnyBackend::new(ReferenceBackend::new()), &files);
            on_reference.decoder.adapt(&mut on_reference.backend, 3, &adapter).unwrap();
            let tier = Tier::available().last().unwrap();
            let mut on_cpu =
                Runner::new(AnyBackend::new(CpuBackend::new(Arc::new(ThreadPool::new(2)), tier)), &files);
            on_cpu.decoder.adapt(&mut on_cpu.backend, 3, &adapter).unwrap();
            let reference = largest_difference(&on_reference.adapted_step(&work, &[Some(3)]), &expected);
            let cpu = largest_difference(&on_cpu.adapted_step(&work, &[Some(3)]), &expected);
            println!(
                "{name}: {} modules, {:.1e} of the range, {:.1e} on the CPU",
                taken.len(),
                reference / range(&expected),
                cpu / range(&expected)
            );
            // A sequence without an adapter beside one has the bits that it has alone.
            let alone = on_cpu.prefill(&text);
            let both = [Some(3), None].map(|_| Work { tokens: &text, rows: text.len(), blocks: &[] });
            let [first, second] = [scattered(0), scattered(1)];
            let [a, b] = both;
            let company = on_cpu.adapted_step(
                &[Work { blocks: &first, ..a }, Work { blocks: &second, ..b }],
                &[Some(3), None],
            );
            if company[alone.len()..] != alone[..] {
                failed.push(format!("{name}: an adapter beside it changes a sequence without one"));
            }
            if !(reference <= allowed && cpu <= allowed) {
                failed.push(format!(
                    "{name}: logits differ by {reference} and {cpu} on the CPU, allowed are {allowed}"
                ));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// llama.cpp's converter permutes queries and keys where the published model rotates halves of heads and GGUF's neighbours.
#[test]
fn rows_are_permuted_where_the_two_formats_rotate_in_another_way() {
    let mut seen = 0;
    for folder in folders() {
        let gguf = folder.join("model.gguf");
        if !gguf.exists() {
            continue;
        }
        let [published, converted] = [folder.clone(), gguf].map(|path| ModelFiles::open(&path).unwrap().spec);
        let kind = |spec: &TransformerSpec| spec.ropes.first().map(|rope| rope.kind);
        // Without rotation the order of rows shows in what adapters compute alone.
        if let (Some(published), Some(gguf)) = (kind(&published), kind(&converted)) {
            assert_eq!(converted.permuted, published != gguf, "{}", folder.display());
        }
        assert!(!published.permuted, "{}", folder.display());
        seen += usize::from(converted.permuted);
    }
    assert!(seen > 10, "{seen} folders have permuted rows");
}
