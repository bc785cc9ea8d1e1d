//! Adapters as written by llama.cpp's `convert_lora_to_gguf.py`: `blk.N.attn_q.weight.lora_a` and `.lora_b`, and one
//! alpha.

use std::collections::BTreeMap;

use super::{Adapter, AdapterBase, FileContent, FileDelta, Matrices, refused};
use crate::error::LoadError;
use crate::gguf::Gguf;
use crate::mapped::ModelBytes;
use crate::spec::{architecture_of, gguf_names, is_permuted};

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
    let matrices = Matrices::new(spec, gguf_names(architecture), "");
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
