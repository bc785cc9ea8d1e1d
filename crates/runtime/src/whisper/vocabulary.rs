//! Special tokens of a Whisper model, found by their names, and the conversion of options to tokens.

use std::{slice, sync::Arc};

use super::files::WhisperFiles;
use super::language;
use super::request::TranscribeOptions;
use crate::error::{LoadError, RequestError};
use crate::tokenizer::Tokenizer;

/// Symbols without speech, which are never sampled: alone, and with a space before.
const SIGNS: &str = "\" # ( ) * + / : ; < = > @ [ \\ ] ^ _ ` { | } ~ 「 」 『 』 << >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ \
                     }} ♪♪ ♪♪♪";
/// Symbols whose shared first token alone is not sampled.
const NOTES: &str = "♩ ♪ ♫ ♬ ♭ ♮ ♯";
/// Vocabulary size of English-only models.
const ENGLISH_VOCAB: usize = 51_864;

/// Special tokens and the tokenizer.
#[derive(Debug)]
pub struct Vocabulary {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) end: u32,
    pub(crate) start: u32,
    pub(crate) languages: Vec<(&'static str, u32)>,
    translate: u32,
    transcribe: u32,
    pub(crate) previous: u32,
    pub(crate) no_speech: u32,
    pub(crate) no_timestamps: u32,
    pub(crate) first_timestamp: u32,
    /// Supports other languages than English.
    pub(crate) multilingual: bool,
    pub(crate) suppressed: Vec<u32>,
    /// Tokens that are not sampled first: a space alone, and the end.
    pub(crate) blank: Vec<u32>,
    /// Tokens of the context.
    pub(crate) tokens_max: usize,
}

/// Options of a transcription, as tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodingOptions {
    /// Token of the language; `None`: to be detected.
    pub(crate) language: Option<u32>,
    pub(crate) translate: bool,
    pub(crate) prompt: Vec<u32>,
    pub(crate) temperatures: Vec<f32>,
    pub(crate) words: bool,
    pub(crate) condition: bool,
    pub(crate) seed: u64,
}

impl Vocabulary {
    /// Finds the tokens of an opened model.
    ///
    /// # Errors
    /// `Missing` naming a required token.
    pub fn new(files: &WhisperFiles, tokenizer: Arc<Tokenizer>) -> Result<Vocabulary, LoadError> {
        let vocab = files.spec.vocab;
        let words = tokenizer.clone();
        let known = |word: &str| words.token_id(word).filter(|&token| (token as usize) < vocab);
        let token = |word: &str| {
            known(word).ok_or_else(|| LoadError::Missing {
                file: files.text.file.clone(),
                what: format!("token {word}"),
                hint: "; every Whisper's vocabulary has it".into(),
            })
        };
        let no_timestamps = token("<|notimestamps|>")?;
        let timestamps = files.spec.rows + 1;
        if no_timestamps as usize + 1 + timestamps > vocab {
            return Err(LoadError::Corrupt {
                file: files.text.file.clone(),
                what: "tokenizer".into(),
                reason: format!(
                    "{vocab} tokens have no room for {timestamps} moments behind <|notimestamps|>"
                ),
            });
        }
        let languages =
            language::codes().filter_map(|code| Some((code, known(&format!("<|{code}|>"))?))).collect();
        let mut all = Vocabulary {
            end: token("<|endoftext|>")?,
            start: token("<|startoftranscript|>")?,
            languages,
            translate: token("<|translate|>")?,
            transcribe: token("<|transcribe|>")?,
            previous: token("<|startofprev|>")?,
            // It is the token before, whatever its name.
            no_speech: no_timestamps - 1,
            no_timestamps,
            first_timestamp: no_timestamps + 1,
            multilingual: files.guidance.multilingual.unwrap_or(vocab != ENGLISH_VOCAB),
            suppressed: Vec::new(),
            blank: Vec::new(),
            tokens_max: files.spec.tokens,
            tokenizer,
        };
        all.blank = all.encode(" ").into_iter().take(1).chain([all.end]).collect();
        all.suppressed = match &files.guidance.suppressed {
            Some(tokens) => tokens.iter().copied().filter(|&token| (token as usize) < vocab).collect(),
            None => all.no_speech_signs(),
        };
        let control = [all.transcribe, all.translate, all.start, all.previous, all.no_speech];
        all.suppressed.extend(control);
        all.suppressed.extend(known("<|startoflm|>"));
        all.suppressed.sort_unstable();
        all.suppressed.dedup();
        Ok(all)
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode_plain(text, false).unwrap_or_default()
    }

