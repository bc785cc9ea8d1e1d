//! Text normalisation: numbers, dates, addresses, signs and abbreviations become English words. Plain words stay.
//!
//! The text is read once from the left. At the start of each token the rules of the grammar are tried in a fixed
//! order. A rule has a pattern, which finds a written form of one class, and a verbalizer, which converts it to
//! words. The first rule that fits takes the form. A pattern sees at most [`WINDOW_BYTES`] bytes, so that the
//! time grows in proportion to the text.
//!
//! Classes, in the order in which they are tried:
//!
//! | class | module | examples |
//! |---|---|---|
//! | address | `address` | URL, e-mail, domain, IP and MAC address, path, file name, handle, hashtag |
//! | digit group | `groups` | telephone, bank card, ISBN, social security number, ZIP code |
//! | date | `calendar` | `2025-12-25`, `25.12.2025`, `12/25/2025`, `Dec. 25`, `1990s`, `'80s`, `44 BC` |
//! | time | `clock` | `15:00`, `9:30 a.m.`, `10:00-11:30`, `24/7`, time zones, `John 3:16`, `16:9` |
//! | money | `money` | `$1.2M`, `€5–10`, `5 EUR`, `50¢`, `$10/month` |
//! | measure | `measure` | `5 km`, `60 km/h`, `20°C`, `5%`, `1920×1080`, `5'10"` |
//! | number | `quantity` | cardinal, ordinal, decimal, fraction, range, version, power, `1 000 000` |
//! | name | `names` | `C#`, `GPT-4o`, `B-52`, `H2O`, `COVID-19`, `Boeing 747`, `AT&T` |
//! | abbreviation | `abbreviations` | `Dr.`, `St.`, `No.`, `e.g.`, `vs.`, `Inc.` |
//! | sign | `signs` | `§`, `±`, `≤`, `&`, `©`, emoji |
//!
//! Ambiguous forms are read as follows:
//!
//! - `10/12/2025` is October 12 for an American voice and 10 December for a British one. A number over 12
//!   decides. Points mean that the day comes first, as in Europe.
//! - American voices say "one hundred five" and "December twenty-fifth". British ones say "one hundred and five"
//!   and "the twenty-fifth of December".
//! - A number of four digits from 1100 to 2099 without a comma is a year, unless a unit follows.
//! - `1 000 000` and `1 000` are one number: a group of one to three digits, then groups of exactly three.
//! - `3,5` is a decimal, and `3,500` is three thousand five hundred.
//! - `3:10` is a time, `3:1` a ratio. After a book of the Bible both are chapter and verse; after "ratio" both
//!   are a ratio.
//! - `5-10` is a range. `555-0142` is a telephone number, unless the second group ends in `00`.
//! - `3/4` is a fraction, `10/10` is "ten out of ten", and `24/7` and `9/11` keep their own names.
//! - `St.` is "street" after a capitalised word or an ordinal, and "saint" before the name of a saint or before
//!   any name. `Dr.` is "drive" in the place of a street, "doctor" otherwise.
//! - `No.` is "number" before a number only. `Jan.` is "January" before a number or after a preposition.
//! - `$5M` is in millions and `$5K` in thousands. Without a currency `4K`, `5K`, `8K` and `10K` keep the letter.
//! - `#FF5733` is a color, `#cafe` a hashtag and `#123` a number. Faces such as `:)` are silent.
//! - `Python 3.11` and `v3.11` are "three point eleven", and `3.11` without such a name is "three point one one".
//! - `5"` is inches, unless a quotation is open.
//! - More than 15 digits in a row are read one by one.
//! - Frequent emoji are named. Others are silent.
//! - Words in capitals stay: the dictionaries know which are spelled.

mod abbreviations;
mod address;
mod calendar;
mod clock;
mod groups;
mod measure;
mod money;
mod names;
mod quantity;
mod signs;
#[cfg(test)]
mod table_tests;

use std::sync::OnceLock;

