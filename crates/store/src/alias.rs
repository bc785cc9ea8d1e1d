//! Aliases: names that stand for a reference or a stored model. The ones that come with the program are in
//! `aliases.json`; a user's own go before them.

use crate::StoreError;
use crate::name::fold;
use crate::reference::Reference;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// A name that stands for something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// The name.
    pub alias: String,
    /// A reference, or the name of a stored model.
    pub target: String,
    /// It comes with the program, and is not a user's own.
    pub builtin: bool,
}

/// The table that comes with the program: alias to reference.
pub(crate) fn builtin() -> &'static BTreeMap<String, String> {
    static TABLE: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    TABLE.get_or_init(|| {
        serde_json::from_str(include_str!("../aliases.json"))
            .expect("aliases.json is a JSON object of strings because a test reads it")
    })
}

/// What the program's own table says of `name`, with a quantisation of the user's choice carried over:
/// `zen-eco:Q8_0` is the target of `zen-eco` in Q8_0.
///
/// # Errors
/// [`StoreError::BadReference`] where the target has no choice of quantisations.
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
