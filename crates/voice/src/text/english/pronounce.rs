//! Phonemes of an English sentence, in the manner of misaki's `G2P` (github.com/hexgrad/misaki, `en.py`; in
//! Rust, misaki-rs's `g2p.rs`). Tokens and tags are spaCy's. Tokens are cut into pieces, and adjacent pieces
//! are joined to words. Words are looked up from the last to the first, because the sound of `the`, `a` and
//! `to` depends on the next sound.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::OnceLock;

use fancy_regex::Regex;
use misaki_rs::Lexicon;
use misaki_rs::abbrev::is_period_abbreviation;
use misaki_rs::languages::{LanguageRules as _, english};
use misaki_rs::lexicon::TokenContext;
use misaki_rs::norms::norm_of;
use misaki_rs::spacy_tagger::{Tagger, hash_string};
use misaki_rs::spacy_tokenizer::SpacyTokenizer;

use super::{Dialect, dictionary, figures};

/// Symbol for an unpronounceable word.
pub(super) const UNKNOWN: char = '❓';

/// misaki's `SUBTOKEN_REGEX`.
const PIECES: &str = concat!(
    r"^['‘’]+",
    r"|\p{Lu}(?=\p{Lu}\p{Ll})",
    r"|(?:^-)?(?:\d?[,.]?\d)+",
    r"|[-_]+",
    r"|['‘’]{2,}",
    r"|\p{L}*?(?:['‘’]\p{L})*?\p{Ll}(?=\p{Lu})",
    r"|\p{L}+(?:['‘’]\p{L})*",
    r"|[^-_\p{L}'‘’\d]",
    r"|['‘’]+$",
);
/// Tags of punctuation, which is not part of a word.
const SIGNS: [&str; 11] = [".", ",", "-LRB-", "-RRB-", "``", "\"\"", "''", ":", "$", "#", "NFP"];
/// Punctuation kept in the phonemes, because voices use it for pauses and intonation.
const SAID: &str = ";:,.!?—…\"“”";
/// Characters that are silent within a word.
const SILENT: &str = "',-._‘’/";
const VOWELS: &str = "AIOQWYaiuæɑɒɔəɛɜɪʊʌᵻ";
const CONSONANTS: &str = "bdfhjklmnpstvwzðŋɡɹɾʃʒʤʧθ";
/// Punctuation after which the next sound does not count.
const PAUSES: &str = "!,.:;?—…";
/// Phonemes with double weight.
const DIPHTHONGS: &str = "AIOQWYʤʧ";
const PRIMARY: char = 'ˈ';

/// Pronounces a word that the dictionaries lack.
type Other<'a> = dyn FnMut(&str) -> String + 'a;

/// Pronunciation of one dialect of English.
pub(super) struct Pronouncer {
    lexicon: Lexicon,
    common: &'static Common,
}

/// State shared by the dialects.
struct Common {
    tokenizer: SpacyTokenizer,
    tagger: Tagger,
    pieces: Regex,
}

/// Piece of a token, or a word joined from pieces.
#[derive(Clone)]
struct TokenPiece {
    text: String,
    tag: String,
    /// White space before the next piece.
    space: String,
    /// True for a 2 between letters, read as "to".
    is_to: bool,
    said: Option<String>,
}

/// Position of a piece in its word.
struct WordPosition {
    first: bool,
    alone: bool,
    /// Currency sign before it.
    money: Option<char>,
}

impl Pronouncer {
    pub(super) fn new(dialect: Dialect) -> Pronouncer {
        static COMMON: OnceLock<Common> = OnceLock::new();
        let common = COMMON.get_or_init(|| Common {
            tokenizer: SpacyTokenizer::new(),
            tagger: Tagger::load(),
            pieces: Regex::new(PIECES).expect("an expression that does not change"),
        });
        Pronouncer { lexicon: dictionary::lexicon(dialect), common }
    }

    /// Phonemes of a text. Spaces are kept.
    pub(super) fn phonemes(&self, text: &str, other: &mut Other<'_>) -> String {
        let mut pieces = self.pieces(text);
        let words = words(&pieces);
        let money = money(&mut pieces);
        say_signs(&mut pieces);
        let contexts = self.say_pieces(&mut pieces, &words, &money, other);
        let word = |word: &Range<usize>| {
            let (pieces, contexts) = (&pieces[word.clone()], &contexts[word.clone()]);
            self.together(pieces, contexts, money[word.start], other)
        };
        let mut words: Vec<TokenPiece> = words.iter().map(word).collect();
        self.say_again(&mut words);
        let said = words.into_iter().map(|word| {
            let said =
                word.said.map_or_else(|| UNKNOWN.into(), |said| said.replace('ɾ', "T").replace('ʔ', "t"));
            said + &word.space
        });
        said.collect()
    }