use regex::{Captures, Regex};

use super::english::Dialect;
use super::roman;

/// Bytes of the text that a pattern sees.
const WINDOW_BYTES: usize = 160;
/// Number of words before a form that its verbalizer sees.
const WORDS_BEFORE: usize = 3;

/// A rule of the grammar.
struct Rule {
    /// Returns true if a form of this class may begin with a character.
    begins: fn(char) -> bool,
    /// Pattern of the form. `<N>` and the like are named parts, see [`part`].
    pattern: &'static str,
    /// Converts the form to words. None if it is of another class.
    say: fn(&Context<'_>, &Captures<'_>) -> Option<String>,
}

/// Context of a form.
struct Context<'a> {
    dialect: Dialect,
    /// Words before the form, nearest first, without punctuation.
    words: [&'a str; WORDS_BEFORE],
    /// Text after the form, up to [`WINDOW_BYTES`].
    after: &'a str,
    /// True if a double quote is open.
    is_quoted: bool,
    /// True if a space or nothing precedes the form.
    is_spaced: bool,
}

/// Rules with compiled patterns.
struct Grammar {
    rules: Vec<(Regex, &'static Rule)>,
}

fn digit(c: char) -> bool {
    c.is_ascii_digit()
}

fn letter(c: char) -> bool {
    c.is_alphabetic()
}

/// Pattern of a named part, shared by rules.
fn part(name: &str) -> String {
    const NUMBER: &str = concat!(
        r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}|[1-9][0-9]{0,2}(?:[ \u{a0}\u{202f}\u{2009}'’][0-9]{3})+",
        r"|[0-9]{1,40})(?:\.[0-9]{1,40})?|\.[0-9]{1,40})"
    );
    match name {
        "N" => NUMBER.to_owned(),
        "U" => measure::unit_pattern(),
        "C" => money::SYMBOLS.to_owned(),
        "K" => money::CODES.to_owned(),
        "SCALE" => "(?:thousand|million|billion|trillion|hundred)".to_owned(),
        "MONTH" => calendar::MONTH_PATTERN.to_owned(),
        "DATE" => {
            r"(?:[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}|[0-9]{1,2}[./][0-9]{1,2}[./](?:[0-9]{4}|[0-9]{2}))"
                .to_owned()
        }
        "DAY" => calendar::WEEKDAY_PATTERN.to_owned(),
        "ZONE" => clock::ZONES.to_owned(),
        "HALF" => r"(?:[ \u{a0}\u{202f}]?(?:[AaPp]\.[Mm]\.|[AaPp][Mm]))".to_owned(),
        "TO" => "(?: ?[-–—−] ?|~| to )".to_owned(),
        _ => unreachable!("patterns are constants"),
    }
}

/// Replaces named parts in a pattern.
fn expanded(pattern: &str) -> String {
    let mut all = String::from("^");
    let mut rest = pattern;
    while let Some(open) = rest.find('<') {
        let name = rest[open + 1..].split('>').next().unwrap_or_default();
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_uppercase()) {
            all.push_str(&rest[..=open]);
            rest = &rest[open + 1..];
            continue;
        }
        all.push_str(&rest[..open]);
        all.push_str(&part(name));
        rest = &rest[open + name.len() + 2..];
    }
    all.push_str(rest);
    // Use ASCII word boundaries, because Unicode ones make the search slow.
    all.replace(r"\b", r"(?-u:\b)")
}

impl Grammar {
    fn get() -> &'static Grammar {
        static GRAMMAR: OnceLock<Grammar> = OnceLock::new();
        GRAMMAR.get_or_init(|| {
            let all = [
                address::RULES,
                groups::RULES,
                calendar::RULES,
                clock::RULES,
                money::RULES,
                measure::RULES,
                quantity::RULES,
                names::RULES,
                signs::RULES,
            ];
            let compiled = |rule: &'static Rule| {
                let pattern = Regex::new(&expanded(rule.pattern));
                (pattern.expect("patterns are constants, and tests compile them all"), rule)
            };
            Grammar { rules: all.into_iter().flatten().map(compiled).collect() }
        })
    }
}

