//! Checks SentencePiece's map of characters to their normal forms (`precompiled_charsmap`): a double-array trie of
//! bytes whose leaves point into texts, each ended by a zero byte. The crate that applies it trusts its lengths and
//! indices, so all are checked first.
//!
//! Format: the length of the array in bytes, its units, the texts. Numbers are 32-bit little endian
//! (github.com/s-yata/darts-clone).

use crate::limits::{CHARS_MAP_BYTES_MAX, CHARS_MAP_CHARS_MAX};

/// Bytes of a unit, and of the length.
const UNIT_BYTES: usize = 4;

/// Unit of the array: the offset of its children, and the byte that leads to it.
#[derive(Clone, Copy)]
struct Unit(u32);

impl Unit {
    fn has_leaf(self) -> bool {
        (self.0 >> 8) & 1 == 1
    }

    fn value(self) -> usize {
        (self.0 & !(1 << 31)) as usize
    }

    fn label(self) -> u32 {
        self.0 & (1 << 31 | 0xff)
    }

    fn offset(self) -> usize {
        ((self.0 >> 10) as usize) << ((self.0 & 1 << 9) >> 6)
    }
}

/// Checks a map. The error names the problem.
pub(super) fn check(map: &[u8]) -> Result<(), String> {
    if map.len() > CHARS_MAP_BYTES_MAX {
        return Err(format!("it has {} bytes; at most {CHARS_MAP_BYTES_MAX} are read", map.len()));
    }
    let (length, rest) = map.split_first_chunk::<UNIT_BYTES>().ok_or("it ends in its length")?;
    let length = u32::from_le_bytes(*length) as usize;
    let (units, texts) = rest
        .split_at_checked(length)
        .filter(|_| length.is_multiple_of(UNIT_BYTES) && length > 0)
        .ok_or_else(|| format!("its array is said to have {length} bytes, and {} follow", rest.len()))?;
    let units: Vec<Unit> =
        units.as_chunks::<UNIT_BYTES>().0.iter().map(|&unit| Unit(u32::from_le_bytes(unit))).collect();
    let texts = str::from_utf8(texts).map_err(|error| format!("its texts are not UTF-8: {error}"))?;
    let ends = ends(texts);
    // Visits every state that input bytes can reach, each once.
    let outside = || "an index in its array points outside of it".to_owned();
    let mut seen = vec![false; units.len()];
    let mut states = vec![units[0].offset()];
    while let Some(state) = states.pop() {
        // Reading any byte accesses the unit at the state XOR that byte.
        if state | 0xff >= units.len() {
            return Err(outside());
        }
        if std::mem::replace(&mut seen[state], true) {
            continue;
        }
        for byte in 1..=0xff_u32 {
            let at = state ^ byte as usize;
            let unit = units[at];
            if unit.label() != byte {
                continue;
            }
            let next = at ^ unit.offset();
            if unit.has_leaf() {
                let first = units.get(next).ok_or_else(outside)?.value();
                if !texts.is_char_boundary(first) {
                    return Err(format!("a leaf points to byte {first} of {} of its texts", texts.len()));
                }
                let end = ends.get(first).copied().unwrap_or(texts.len());
                let chars = texts[first..end].chars().count();
                if chars > CHARS_MAP_CHARS_MAX {
                    return Err(format!(
                        "it makes {chars} characters of one; at most {CHARS_MAP_CHARS_MAX} may be"
                    ));
                }
            }
            states.push(next);
        }
    }
    Ok(())
}

/// For each byte of the texts, the end of its text.
fn ends(texts: &str) -> Vec<usize> {
    let mut ends = vec![texts.len(); texts.len()];
    let mut end = texts.len();
    for (at, &byte) in texts.as_bytes().iter().enumerate().rev() {
        if byte == 0 {
            end = at;
        }
        ends[at] = end;
    }
    ends
}

/// Checks a map in base 64, its form in JSON.
pub(super) fn check_base64(text: &str) -> Result<(), String> {
    // Four characters encode three bytes.
    if text.len() / 4 * 3 > CHARS_MAP_BYTES_MAX {
        return Err(format!(
            "it has {} characters; at most {} are read",
            text.len(),
            CHARS_MAP_BYTES_MAX / 3 * 4
        ));
    }
    let (mut map, mut bits, mut held) = (Vec::with_capacity(text.len() / 4 * 3), 0_u32, 0_u32);
    for &byte in text.trim_end_matches('=').as_bytes() {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return Err("it is not written in base 64".into()),
        };
        bits = (bits << 6 | u32::from(digit)) & 0xffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            map.push((bits >> held) as u8);
        }
    }
    check(&map)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::normalizers::Precompiled;

    use super::*;

    /// Map from `a` to `text`.
    fn map(text: &[u8]) -> Vec<u8> {
        // The root leads to state 256; from there `a` leads to a unit with its leaf at state 512.
        let mut units = vec![0_u32; 768];
        units[0] = 256 << 10;
        let at = 256 ^ usize::from(b'a');
        units[at] = ((at ^ 512) as u32) << 10 | 1 << 8 | u32::from(b'a');
        units[512] = 1 << 31;
        let array: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        [&(array.len() as u32).to_le_bytes()[..], &array, text].concat()
    }

    #[test]
    fn a_sound_map_is_taken_and_does_what_it_says() {
        let sound = map(b"xy\0");
        assert_eq!(check(&sound), Ok(()));
        assert_eq!(Precompiled::from(&sound).unwrap().normalize_string("bab"), "bxyb");
    }

    #[test]
    fn lengths_and_indices_that_point_elsewhere_are_refused() {
        let refused = |map: &[u8], expected: &str| {
            let error = check(map).unwrap_err();
            assert!(error.contains(expected), "{expected:?} in {error:?}");
        };
        refused(&[0xff; 4], "4294967295 bytes, and 0 follow");
        refused(&[0, 0, 0, 0], "0 bytes");
        refused(&[], "ends in its length");
        refused(&[4, 0, 0, 0, 0, 0, 0, 0], "points outside");
        refused(&map(&[0xff]), "not UTF-8");
        refused(&map(&b"x".repeat(CHARS_MAP_CHARS_MAX + 1)), "65 characters of one");
        let mut outside = map(b"x\0");
        outside[4 + 512 * 4] = 7;
        refused(&outside, "byte 7 of 2");
        refused(&vec![0; CHARS_MAP_BYTES_MAX + 1], "at most 4194304");
        assert!(check_base64("/////w==").unwrap_err().contains("4294967295"));
        assert!(check_base64("!").is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// An accepted map never causes a panic, however it was changed.
        #[test]
        fn a_changed_map_is_refused_or_runs(
            changes in prop::collection::vec((0usize..3100, any::<u8>()), 0..12),
            text in "\\PC{0,12}a?",
        ) {
            let mut bytes = map("xy\0é\0".as_bytes());
            for (at, byte) in changes {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
            if check(&bytes).is_ok() {
                Precompiled::from(&bytes).unwrap().normalize_string(&text);
            }
        }
    }
}
