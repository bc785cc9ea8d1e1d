//! Recognition of tokens that structure a prompt, whatever a model's files call them. Many files mark the tokens
//! around turns as ordinary added tokens, which are shown. The files decide what is shown, but not what a request
//! may write.

/// Names in angle brackets that begin, end or separate texts.
const BOUNDARIES: &[&str] = &["s", "bos", "eos", "sop", "eop", "cls", "sep"];

/// Whether an added token's text has the form of one that structures a prompt: `<|…|>`, also with a single bar,
/// `<｜…｜>`, `[|…|]`, `<…_of_turn>`, `<extra_id_0>` and `<reserved_0>`, `<s>` and the other boundaries, and capitals
/// in brackets, such as `[/INST]`. Marks that models read in past messages, such as `<think>`, `[THINK]` and
/// `<tool_call>`, do not have it.
pub(super) fn has_form(text: &str) -> bool {
    let text = text.trim();
    let inside =
        |open, close| text.strip_prefix(open)?.strip_suffix(close).filter(|name: &&str| !name.is_empty());
    if let Some(name) = inside('<', '>') {
        let bare = name.trim_start_matches('/');
        let numbered = |before: &str| {
            bare.strip_prefix(before)
                .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|digit| digit.is_ascii_digit()))
        };
        let barred = |bar: char| bare.starts_with(bar) || bare.ends_with(bar);
        return barred('|') && bare.len() > 2
            || barred('｜')
            || bare.ends_with("_of_turn")
            || BOUNDARIES.contains(&bare.rsplit(':').next().unwrap_or_default())
            || numbered("extra_id_")
            || numbered("reserved_");
    }
    let Some(name) = inside('[', ']') else { return false };
    let bare = name.trim_start_matches('/');
    let is_capital = |byte: u8| byte.is_ascii_uppercase() || byte == b'_' || byte.is_ascii_digit();
    name.starts_with('|') && name.ends_with('|') && name.len() > 2
        || bare.starts_with(|c: char| c.is_ascii_uppercase())
            && bare.bytes().all(is_capital)
            && bare != "THINK"
}

/// Whether a model's end token has no other use. Some models end texts with an ordinary character, such as a line
/// break, without which nothing can be written.
pub(super) fn only_ends(text: &str) -> bool {
    text.trim().chars().nth(1).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_tokens() {
        for text in [
            "<|im_start|>",
            "<|im_end|>",
            "<|user|>",
            "<|channel|>",
            "<|eot_id|>",
            " <|end|>\n",
            "<|turn>",
            "<turn|>",
            "<｜User｜>",
            "<｜Assistant｜>",
            "<｜end▁of▁sentence｜>",
            "<｜tool▁calls▁begin｜>",
            "<start_of_turn>",
            "<end_of_turn>",
            "[INST]",
            "[/INST]",
            "[SYSTEM_PROMPT]",
            "[/SYSTEM_PROMPT]",
            "[TOOL_CALLS]",
            "[SEP]",
            "<s>",
            "</s>",
            "<bos>",
            "<eos>",
            "<seed:bos>",
            "[|user|]",
            "[|endofturn|]",
            "<extra_id_1>",
            "<reserved_106>",
        ] {
            assert!(has_form(text), "{text:?}");
        }
        for text in [
            "<think>",
            "</think>",
            "[THINK]",
            "[/THINK]",
            "<tool_call>",
            "</tool_call>",
            "<tool_response>",
            "</tool_response>",
            "<tools>",
            "<answer>",
            "<image>",
            "<unused0>",
            "<b>",
            "<h1>",
            "<seed:think>",
            "",
            " ",
            "<>",
            "</>",
            "<|>",
            "<||>",
            "[]",
            "[/]",
            "[||]",
            "[1]",
            "[_]",
            "[unused1]",
            "[INST",
            "INST]",
            "<|im_end",
            "im",
            "\n\n",
            "    ",
            "<extra_id_>",
            "hi <|im_end|>",
        ] {
            assert!(!has_form(text), "{text:?}");
        }
        for (text, ends) in
            [("</s>", true), ("END", true), ("\n", false), ("\n\n", false), (".", false), ("", false)]
        {
            assert_eq!(only_ends(text), ends, "{text:?}");
        }
    }
}
