//! Adapters as written by llama.cpp's `convert_lora_to_gguf.py`: `blk.N.attn_q.weight.lora_a` and `.lora_b`, and one
//! alpha.

use std::collections::BTreeMap;

use super::{Adapter, AdapterBase, FileContent, FileDelta, Matrices, refused};
use crate::error::LoadError;
use crate::gguf::Gguf;
use crate::mapped::ModelBytes;
use crate::spec::{Names, is_permuted};

/// GGUF architectures by the transformers library's model types, if the two differ. Of several types of an
/// architecture, the first has the tensor names of all.
const ARCHITECTURES: &[(&str, &str)] = &[
    ("mistral", "llama"),
    ("mixtral", "llama"),
    ("internlm3", "llama"),
    ("qwen2_moe", "qwen2moe"),
    ("qwen3_moe", "qwen3moe"),
    ("qwen3_next", "qwen3next"),
    ("qwen3_5_text", "qwen35"),
    ("qwen3_5_moe_text", "qwen35moe"),
    ("deepseek_v3", "deepseek2"),
    ("deepseek_v2", "deepseek2"),
    ("kimi_k2", "deepseek2"),
    ("glm4_moe_lite", "deepseek2"),
    ("gpt_oss", "gpt-oss"),
    ("glm4_moe", "glm4moe"),
    ("solar_open", "glm4moe"),
    ("granitemoe", "granitemoe"),
    ("granitemoeshared", "granitemoe"),
    ("granitemoehybrid", "granitehybrid"),
    ("ernie4_5_moe", "ernie4_5-moe"),
    ("minimax_m2", "minimax-m2"),
    ("bailing_moe", "bailingmoe"),
    ("bailing_moe_v2", "bailingmoe2"),
    ("exaone_moe", "exaone-moe"),
    ("llama4_text", "llama4"),
    ("hunyuan_v1_moe", "hunyuan-moe"),
    ("hunyuan_v1_dense", "hunyuan-dense"),
    ("cohere", "command-r"),
    ("cohere2_moe", "cohere2moe"),
    ("falcon_h1", "falcon-h1"),
    ("lfm2_moe", "lfm2moe"),
    ("gemma3_text", "gemma3"),
    ("gemma3n_text", "gemma3n"),
    ("gemma4_text", "gemma4"),
    ("olmo3", "olmo2"),
    ("gpt_neox", "gptneox"),
    ("gpt_bigcode", "starcoder"),
    ("phi", "phi2"),
];

/// GGUF architecture of a model type or of an architecture.
fn architecture_of(name: &str) -> &str {
    ARCHITECTURES
        .iter()
        .find(|(model_type, _)| *model_type == name)
        .map_or(name, |(_, architecture)| architecture)
}

/// Model type whose tensor names the published models of an architecture have.
pub(super) fn model_type(architecture: &str) -> &str {
    if architecture == "nemotron_h_moe" {
        return "nemotron_h";
    }
    // A name may be both: `llama` is also the model type that GGUF's `llama` is named after.
    let is_type = ARCHITECTURES.iter().any(|(model_type, _)| *model_type == architecture);
    let found = ARCHITECTURES.iter().find(|(_, gguf)| *gguf == architecture && *gguf != "llama");
    found.filter(|_| !is_type).map_or(architecture, |(model_type, _)| model_type)
}

pub(super) fn parse(file: &str, bytes: &ModelBytes, base: &AdapterBase<'_>) -> Result<Adapter, LoadError> {
    let spec = base.spec;
    let gguf = Gguf::parse(file, bytes)?;
    let metadata = &gguf.metadata;
    let must_be = |key: &str, wanted: &str, reason: &str| match metadata.string(key)? {
        Some(found) if found == wanted => Ok(()),
        found => Err(LoadError::Unsupported {
            file: file.to_owned(),
            key: key.to_owned(),
            value: found.unwrap_or("nothing").to_owned(),
            reason: reason.to_owned(),
        }),
    };
    must_be("general.type", "adapter", "this is no file of an adapter: those say adapter")?;
    must_be("adapter.type", "lora", "adapters of type lora can be computed")?;
    let architecture = architecture_of(&spec.architecture);
    let reason = format!("the model's architecture is {architecture}; load an adapter made for it");
    must_be("general.architecture", architecture, &reason)?;
    let alpha = metadata.f32("adapter.lora.alpha")?.ok_or_else(|| metadata.missing("adapter.lora.alpha"))?;
    if !alpha.is_finite() {
        return Err(metadata.corrupt("adapter.lora.alpha", format!("{alpha} is no number")));
    }
    if let Some(key) = metadata.iter().map(|(key, _)| key).find(|key| key.starts_with("adapter.alora")) {
        return Err(LoadError::Unsupported {
            file: file.to_owned(),
            key: key.to_owned(),
            value: "set".into(),
            reason: "adapters that begin at certain tokens cannot be computed".into(),
        });
    }
    let mut files: BTreeMap<String, FileDelta> = BTreeMap::new();
    for tensor in gguf.tensors {
        let (stem, is_a) = match (tensor.name.strip_suffix(".lora_a"), tensor.name.strip_suffix(".lora_b")) {
            (Some(stem), _) => (stem, true),
            (_, Some(stem)) => (stem, false),
            _ => return Err(refused(&tensor, "it is neither a .lora_a nor a .lora_b")),
        };
        let module = stem.strip_suffix(".weight").unwrap_or(stem).to_owned();
        let found = files.entry(module).or_default();
        FileDelta::put(if is_a { &mut found.a } else { &mut found.b }, tensor)?;
    }
    let matrices = Matrices::new(spec, Names::of_gguf(architecture), "");
    let mut deltas = BTreeMap::new();
    for (module, found) in files {
        let (_, b) = found.halves(file)?;
        let Some(parts) = matrices.parts(&module, b)? else { continue };
        deltas.extend(
            parts.into_iter().map(|(weight, b)| {
                (weight, FileDelta { module: module.clone(), b: Some(b), ..found.clone() })
            }),
        );
    }
    // The converter permutes queries and keys as for whole models.
    let permuted = is_permuted(architecture);
    let content = FileContent { file: file.to_owned(), format: "gguf", permuted, deltas };
    // The rank is the number of B's columns: A of embeddings has its rows by token.
    Adapter::checked(content, base, |found, a| {
        let rank = found.b.as_ref().and_then(|b| b.shape.get(1)).or(a.shape.first());
        Ok(alpha / rank.copied().unwrap_or(1).max(1) as f32)
    })
}
