//! Adapters as llama.cpp's `convert_lora_to_gguf.py` writes them: `blk.N.attn_q.weight.lora_a` and `.lora_b`, and one alpha.

use std::collections::BTreeMap;

use hanzo_engine_kernels::RopeKind;

use super::{Adapter, Half, Read, adaptable, refused};
use crate::error::LoadError;
use crate::gguf::Gguf;
use crate::mapped::ModelBytes;
use crate::spec::{Names, TransformerSpec};

/// GGUF's architectures by what a configuration of the transformers library calls them.
const SAME_ARCHITECTURE: &[(&str, &str)] =
    &[("mistral", "llama"), ("mixtral", "llama"), ("qwen3_moe", "qwen3moe")];

pub(super) fn parse(file: &str, bytes: &ModelBytes, spec: &TransformerSpec) -> Result<Adapter, LoadError> {
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
    let same = SAME_ARCHITECTURE.iter().find(|(name, _)| *name == spec.architecture);
    let architecture = same.map_or(spec.architecture.as_str(), |(_, gguf)| gguf);
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
    let by_name = adaptable(spec, |weight| Names::of_gguf(&spec.architecture).of("", weight));
    let mut halves: BTreeMap<_, Half> = BTreeMap::new();
    for tensor in gguf.tensors {
        let (stem, is_a) = match (tensor.name.strip_suffix(".lora_a"), tensor.name.strip_suffix(".lora_b")) {
            (Some(stem), _) => (stem, true),
            (_, Some(stem)) => (stem, false),
            _ => return Err(refused(&tensor, "it is neither a .lora_a nor a .lora_b")),
        };
        let weight = match by_name.get(stem.strip_suffix(".weight").unwrap_or(stem)) {
            Some(Ok(weight)) => *weight,
            Some(Err(reason)) => return Err(refused(&tensor, *reason)),
            None => {
                return Err(refused(&tensor, "the model has no such matrix; load an adapter made for it"));
            }
        };
        let half = halves.entry(weight).or_default();
        if is_a { half.a = Some(tensor) } else { half.b = Some(tensor) }
    }
    // The converter permutes llama's queries and keys as that of whole models does.
    let rope = if architecture == "llama" { RopeKind::Interleaved } else { RopeKind::Neox };
    let read = Read { file: file.to_owned(), format: "gguf", rope, halves };
    Adapter::checked(read, spec, |_, a| Ok(alpha / a.shape[0] as f32))
}
