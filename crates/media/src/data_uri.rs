//! Decoding of `data:` URIs (RFC 2397), in which JSON carries pictures and sounds. Nothing is fetched here.

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::error::PictureError;

/// Padding is optional, because clients leave it out.
const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// Decodes a base64 `data:` URI of at most `bytes_max` bytes. Its media type is ignored, because a file's first
/// bytes state its format. `kind` is a typical media type for error messages, such as `image/png`.
///
/// # Errors
/// [`PictureError::Uri`] for any other URI, [`PictureError::TooManyBytes`].
pub fn from_data_uri(uri: &str, kind: &str, bytes_max: usize) -> Result<Vec<u8>, PictureError> {
    let refuse = |reason: &str| Err(PictureError::Uri(format!("{reason} data:{kind};base64,...")));
    let Some(rest) = strip_scheme(uri) else {
        return refuse("is no data: URI; nothing is fetched from elsewhere, so send the file itself:");
    };
    let Some((said, data)) = rest.split_once(',') else {
        return refuse("has no comma after its media type; send");
    };
    if !said.rsplit(';').next().is_some_and(|word| word.trim().eq_ignore_ascii_case("base64")) {
        return refuse("is not in base64; send");
    }
    decode_base64(data, bytes_max)
}

/// Decodes at most `bytes_max` bytes of base64.
///
/// # Errors
/// [`PictureError::Uri`] for invalid base64, [`PictureError::TooManyBytes`].
pub fn decode_base64(data: &str, bytes_max: usize) -> Result<Vec<u8>, PictureError> {
    let least = data.len() / 4 * 3;
    let spaces = data.bytes().filter(u8::is_ascii_whitespace).count();
    if least > bytes_max.saturating_add(3).saturating_add(spaces) {
        return Err(PictureError::TooManyBytes { bytes: least, max: bytes_max });
    }
    let alphabet = if data.bytes().any(|byte| matches!(byte, b'-' | b'_')) { &URL_SAFE } else { &STANDARD };
    let engine = GeneralPurpose::new(alphabet, LENIENT);
    let decoded = match spaces {
        0 => engine.decode(data),
        _ => engine.decode(data.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect::<Vec<u8>>()),
    };
    let bytes = decoded.map_err(|error| PictureError::Uri(format!("is not base64: {error}")))?;
    match bytes.len() {
        0 => Err(PictureError::Empty),
        len if len > bytes_max => Err(PictureError::TooManyBytes { bytes: len, max: bytes_max }),
        _ => Ok(bytes),
    }
}

fn strip_scheme(uri: &str) -> Option<&str> {
    let (scheme, rest) = uri.split_at_checked(5)?;
    scheme.eq_ignore_ascii_case("data:").then_some(rest)
}
