//! Groups of digits that are spoken one by one: telephone numbers, bank cards, ISBN, social security numbers,
//! ZIP codes.

use regex::Captures;

use super::super::numbers::digits;
use super::{Context, Rule, digit, group, letter};

pub(super) const RULES: &[Rule] = &[
    Rule {
        begins: plus,
        pattern: r"\+[0-9]{1,3}(?:[ .\-–]?\(0\))?(?:[ .\-–]?\(?[0-9]{1,5}\)?){2,6}(?:,? ?(?:x|ext\.?|extension) ?([0-9]{1,6}))?",
        say: international,
    },
    Rule {
        begins: opening,
        pattern: r"\([0-9]{2,5}\)[ -]?[0-9]{3,4}[ .\-–]?[0-9]{3,4}(?:,? ?(?:x|ext\.?|extension) ?([0-9]{1,6}))?",
        say: telephone,
    },
    Rule { begins: opening, pattern: r"\(0[0-9]{0,4}\)()(?:[ \-–/]?[0-9]{2,8}){1,4}", say: telephone },
    Rule {
        begins: digit,
        pattern: r"(?:1[ .\-–])?(?:\([0-9]{3}\)[ -]?|[0-9]{3}[ .\-–])[0-9]{3}[ .\-–][0-9]{4}(?:,? ?(?:x|ext\.?|extension) ?([0-9]{1,6}))?",
        say: telephone,
    },
    Rule {
        begins: digit,
        pattern: r"00[1-9][0-9]{0,2}(?:[ .\-–/]\(?[0-9]{1,8}\)?){2,6}()",
        say: dialed_abroad,
    },
    Rule {
        begins: digit,
        pattern: r"()(1?[ .\-–]?8[0-9]{2})[\-–]([A-Z]{2,7}-[A-Z]{2,7}|[A-Z]{4,10})",
        say: letters,
    },
    Rule { begins: digit, pattern: r"(40[13]|501)\(([a-z])\)", say: super::names::paragraph },
    Rule {
        begins: digit,
        pattern: r"[0-9]{3}[\-–][0-9]{4}(?:,? ?(?:x|ext\.?|extension) ?([0-9]{1,6}))?",
        say: local,
    },
    Rule { begins: digit, pattern: r"0[0-9]{2,4}[ \-–][0-9]{3,4}[ \-–][0-9]{3,4}()", say: telephone },
    Rule { begins: digit, pattern: r"0[0-9]{2,4}[ \-–/][0-9]{5,8}()", say: telephone },
    Rule { begins: digit, pattern: r"0[1-9](?:[ .][0-9]{2}){4}()", say: telephone },
    Rule { begins: digit, pattern: r"[0-9]{4}(?:[ \-–][0-9]{4}){3}()", say: telephone },
    Rule { begins: digit, pattern: r"3[47][0-9]{2}[ \-–][0-9]{6}[ \-–][0-9]{5}()", say: telephone },
    Rule { begins: digit, pattern: r"[0-9]{3}-[0-9]{2}-[0-9]{4}()", say: telephone },
    Rule {
        begins: digit,
        pattern: r"97[89][ \-–]?[0-9]{1,5}[ \-–][0-9]{1,7}[ \-–][0-9]{1,6}[ \-–][0-9]()",
        say: telephone,
    },
    Rule { begins: digit, pattern: r"[0-9]{1,5}-[0-9]{1,7}-[0-9]{1,6}-([0-9X])", say: old_isbn },
    Rule { begins: digit, pattern: r"[0-9]{5}-[0-9]{4}()", say: zip },
    Rule { begins: digit, pattern: r"[0-9]{5}()", say: zip_of_state },
    Rule { begins: digit, pattern: r"(?:[1-9]11|112|999|000|101)()", say: service },
    Rule { begins: digit, pattern: r"[0-9]{5,13}()", say: called },
    Rule { begins: digit, pattern: r"[0-9]{4}-[0-9]{3}([0-9X])", say: serial },
    Rule {
        begins: letter,
        pattern: r"(ext\.?|Ext\.?|PIN|pin|code|Code|OTP|passcode) ?([0-9]{3,8})",
        say: code,
    },
];

fn plus(c: char) -> bool {
    c == '+'
}

fn opening(c: char) -> bool {
    c == '('
}

