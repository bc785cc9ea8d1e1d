//! Reader of texts for a model: its symbols, the conversion of text to symbols, and the separators between and
//! around them.

use std::collections::{BTreeMap, HashMap};

use hanzo_engine_runtime::{LoadError, VoiceFiles, VoiceKind};
use unicode_normalization::UnicodeNormalization as _;

use super::{Dialect, English, EspeakNg, ipa, normalize, sentences};
use crate::error::FieldRefusal;
use crate::kokoro::KokoroConfig;
use crate::limits::UNKNOWN_WORDS_MAX;

/// Reader of texts for a model.
pub(crate) struct TextReader {
    signs: BTreeMap<char, u32>,
    /// Maximum symbols of a piece, without separators.
    pub(crate) signs_max: usize,
    around: Around,
    says: Says,
    espeak: Option<EspeakNg>,
    /// Language of all texts, unless the voice states it; empty: unknown.
    pub(crate) language: String,
}

/// Separators between and around symbols.
enum Around {
    /// This symbol at both ends.
    Ends(u32),
    /// This symbol between all others, and at both ends.
    Between(u32),
    /// No separators.
    Nothing,
    /// Piper: a start symbol, a blank after each symbol, and an end symbol.
    Piper { start: u32, blank: u32, end: u32 },
}

/// Conversion of texts to symbols.
enum Says {
    /// By misaki's dictionaries, in its own symbols.
    Misaki,
    /// By espeak-ng, in IPA. Without espeak-ng, English by misaki.
    Ipa,
    /// By letters.
    Letters { lower: bool },
    /// Not supported, for this reason.
    Nothing(String),
}

impl TextReader {
    /// Creates it from a model's files. `espeak` pronounces what the dictionaries lack.
    ///
    /// # Errors
    /// [`LoadError`] naming the setting.
    pub(crate) fn of(files: &VoiceFiles, espeak: Option<EspeakNg>) -> Result<TextReader, LoadError> {
        let reader = match files.kind {
            VoiceKind::Kokoro => kokoro(files)?,
            VoiceKind::Vits => vits(files)?,
            VoiceKind::Piper => piper(files)?,
        };
        Ok(TextReader { espeak, ..reader })
    }

    /// First character that is no symbol of the model.
    pub(crate) fn unknown_sign(&self, signs: &str) -> Option<char> {
        signs.chars().find(|sign| !self.signs.contains_key(sign) && *sign != '\n')
    }

    /// Tokens of a run's symbols. Unknown characters are left out.
    pub(crate) fn tokens(&self, run: &str) -> Vec<u32> {
        run.chars().filter_map(|sign| self.signs.get(&sign).copied()).collect()
    }

    /// Characters of a run that are symbols of the model.
    pub(crate) fn known(&self, run: &str) -> Vec<char> {
        run.chars().filter(|sign| self.signs.contains_key(sign)).collect()
    }

    /// Adds the separators.
    pub(crate) fn surrounded(&self, tokens: &[u32]) -> Vec<u32> {
        match self.around {
            Around::Ends(end) => [&[end], tokens, &[end]].concat(),
            Around::Nothing => tokens.to_vec(),
            Around::Between(blank) => {
                let mut all = vec![blank];
                tokens.iter().for_each(|&token| all.extend([token, blank]));
                all
            }
            Around::Piper { start, blank, end } => {
                let mut all = vec![start, blank];
                tokens.iter().for_each(|&token| all.extend([token, blank]));
                all.push(end);
                all
            }
        }
    }