/// Converts written forms in a text to words.
pub(crate) fn normalize(text: &str, dialect: Dialect) -> String {
    let text: String = text.chars().filter(|&c| !signs::is_invisible(c)).collect();
    let mut reading = TextReading {
        text: &text,
        at: 0,
        out: String::with_capacity(text.len() * 2),
        words: Default::default(),
        is_quoted: false,
        dialect,
        before: None,
        is_apart: true,
    };
    while reading.at < text.len() {
        reading.step();
    }
    reading.out.trim().to_owned()
}

/// State of reading a text.
struct TextReading<'a> {
    text: &'a str,
    at: usize,
    out: String,
    words: [&'a str; WORDS_BEFORE],
    is_quoted: bool,
    dialect: Dialect,
    /// Character before `at`.
    before: Option<char>,
    /// True if punctuation stands between the last word and `at`.
    is_apart: bool,
}

/// Largest character boundary up to `at`.
fn border(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

impl<'a> TextReading<'a> {
    /// Reads one token.
    fn step(&mut self) {
        let rest = &self.text[self.at..];
        let Some(first) = rest.chars().next() else { return };
        if first.is_whitespace() {
            if !self.out.ends_with(' ') {
                self.out.push(' ');
            }
            self.advance(first.len_utf8());
            return;
        }
        if self.begins_token(first)
            && let Some((used, said)) = self.by_rule(rest, first)
        {
            self.say(&said);
            self.remember(used);
            return;
        }
        if first.is_alphabetic() {
            self.word(rest);
        } else if first.is_numeric() {
            let end = rest.find(|c: char| !c.is_numeric()).unwrap_or(rest.len());
            self.say(&quantity::loose_digits(&rest[..end], self.dialect));
            self.remember(end);
        } else {
            self.sign(first);
        }
    }

    /// Returns true if a form may begin with `first` here.
    fn begins_token(&self, first: char) -> bool {
        let Some(before) = self.before else { return true };
        match first {
            _ if before.is_whitespace() => true,
            '-' | '−' | '+' | '.' | '/' | '@' | '\\' | '~' => "([{\"'“‘=<>≤≥≈±×".contains(before),
            '\'' | '’' | '‘' | '#' => !before.is_alphanumeric(),
            _ if first.is_alphanumeric() => !before.is_alphanumeric(),
            _ => true,
        }
    }

    fn by_rule(&self, rest: &'a str, first: char) -> Option<(usize, String)> {
        if let Some(found) = address::long(rest) {
            return Some(found);
        }
        let window = &rest[..border(rest, WINDOW_BYTES)];
        for (pattern, rule) in Grammar::get().rules.iter().filter(|(_, rule)| (rule.begins)(first)) {
            let Some(captures) = pattern.captures(window) else { continue };
            let Some(whole) = captures.get(0).filter(|whole| whole.end() > 0) else { continue };
            let after = &rest[whole.end()..];
            if !is_whole(whole.as_str(), after) {
                continue;
            }
            let context = self.context(after);
            if let Some(said) = (rule.say)(&context, &captures) {
                return Some((whole.end(), said));
            }
        }
        None
    }

    fn context(&self, after: &'a str) -> Context<'a> {
        Context {
            dialect: self.dialect,
            words: self.words,
            after: &after[..border(after, WINDOW_BYTES)],
            is_quoted: self.is_quoted,
            is_spaced: self.before.is_none_or(char::is_whitespace),
        }
    }

    /// Reads a word of letters: an abbreviation, a Roman numeral, or the word itself.
    fn word(&mut self, rest: &'a str) {
        let letters = |c: char| c.is_alphabetic() || "'’".contains(c) || signs::is_mark(c);
        let end = rest.find(|c: char| !letters(c)).unwrap_or(rest.len());
        let word = rest[..end].trim_end_matches(['\'', '’']);
        if self.before.is_none_or(|before| !before.is_alphanumeric()) {
            let context = self.context(&rest[word.len()..]);
            if let Some((used, said)) = abbreviations::said(&context, word, rest) {
                self.say(&said);
                self.remember(used);
                return;
            }
            if let Some(said) = roman::said(word, &context.words, context.after, self.is_apart) {
                self.say(&said);
                self.remember(word.len());
                return;
            }
        }
        // A Greek letter of a formula.
        let mut letters = word.chars();
        match (letters.next().map(signs::lone), letters.next()) {
            (Some(signs::Lone::Word(name)), None) => self.say(name),
            _ => self.out.push_str(word),
        }
        self.remember(word.len());
    }

    fn sign(&mut self, sign: char) {
        if sign == '"' {
            self.is_quoted = !self.is_quoted;
        }
        match signs::lone(sign) {
            signs::Lone::Stays => self.out.push(sign),
            signs::Lone::Silent => {
                if self.before.is_some_and(char::is_alphanumeric) && !self.out.ends_with(' ') {
                    self.out.push(' ');
                }
            }
            signs::Lone::Word(word) => {
                self.say(word);
                let next = self.text[self.at + sign.len_utf8()..].chars().next();
                if next.is_some_and(|next| !next.is_whitespace() && !",.;:!?)]}\"”".contains(next)) {
                    self.out.push(' ');
                }
            }
        }
        self.is_apart = true;
        self.advance(sign.len_utf8());
    }

    /// Appends words, with a space if necessary.
    fn say(&mut self, words: &str) {
        let is_apart = self.out.chars().next_back().is_some_and(|last| !" ([{\"'“‘-–—/".contains(last));
        if is_apart && !words.is_empty() {
            self.out.push(' ');
        }
        self.out.push_str(words);
    }

    /// Moves after a form, and remembers its words as the last ones.
    fn remember(&mut self, used: usize) {
        let form = &self.text[self.at..self.at + used];
        let bare = |word: &'a str| word.trim_matches(|c: char| !c.is_alphanumeric());
        let mut words = form.split_whitespace().rev().map(bare).filter(|word| !word.is_empty());
        let newest: Vec<&str> = words.by_ref().take(WORDS_BEFORE).collect();
        self.words.rotate_right(newest.len().min(WORDS_BEFORE));
        self.words[..newest.len()].copy_from_slice(&newest);
        self.is_apart = false;
        self.advance(used);
        // Separate a form from letters after it.
        let next = self.text[self.at..].chars().next();
        let said = self.out.chars().next_back();
        let letters = form.chars().all(|c| c.is_alphabetic() || "'’".contains(c));
        if !letters && next.is_some_and(char::is_alphanumeric) && said.is_some_and(char::is_alphanumeric) {
            self.out.push(' ');
        }
    }

    /// Moves after characters that are no word.
    fn advance(&mut self, used: usize) {
        self.before = self.text[self.at..self.at + used].chars().next_back();
        self.at += used;
    }
}

/// Returns true if a form ends at the end of a match.
fn is_whole(matched: &str, after: &str) -> bool {
    let mut next = after.chars();
    let (Some(next), second) = (next.next(), next.next()) else { return true };
    let ends_in_word = matched.ends_with(|c: char| c.is_alphanumeric());
    if ends_in_word && (next.is_alphanumeric() || next == '_') {
        return false;
    }
    let goes_on = second.is_some_and(|c| c.is_ascii_digit());
    !(matched.ends_with(digit) && ".,:/'’-–@".contains(next) && goes_on)
}

impl Context<'_> {
    fn is_british(&self) -> bool {
        self.dialect == Dialect::British
    }

    /// Returns true if the last word is among these, ignoring case.
    fn follows(&self, words: &[&str]) -> bool {
        words.iter().any(|word| word.eq_ignore_ascii_case(self.words[0]))
    }

    /// Next word after the form.
    fn next_word(&self) -> &str {
        let rest = self.after.strip_prefix(' ').unwrap_or_default();
        let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
        &rest[..end]
    }

    /// Returns true if an amount modifies the noun after it: `a 5 km run`.
    fn is_attribute(&self) -> bool {
        const GOES_ON: [&str; 34] = [
            "of", "in", "on", "at", "to", "by", "as", "for", "from", "with", "into", "than", "that", "which",
            "and", "or", "it", "he", "she", "they", "we", "you", "I", "is", "was", "are", "were", "has",
            "had", "have", "will", "would", "per", "a",
        ];
        let next = self.next_word();
        let named = next.starts_with(char::is_alphabetic) && !GOES_ON.contains(&next);
        named && self.follows(&["a", "an", "another", "the"])
    }
}

/// Text of a group, empty if it did not match.
fn group<'a>(captures: &Captures<'a>, index: usize) -> &'a str {
    captures.get(index).map_or("", |found| found.as_str())
}

