//! Orientation from Exif data (Exif 2.3, 4.6.4, tag 274), the only tag that matters here.

const ORIENTATION: u16 = 0x0112;
const SHORT: u16 = 3;
/// Maximum directory entries that are searched.
const ENTRIES_MAX: usize = 1024;

/// Returns the orientation, 1 to 8, if present.
pub(crate) fn orientation(exif: &[u8]) -> Option<u16> {
    let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let little = match tiff.get(..4)? {
        [b'I', b'I', 42, 0] => true,
        [b'M', b'M', 0, 42] => false,
        _ => return None,
    };
    let number = |at: usize| {
        let bytes = <[u8; 2]>::try_from(tiff.get(at..at.checked_add(2)?)?).ok()?;
        Some(if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let [low, high] = if little { [4, 6] } else { [6, 4] }.map(number);
    let first = usize::from(high?) << 16 | usize::from(low?);
    let count = usize::from(number(first)?).min(ENTRIES_MAX);
    let entry = (0..count).map(|index| first + 2 + 12 * index).find(|&at| number(at) == Some(ORIENTATION))?;
    let value = number(entry + 8).filter(|_| number(entry + 2) == Some(SHORT))?;
    (1..=8).contains(&value).then_some(value)
}
