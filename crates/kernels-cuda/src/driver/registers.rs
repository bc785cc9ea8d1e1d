//! Registers and labels of PTX as distances instead of numbers, which halves what deflate makes of a module. A compiler numbers them one after
//! another, so hardly two lines of its text are alike; lines that say how far each number is from the last result of its kind often are. The
//! build packs the text by this, so it names nothing of the crate.

use std::fmt::Write as _;

/// Form in which the numbers of registers and labels are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum To {
    /// Distance of each from the last one, as the program stores them.
    #[allow(dead_code)] // The build's.
    Distances,
    /// The compiler's own numbers.
    Numbers,
}

/// The text of a module with its numbers written the other way.
pub(crate) fn rewritten(text: &str, to: To) -> String {
    let mut out = String::with_capacity(text.len());
    // The last result of each kind of register, and the last label.
    let mut last: Vec<(&str, i64)> = Vec::new();
    for line in text.split_inclusive('\n') {
        // The first register of a line is its result, but for a guard and for what is stored.
        let mut is_result = !line.starts_with('@') && !line.starts_with("st.");
        let mut rest = line;
        while let Some(at) = rest.find(['%', '$']) {
            out.push_str(&rest[..at]);
            let is_label = rest[at..].starts_with('$');
            let (kind, after) = rest[at..].split_at(kind_bytes(&rest[at..]));
            out.push_str(kind);
            let signs = usize::from(to == To::Numbers && after.starts_with('-'));
            let digits = after.bytes().skip(signs).take_while(u8::is_ascii_digit).count();
            let Ok(written) = after[..signs + digits].parse::<i64>() else {
                rest = after;
                continue;
            };
            rest = &after[signs + digits..];
            let kind = if is_label { "$" } else { kind };
            let at = last.iter().position(|&(known, _)| known == kind).unwrap_or_else(|| {
                last.push((kind, 0));
                last.len() - 1
            });
            let before = last[at].1;
            let (new, number) = match to {
                To::Distances => (written - before, written),
                To::Numbers => (before + written, before + written),
            };
            // Writing to a string does not fail.
            let _ = write!(out, "{new}");
            if is_label || is_result {
                last[at].1 = number;
            }
            is_result &= is_label;
        }
        out.push_str(rest);
    }
    out
}

/// Bytes of a name before its number: of a register `%` and small letters, of a label all to its last `_`.
fn kind_bytes(name: &str) -> usize {
    if name.starts_with('%') {
        return 1 + name.bytes().skip(1).take_while(u8::is_ascii_lowercase).count();
    }
    let length = 1 + name.bytes().skip(1).take_while(|&b| b.is_ascii_alphanumeric() || b == b'_').count();
    name[..length].rfind('_').map_or(1, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        let text = ".reg .b32 %r<9>;\nmov.u32 %r7, %tid.x;\nadd.s32 \t%r8, %r7, -1;\n@%p1 bra $L__BB0_12;\n\
                    st.global.u32 [%rd3-8], %r8;\n$L__BB0_12:\nst.local [%SP-4], %r8;\nret;";
        let distances = rewritten(text, To::Distances);
        assert!(distances.contains("add.s32 \t%r1, %r-1, -1;"), "{distances}");
        assert_eq!(rewritten(&distances, To::Numbers), text);
    }
}