/// Letters by name, with spaces between them.
fn spelled(text: &str) -> String {
    let letters = text.chars().filter(|c| c.is_alphanumeric()).map(|c| c.to_ascii_uppercase().to_string());
    letters.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_panics() {
        for text in [
            "",
            " ",
            "$",
            "$.",
            "1/0",
            "0/0",
            "99:99",
            "1-2-3",
            "-",
            "%",
            "°",
            "€€5",
            "１２",
            "5/",
            "/5",
            "٣",
            "٣%",
            "½",
            "5½",
            "x²",
            "²",
            "''80s",
            "St.",
            "é́",
            "🇩🇪👨‍👩‍👧",
            "10^",
            "#",
            "@",
            "://",
            "http://",
            "C#C#C#",
            "\u{feff}5\u{200b}0",
            "999999999999999999999999999999999999999999/2",
            "$99999999999999999999",
            "99999999999th",
            "0/7",
            "00.00.0000",
            "31.02.2025",
            "1:2:3:4:5",
            "::::::::",
            "....",
            "v1.",
            "0x",
        ] {
            for dialect in [Dialect::American, Dialect::British] {
                normalize(text, dialect);
            }
        }
    }

    #[test]
    fn time_and_length_grow_in_proportion_to_the_text() {
        let hostile = [
            "1",
            "(",
            ")",
            "1 ",
            "1,",
            "1.",
            "1-",
            "1:",
            "1/",
            "a.",
            "a@",
            "@",
            "#",
            "$",
            "$1",
            "1 000 ",
            "'",
            "\"",
            "-",
            "+",
            "://",
            "http://",
            "a/",
            "x1",
            "X",
            "I",
            "II ",
            "St. ",
            "é",
            "½",
            "²",
            "😀",
            "\u{301}",
            "1e",
            "1st",
            "§",
            "1x",
            "::",
            "1 1/2",
            "a.b",
            "Jan. ",
            "&",
            "C#",
            "\\",
            "~",
            "_",
            "*",
            "1_000",
            "10,00,",
            "<a",
            ":)",
            "<3",
            "1/1/2024-",
            "May 5 - ",
            "00 1",
            "#1a",
            "2^n",
            "٣",
        ];
        for unit in hostile {
            let mut times = Vec::new();
            for bytes in [12_500, 100_000] {
                let text = unit.repeat(bytes / unit.len());
                let begun = std::time::Instant::now();
                let said = normalize(&text, Dialect::American);
                times.push(begun.elapsed().as_secs_f64());
                // A sign may become a phrase, but no form becomes a page.
                assert!(said.len() <= 40 * text.len() + 100, "{unit:?}: {} of {}", said.len(), text.len());
            }
            // Eight times the text takes about eight times as long. Quadratic time would be 64 times.
            assert!(times[1] < 24.0 * times[0] + 0.5, "{unit:?}: {times:?}");
        }
    }
}
