//! API key and its digest. Only the SHA-256 of a key is stored. Generated keys have 256 random bits, so a fast
//! digest protects them as well as a slow hash would.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

const PREFIX: &str = "sk-hanzo-";
const RANDOM_BYTES: usize = 32;
/// Maximum length of any key, so that it fits a header.
const BYTES_MAX: usize = 512;

/// New key, in characters that fit a header. It is shown once.
pub struct Key(String);

impl Key {
    /// Generates a random key.
    ///
    /// # Errors
    /// The operating system gives no random bytes.
    pub fn random() -> Result<Key, getrandom::Error> {
        let mut bytes = [0; RANDOM_BYTES];
        getrandom::fill(&mut bytes)?;
        Ok(Key(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))))
    }

    /// Text of the key.
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// SHA-256 of a key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// Digest of a key's text. None: the text is empty or longer than any key.
    pub(crate) fn of(text: &str) -> Option<KeyDigest> {
        (!text.is_empty() && text.len() <= BYTES_MAX).then(|| KeyDigest(Sha256::digest(text).into()))
    }

    /// Parses 64 hexadecimal digits.
    pub(crate) fn from_hex(text: &str) -> Option<KeyDigest> {
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digit = |c: u8| char::from(c).to_digit(16);
            *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
        }
        Some(KeyDigest(bytes))
    }

    /// Formats the digest as 64 hexadecimal digits.
    pub(crate) fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Compares two digests in constant time.
    pub(crate) fn is(&self, other: &KeyDigest) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::{Key, KeyDigest};

    #[test]
    fn digests_are_sha_256() {
        // `printf abc | sha256sum`
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let digest = KeyDigest::of("abc").unwrap();
        assert_eq!(digest.hex(), hex);
        assert!(KeyDigest::from_hex(hex).unwrap().is(&digest));
        assert!(!KeyDigest::of("abd").unwrap().is(&digest));
        // All digits are compared: a digest that differs in any one of them does not match.
        for at in 0..hex.len() {
            let mut other = hex.to_owned();
            other.replace_range(at..=at, if &hex[at..=at] == "0" { "1" } else { "0" });
            assert!(!KeyDigest::from_hex(&other).unwrap().is(&digest), "{other}");
        }
        for wrong in ["", "12", &hex[1..], &format!("{}g", &hex[1..]), &"é".repeat(32)] {
            assert!(KeyDigest::from_hex(wrong).is_none(), "{wrong}");
        }
        assert!(KeyDigest::of("").is_none() && KeyDigest::of(&"x".repeat(513)).is_none());
    }

    #[test]
    fn keys_are_random_and_fit_a_header() {
        let (one, other) = (Key::random().unwrap(), Key::random().unwrap());
        assert_ne!(one.text(), other.text());
        assert_eq!(one.text().len(), 9 + 43);
        assert!(one.text().bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)));
    }
}
