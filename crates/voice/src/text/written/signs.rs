//! Signs with names: of mathematics, law and trade, arrows, and frequent emoji.

use regex::Captures;

use super::quantity::{amount, count_or_year, sign_word};
use super::{Context, Rule, group};

/// Reading of a sign that no rule matched.
pub(super) enum Lone {
    /// Kept: the networks use it as a pause, or it is part of a word.
    Stays,
    /// Silent.
    Silent,
    /// Spoken.
    Word(&'static str),
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        begins: law,
        pattern: r"(§§?|¶¶?) ?(<N>)([a-z]\b)?(?:<TO>(<N>))?((?:\([0-9A-Za-z]{1,3}\)){0,3})",
        say: section,
    },
    Rule { begins: face_begins, pattern: r"(?:[:;=]['’]?-?[()DPpOo|\\/*3]|[:;=]-?\)\)+|<3)", say: face },
    Rule { begins: tag_begins, pattern: r"<([^<>\s]{3,80})>", say: bracketed_address },
    Rule { begins: operator, pattern: r"([<>/*]) ([a-zA-Z])\b", say: operation_with_letter },
    Rule { begins: tag_begins, pattern: r"[≤≥]", say: bound },
    Rule { begins: operator, pattern: r"(?:([-−/*÷<>=+:]) |(\*))(<N>)", say: operation },
    Rule { begins: tag_begins, pattern: r"</?[a-zA-Z][a-zA-Z0-9]{0,10}(?: [^<>]{0,80})?/?>", say: tag },
    Rule { begins: root, pattern: r"(√|∛) ?\(?(<N>|[a-zA-Z])\)?", say: square_root },
    Rule { begins: arrow, pattern: r"(<=|>=|!=|==|=>|->|<-|\+/-|\+-)", say: written_operator },
    Rule { begins: super::letter, pattern: r"([a-zA-Z]{1,2})(²|³|\^[0-9]{1,2})", say: power_of_letter },
];

/// Signs and their words.
const WORDS: &[(char, &str)] = &[
    ('&', "and"),
    ('@', "at"),
    ('+', "plus"),
    ('=', "equals"),
    ('#', "number"),
    ('°', "degrees"),
    ('×', "times"),
    ('÷', "divided by"),
    ('~', "about"),
    ('%', "percent"),
    ('‰', "per mille"),
    ('±', "plus or minus"),
    ('−', "minus"),
    ('≈', "is about"),
    ('≠', "is not equal to"),
    ('≤', "is at most"),
    ('≥', "is at least"),
    ('<', "less than"),
    ('>', "greater than"),
    ('∞', "infinity"),
    ('∴', "therefore"),
    ('∵', "because"),
    ('∼', "about"),
    ('√', "square root of"),
    ('∑', "sum of"),
    ('∫', "integral of"),
    ('∂', "partial"),
    ('∆', "delta"),
    ('π', "pi"),
    ('∈', "in"),
    ('∪', "union"),
    ('∩', "intersection"),
    ('∅', "empty set"),
    ('∀', "for all"),
    ('∃', "there exists"),
    ('→', "to"),
    ('⇒', "implies"),
    ('↔', "to and from"),
    ('←', "from"),
    ('↑', "up"),
    ('↓', "down"),
    ('§', "section"),
    ('¶', "paragraph"),
    ('©', "copyright"),
    ('®', "registered"),
    ('™', "trademark"),
    ('€', "euro"),
    ('£', "pound"),
    ('¥', "yen"),
    ('$', "dollar"),
    ('¢', "cent"),
    ('₹', "rupee"),
    ('№', "number"),
    ('Ω', "ohm"),
    ('µ', "micro"),
    ('α', "alpha"),
    ('β', "beta"),
    ('γ', "gamma"),
    ('δ', "delta"),
    ('θ', "theta"),
    ('λ', "lambda"),
    ('μ', "mu"),
    ('σ', "sigma"),
    ('ω', "omega"),
    ('✓', "check mark"),
    ('⁺', "plus"),
    ('⁻', "minus"),
];
/// Frequent emoji and their names (Unicode CLDR's short names).
const EMOJI: &[(char, &str)] = &[
    ('😀', "grinning face"),
    ('😃', "grinning face"),
    ('😄', "grinning face"),
    ('😁', "beaming face"),
    ('😂', "tears of joy"),
    ('🤣', "rolling on the floor laughing"),
    ('😊', "smiling face"),
    ('🙂', "slightly smiling face"),
    ('😉', "winking face"),
    ('😍', "heart eyes"),
    ('😘', "kiss"),
    ('😎', "sunglasses"),
    ('🤔', "thinking face"),
    ('😐', "neutral face"),
    ('🙄', "rolling eyes"),
    ('😢', "crying face"),
    ('😭', "loudly crying face"),
    ('😡', "angry face"),
    ('😱', "screaming face"),
    ('😴', "sleeping face"),
    ('🤯', "exploding head"),
    ('🥳', "partying face"),
    ('👍', "thumbs up"),
    ('👎', "thumbs down"),
    ('👏', "clapping hands"),
    ('🙏', "folded hands"),
    ('💪', "flexed biceps"),
    ('👋', "waving hand"),
    ('👌', "OK hand"),
    ('🤝', "handshake"),
    ('❤', "red heart"),
    ('💔', "broken heart"),
    ('💕', "two hearts"),
    ('🔥', "fire"),
    ('✨', "sparkles"),
    ('⭐', "star"),
    ('🌟', "glowing star"),
    ('🎉', "party popper"),
    ('🎂', "birthday cake"),
    ('🚀', "rocket"),
    ('💯', "hundred points"),
    ('✅', "check mark"),
    ('❌', "cross mark"),
    ('⚠', "warning"),
    ('💡', "light bulb"),
    ('📧', "e-mail"),
    ('📞', "telephone"),
    ('☀', "sun"),
    ('🌍', "globe"),
    ('🐶', "dog face"),
];
/// Silent signs.
const SILENT: &str = "_*`|\\^•·●○■□▪◆★☆†‡¦¬¨´¸¯˚";

