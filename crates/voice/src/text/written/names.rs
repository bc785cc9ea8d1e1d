//! Names that mix letters, digits and signs: products, roads, molecules, programming languages, initials.

use regex::Captures;

use super::super::numbers::{cardinal, digits};
use super::quantity::pairs;
use super::{Context, Rule, digit, group, letter, spelled};

pub(super) const RULES: &[Rule] = &[
    Rule { begins: letter, pattern: r"(C|F|J|Q|A|G|D)#|(C|F|G|A|B|D|E)(♯|♭)", say: sharp },
    Rule { begins: letter, pattern: r"WW ?(I{1,2}|[12])\b", say: world_war },
    Rule { begins: digit, pattern: r"802\.([0-9]{1,2})([a-z]{0,2})", say: network },
    Rule { begins: letter, pattern: r"C/C\+\+", say: both_languages },
    Rule { begins: letter, pattern: r"([A-Za-z]{1,12})(\+\+|--)", say: doubled },
    Rule { begins: letter, pattern: r"([A-D]|F)([+−-])", say: grade },
    Rule { begins: dot, pattern: r"\.(NET|Net)\b", say: dot_net },
    Rule { begins: letter, pattern: r"([A-Z][A-Za-z0-9]{1,15})\.(NET|Net|js|JS|io|ai|py|ts)\b", say: dotted },
    Rule { begins: letter, pattern: r"([A-Z]{1,3})&([A-Z]{1,3})(s)?\b", say: initials },
    Rule { begins: letter, pattern: r"((?:[A-Z]\.){2,6})()", say: pointed },
    Rule {
        begins: letter,
        pattern: r"(Boeing|Airbus|Flight|flight|Room|room|Route|route|Highway|highway|Interstate|RTX|GTX|RX|Area|Porsche|Ryzen|Core|Form|form|Suite|suite|Apt|Bus|bus|Gate|gate|Channel|channel) ([0-9]{3,4})([A-Z]{0,3})\b(?:-([0-9]{3})\b)?",
        say: numbered_thing,
    },
    Rule {
        begins: letter,
        pattern: r"(H|CO|NO|SO|O|N|CH|NH|C|Fe|Al|Ca|Na|Si|Ti|P|Mg|K|Zn|Cu|Cl|F)([₀-₉]{1,2}|[2-9])((?:(?:[A-Z][a-z]?)(?:[₀-₉]{1,2}|[2-9]{1,2})?){0,5})",
        say: formula,
    },
    Rule { begins: letter, pattern: r"([A-Z]{2,12})[-‑–]([0-9]{1,4})()", say: acronym_and_number },
    Rule {
        begins: letter,
        pattern: r"([A-Z]{1,6})[-‑–]?([0-9]{1,5})((?:[-‑–/.]?(?:[A-Za-z]{1,6}|[0-9]{1,5})){0,6})",
        say: model,
    },
    Rule {
        begins: letter,
        pattern: r"([A-Za-z]{2,16})[-‑]([0-9]{1,4}(?:\.[0-9]{1,3})?)((?:[-‑.]?(?:[A-Za-z]{1,8}|[0-9]{1,5})){0,6})",
        say: named_model,
    },
    Rule { begins: letter, pattern: r"([a-z]{1,3})([0-9]{1,4})()", say: model },
    Rule {
        begins: letter,
        pattern: r"([A-Za-z]{2,20})([0-9]{1,5})((?:[-‑–/.]?(?:[A-Za-z]{1,6}|[0-9]{1,5})){0,6})",
        say: word_and_number,
    },
    Rule {
        begins: digit,
        pattern: r"([0-9]{1,4})([A-Z]{1,4})((?:[-‑–]?[0-9A-Z]{1,4}){0,4})",
        say: number_and_letters,
    },
    Rule {
        begins: digit,
        pattern: r"([0-9]{1,4})([a-z])((?:[-‑–]?[0-9A-Za-z]{1,4}){0,4})",
        say: number_and_letters,
    },
    Rule { begins: letter, pattern: r"([A-Za-z]+)/([A-Za-z]+)()", say: slashed },
    Rule { begins: letter, pattern: r"w/(o\b)?()", say: with },
];

fn dot(c: char) -> bool {
    c == '.'
}

/// Digits in a name: one or two as a number, three and four in pairs, more one by one.
fn number(text: &str) -> String {
    match text.len() {
        0 => String::new(),
        1..=4 if !text.starts_with('0') => pairs(text),
        _ => digits(text),
    }
}

