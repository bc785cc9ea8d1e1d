//! How a model reads: which signs it knows, how a text becomes those, and what stands between and around them.

use std::collections::BTreeMap;

use hanzo_engine_runtime::{LoadError, VoiceFiles, VoiceKind};

use super::{Dialect, English, espeak, normalize, sentences};
use crate::kokoro::KokoroConfig;
use crate::limits::UNKNOWN_WORDS_MAX;
use crate::script::Refused;

/// How a model reads.
pub(crate) struct Reader {
    signs: BTreeMap<char, u32>,
    /// Signs of a piece at most, without what stands between and around.
    pub(crate) signs_max: usize,
    around: Around,
    says: Says,
    /// The language of all texts, where the voice does not say it; empty: not known.
    pub(crate) language: String,
}

/// What stands between and around signs.
enum Around {
    /// This at both ends.
    Ends(u32),
    /// This between all of them, and at both ends.
    Between(u32),
    /// Nothing.
    Nothing,
    /// Piper's: a beginning, a blank behind each, an end.
    Piper { start: u32, blank: u32, end: u32 },
}

/// How texts become signs.
enum Says {
    /// By misaki's dictionaries, in its own signs.
    Misaki,
    /// By the same, in those of the International Phonetic Alphabet as espeak-ng writes them.
    Ipa,
    /// By its letters.
    Letters { lower: bool },
    /// Not: for this reason.
    Nothing(String),
}

impl Reader {
    /// Of a model's files.
    ///
    /// # Errors
    /// [`LoadError`] naming the setting.
    pub(crate) fn of(files: &VoiceFiles) -> Result<Reader, LoadError> {
        match files.kind {
            VoiceKind::Kokoro => kokoro(files),
            VoiceKind::Vits => vits(files),
            VoiceKind::Piper => piper(files),
        }
    }

    /// The first letter that is no sign of the model's.
    pub(crate) fn unknown_sign(&self, signs: &str) -> Option<char> {
        signs.chars().find(|sign| !self.signs.contains_key(sign) && *sign != '\n')
    }

    /// The numbers of a run's signs; what is no sign is left out.
    pub(crate) fn tokens(&self, run: &str) -> Vec<u32> {
        run.chars().filter_map(|sign| self.signs.get(&sign).copied()).collect()
    }

    /// The signs of a run that the model knows.
    pub(crate) fn known(&self, run: &str) -> Vec<char> {
        run.chars().filter(|sign| self.signs.contains_key(sign)).collect()
    }

    /// With what stands between and around.
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

    /// Sentences of a text in the model's signs, in `language`; words that no dictionary has go to `unknown`.
    ///
    /// # Errors
    /// [`Refused`] naming the field.
    pub(crate) fn runs(
        &self,
        text: &str,
        language: &str,
        unknown: &mut Vec<String>,
    ) -> Result<Vec<String>, Refused> {
        let refused = |field, reason: String| Err(Refused { field, reason });
        match &self.says {
            Says::Nothing(reason) => refused("text", reason.clone()),
            Says::Letters { lower } => {
                if !language.is_empty() && !same_language(language, &self.language) {
                    let own = &self.language;
                    return refused(
                        "language",
                        format!("{:?}: the model speaks {own:?} alone", short(language, 20)),
                    );
                }
                let english = same_language("en", &self.language);
                let cased = |text: String| if *lower { text.to_lowercase() } else { text };
                let word = |sentence: String| cased(if english { normalize(&sentence) } else { sentence });
                Ok(sentences(text).into_iter().map(word).collect())
            }
            Says::Misaki | Says::Ipa => {
                let dialect = dialect(if language.is_empty() { &self.language } else { language })?;
                let mut runs = Vec::new();
                for sentence in sentences(text) {
                    let words = normalize(&sentence);
                    let Some((phonemes, new)) = English::of(dialect).phonemes(&words) else {
                        let shown = short(&sentence, 60);
                        return refused(
                            "text",
                            format!("no phonemes were found for {shown:?}; send them as phonemes"),
                        );
                    };
                    for word in new {
                        if unknown.len() < UNKNOWN_WORDS_MAX && !unknown.contains(&word) {
                            unknown.push(word);
                        }
                    }
                    let phonemes = phonemes.trim();
                    runs.push(match self.says {
                        Says::Ipa => espeak(phonemes),
                        _ => phonemes.to_owned(),
                    });
                }
                Ok(runs)
            }
        }
    }
}

fn short(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// Whether two codes are of one language: `en`, `eng`, `en-us`, `en_GB`.
fn same_language(a: &str, b: &str) -> bool {
    let first = |code: &str| {
        let code = code.to_ascii_lowercase();
        let code = code.split(['-', '_']).next().unwrap_or_default().to_owned();
        if code == "eng" || code == "english" { "en".to_owned() } else { code }
    };
    first(a) == first(b)
}

fn dialect(language: &str) -> Result<Dialect, Refused> {
    match language.to_ascii_lowercase().replace('_', "-").as_str() {
        "en" | "en-us" | "english" => Ok(Dialect::American),
        "en-gb" | "en-uk" | "en-gb-x-rp" => Ok(Dialect::British),
        other => {
            let hint = "texts are read in English alone (en-us, en-gb); send phonemes for other languages";
            Err(Refused { field: "language", reason: format!("{:?}: {hint}", short(other, 20)) })
        }
    }
}

fn kokoro(files: &VoiceFiles) -> Result<Reader, LoadError> {
    let config = KokoroConfig::read(&files.config_file, &files.config)?;
    Ok(Reader {
        signs: config.vocab,
        signs_max: config.tokens_max - 2,
        around: Around::Ends(0),
        says: Says::Misaki,
        language: String::new(),
    })
}

/// Signs of one character; a file may have longer ones, which no text is made of.
fn single(vocab: &[(String, u32)]) -> BTreeMap<char, u32> {
    let one = |(sign, id): &(String, u32)| {
        let mut letters = sign.chars();
        letters.next().filter(|_| letters.next().is_none()).map(|letter| (letter, *id))
    };
    vocab.iter().filter_map(one).collect()
}

fn vits(files: &VoiceFiles) -> Result<Reader, LoadError> {
    let settings = &files.config["tokenizer"];
    let says_so = |key: &str, default: bool| settings[key].as_bool().unwrap_or(default);
    let mut signs = single(&files.vocab);
    let pad = settings["pad_token"].as_str().and_then(|pad| pad.chars().next());
    let blank = pad.and_then(|pad| signs.get(&pad).copied()).unwrap_or(0);
    // A blank is no letter.
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
    Ok(Reader { signs, signs_max: files.info.context_tokens_max as usize, around, says, language })
}

fn piper(files: &VoiceFiles) -> Result<Reader, LoadError> {
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
        _ if same_language("en", &language) => Says::Ipa,
        _ => Says::Nothing(format!(
            "this voice speaks {language:?}, and texts are read in English alone: send phonemes, as espeak-ng --ipa writes them"
        )),
    };
    Ok(Reader { signs, signs_max: files.info.context_tokens_max as usize, around, says, language })
}