    fn pieces(&self, text: &str) -> Vec<TokenPiece> {
        let tokens = self.common.tokenizer.tokenize(text);
        let asked: Vec<_> = tokens
            .iter()
            .map(|token| {
                let norm = token.norm.clone().unwrap_or_else(|| norm_of(&token.text, hash_string));
                (token.text.clone(), norm, !token.whitespace.is_empty())
            })
            .collect();
        let mut pieces = Vec::with_capacity(tokens.len());
        for (token, tag) in tokens.iter().zip(self.common.tagger.tag(&asked)) {
            let mut parts: Vec<&str> =
                self.common.pieces.find_iter(&token.text).flatten().map(|part| part.as_str()).collect();
            if parts.is_empty() {
                parts.push(&token.text);
            }
            for (at, part) in parts.iter().enumerate() {
                let letters = |before: &str, after: &str| {
                    before.ends_with(char::is_alphabetic) && after.starts_with(char::is_alphabetic)
                };
                let inside = at > 0 && at + 1 < parts.len();
                pieces.push(TokenPiece {
                    text: (*part).to_owned(),
                    tag: tag.to_owned(),
                    space: if at + 1 == parts.len() { token.whitespace.clone() } else { String::new() },
                    is_to: *part == "2" && inside && letters(parts[at - 1], parts[at + 1]),
                    said: None,
                });
            }
        }
        pieces
    }

    /// Pronounces each piece that is not yet pronounced, and returns the context after each.
    fn say_pieces(
        &self,
        pieces: &mut [TokenPiece],
        words: &[Range<usize>],
        money: &[Option<char>],
        other: &mut Other<'_>,
    ) -> Vec<TokenContext> {
        let mut contexts = vec![TokenContext::default(); pieces.len()];
        for word in words.iter().rev() {
            for at in word.clone().rev() {
                let place =
                    WordPosition { first: at == word.start, alone: word.len() == 1, money: money[at] };
                let piece = &mut pieces[at];
                if piece.said.is_none() {
                    piece.said = self.say(piece, &contexts[at], &place, other);
                }
                if at > 0 {
                    contexts[at - 1] = before(&contexts[at], piece);
                }
            }
        }
        contexts
    }

    fn say(
        &self,
        piece: &TokenPiece,
        after: &TokenContext,
        place: &WordPosition,
        other: &mut Other<'_>,
    ) -> Option<String> {
        let key = if piece.is_to { "to".to_owned() } else { key(&piece.text) };
        if let Some(said) = self.look_up(&key, &piece.tag, after) {
            return Some(said);
        }
        let number = if key.starts_with('-') && figures::is_number(&key) {
            Some(figures::in_words(&key)).filter(|words| *words != key)
        } else if key.contains('-') && key.len() > 1 {
            let parts = key.split('-').filter(|part| !part.is_empty());
            return Some(parts.map(|part| self.phonemes(part, other)).collect::<Vec<_>>().join(" "));
        } else if let Some(words) = place.money.and_then(|sign| figures::money(sign, &key)) {
            Some(words)
        } else if let Some(words) = figures::going_on(&key).filter(|_| !place.first) {
            Some(words)
        } else if figures::is_number(&key) {
            Some(figures::in_words(&key)).filter(|words| *words != key)
        } else {
            None
        };
        if let Some(words) = number {
            return Some(self.say_number(&words, other));
        }
        if let Some(said) = english::English.apply_rules(&key, &piece.tag, &self.lexicon) {
            return Some(said);
        }
        if key.chars().count() > 1 {
            // Words of several pieces are looked up as a whole.
            return place.alone.then(|| other(&key));
        }
        let plain: String = key.chars().map(unaccented).collect();
        (plain != key).then(|| self.phonemes(&plain, other))
    }

    fn look_up(&self, key: &str, tag: &str, after: &TokenContext) -> Option<String> {
        let (some, all) = self.lexicon.cap_stresses;
        let stress = if key == key.to_lowercase() {
            None
        } else if key == key.to_uppercase() {
            Some(all)
        } else {
            Some(some)
        };
        self.lexicon.get_word(key, tag, stress, Some(after)).map(|(said, _)| said)
    }

    /// Pronounces the words of a number by the dictionaries, if they have all of them.
    fn say_number(&self, words: &str, other: &mut Other<'_>) -> String {
        let word = |word: &str| {
            let stress = matches!(word, "point" | "O").then_some(-2.0);
            self.lexicon.get_word(word, "NN", stress, None).map(|(said, _)| said)
        };
        let said: Option<Vec<String>> = words.split_whitespace().map(word).collect();
        match said {
            Some(said) if !said.is_empty() => said.join(" "),
            _ => self.phonemes(words, other).trim_end().to_owned(),
        }
    }

