//! Parser of URL query parameters.

/// Names and values in order, unescaped.
pub(crate) fn pairs(query: Option<&str>) -> Vec<(String, String)> {
    let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (unescaped(name), unescaped(value))
    };
    pairs.map(pair).collect()
}

/// Decodes `%2F` to a slash and `+` to a space. Invalid escapes stay, and invalid UTF-8 becomes U+FFFD.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        (rest, _) = match (first, digit(0), digit(1)) {
            // Two hexadecimal digits are at most 255.
            (b'%', Some(high), Some(low)) => (&after[2..], bytes.push((high * 16 + low) as u8)),
            (b'+', ..) => (after, bytes.push(b' ')),
            _ => (after, bytes.push(*first)),
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::pairs;

    #[test]
    fn what_is_escaped_is_read_as_it_is_meant() {
        let read = |query| pairs(Some(query));
        let of = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(read("model=a%2fb%3Ac&x"), [of("model", "a/b:c"), of("x", "")]);
        assert_eq!(
            read("&include%5B%5D=a+b&c=%zz%4&d=%ff"),
            [of("include[]", "a b"), of("c", "%zz%4"), of("d", "\u{fffd}")]
        );
        assert!(pairs(None).is_empty());
    }
}