/// Returns true for characters that never matter: zero-width characters, variation selectors, skin tones.
pub(super) fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{20e3}' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{fe00}'..='\u{fe0f}' | '\u{1f3fb}'..='\u{1f3ff}')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns true for marks that combine with the letter before.
pub(super) fn is_mark(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}')
}

/// Reading of a single sign.
pub(super) fn lone(sign: char) -> Lone {
    if let Some((_, word)) = WORDS.iter().chain(EMOJI).find(|(known, _)| *known == sign) {
        return Lone::Word(word);
    }
    let is_picture =
        matches!(u32::from(sign), 0x2190..=0x2bff | 0x1f000..=0x1faff | 0xe000..=0xf8ff | 0xe0000..=0xe0fff);
    if is_picture || SILENT.contains(sign) || sign.is_control() { Lone::Silent } else { Lone::Stays }
}

fn law(c: char) -> bool {
    "§¶".contains(c)
}

fn operator(c: char) -> bool {
    "-−/*÷<>=+:".contains(c)
}

fn root(c: char) -> bool {
    "√∛".contains(c)
}

fn arrow(c: char) -> bool {
    "<>!=-+".contains(c)
}

fn section(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (sign, last) = (group(found, 1), group(found, 4));
    let name = if sign.starts_with('§') { "section" } else { "paragraph" };
    let plural = if sign.chars().count() > 1 || !last.is_empty() { "s" } else { "" };
    let letter = match group(found, 3) {
        "" => String::new(),
        letter => format!(" {}", letter.to_uppercase()),
    };
    let last = if last.is_empty() { String::new() } else { format!(" to {}", amount(last, context.dialect)) };
    let number = count_or_year(group(found, 2), context.dialect);
    let mut said = format!("{name}{plural} {number}{letter}{last}");
    for part in group(found, 5).split(['(', ')']).filter(|part| !part.is_empty()) {
        let is_number = part.bytes().all(|byte| byte.is_ascii_digit());
        let words = if is_number { amount(part, context.dialect) } else { part.to_uppercase() };
        said.push_str(&format!(" {words}"));
    }
    Some(said)
}

/// Operator between numbers, with spaces: `5 - 3`, `10 / 2`.
fn operation(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    if !is_term(context) {
        return None;
    }
    let word = match group(found, 1) {
        "" => "times",
        "-" | "−" => "minus",
        "/" | "÷" => "divided by",
        "*" => "times",
        "<" => "is less than",
        ">" => "is greater than",
        "=" => "equals",
        "+" => "plus",
        _ => return None,
    };
    Some(format!("{word} {}", amount(group(found, 3), context.dialect)))
}

fn tag_begins(c: char) -> bool {
    "<>≤≥".contains(c)
}

fn face_begins(c: char) -> bool {
    ":;=<".contains(c)
}

/// Emoticon, which is silent, or a heart.
fn face(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let is_apart =
        context.is_spaced && !context.after.starts_with(|c: char| c.is_alphanumeric() || "/\\".contains(c));
    if !is_apart {
        return None;
    }
    match group(found, 0) {
        "<3" if !is_term(context) => Some("heart".to_owned()),
        "<3" => None,
        _ => Some(String::new()),
    }
}

/// Address in angle brackets, which are silent.
fn bracketed_address(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let address = group(found, 1);
    let is_address = address.contains('@') || address.contains("://") || address.starts_with("www.");
    is_address.then(|| super::normalize(address, context.dialect))
}

/// Returns true if the last word is a number or a letter of a formula.
fn is_term(context: &Context<'_>) -> bool {
    let before = context.words[0];
    before.ends_with(|c: char| c.is_ascii_digit()) || before.len() == 1 && before != "I"
}

fn operation_with_letter(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let word = match group(found, 1) {
        "<" => "is less than",
        ">" => "is greater than",
        "/" => "divided by",
        _ => "times",
    };
    is_term(context).then(|| format!("{word} {}", group(found, 2)))
}

/// Bound, after a term or alone: "is at least" or "at least".
fn bound(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let word = if group(found, 0) == "≤" { "at most" } else { "at least" };
    Some(if is_term(context) { format!("is {word}") } else { word.to_owned() })
}

/// HTML tag, which is silent.
fn tag(_: &Context<'_>, _: &Captures<'_>) -> Option<String> {
    Some(String::new())
}

fn square_root(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let name = if group(found, 1) == "√" { "square root of" } else { "cube root of" };
    let of = group(found, 2);
    let said = if of.starts_with(char::is_alphabetic) { of.to_owned() } else { amount(of, context.dialect) };
    Some(format!("{name} {said}"))
}

fn written_operator(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let word = match group(found, 1) {
        "<=" => "is at most",
        ">=" => "is at least",
        "!=" => "is not equal to",
        "==" => "equals",
        "=>" => "implies",
        "->" => "to",
        "<-" => "from",
        _ => sign_word("±").trim_end(),
    };
    Some(word.to_owned())
}

fn power_of_letter(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (letters, power) = (group(found, 1), group(found, 2));
    if let Some(unit) = super::measure::power_of_unit(letters, power) {
        return Some(unit);
    }
    let name = if letters.len() == 1 { letters.to_owned() } else { super::spelled(letters) };
    Some(format!("{name} {}", super::quantity::exponent(power, context.dialect)))
}
