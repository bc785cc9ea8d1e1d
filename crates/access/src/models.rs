//! Match of model names against the patterns of a key, in which `*` stands for any text. Case is ignored, and
//! the owner may be left out, as everywhere else.

/// Whether the pattern matches the name.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.to_ascii_lowercase(), name.to_ascii_lowercase());
    let bare = name.rsplit_once('/').map_or(name.as_str(), |(_, bare)| bare);
    glob(&pattern, &name) || (!pattern.contains('/') && glob(&pattern, bare))
}

/// Matches each piece between two stars after the end of the previous piece.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces {
        let Some((_, after)) = text.split_once(piece) else { return false };
        text = after;
    }
    text.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        for (pattern, name) in [
            ("zen-nano", "zen-nano"),
            ("zen-nano", "Zen/ZEN-nano"),
            ("zen/*", "zen/zen-nano:q8_0"),
            ("zen-*", "zen/zen-nano"),
            ("*", "anything"),
            ("*-nano*", "zen-nano:q8_0"),
            ("a*b*c", "axxbyyc"),
            ("a*a", "aa"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("zen-nano", "zen-nano2"),
            ("zen-nano", "zen-nano:sql"),
            ("zen/zen-nano", "zen-nano"),
            ("zen/*", "other/zen-nano"),
            ("a*a", "a"),
            ("a*b*c", "axxcyyb"),
            ("", "a"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
