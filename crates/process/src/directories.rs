//! Shortens file paths in messages to clients, so that they do not reveal the server's directories.

/// Paths that begin with one of these words are JSON pointers into a schema, so they are kept.
const POINTERS: [&str; 16] = [
    "$defs",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "definitions",
    "else",
    "enum",
    "if",
    "items",
    "not",
    "oneOf",
    "patternProperties",
    "prefixItems",
    "properties",
];

/// Reduces each absolute path in the text to its last part: `/var/lib/models/a.gguf` becomes `a.gguf`. Keeps
/// URLs, relative paths, JSON pointers and paths of one part.
pub fn without_directories(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let (before, path) = rest.split_at(at);
        shown.push_str(before);
        let end = path.find(ends_path).unwrap_or(path.len());
        let token = &path[..end];
        // `file:///dir/name` becomes `file://name`.
        match token.strip_prefix("//").filter(|path| shown.ends_with("file:") && path.starts_with('/')) {
            Some(path) => {
                shown.push_str("//");
                shown.push_str(last_part(path));
            }
            None => shown.push_str(if begins_path(&shown) { last_part(token) } else { token }),
        }
        rest = &rest[at + end..];
    }
    shown.push_str(rest);
    shown
}

/// True if a path may start after `before`: at the text's start, or after a space, a quote, an opening bracket,
/// `=` or `,`.
fn begins_path(before: &str) -> bool {
    before.chars().next_back().is_none_or(|c| c.is_whitespace() || "\"'`([{=,".contains(c))
}

fn ends_path(c: char) -> bool {
    c.is_whitespace() || "\"'`()[]{}<>,;".contains(c)
}

fn last_part(path: &str) -> &str {
    let bare = path.trim_end_matches(['.', ':', '/', '?', '!']);
    let mut parts = bare.split('/').filter(|part| !part.is_empty());
    let is_pointer = parts.next().is_some_and(|first| POINTERS.contains(&first));
    match bare.rfind('/') {
        Some(slash) if parts.next().is_some() && !is_pointer => &path[slash + 1..],
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::without_directories;

    #[test]
    fn a_path_keeps_its_last_part() {
        for (text, shown) in [
            ("/var/lib/models/a.gguf: no such file", "a.gguf: no such file"),
            ("cannot read \"/var/lib/models/a.gguf\".", "cannot read \"a.gguf\"."),
            ("the disk of /srv/models/: full", "the disk of models/: full"),
            ("(/a/b, /c/d/e)", "(b, e)"),
            ("file:///mnt/x/m.gguf is gone", "file://m.gguf is gone"),
            ("path=/a/b/c", "path=c"),
            ("look at https://huggingface.co/a/b", "look at https://huggingface.co/a/b"),
            ("hf://a/b:c/d.gguf and/or x/y/z", "hf://a/b:c/d.gguf and/or x/y/z"),
            ("at /properties/a/items: no", "at /properties/a/items: no"),
            ("use /tokenize", "use /tokenize"),
            ("2 / 3 // 4", "2 / 3 // 4"),
            ("", ""),
            ("/é/ü", "ü"),
        ] {
            assert_eq!(without_directories(text), shown);
        }
    }
}