/// Letters by name, and digits between them: `4o` is "four O".
pub(super) fn letters_and_digits(text: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let kind = |c: char| if c.is_ascii_digit() { 0 } else { usize::from(c.is_alphabetic()) + 1 };
        let end = rest.find(|c| kind(c) != kind(first)).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        parts.push(match kind(first) {
            0 => number(run),
            2 => letters(run),
            _ if run == "." => "point".to_owned(),
            _ if run == "/" => "slash".to_owned(),
            _ => String::new(),
        });
        rest = after;
    }
    parts.retain(|part| !part.is_empty());
    parts.join(" ")
}

/// Letters in a name. A word of four or more letters in lower case stays, and so do a few short ones.
fn letters(run: &str) -> String {
    const WORDS: [&str; 20] = [
        "win", "int", "abc", "uint", "mini", "Mini", "max", "Max", "pro", "Pro", "Plus", "plus", "Ultra",
        "ultra", "Turbo", "turbo", "Lite", "lite", "th", "rev",
    ];
    let is_word = WORDS.contains(&run) || run.len() > 3 && run[1..].chars().all(char::is_lowercase);
    if is_word { run.to_owned() } else { spelled(run) }
}

fn sharp(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let language = group(found, 1);
    if !language.is_empty() {
        return Some(format!("{language} sharp"));
    }
    let sign = if group(found, 3) == "♯" { "sharp" } else { "flat" };
    Some(format!("{} {sign}", group(found, 2)))
}

fn world_war(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(format!("World War {}", if matches!(group(found, 1), "I" | "1") { "one" } else { "two" }))
}

/// Section of a law: `401(k)`.
pub(super) fn paragraph(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(format!("{} {}", number(group(found, 1)), group(found, 2).to_uppercase()))
}

fn network(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(
        format!("eight oh two dot {} {}", number(group(found, 1)), spelled(group(found, 2)))
            .trim_end()
            .to_owned(),
    )
}

fn both_languages(_: &Context<'_>, _: &Captures<'_>) -> Option<String> {
    Some("C and C plus plus".to_owned())
}

fn doubled(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (name, sign) = (group(found, 1), group(found, 2));
    let sign = if sign == "++" { "plus plus" } else { "minus minus" };
    match name {
        _ if name.len() == 1 => Some(format!("{} {sign}", name.to_uppercase())),
        _ if sign == "minus minus" => None,
        _ => Some(format!("{name} {sign}")),
    }
}

/// School grade: `A+`, `B-`.
fn grade(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let next = context.after.chars().next();
    if next.is_some_and(|c| c.is_alphanumeric() || "+-−=".contains(c)) {
        return None;
    }
    let sign = if group(found, 2) == "+" { "plus" } else { "minus" };
    Some(format!("{} {sign}", group(found, 1)))
}

fn dot_net(_: &Context<'_>, _: &Captures<'_>) -> Option<String> {
    Some("dot net".to_owned())
}

fn dotted(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (name, ending) = (group(found, 1), group(found, 2));
    let name = match name {
        _ if name.contains(digit) => letters_and_digits(name),
        _ if name.chars().all(char::is_uppercase) => spelled(name),
        _ => name.to_owned(),
    };
    let ending = if ending.eq_ignore_ascii_case("net") { "net".to_owned() } else { spelled(ending) };
    Some(format!("{name} dot {ending}"))
}

fn initials(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let plural = if group(found, 3).is_empty() { "" } else { "s" };
    Some(format!("{} and {}{plural}", spelled(group(found, 1)), spelled(group(found, 2))))
}

/// Letters with points: `U.S.`, `J.R.R.`
fn pointed(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let form = group(found, 1);
    // `U.S.A`, and a name after one initial, are left to other rules.
    if context.after.starts_with(char::is_alphanumeric) {
        return None;
    }
    let ends = context.after.trim_matches(['"', '”', ')', ' ', '\'', '’']).is_empty();
    Some(format!("{}{}", spelled(form), if ends { "." } else { "" }))
}

fn numbered_thing(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (name, text, end) = (group(found, 1), group(found, 2), group(found, 3));
    let name =
        if name.len() > 1 && name.chars().all(char::is_uppercase) { spelled(name) } else { name.to_owned() };
    let end = if end.is_empty() { String::new() } else { format!(" {}", spelled(end)) };
    // `Boeing 737-800`
    let variant = match group(found, 4) {
        "" => String::new(),
        _ if !["Boeing", "Airbus"].contains(&name.as_str()) => return None,
        variant => format!(" {}", number(variant)),
    };
    Some(format!("{name} {}{end}{variant}", number(text)))
}

