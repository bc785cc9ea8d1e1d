//! Incremental detokenisation in whole characters. Tokens are byte pieces, and a character may span several of
//! them; an unfinished character waits for the next token.

use super::Tokenizer;

/// Turns a stream of tokens into text. The cost of a token is proportional to its bytes.
#[derive(Debug)]
pub struct Detokenizer {
    skip_special: bool,
    /// Start of an unfinished character: at most 3 bytes.
    unfinished: [u8; 4],
    unfinished_len: usize,
}

impl Detokenizer {
    /// Creates an empty detokenizer; `skip_special` leaves control tokens out of the text.
    pub fn new(skip_special: bool) -> Self {
        Detokenizer { skip_special, unfinished: [0; 4], unfinished_len: 0 }
    }

    /// Appends the characters that `id` finishes to `out`. Bytes that cannot become a character turn into U+FFFD,
    /// as in [`String::from_utf8_lossy`] of the whole. Unknown ids add nothing.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) {
        if !(self.skip_special && tokenizer.is_special(id)) {
            self.push_bytes(tokenizer.token_bytes(id), out);
        }
    }

    /// Bytes of the unfinished character.
    #[inline]
    pub fn unfinished_bytes(&self) -> usize {
        self.unfinished_len
    }

    /// Appends U+FFFD to `out` if a character is unfinished, and resets.
    pub fn finish(&mut self, out: &mut String) {
        if self.unfinished_len > 0 {
            out.push(char::REPLACEMENT_CHARACTER);
            self.unfinished_len = 0;
        }
    }

    fn push_bytes(&mut self, mut bytes: &[u8], out: &mut String) {
        // Byte by byte until the character is whole, or turns out invalid.
        while self.unfinished_len > 0 {
            let Some((&byte, rest)) = bytes.split_first() else { return };
            self.unfinished[self.unfinished_len] = byte;
            let whole = &self.unfinished[..=self.unfinished_len];
            match std::str::from_utf8(whole) {
                Ok(character) => {
                    out.push_str(character);
                    self.unfinished_len = 0;
                    bytes = rest;
                }
                Err(error) if error.error_len().is_none() => {
                    self.unfinished_len += 1;
                    bytes = rest;
                }
                Err(_) => {
                    // The byte starts a new character.
                    out.push(char::REPLACEMENT_CHARACTER);
                    self.unfinished_len = 0;
                }
            }
        }
        let mut rest = bytes.len();
        for chunk in bytes.utf8_chunks() {
            out.push_str(chunk.valid());
            let invalid = chunk.invalid();
            rest -= chunk.valid().len() + invalid.len();
            let may_go_on = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if rest == 0 && may_go_on {
                self.unfinished[..invalid.len()].copy_from_slice(invalid);
                self.unfinished_len = invalid.len();
            } else if !invalid.is_empty() {
                out.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        /// However the bytes are cut, valid or not: the text equals that of the whole, and no whole character
        /// waits.
        #[test]
        fn any_cut_gives_the_text_of_the_whole(
            pieces in prop::collection::vec(prop_oneof![
                "\\PC{0,4}".prop_map(String::into_bytes),
                prop::collection::vec(any::<u8>(), 0..4),
                prop::sample::select(vec![vec![0xf0], vec![0x9f], vec![0x98, 0x80], vec![0xe2, 0x82], vec![0xed, 0xa0]]),
            ], 0..12),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let bytes = pieces.concat();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut detokenizer = Detokenizer::new(false);
            let mut text = String::new();
            for pair in cuts.windows(2) {
                detokenizer.push_bytes(&bytes[pair[0]..pair[1]], &mut text);
                let so_far = String::from_utf8_lossy(&bytes[..pair[1]]);
                prop_assert!(so_far.starts_with(&text));
                prop_assert!(so_far.len() - text.len() <= 3, "only an unfinished character waits");
            }
            detokenizer.finish(&mut text);
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
