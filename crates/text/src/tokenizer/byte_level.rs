//! GPT-2's byte alphabet: a byte-level vocabulary writes each of the 256 bytes as one printable character.

/// Character for a byte: itself if it is printable Latin-1, otherwise the next free one from U+0100 on.
pub(super) fn char_of(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !printable(other)).count() as u32;
    char::from_u32(0x100 + before)
        .expect("a character because all below U+D800 are and there are 68 of these")
}

/// Bytes of the characters in token texts.
pub(super) struct ByteChars {
    /// Byte for each character, up to the highest one in use.
    bytes: [Option<u8>; 0x144],
}

impl ByteChars {
    pub(super) fn new() -> Self {
        let mut bytes = [None; 0x144];
        for byte in 0..=u8::MAX {
            bytes[char_of(byte) as usize] = Some(byte);
        }
        ByteChars { bytes }
    }

    /// Appends the bytes of a token's text; a text with other characters is taken as it is.
    pub(super) fn decode(&self, text: &str, out: &mut Vec<u8>) {
        let start = out.len();
        for c in text.chars() {
            match self.bytes.get(c as usize).copied().flatten() {
                Some(byte) => out.push(byte),
                None => {
                    out.truncate(start);
                    out.extend_from_slice(text.as_bytes());
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_character_and_comes_back() {
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(0), char_of(b'a')), ('Ġ', 'Ċ', 'Ā', 'a'));
        assert_eq!((char_of(0xad), char_of(0x7f)), ('\u{143}', '\u{121}'));
        let text: String = (0..=u8::MAX).map(char_of).collect();
        let mut bytes = Vec::new();
        ByteChars::new().decode(&text, &mut bytes);
        assert_eq!(bytes, (0..=u8::MAX).collect::<Vec<u8>>());
        bytes.clear();
        ByteChars::new().decode("Ġ日", &mut bytes);
        assert_eq!(bytes, "Ġ日".as_bytes());
    }
}