/// Chemical formula of known elements.
fn formula(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    const KNOWN: [&str; 22] = [
        "H2O", "H2O2", "CO2", "NO2", "SO2", "SO3", "O2", "O3", "N2", "H2", "CH4", "NH3", "H2SO4", "C6H12O6",
        "CaCO3", "NaCl2", "Fe2O3", "Al2O3", "SiO2", "TiO2", "HNO3", "C2H5OH",
    ];
    let plain: String = group(found, 0)
        .chars()
        .map(|c| {
            "₀₁₂₃₄₅₆₇₈₉"
                .chars()
                .position(|digit| digit == c)
                .and_then(|n| char::from_digit(n as u32, 10))
                .unwrap_or(c)
        })
        .collect();
    let is_known = KNOWN.contains(&plain.as_str()) || plain != group(found, 0);
    if !is_known {
        return None;
    }
    let mut said = String::new();
    let mut rest = plain.as_str();
    while let Some(first) = rest.chars().next() {
        let is_digit = first.is_ascii_digit();
        let end = rest.find(|c: char| c.is_ascii_digit() != is_digit).unwrap_or(rest.len());
        let words = if is_digit { rest[..end].parse().map(cardinal).ok()? } else { spelled(&rest[..end]) };
        said.push_str(&words);
        said.push(' ');
        rest = &rest[end..];
    }
    Some(said.trim_end().to_owned())
}

fn acronym_and_number(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    const WORDS: [&str; 10] =
        ["ISBN", "ISSN", "COVID", "SARS", "MERS", "NASA", "NATO", "UNIX", "APEC", "AIDS"];
    let (name, text) = (group(found, 1), group(found, 2));
    if !WORDS.contains(&name) || context.after.starts_with(char::is_alphanumeric) {
        return None;
    }
    Some(format!("{name} {}", number(text)))
}

fn model(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    if context.after.starts_with(['@', '\\']) {
        return None;
    }
    Some(letters_and_digits(group(found, 0)))
}

/// Name, hyphen and number: `Llama-3.1-8B`, `Catch-22`. `Mid-1990s` and `Pre-2020` are other forms.
fn named_model(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (name, text, rest) = (group(found, 1), group(found, 2), group(found, 3));
    let is_prefix = ["Mid", "Pre", "Post", "Late", "Early", "Non", "Anti", "Sub", "Re"].contains(&name);
    let is_lower = name.chars().all(char::is_lowercase);
    let is_spelled = is_lower && !name.contains(['a', 'e', 'i', 'o', 'u', 'y']);
    if is_lower && !is_spelled {
        return None;
    }
    if is_prefix || rest == "s" || rest.starts_with("th") || rest.contains("year") {
        return None;
    }
    let name = if is_spelled { spelled(name) } else { name.to_owned() };
    Some(format!("{name} {}", letters_and_digits(&format!("{text}{rest}"))))
}

fn word_and_number(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (name, text, rest) = (group(found, 1), group(found, 2), group(found, 3));
    let capitals = name.chars().filter(|c| c.is_uppercase()).count();
    let is_spelled = capitals == name.len() || capitals > 1 && name.len() < 4;
    let name = if is_spelled { spelled(name) } else { name.to_owned() };
    let rest = if rest.is_empty() { String::new() } else { format!(" {}", letters_and_digits(rest)) };
    Some(format!("{name} {}{rest}", number(text)))
}

fn number_and_letters(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(letters_and_digits(group(found, 0)))
}

fn slashed(context: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    let (first, second) = (group(found, 1), group(found, 2));
    if context.after.starts_with('/') {
        return None;
    }
    let spell = |word: &str| {
        let is_short = word.len() <= 3 && word.chars().all(char::is_uppercase);
        if is_short { spelled(word) } else { word.to_owned() }
    };
    Some(match (first, second) {
        ("and", "or") => "and or".to_owned(),
        ("c", "o") => "care of".to_owned(),
        ("w", "o") => "without".to_owned(),
        ("w", _) => return None,
        ("b", "c") => "because".to_owned(),
        ("C", "C") if context.after.starts_with("++") => return None,
        _ if first.eq_ignore_ascii_case("n") && second.eq_ignore_ascii_case("a") => {
            "not applicable".to_owned()
        }
        _ if first.len() == 1 || first.chars().all(char::is_uppercase) => {
            format!("{} {}", spell(first), spell(second))
        }
        _ => format!("{first} slash {second}"),
    })
}

fn with(_: &Context<'_>, found: &Captures<'_>) -> Option<String> {
    Some(if group(found, 1).is_empty() { "with" } else { "without" }.to_owned())
}
