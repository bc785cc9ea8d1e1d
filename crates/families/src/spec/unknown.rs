//! Error text for an unknown type of model: short, with the most similar known names.

/// Largest number of names shown.
const SHOWN_MAX: usize = 5;
/// Length of a common prefix from which names are similar.
const ALIKE_CHARS_MIN: usize = 3;

/// Error text for `name`, with those of the `known` names that begin like it, most similar first.
pub(super) fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let common =
        |other: &str| name.chars().zip(other.chars()).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
    let mut alike: Vec<(usize, &str)> = known.map(|other| (common(other), other)).collect();
    let count = alike.len();
    alike.retain(|(common, _)| *common >= ALIKE_CHARS_MIN);
    alike.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    alike.dedup();
    alike.truncate(SHOWN_MAX);
    let names: Vec<&str> = alike.into_iter().map(|(_, other)| other).collect();
    let nearest = match names.is_empty() {
        true => String::new(),
        false => format!("; the nearest are {}", names.join(", ")),
    };
    format!(
        "it is none of the {count} types that this build runs{nearest}; docs/reference/models.md lists all"
    )
}

#[cfg(test)]
mod tests {
    use super::unknown;

    #[test]
    fn the_reason_is_short_and_names_what_is_alike() {
        let known =
            || ["qwen2", "qwen3", "qwen3_moe", "qwen2_moe", "qwen2_vl", "qwen3_next", "llama"].into_iter();
        let said = unknown("qwen3_max", known());
        assert!(
            said.contains("; the nearest are qwen3_moe, qwen3_next, qwen3, qwen2, qwen2_moe; "),
            "{said}"
        );
        assert_eq!(
            unknown("dbrx", known()),
            "it is none of the 7 types that this build runs; docs/reference/models.md lists all"
        );
        let many: Vec<String> = (0..1000).map(|n| format!("model{n}")).collect();
        assert!(unknown("model", many.iter().map(String::as_str)).len() < 200);
    }
}
