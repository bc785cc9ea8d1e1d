//! Aliases: names that stand for a reference or a stored model. The built-in ones are in `aliases.json`. A
//! user's aliases take precedence over them.

use crate::StoreError;
use crate::name::fold;
use crate::reference::Reference;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Alias for a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// Name of the alias.
    pub alias: String,
    /// Target: a reference, or the name of a stored model.
    pub target: String,
    /// True for a built-in alias, false for a user's.
    pub builtin: bool,
}

/// Returns the built-in table: alias to reference.
pub(crate) fn builtin() -> &'static BTreeMap<String, String> {
    static TABLE: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    TABLE.get_or_init(|| {
        serde_json::from_str(include_str!("../aliases.json"))
            .expect("aliases.json is a JSON object of strings because a test reads it")
    })
}

/// Looks `name` up in the built-in table. A quantisation after the colon is applied to the target:
/// `zen-eco:Q8_0` is the target of `zen-eco` in Q8_0.
///
/// # Errors
/// [`StoreError::BadReference`] if the target has no choice of quantisations.
pub(crate) fn lookup(name: &str) -> Result<Option<Reference>, StoreError> {
    let name = fold(name);
    if let Some(target) = builtin().get(&name) {
        return Reference::parse(target).map(Some);
    }
    let Some((model, quantization)) = name.split_once(':') else { return Ok(None) };
    let Some(target) = builtin().get(model) else { return Ok(None) };
    Reference::parse(target)?.with_quantization(&quantization.to_ascii_uppercase()).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alias_of_the_table_is_a_reference() {
        assert!(builtin().len() > 10);
        for (alias, target) in builtin() {
            assert_eq!(*alias, fold(alias));
            assert_eq!(Reference::parse(target).unwrap().to_string(), *target, "{alias}");
            assert!(matches!(Reference::parse(alias).unwrap(), Reference::Name(_)));
        }
        assert_eq!(lookup("Zen-Nano").unwrap().unwrap().to_string(), "hf://Qwen/Qwen3-0.6B-GGUF:Q8_0");
        assert_eq!(lookup("zen-eco:q8_0").unwrap().unwrap().to_string(), "hf://Qwen/Qwen3-4B-GGUF:Q8_0");
        assert_eq!(lookup("nobody").unwrap(), None);
    }
}