    fn no_speech_signs(&self) -> Vec<u32> {
        let mut tokens: Vec<u32> =
            [" -", " '"].iter().filter_map(|text| self.encode(text).first().copied()).collect();
        for (signs, first_counts) in [(SIGNS, false), (NOTES, true)] {
            for sign in signs.split_whitespace() {
                for text in [sign.to_owned(), format!(" {sign}")] {
                    let encoded = self.encode(&text);
                    tokens.extend(encoded.first().filter(|_| encoded.len() == 1 || first_counts));
                }
            }
        }
        tokens
    }

    /// Converts options to tokens. `interrupted` tells whether to give up.
    ///
    /// # Errors
    /// [`RequestError`] naming the field, [`RequestError::Interrupted`].
    pub fn ask(
        &self,
        options: &TranscribeOptions,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<DecodingOptions, RequestError> {
        let language = match options.language.trim() {
            "" => None,
            word => Some(self.language(word)?),
        };
        if options.translate && !self.multilingual {
            return Err(RequestError::invalid(
                "translate",
                "this model knows English alone; ask one that knows other languages",
            ));
        }
        let temperatures = match &options.temperatures[..] {
            [] => vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            some => some.to_vec(),
        };
        if temperatures.len() > TEMPERATURES_MAX {
            let reason = format!("at most {TEMPERATURES_MAX} are tried, not {}", temperatures.len());
            return Err(RequestError::invalid("temperatures", reason));
        }
        if let Some(wrong) = temperatures.iter().find(|temperature| !(0.0..=1.0).contains(*temperature)) {
            return Err(RequestError::invalid("temperatures", format!("each must be 0 to 1, not {wrong}")));
        }
        let prompt = match options.prompt.trim() {
            "" => Vec::new(),
            text => self.prompt_tokens(text, interrupted)?,
        };
        let kept = prompt.len().min(self.prompt_max());
        Ok(DecodingOptions {
            language,
            translate: options.translate,
            prompt: prompt[prompt.len() - kept..].to_vec(),
            temperatures,
            words: options.word_timestamps,
            condition: options.condition_on_previous_text,
            seed: options.seed,
        })
    }

    /// Tokens of the context text before the start.
    fn prompt_tokens(&self, text: &str, interrupted: &dyn Fn() -> bool) -> Result<Vec<u32>, RequestError> {
        let text = format!(" {text}");
        let plain = 0..text.len();
        self.tokenizer.encode_until(&text, slice::from_ref(&plain), false, interrupted)
    }

    fn language(&self, word: &str) -> Result<u32, RequestError> {
        let code = language::code_of(word);
        if !self.multilingual && code.is_some_and(|code| code != "en") {
            return Err(RequestError::invalid(
                "language",
                format!("this model knows English alone, not {word:?}"),
            ));
        }
        let found = self.languages.iter().find(|(known, _)| Some(*known) == code).map(|(_, token)| *token);
        found.ok_or_else(|| {
            let known: Vec<&str> = self.languages.iter().map(|(code, _)| *code).collect();
            RequestError::invalid("language", format!("{word:?} is none of {}", known.join(", ")))
        })
    }

    /// Maximum context tokens before the start.
    pub(crate) fn prompt_max(&self) -> usize {
        self.tokens_max / 2 - 1
    }

    /// Maximum tokens of a window's text.
    pub(crate) fn drawn_max(&self) -> usize {
        self.tokens_max / 2
    }

    /// Code of a language's token; English by default.
    pub(crate) fn code(&self, token: Option<u32>) -> &'static str {
        let found = self.languages.iter().find(|(_, known)| Some(*known) == token);
        found.map_or("en", |(code, _)| code)
    }

    /// Tokens at the start of a text in a language.
    pub(crate) fn beginning(&self, language: Option<u32>, translate: bool) -> Vec<u32> {
        let mut tokens = vec![self.start];
        if self.multilingual {
            tokens.extend(language);
            tokens.push(if translate { self.translate } else { self.transcribe });
        }
        tokens
    }

    /// Text of tokens; special tokens are left out.
    pub(crate) fn text(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens
            .iter()
            .filter(|&&token| token < self.end)
            .flat_map(|&token| self.tokenizer.token_bytes(token))
            .copied()
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Maximum temperatures of a request.
const TEMPERATURES_MAX: usize = 16;