    /// Joins a word's pieces.
    fn together(
        &self,
        pieces: &[TokenPiece],
        contexts: &[TokenContext],
        money: Option<char>,
        other: &mut Other<'_>,
    ) -> TokenPiece {
        let [first, _, ..] = pieces else { return pieces[0].clone() };
        let (text, tag) = (text_of(pieces), tag_of(pieces).to_owned());
        let space = pieces[pieces.len() - 1].space.clone();
        let said = self.say_together(&text, pieces, contexts, money, other);
        TokenPiece { text, tag, space, is_to: first.is_to, said: Some(said) }
    }

    fn say_together(
        &self,
        text: &str,
        pieces: &[TokenPiece],
        contexts: &[TokenContext],
        money: Option<char>,
        other: &mut Other<'_>,
    ) -> String {
        if let Some(words) = money.and_then(|sign| figures::money(sign, text)) {
            return self.phonemes(&words, other);
        }
        if figures::is_number(text) {
            let words = figures::in_words(text);
            if words != text {
                return self.say_number(&words, other);
            }
        }
        let parts = self.spans(pieces, contexts);
        if parts.iter().zip(pieces).any(|(said, piece)| said.is_none() && !is_silent(&piece.text)) {
            return other(text);
        }
        let mut parts: Vec<String> = parts.into_iter().map(Option::unwrap_or_default).collect();
        let kind = |c: char| if c.is_alphabetic() { 0 } else { 2 - i32::from(c.is_ascii_digit()) };
        let kinds: BTreeSet<i32> = text.chars().filter(|c| !SILENT.contains(*c)).map(kind).collect();
        if !text.contains([' ', '/']) && kinds.len() <= 1 {
            self.balance(&mut parts, pieces);
            return parts.concat();
        }
        let mut said = String::new();
        for part in parts.iter().filter(|part| !part.is_empty()) {
            if !said.is_empty() && !said.ends_with(char::is_whitespace) {
                said.push(' ');
            }
            said.push_str(part);
        }
        said
    }

    /// Phonemes of spans of a word's pieces that the dictionaries have, longest first, from the end.
    fn spans(&self, pieces: &[TokenPiece], contexts: &[TokenContext]) -> Vec<Option<String>> {
        let mut parts: Vec<Option<String>> = vec![None; pieces.len()];
        let (mut left, mut right) = (0, pieces.len());
        while left < right {
            let free = parts[left..right].iter().all(Option::is_none);
            let span = &pieces[left..right];
            let said =
                if free { self.look_up(&key(&text_of(span)), tag_of(span), &contexts[left]) } else { None };
            if let Some(said) = said {
                parts[left] = Some(said);
                parts[left + 1..right].fill(Some(String::new()));
                (left, right) = (0, left);
            } else if left + 1 < right {
                left += 1;
            } else {
                (left, right) = (0, right - 1);
                if parts[right].is_none() && is_silent(&pieces[right].text) {
                    parts[right] = Some(String::new());
                }
            }
        }
        parts
    }

    /// Reduces the stress of the lighter ones among several stressed parts of a word.
    fn balance(&self, parts: &mut [String], pieces: &[TokenPiece]) {
        let weight =
            |part: &str| part.chars().map(|c| 1 + usize::from(DIPHTHONGS.contains(c))).sum::<usize>();
        let mut order: Vec<(bool, usize, usize)> = (0..parts.len())
            .filter(|&at| !parts[at].is_empty())
            .map(|at| (parts[at].contains(PRIMARY), weight(&parts[at]), at))
            .collect();
        let stressed = order.iter().filter(|(primary, ..)| *primary).count();
        let lighter: Vec<usize> = match order[..] {
            [(.., first), (.., second)] if pieces[first].text.chars().count() == 1 => vec![second],
            [_, _, ..] if stressed > order.len().div_ceil(2) => {
                order.sort_unstable();
                order[..order.len() / 2].iter().map(|&(.., at)| at).collect()
            }
            _ => return,
        };
        for at in lighter {
            parts[at] = self.lexicon.apply_stress(&parts[at], Some(-0.5));
        }
    }

    /// Pronounces words in the dictionaries again, now that the following word is known.
    fn say_again(&self, words: &mut [TokenPiece]) {
        let mut contexts = vec![TokenContext::default(); words.len()];
        for at in (1..words.len()).rev() {
            contexts[at - 1] = before(&contexts[at], &words[at]);
        }
        for (word, after) in words.iter_mut().zip(&contexts) {
            let lettered = !word.text.is_empty() && word.text.chars().all(char::is_alphabetic);
            let heard = word.said.as_ref().is_some_and(|said| !said.is_empty());
            if lettered
                && heard
                && !word.is_to
                && let Some(said) = self.look_up(&key(&word.text), &word.tag, after)
            {
                word.said = Some(said);
            }
        }
    }
}