    /// Sentences of a text in `language`, in the model's symbols. Words pronounced by letter rules are added to
    /// `unknown`. Calls `interrupted` before every sentence, and stops if it returns true.
    ///
    /// # Errors
    /// [`FieldRefusal`] naming the field; also if the work was interrupted.
    pub(crate) fn runs(
        &self,
        text: &str,
        language: &str,
        unknown: &mut Vec<String>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Vec<String>, FieldRefusal> {
        match &self.says {
            Says::Nothing(reason) => Err(FieldRefusal { field: "text", reason: reason.clone() }),
            Says::Letters { lower } => {
                self.must_speak(language)?;
                let english = same_language("en", &self.language);
                let cased = |text: String| if *lower { text.to_lowercase() } else { text };
                let word = |sentence: String| {
                    go_on(interrupted)?;
                    Ok(cased(if english { normalize(&sentence, Dialect::American) } else { sentence }))
                };
                sentences(text).into_iter().map(word).collect()
            }
            Says::Ipa => {
                self.must_speak(language)?;
                let voice = if language.is_empty() { &self.language } else { language };
                if let Some(runs) = self.by_espeak(text, voice, ipa::plain, interrupted)? {
                    // Decompose letters and their marks, as Piper does.
                    return Ok(runs.into_iter().map(|run| run.nfd().collect()).collect());
                }
                let Some(dialect) = dialect(voice) else {
                    let own = &self.language;
                    let hint = "install espeak-ng on the engine's machine, or send phonemes as espeak-ng --ipa writes them";
                    let reason = format!(
                        "it is to be read as {own:?}, of which the program itself knows nothing: {hint}"
                    );
                    return Err(FieldRefusal { field: "text", reason });
                };
                let runs = self.english(text, dialect, unknown, interrupted)?;
                Ok(runs.iter().map(|run| ipa::of_misaki(run)).collect())
            }
            Says::Misaki => {
                let language = if language.is_empty() { &self.language } else { language };
                if let Some(dialect) = dialect(language) {
                    return self.english(text, dialect, unknown, interrupted);
                }
                let others =
                    ESPEAKS.iter().find(|(code, _)| code.eq_ignore_ascii_case(&language.replace('_', "-")));
                let runs = match others {
                    Some((_, voice)) => self.by_espeak(text, voice, ipa::to_kokoro, interrupted)?,
                    None => None,
                };
                runs.ok_or_else(|| {
                    let hint = "English is read (en-us, en-gb), and where espeak-ng is installed on the engine's machine es, fr, hi, it \
                                and pt-br; send phonemes for other languages";
                    FieldRefusal { field: "language", reason: format!("{:?}: {hint}", short(language, 20)) }
                })
            }
        }
    }

    /// Checks that the language, if stated, is the model's.
    fn must_speak(&self, language: &str) -> Result<(), FieldRefusal> {
        if language.is_empty() || same_language(language, &self.language) {
            return Ok(());
        }
        let own = &self.language;
        let reason = format!("{:?}: the model speaks {own:?} alone", short(language, 20));
        Err(FieldRefusal { field: "language", reason })
    }

    /// Sentences in misaki's symbols. espeak-ng, if installed, pronounces words that the dictionaries lack.
    fn english(
        &self,
        text: &str,
        dialect: Dialect,
        unknown: &mut Vec<String>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Vec<String>, FieldRefusal> {
        let read = |sentence: &str, known: &HashMap<String, String>| {
            go_on(interrupted)?;
            let said = English::of(dialect).phonemes(sentence, known);
            let said = said.map(|(phonemes, new)| (phonemes.trim().to_owned(), new));
            said.ok_or_else(|| {
                let shown = short(sentence, 60);
                let reason = format!("no phonemes were found for {shown:?}; send them as phonemes");
                FieldRefusal { field: "text", reason }
            })
        };
        let plain = |sentence: &String| go_on(interrupted).map(|()| normalize(sentence, dialect));
        let sentences: Vec<String> =
            sentences(text).iter().map(plain).collect::<Result<_, FieldRefusal>>()?;
        let mut known = HashMap::new();
        let mut runs = Vec::with_capacity(sentences.len());
        for sentence in &sentences {
            runs.push(read(sentence, &known)?);
        }
        if let Some(espeak) = &self.espeak {
            let words = once(runs.iter().flat_map(|(_, new)| new));
            if let Some(said) = espeak.phonemes(dialect.code(), &words, interrupted) {
                let british = dialect == Dialect::British;
                known =
                    words.into_iter().zip(said.iter().map(|word| ipa::to_misaki(word, british))).collect();
                for (sentence, run) in sentences.iter().zip(&mut runs).filter(|(_, run)| !run.1.is_empty()) {
                    *run = read(sentence, &known)?;
                }
            }
        }
        unknown.extend(once(runs.iter().flat_map(|(_, new)| new)));
        Ok(runs.into_iter().map(|(run, _)| run).collect())
    }

    /// Sentences by espeak-ng, converted by `to`. None if it is not installed, or fails.
    ///
    /// # Errors
    /// If the work was interrupted.
    fn by_espeak(
        &self,
        text: &str,
        voice: &str,
        to: impl Fn(&str) -> String,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<String>>, FieldRefusal> {
        let Some(espeak) = self.espeak.as_ref() else { return Ok(None) };
        let english = same_language("en", voice);
        let own = dialect(voice).unwrap_or(Dialect::American);
        let sentence = |sentence: String| {
            go_on(interrupted)?;
            Ok(clauses(&if english { normalize(&sentence, own) } else { sentence }))
        };
        let sentences: Vec<Vec<(String, String)>> =
            sentences(text).into_iter().map(sentence).collect::<Result<_, FieldRefusal>>()?;
        let said = |clause: &(String, String)| clause.0.chars().any(char::is_alphanumeric);
        let parts: Vec<String> = sentences
            .iter()
            .flatten()
            .filter(|clause| said(clause))
            .map(|(words, _)| if english { letters_together(words) } else { words.clone() })
            .collect();
        let phonemes = espeak.phonemes(voice, &parts, interrupted);
        go_on(interrupted)?;
        let Some(phonemes) = phonemes else { return Ok(None) };
        let mut phonemes = phonemes.into_iter();
        let mut clause = |clause: &(String, String)| {
            let words = if said(clause) { phonemes.next().map(|said| to(&said)) } else { None };
            words.unwrap_or_default() + &clause.1
        };
        let run =
            |sentence: &Vec<(String, String)>| sentence.iter().map(&mut clause).collect::<Vec<_>>().join(" ");
        Ok(Some(sentences.iter().map(run).collect()))
    }
}

/// Checks whether to continue.
///
/// # Errors
/// [`FieldRefusal`] if the work should stop.
fn go_on(interrupted: &dyn Fn() -> bool) -> Result<(), FieldRefusal> {
    match interrupted() {
        true => Err(FieldRefusal {
            field: "text",
            reason: "it was not read to its end: its request has ended".to_owned(),
        }),
        false => Ok(()),
    }
}

/// Languages that Kokoro speaks by espeak-ng's phonemes, with espeak-ng's names of them (misaki, `espeak.py`).
const ESPEAKS: [(&str, &str); 7] = [
    ("es", "es"),
    ("fr", "fr-fr"),
    ("fr-fr", "fr-fr"),
    ("hi", "hi"),
    ("it", "it"),
    ("pt", "pt-br"),
    ("pt-br", "pt-br"),
];

/// Joins single letters (`A M`) to one word, because espeak-ng takes a lone A for the article.
fn letters_together(words: &str) -> String {
    let letter = |word: &str| word.len() == 1 && word != "I" && word.as_bytes()[0].is_ascii_uppercase();
    let (mut together, mut after_letter) = (String::with_capacity(words.len()), false);
    for word in words.split(' ') {
        let is_letter = letter(word);
        if !together.is_empty() {
            together.push(if after_letter && is_letter { '.' } else { ' ' });
        }
        together.push_str(word);
        after_letter = is_letter;
    }
    together
}

/// Clauses of a sentence, each with its final punctuation.
fn clauses(sentence: &str) -> Vec<(String, String)> {
    const SIGNS: [char; 17] =
        [',', '.', ';', ':', '!', '?', '…', '—', '–', '。', '！', '？', '，', '؟', '،', '।', '、'];
    let mut clauses: Vec<(String, String)> = vec![Default::default()];
    for word in sentence.split_whitespace() {
        let bare = word.trim_end_matches(|sign| SIGNS.contains(&sign) || "\"'»”’)]".contains(sign));
        // An apostrophe alone belongs to the word.
        let bare = if word[bare.len()..].contains(SIGNS) { bare } else { word };
        let Some((words, signs)) = clauses.last_mut() else { break };
        if !words.is_empty() && !bare.is_empty() {
            words.push(' ');
        }
        words.push_str(bare);
        signs.extend(word[bare.len()..].chars().filter(|sign| SIGNS.contains(sign)));
        if !signs.is_empty() {
            clauses.push(Default::default());
        }
    }
    clauses.retain(|(words, signs)| !words.is_empty() || !signs.is_empty());
    clauses
}

/// Removes duplicates, and keeps as many words as are reported.
fn once<'a>(words: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for word in words {
        if found.len() < UNKNOWN_WORDS_MAX && !found.contains(word) {
            found.push(word.clone());
        }
    }
    found
}

fn short(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// Returns true if two codes mean the same language: `en`, `eng`, `en-us`, `en_GB`.
fn same_language(a: &str, b: &str) -> bool {
    let first = |code: &str| {
        let code = code.to_ascii_lowercase();
        let code = code.split(['-', '_']).next().unwrap_or_default().to_owned();
        if code == "eng" || code == "english" { "en".to_owned() } else { code }
    };
    first(a) == first(b)
}

/// Dialect of an English language code.
fn dialect(language: &str) -> Option<Dialect> {
    match language.to_ascii_lowercase().replace('_', "-").as_str() {
        "en" | "en-us" | "eng" | "english" => Some(Dialect::American),
        "en-gb" | "en-uk" | "en-gb-x-rp" => Some(Dialect::British),
        _ => None,
    }
}

fn kokoro(files: &VoiceFiles) -> Result<TextReader, LoadError> {
    let config = KokoroConfig::read(&files.config_file, &files.config)?;
    Ok(TextReader {
        signs: config.vocab,
        signs_max: config.tokens_max - 2,
        around: Around::Ends(0),
        says: Says::Misaki,
        espeak: None,
        language: String::new(),
    })
}

/// Symbols of one character. Longer ones in a file cannot occur in a text.
fn single(vocab: &[(String, u32)]) -> BTreeMap<char, u32> {
    let one = |(sign, id): &(String, u32)| {
        let mut letters = sign.chars();
        letters.next().filter(|_| letters.next().is_none()).map(|letter| (letter, *id))
    };
    vocab.iter().filter_map(one).collect()
}

fn vits(files: &VoiceFiles) -> Result<TextReader, LoadError> {
    let settings = &files.config["tokenizer"];
    let says_so = |key: &str, default: bool| settings[key].as_bool().unwrap_or(default);
    let mut signs = single(&files.vocab);
    let pad = settings["pad_token"].as_str().and_then(|pad| pad.chars().next());
    let blank = pad.and_then(|pad| signs.get(&pad).copied()).unwrap_or(0);
    // The blank is no letter.
    signs.retain(|_, id| *id != blank);
    let around = if says_so("add_blank", true) { Around::Between(blank) } else { Around::Nothing };
    let says = match () {
        () if says_so("is_uroman", false) => Says::Nothing(
            "this model reads texts in Latin letters, as uroman writes them: send those as phonemes"
                .to_owned(),
        ),
        () if says_so("phonemize", false) => Says::Ipa,
        () => Says::Letters { lower: says_so("normalize", true) },
    };
    let language = settings["language"].as_str().unwrap_or_default().to_owned();
    let language =
        if matches!(says, Says::Ipa) && language.is_empty() { "en-us".to_owned() } else { language };
    Ok(TextReader {
        signs,
        signs_max: files.info.context_tokens_max as usize,
        around,
        says,
        espeak: None,
        language,
    })
}

fn piper(files: &VoiceFiles) -> Result<TextReader, LoadError> {
    let mut signs = single(&files.vocab);
    let mut special = |sign: char| {
        signs.remove(&sign).ok_or_else(|| LoadError::Corrupt {
            file: files.config_file.clone(),
            what: "key phoneme_id_map".to_owned(),
            reason: format!("there is no {sign:?}, which every voice of Piper's has"),
        })
    };
    let around = Around::Piper { start: special('^')?, blank: special('_')?, end: special('$')? };
    let text =
        |path: &str| files.config.pointer(path).and_then(serde_json::Value::as_str).unwrap_or_default();
    let language = [text("/espeak/voice"), text("/language/code")].into_iter().find(|code| !code.is_empty());
    let language = language.unwrap_or_default().to_owned();
    let says = match text("/phoneme_type") {
        "text" => Says::Letters { lower: false },
        _ => Says::Ipa,
    };
    Ok(TextReader {
        signs,
        signs_max: files.info.context_tokens_max as usize,
        around,
        says,
        espeak: None,
        language,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::espeak::tests::{alone, stand_in};

    /// Reader for tests. Its symbols are numbered in order, with blank, start and end first.
    fn reader(says: Says, language: &str, espeak: Option<EspeakNg>) -> TextReader {
        let signs = "_^$ abcdefghijklmnopqrstuvwxyzˈ,.!?\u{327}".chars().zip(0..).collect();
        let around = Around::Piper { start: 1, blank: 0, end: 2 };
        TextReader { signs, signs_max: 512, around, says, espeak, language: language.to_owned() }
    }

    fn runs(
        reader: &TextReader,
        text: &str,
        language: &str,
    ) -> (Result<Vec<String>, FieldRefusal>, Vec<String>) {
        let mut unknown = Vec::new();
        (reader.runs(text, language, &mut unknown, &|| false), unknown)
    }

    #[test]
    fn a_text_that_nobody_waits_for_is_given_up_at_the_next_sentence() {
        let text = "Good day. ".repeat(50);
        for says in [Says::Letters { lower: true }, Says::Misaki] {
            let (of, asked) = (reader(says, "en-us", None), std::cell::Cell::new(0));
            let given_up_after = |most: usize| {
                asked.set(0);
                let interrupted = || {
                    asked.set(asked.get() + 1);
                    asked.get() > most
                };
                of.runs(&text, "", &mut Vec::new(), &interrupted)
            };
            assert_eq!(given_up_after(usize::MAX).unwrap().len(), 50);
            let all = asked.get();
            assert!(all >= 50, "{all} questions");
            for most in [0, all / 2, all - 1] {
                assert!(given_up_after(most).is_err(), "{most} of {all}");
                assert_eq!(asked.get(), most + 1);
            }
        }
    }

    #[test]
    fn sentences_come_apart_where_one_breathes() {
        let apart = |text: &str| {
            let clauses = clauses(text).into_iter().map(|(words, signs)| format!("{words}|{signs}"));
            clauses.collect::<Vec<_>>()
        };
        assert_eq!(apart("Um 10:30, sagte er; \"gut!\""), ["Um 10:30|,", "sagte er|;", "\"gut|!"]);
        assert_eq!(apart("the dogs' 3.5 …"), ["the dogs' 3.5|…"]);
        assert!(apart("  ").is_empty());
        assert_eq!(letters_together("at nine A M on plan B if I A"), "at nine A.M on plan B if I A");
    }

    #[test]
    fn other_languages_are_espeak_ngs() {
        let (_alone, folder) = (alone(), tempfile::tempdir().unwrap());
        let german = r#"[ "$7" = de ] && tr 'GTç' 'gtç'"#;
        let piper = reader(Says::Ipa, "de", Some(stand_in(folder.path(), german)));
        let (said, unknown) = runs(&piper, "Guten Tag, façade! Wie geht es?", "");
        assert_eq!(
            said.unwrap(),
            ["guten tag, fac\u{327}ade!", "Wie geht es?"],
            "marks have signs of their own"
        );
        assert!(unknown.is_empty());
        assert_eq!(piper.surrounded(&piper.tokens("a,")), [1, 0, 4, 0, 31, 0, 2]);
        // It speaks one language, and without espeak-ng only a language with a built-in dictionary.
        let refused = runs(&piper, "Bonjour", "fr").0.unwrap_err();
        assert_eq!(
            (refused.field, refused.reason.contains("\"de\" alone")),
            ("language", true),
            "{refused:?}"
        );
        let alone = runs(&reader(Says::Ipa, "de", None), "Guten Tag", "").0.unwrap_err();
        assert_eq!((alone.field, alone.reason.contains("install espeak-ng")), ("text", true), "{alone:?}");
        // The same for Kokoro's Spanish voices, in Kokoro's symbols.
        let spanish = r#"[ "$7" = es ] && sed -e 's/ocho/ˈot^ʃo/'"#;
        let kokoro = reader(Says::Misaki, "", Some(stand_in(folder.path(), spanish)));
        assert_eq!(runs(&kokoro, "ocho.", "es").0.unwrap(), ["ˈoʧo."]);
        assert_eq!(runs(&kokoro, "ocho.", "xx").0.unwrap_err().field, "language");
        assert_eq!(runs(&reader(Says::Misaki, "", None), "ocho.", "es").0.unwrap_err().field, "language");
    }

    #[test]
    fn words_that_nobody_knows_are_told() {
        let (_alone, folder) = (alone(), tempfile::tempdir().unwrap());
        let text = "The blorf sees the zwitching blorf.";
        let (by_letters, unknown) = runs(&reader(Says::Misaki, "", None), text, "en-us");
        let by_letters = by_letters.unwrap().remove(0);
        assert_eq!(unknown, ["blorf", "zwitching"]);
        assert_eq!(by_letters.matches("blˈɔɹf").count(), 2, "{by_letters}");
        // It knows the words, one line each. Words that it does not know stay unchanged.
        let knows = r#"[ "$7" = en-us ] && sed -e 's/blorf/blˈoː^ɹf/' -e 's/zwitching/zwˈɪt^ʃɪŋ/'"#;
        let known = reader(Says::Misaki, "", Some(stand_in(folder.path(), knows)));
        let (said, unknown) = runs(&known, text, "en-us");
        assert_eq!((said.unwrap().remove(0), unknown), (by_letters.clone(), Vec::<String>::new()));
        let fails = reader(Says::Misaki, "", Some(stand_in(folder.path(), "exit 1")));
        let (said, unknown) = runs(&fails, text, "en-us");
        assert_eq!((said.unwrap().remove(0), unknown.len()), (by_letters, 2));
        // Without espeak-ng, a voice with IPA symbols uses misaki.
        let (said, unknown) = runs(&reader(Says::Ipa, "en-us", None), "See the blorf.", "");
        let said = said.unwrap().remove(0);
        assert!(said.starts_with("sˈiː") && said.contains("blˈɔːɹf"), "{said}");
        assert_eq!(unknown, ["blorf"]);
    }

    #[test]
    fn a_letter_reader_reads_letters() {
        let by_letters = reader(Says::Letters { lower: true }, "eng", None);
        assert_eq!(runs(&by_letters, "Dr. No has 2.", "en").0.unwrap(), ["doctor no has two."]);
        let german = reader(Says::Letters { lower: true }, "deu", None);
        assert_eq!(runs(&german, "Hat 2.", "").0.unwrap(), ["hat 2."]);
    }
}
