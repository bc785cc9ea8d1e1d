//! Abbreviations, by their context.

use super::Context;

/// Context in which an abbreviation applies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AbbreviationPlace {
    /// Before a name: `Dr. Smith`.
    Name,
    /// Before a number: `No. 5`, `Fig. 3`.
    Number,
    /// After a name or a street: `Jr.`, `Ave.`
    Behind,
    /// Anywhere.
    Any,
}

use AbbreviationPlace::{Any, Behind, Name, Number};

/// Abbreviations with a point: letters, words, context.
const WITH_POINT: &[(&str, &str, AbbreviationPlace)] = &[
    ("Mr", "mister", Any),
    ("Mrs", "missus", Any),
    ("Ms", "miz", Any),
    ("Messrs", "messieurs", Any),
    ("Mx", "mix", Name),
    ("Prof", "professor", Any),
    ("Rev", "reverend", Name),
    ("Hon", "honorable", Name),
    ("Gen", "general", Name),
    ("Col", "colonel", Name),
    ("Maj", "major", Name),
    ("Capt", "captain", Name),
    ("Lt", "lieutenant", Name),
    ("Sgt", "sergeant", Name),
    ("Cpl", "corporal", Name),
    ("Pvt", "private", Name),
    ("Cmdr", "commander", Name),
    ("Adm", "admiral", Name),
    ("Gov", "governor", Name),
    ("Sen", "senator", Name),
    ("Rep", "representative", Name),
    ("Pres", "president", Name),
    ("Fr", "father", Name),
    ("Br", "brother", Name),
    ("Supt", "superintendent", Name),
    ("Insp", "inspector", Name),
    ("Det", "detective", Name),
    ("Mt", "mount", Name),
    ("Ft", "fort", Name),
    ("Jr", "junior", Any),
    ("Sr", "senior", Any),
    ("Esq", "esquire", Any),
    ("Ave", "avenue", Behind),
    ("Av", "avenue", Behind),
    ("Blvd", "boulevard", Behind),
    ("Rd", "road", Behind),
    ("Ln", "lane", Behind),
    ("Hwy", "highway", Any),
    ("Pkwy", "parkway", Behind),
    ("Ct", "court", Behind),
    ("Pl", "place", Behind),
    ("Sq", "square", Behind),
    ("Ter", "terrace", Behind),
    ("Cir", "circle", Behind),
    ("Rte", "route", Number),
    ("Apt", "apartment", Any),
    ("Ste", "suite", Number),
    ("Bldg", "building", Any),
    ("Rm", "room", Number),
    ("Fl", "floor", Number),
    ("No", "number", Number),
    ("no", "number", Number),
    ("Nos", "numbers", Number),
    ("nos", "numbers", Number),
    ("p", "page", Number),
    ("pp", "pages", Number),
    ("P", "page", Number),
    ("Pp", "pages", Number),
    ("vol", "volume", Number),
    ("Vol", "volume", Number),
    ("vols", "volumes", Number),
    ("ch", "chapter", Number),
    ("Ch", "chapter", Number),
    ("chap", "chapter", Number),
    ("fig", "figure", Number),
    ("Fig", "figure", Number),
    ("figs", "figures", Number),
    ("Figs", "figures", Number),
    ("sec", "section", Number),
    ("Sec", "section", Number),
    ("eq", "equation", Number),
    ("Eq", "equation", Number),
    ("art", "article", Number),
    ("Art", "article", Number),
    ("para", "paragraph", Number),
    ("ex", "example", Number),
    ("Ex", "example", Number),
    ("tab", "table", Number),
    ("ver", "version", Number),
    ("op", "opus", Number),
    ("Op", "opus", Number),
    ("Pt", "part", Number),
    ("ed", "edition", Number),
    ("ext", "extension", Number),
    ("c", "circa", Number),
    ("ca", "circa", Number),
    ("vs", "versus", Any),
    ("Vs", "versus", Any),
    ("v", "versus", Name),
    ("etc", "et cetera", Any),
    ("approx", "approximately", Any),
    ("Approx", "approximately", Any),
    ("dept", "department", Any),
    ("Dept", "department", Any),
    ("est", "established", Number),
    ("Est", "established", Number),
    ("incl", "including", Any),
    ("excl", "excluding", Any),
    ("max", "maximum", Any),
    ("min", "minimum", Any),
    ("avg", "average", Any),
    ("temp", "temperature", Any),
    ("tel", "telephone", Any),
    ("Tel", "telephone", Any),
    ("misc", "miscellaneous", Any),
    ("govt", "government", Any),
    ("Univ", "university", Any),
    ("Inc", "incorporated", Any),
    ("Ltd", "limited", Any),
    ("Co", "company", Any),
    ("Corp", "corporation", Any),
    ("Bros", "brothers", Any),
    ("assoc", "association", Any),
    ("intl", "international", Any),
];
/// Abbreviations of several parts, compared without regard to case.
const PARTS: [(&str, &str); 26] = [
    ("e.g.", "for example"),
    ("e. g.", "for example"),
    ("i.e.", "that is"),
    ("i. e.", "that is"),
    ("et al.", "et al"),
    ("cf.", "compare"),
    ("viz.", "namely"),
    ("a.k.a.", "also known as"),
    ("b/c", "because"),
    ("w.r.t.", "with respect to"),
    ("ph.d.s", "P H Ds"),
    ("ph.d.", "P H D"),
    ("m.d.", "M D"),
    ("b.a.", "B A"),
    ("b.sc.", "B S C"),
    ("m.sc.", "M S C"),
    ("d.c.", "D C"),
    ("p.s.", "P S"),
    ("r.i.p.", "R I P"),
    ("f.a.q.", "F A Q"),
    ("approx.", "approximately"),
    ("r.s.v.p.", "R S V P"),
    ("n.b.", "N B"),
    ("p.o.", "P O"),
    ("c/o", "care of"),
    ("s.t.", "such that"),
];
/// Saints in place names, which may follow a capitalised word: `Visit St. Louis`.
const SAINTS: &str = "Helens Louis Paul Petersburg Pete Patrick John Johns James Peter Mary Francis Andrew Andrews George Thomas Nicholas Joseph \
                      Clair Lucie Lucia Kitts Vincent Augustine Michael Martin Moritz Bernard Tropez Croix Catharines Albans Ives Pancras \
                      Anthony Luke Mark Matthew Barts Charles Cloud Joe Simon Valentine Elmo Anne Ann Theresa Teresa Christopher David \
                      Stephen Barbara Maarten Jude Bartholomew Benedict Catherine Gallen Pierre Germain Denis";

