//! Keys of names. Models and adapters are found by name whatever its case.

/// Key of a name: its lower case.
pub(crate) fn key(name: &str) -> String {
    name.to_lowercase()
}