/// Digits one by one, with a pause between groups.
fn one_by_one(text: &str) -> String {
    let groups = text.split(|c: char| !c.is_ascii_digit()).filter(|group| !group.is_empty());
    groups.map(digits).collect::<Vec<_>>().join(", ")
}

/// Pause after the last group, if other digits or words follow.
fn breath(context: &Context<'_>) -> &'static str {
    let mut after = context.after.chars();
    let goes_on = after.next() == Some(' ') && after.next().is_some_and(char::is_alphanumeric);
    if goes_on { "," } else { "" }
}

/// Splits off an extension, and returns it in words.
fn split<'a>(found: &Captures<'a>) -> (&'a str, String) {
    let whole = group(found, 0);
    match found.get(1).filter(|extension| !extension.as_str().is_empty()) {
        Some(extension) => {
            let words = format!(", extension {}", digits(extension.as_str()));
            (whole[..extension.start()].trim_end_matches(|c: char| !c.is_ascii_digit()), words)
        }
        None => (whole, String::new()),
    }
}

fn telephone(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (number, extension) = split(found);
    Some(format!("{}{extension}{}", one_by_one(number), breath(context)))
}

fn international(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (number, extension) = split(found);
    let count = number.bytes().filter(u8::is_ascii_digit).count();
    let groups = number.split(|c: char| !c.is_ascii_digit()).filter(|group| !group.is_empty()).count();
    // `+5 to 10` and `+1 000` are no telephone numbers.
    let known = (8..=15).contains(&count) && (groups > 2 || count >= 10);
    known.then(|| format!("plus {}{extension}{}", one_by_one(&number[1..]), breath(context)))
}

/// Number with the international prefix 00.
fn dialed_abroad(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let count = group(found, 0).bytes().filter(u8::is_ascii_digit).count();
    if (10..=17).contains(&count) { telephone(context, found) } else { None }
}

fn letters(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(format!("{}, {}", one_by_one(group(found, 2)), group(found, 3).to_lowercase().replace('-', " ")))
}

fn local(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (number, _) = split(found);
    // More likely a range.
    if number.ends_with("00")
        && !context.follows(&["call", "dial", "phone", "tel", "telephone", "fax", "mobile", "cell"])
    {
        return None;
    }
    telephone(context, found)
}

fn old_isbn(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let whole = group(found, 0);
    let count = whole.bytes().filter(|byte| *byte != b'-').count();
    if count != 10 && !context.follows(&["ISBN"]) {
        return None;
    }
    let last = if group(found, 1) == "X" { ", X" } else { "" };
    Some(format!("{}{last}", one_by_one(whole)))
}

fn zip(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(one_by_one(group(found, 0)).replace(", ", " dash "))
}

/// Five digits after the two letters of a state.
fn zip_of_state(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    const STATES: &str = "AL AK AZ AR CA CO CT DE FL GA HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO MT NE NV NH NJ NM NY NC ND \
                          OH OK OR PA RI SC SD TN TX UT VT VA WA WV WI WY DC";
    let word = context.words[0];
    let is_state = word.len() == 2 && STATES.split(' ').any(|state| state == word);
    let is_code =
        context.follows(&["ZIP", "code", "zipcode", "postcode"]) || group(found, 0).starts_with('0');
    (is_state || is_code).then(|| digits(group(found, 0)))
}

fn service(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let is_called = context.follows(&["call", "dial", "called", "dialed", "calling", "dialing", "Phone"]);
    is_called.then(|| digits(group(found, 0)))
}

fn called(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let is_short = group(found, 0).len() < 7;
    if is_short {
        let is_called = context.follows(&["text", "dial", "account", "extension"]);
        return is_called.then(|| digits(group(found, 0)));
    }
    let is_called = context.follows(&[
        "call",
        "dial",
        "phone",
        "tel",
        "telephone",
        "fax",
        "mobile",
        "text",
        "account",
        "ISBN",
        "ISBN-13",
        "ISBN-10",
    ]);
    is_called.then(|| digits(group(found, 0)))
}

/// Journal number after `ISSN`.
fn serial(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let last = if group(found, 1) == "X" { " X" } else { "" };
    context.follows(&["ISSN"]).then(|| format!("{}{last}", one_by_one(group(found, 0))))
}

fn code(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let name = match group(found, 1).trim_end_matches('.') {
        "ext" | "Ext" => "extension",
        "pin" | "PIN" => "pin",
        "OTP" => "O T P",
        other => other,
    };
    Some(format!("{name} {}", digits(group(found, 2))))
}