/// Length in bytes of the abbreviation at the start of `rest`, and its words. `word` is the first word of
/// `rest`.
pub(super) fn said(context: &Context<'_>, word: &str, rest: &str) -> Option<(usize, String)> {
    if let Some(found) = in_parts(rest) {
        return Some(found);
    }
    let Some(after) = rest[word.len()..].strip_prefix('.') else {
        return without_point(context, word, &rest[word.len()..]).map(|words| (word.len(), words.to_owned()));
    };
    let used = word.len() + 1;
    let next = Next::of(after);
    let end = if next.is_end { "." } else { "" };
    if let Some(words) = street_or_title(context, word, &next) {
        // A street may end the sentence.
        let is_street = matches!(words, "street" | "drive");
        let end = if is_street && next.ends_sentence() { "." } else { end };
        return Some((used, format!("{words}{end}")));
    }
    let (_, words, place) = WITH_POINT.iter().find(|(short, ..)| *short == word)?;
    let fits = match place {
        Name => next.is_name && !next.is_end,
        // `No. I said no.`
        Number => next.is_number && !(next.word() == "I" && word.eq_ignore_ascii_case("no")),
        Behind => {
            is_capitalised(context.words[0]) || context.words[0].starts_with(|c: char| c.is_ascii_digit())
        }
        // `the max. It` and `He has a temp.`: full words at the end of a sentence stay.
        Any => !(next.ends_sentence() && ["max", "min", "temp", "avg"].contains(&word)),
    };
    let ends = next.is_end
        || matches!(
            *words,
            "et cetera"
                | "incorporated"
                | "limited"
                | "company"
                | "corporation"
                | "avenue"
                | "road"
                | "boulevard"
                | "junior"
                | "senior"
                | "lane"
                | "court"
                | "square"
                | "place"
        ) && next.ends_sentence();
    fits.then(|| (used, format!("{words}{}", if ends { "." } else { "" })))
}

