//! Protection against panics of the `tokenizers` crate, which trusts its input and may panic on invalid files in
//! unforeseen ways. A panic becomes an error of the load or of the single request.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Result of `work`, or the message of its panic. After a panic, `work` must leave no half-changed state that is
/// used again; encoding does not change a tokenizer.
pub(super) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
        said.or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "it does not say why".into())
    })
}

/// Texts on which a tokenizer is tested before use: characters of every length, several scripts, characters with
/// normal forms, and all kinds of white space.
pub(super) const SAMPLES: &[&str] = &[
    "",
    " ",
    "a",
    "Hello, world! It's 12345.",
    "  two  spaces\tand\r\n\r\nlines \u{a0}\u{2003}\u{3000}",
    "naïve e\u{301}\u{327} ﬁ ﷺ ½ Ⅷ ㎏ \u{1e9e}\u{130}",
    "你好，世界。こんにちは 한국어 ไทย हिन्दी العربية",
    "🙂👩‍👩‍👧‍👦🇨🇭\u{feff}\u{200b}\u{0}\u{7f}\u{fffd}\u{10ffff}",
    "▁ĠĊ<s></s><unk>[CLS][SEP]##ing<|im_end|><0x0A>",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_panic_said_comes_back() {
        assert_eq!(caught(|| 7), Ok(7));
        assert_eq!(caught(|| -> u32 { panic!("so") }), Err("so".into()));
        assert_eq!(caught(|| -> u32 { panic!("{} {}", 1, 2) }), Err("1 2".into()));
        assert!(caught(|| -> u32 { std::panic::panic_any(1_u8) }).is_err());
    }
}
