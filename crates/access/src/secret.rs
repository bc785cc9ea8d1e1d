//! API key of the settings. It can be compared and used, but never appears in logs or errors.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Minimum length; shorter keys can be guessed.
const BYTES_MIN: usize = 8;
const BYTES_MAX: usize = 512;

/// API key that the operator has set.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Checks a key: 8 to 512 visible ASCII characters, which fit any header.
    ///
    /// # Errors
    /// The fault, never the text itself.
    pub fn new(text: &str) -> Result<Secret, String> {
        match text.len() {
            BYTES_MIN..=BYTES_MAX if text.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Ok(Secret(text.to_owned()))
            }
            BYTES_MIN..=BYTES_MAX => {
                Err("a key has visible ASCII characters alone, without spaces".to_owned())
            }
            count => {
                Err(format!("a key has {BYTES_MIN} to {BYTES_MAX} characters, this one has {count} bytes"))
            }
        }
    }

    /// Reads a key from an environment variable. None: the variable is unset or empty.
    ///
    /// # Errors
    /// As [`Secret::new`], with the variable's name.
    pub fn of_env(name: &str) -> Result<Option<Secret>, String> {
        match std::env::var_os(name) {
            None => Ok(None),
            Some(text) if text.is_empty() => Ok(None),
            Some(text) => {
                let text = text.to_str().ok_or_else(|| format!("{name}: not UTF-8"))?;
                Secret::new(text).map(Some).map_err(|reason| format!("{name}: {reason}"))
            }
        }
    }

    /// Reads the key from the first of these variables that is set.
    ///
    /// # Errors
    /// As [`Secret::of_env`].
    pub fn of_first_env(names: &[&str]) -> Result<Option<Secret>, String> {
        for name in names {
            if let Some(secret) = Secret::of_env(name)? {
                return Ok(Some(secret));
            }
        }
        Ok(None)
    }

    /// Text of the key.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Writes `***`, because serialised settings may be shown.
impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str("***")
    }
}

/// Accepts text only; no error repeats the value.
impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct SecretVisitor;
        const EXPECTED: &str = "a key is text, in quotes";
        impl de::Visitor<'_> for SecretVisitor {
            type Value = Secret;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Secret, E> {
                Secret::new(text).map_err(E::custom)
            }

            fn visit_bool<E: de::Error>(self, _: bool) -> Result<Secret, E> {
                Err(E::custom(EXPECTED))
            }

            fn visit_i64<E: de::Error>(self, _: i64) -> Result<Secret, E> {
                Err(E::custom(EXPECTED))
            }

            fn visit_u64<E: de::Error>(self, _: u64) -> Result<Secret, E> {
                Err(E::custom(EXPECTED))
            }

            fn visit_f64<E: de::Error>(self, _: f64) -> Result<Secret, E> {
                Err(E::custom(EXPECTED))
            }
        }
        from.deserialize_any(SecretVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn a_secret_never_shows_itself() {
        let secret = Secret::new("correct-horse").unwrap();
        assert_eq!(format!("{secret:?} {secret:#?}"), "*** ***");
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"***\"");
        for text in ["\"tiny\"", "\"qqqq wwww\"", "\"rrrr\\ntttt\"", "123456789", "true", "-5", "1.5"] {
            let error = serde_json::from_str::<Secret>(text).unwrap_err().to_string();
            for shown in ["tiny", "qqqq", "rrrr", "123456789", "true", "-5", "1.5"] {
                assert!(!error.contains(shown), "{text}: {error}");
            }
        }
        assert!(
            serde_json::from_str::<Secret>("\"long-enough\"").unwrap() == Secret::new("long-enough").unwrap()
        );
    }
}