/// Abbreviation without a point, as in British titles.
fn without_point(context: &Context<'_>, word: &str, after: &str) -> Option<&'static str> {
    let next = Next::of(after);
    let is_followed = after.starts_with(' ') && next.is_name;
    match word {
        "vs" | "Vs" => Some("versus"),
        "Dr" if is_followed || is_capitalised(context.words[0]) => street_or_title(context, word, &next),
        "St" if is_followed => street_or_title(context, word, &next),
        // `10 Downing St, London`
        "St" | "Ave" | "Rd" | "Blvd" | "Ln"
            if is_capitalised(context.words[0]) || is_ordinal(context.words[0]) =>
        {
            let words = WITH_POINT.iter().find(|(short, ..)| *short == word);
            Some(words.map_or("street", |(_, words, _)| *words))
        }
        "Mr" | "Mrs" | "Ms" | "Prof" | "Mt" | "Lt" | "Sgt" | "Capt" if is_followed => {
            WITH_POINT.iter().find(|(short, ..)| *short == word).map(|(_, words, _)| *words)
        }
        _ => None,
    }
}

/// Text after an abbreviation.
struct Next<'a> {
    text: &'a str,
    /// True if nothing follows.
    is_end: bool,
    is_number: bool,
    is_name: bool,
}

impl<'a> Next<'a> {
    fn of(after: &'a str) -> Next<'a> {
        let end = super::border(after, super::WINDOW_BYTES);
        let is_end = after[..end].trim_matches(['"', '”', ')', ' ', '\'', '’']).is_empty();
        let text = after.trim_start_matches([' ', '\u{a0}', '\u{202f}']);
        let first = text.chars().next();
        Next {
            text,
            is_end,
            is_number: first.is_some_and(|c| c.is_ascii_digit() || "IVX".contains(c) && is_numeral(text)),
            is_name: first.is_some_and(char::is_uppercase),
        }
    }

    fn word(&self) -> &'a str {
        let end = self.text.find(|c: char| !c.is_alphabetic()).unwrap_or(self.text.len());
        &self.text[..end]
    }

    /// Returns true if a sentence probably ends here: a capitalised word follows that often starts sentences.
    fn ends_sentence(&self) -> bool {
        const STARTS: [&str; 24] = [
            "The", "He", "She", "It", "They", "We", "I", "You", "This", "That", "In", "On", "At", "But",
            "And", "When", "His", "Her", "There", "A", "An", "My", "Our", "If",
        ];
        self.is_end || STARTS.contains(&self.word())
    }
}

fn is_numeral(text: &str) -> bool {
    let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
    text[..end].chars().all(|c| "IVX".contains(c))
}

fn is_capitalised(word: &str) -> bool {
    const PLAIN: [&str; 22] = [
        "The", "In", "At", "On", "Of", "And", "To", "From", "For", "By", "With", "Near", "Visit", "See",
        "Ask", "Call", "Then", "But", "I", "Is", "Was", "When",
    ];
    word.starts_with(char::is_uppercase) && !PLAIN.contains(&word)
}

fn is_ordinal(word: &str) -> bool {
    let stem = word.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let named =
        ["First", "Second", "Third", "Fourth", "Fifth", "Sixth", "Seventh", "Eighth", "Ninth", "Tenth"]
            .contains(&word);
    named || !stem.is_empty() && stem.len() < word.len() && stem.chars().all(|c| c.is_ascii_digit())
}

/// `St.` and `Dr.`, which may be streets or titles.
fn street_or_title(context: &Context<'_>, word: &str, next: &Next<'_>) -> Option<&'static str> {
    let behind_name = is_capitalised(context.words[0]) || is_ordinal(context.words[0]);
    let has_house = context.words[1..].iter().any(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    match word {
        "St" => {
            let is_saint = SAINTS.split_whitespace().any(|saint| saint == next.word());
            let is_street = behind_name && (!is_saint || has_house && !next.is_name);
            Some(if is_street && (has_house || !is_saint) { "street" } else { "saint" })
        }
        "Sts" => Some("saints"),
        "Dr" => {
            let is_street = behind_name && (!next.is_name || next.ends_sentence() || has_house);
            Some(if is_street && !is_title(context.words[0]) { "drive" } else { "doctor" })
        }
        _ => None,
    }
}

fn is_title(word: &str) -> bool {
    ["Prof", "Mr", "Mrs", "Ms", "Herr", "Frau", "Hello", "Hi", "Dear", "Thanks", "Yes"].contains(&word)
}

/// Abbreviations of several parts.
fn in_parts(rest: &str) -> Option<(usize, String)> {
    let (short, words) = PARTS.iter().find(|(short, _)| {
        let start = rest.get(..short.len());
        let goes_on = rest.get(short.len()..).is_some_and(|after| after.starts_with(char::is_alphanumeric));
        start.is_some_and(|start| start.eq_ignore_ascii_case(short)) && !goes_on
    })?;
    let next = Next::of(&rest[short.len()..]);
    let end = if next.is_end && short.ends_with('.') { "." } else { "" };
    Some((short.len(), format!("{words}{end}")))
}