/// Joins adjacent pieces to words, except punctuation.
fn words(pieces: &[TokenPiece]) -> Vec<Range<usize>> {
    let mut words: Vec<Range<usize>> = Vec::new();
    let mut open = false;
    for (at, piece) in pieces.iter().enumerate() {
        let last = words.last_mut().filter(|_| open);
        if piece.is_to || is_sign(piece) {
            // Except the point of an abbreviation.
            match last {
                Some(last) if piece.text == "." && abbreviated(&pieces[last.clone()]) => {
                    last.end = at + 1;
                    open = piece.space.is_empty();
                }
                _ => {
                    words.push(at..at + 1);
                    open = false;
                }
            }
            continue;
        }
        match last {
            Some(last) if pieces[last.end - 1].space.is_empty() => last.end = at + 1,
            _ => {
                words.push(at..at + 1);
                open = piece.space.is_empty();
            }
        }
    }
    words
}

fn abbreviated(pieces: &[TokenPiece]) -> bool {
    let text: String = pieces.iter().flat_map(|piece| [&piece.text[..], &piece.space]).collect();
    is_period_abbreviation(format!("{text}.").trim())
}

fn is_sign(piece: &TokenPiece) -> bool {
    let letter = |c: char| c.to_lowercase().next().is_some_and(|c| c.is_ascii_lowercase());
    SIGNS.contains(&&piece.tag[..]) && !piece.text.chars().all(letter)
}

fn is_silent(text: &str) -> bool {
    text.chars().all(|c| SILENT.contains(c))
}

/// Silences currency signs, and returns the sign before each piece.
fn money(pieces: &mut [TokenPiece]) -> Vec<Option<char>> {
    let mut sign = None;
    let of = |piece: &mut TokenPiece| {
        if piece.tag == "$" && matches!(&piece.text[..], "$" | "£" | "€") {
            sign = piece.text.chars().next();
            piece.said = Some(String::new());
            return None;
        }
        sign.take()
    };
    pieces.iter_mut().map(of).collect()
}

fn say_signs(pieces: &mut [TokenPiece]) {
    for piece in pieces.iter_mut().filter(|piece| piece.said.is_none() && !piece.text.is_empty()) {
        if piece.tag == ":" && matches!(&piece.text[..], "-" | "–") {
            piece.said = Some("—".to_owned());
        } else if is_sign(piece) {
            piece.said = Some(match &piece.tag[..] {
                "-LRB-" => "(".to_owned(),
                "-RRB-" => ")".to_owned(),
                "``" => "“".to_owned(),
                "''" | "\"\"" => "”".to_owned(),
                _ => piece.text.chars().filter(|c| SAID.contains(*c)).collect(),
            });
        }
    }
}

/// Context for the piece before this one.
fn before(after: &TokenContext, piece: &TokenPiece) -> TokenContext {
    let heard = piece.said.iter().flat_map(|said| said.chars()).find_map(|c| {
        if PAUSES.contains(c) {
            Some(None)
        } else if VOWELS.contains(c) {
            Some(Some(true))
        } else {
            CONSONANTS.contains(c).then_some(Some(false))
        }
    });
    let to =
        matches!(&piece.text[..], "to" | "To") || piece.text == "TO" && matches!(&piece.tag[..], "TO" | "IN");
    TokenContext { future_vowel: heard.unwrap_or(after.future_vowel), future_to: to }
}

/// Form of a text in the dictionaries.
fn key(text: &str) -> String {
    text.replace('™', "TM").replace(['‘', '’'], "'")
}

fn text_of(pieces: &[TokenPiece]) -> String {
    let between = pieces.iter().map(|piece| &piece.space[..]);
    let texts = pieces.iter().map(|piece| &piece.text[..]);
    let mut text: String = texts.zip(between).flat_map(|(text, space)| [text, space]).collect();
    text.truncate(text.len() - pieces.last().map_or(0, |last| last.space.len()));
    text
}

/// Tag of the heaviest piece. Capitals have double weight.
fn tag_of(pieces: &[TokenPiece]) -> &str {
    let weight = |c: char| if c.to_lowercase().next() == Some(c) { 1 } else { 2 };
    let heaviest = pieces.iter().max_by_key(|piece| piece.text.chars().map(weight).sum::<u32>());
    heaviest.map_or("", |piece| &piece.tag)
}

fn unaccented(c: char) -> char {
    match c {
        'é' | 'è' | 'ê' | 'ë' => 'e',
        'á' | 'à' | 'â' | 'ä' | 'ã' | 'å' => 'a',
        'í' | 'ì' | 'î' | 'ï' => 'i',
        'ó' | 'ò' | 'ô' | 'ö' | 'õ' => 'o',
        'ú' | 'ù' | 'û' | 'ü' => 'u',
        'ñ' => 'n',
        'ç' => 'c',
        _ => c,
    }
}
