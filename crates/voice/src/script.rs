//! Preparation of a text for a model: the voice, and pieces of phonemes that fit the model. Runs for each
//! request before its turn.

use hanzo_engine_runtime::tensor::Tensor;
use hanzo_engine_runtime::{LoadError, VoiceFiles, VoiceKind};

use crate::error::FieldRefusal;
use crate::kokoro::KokoroConfig;
use crate::limits::{BLEND_MAX, PHONEMES_CHARS_MAX, TEXT_CHARS_MAX};
use crate::text::{EspeakNg, TextReader, sentences};
use crate::vits::VitsConfig;
use crate::weights::Weights;

/// Minimum phonemes of a piece, if the text has more. Shorter pieces sound cut off.
const PIECE_PHONEMES_MIN: usize = 24;
/// Phonemes of a first sentence, about six seconds, from which on it is cut at its first pause, so that sound
/// comes sooner.
const FIRST_PHONEMES_MAX: usize = 90;

/// Request for speech.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// Text or phonemes to speak.
    pub input: Input,
    /// Voice, OpenAI's name for one, or a blend; empty: the default.
    pub voice: String,
    /// Language of the text; empty: the voice's.
    pub language: String,
}

/// Text, or phonemes.
#[derive(Clone, Debug)]
pub enum Input {
    /// Text in a language.
    Text(String),
    /// Phonemes in the model's own symbols.
    Phonemes(String),
}

impl Default for Input {
    fn default() -> Input {
        Input::Text(String::new())
    }
}

/// Piece of speech that goes through the network at once.
#[derive(Clone, Debug, Default)]
pub struct SpeechPiece {
    /// Phoneme tokens, pads included.
    pub(crate) tokens: Vec<u32>,
    /// Style of the voice, unless the network has a fixed one.
    pub(crate) style: Vec<f32>,
}

/// Text prepared for synthesis.
#[derive(Clone, Debug, Default)]
pub struct Speech {
    /// Pieces in order.
    pub pieces: Vec<SpeechPiece>,
    /// Total number of phonemes.
    pub phonemes: u32,
    /// Words pronounced by letter rules, without duplicates.
    pub unknown_words: Vec<String>,
}

impl Speech {
    /// Number of phonemes spoken after each piece.
    pub fn phonemes_after(&self) -> Vec<u32> {
        let tokens = |piece: &SpeechPiece| piece.tokens.len() as u64;
        let all = self.pieces.iter().map(tokens).sum::<u64>().max(1);
        let mut said = 0;
        let share = |piece: &SpeechPiece| {
            said += tokens(piece);
            // At most the total, which is a u32.
            (u64::from(self.phonemes) * said / all) as u32
        };
        self.pieces.iter().map(share).collect()
    }
}

/// Description of a voice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoiceInfo {
    /// Name of the voice.
    pub name: String,
    /// Language code such as `en-us`.
    pub language: String,
    /// `female`, `male` or empty.
    pub gender: &'static str,
    /// OpenAI's names for the voice.
    pub aliases: Vec<&'static str>,
}

/// Text reader and voices of a model.
pub struct Script {
    reader: TextReader,
    style: usize, // size of a voice's style; 0: fixed in the network
    voices: Vec<(String, Option<Tensor>)>,
    default: usize,
    sample_rate: u32,
    kokoro: bool, // voices' names state language and gender
}

/// OpenAI's voices, and the Kokoro voices used for them.
const OPENAI: [(&str, &str); 13] = [
    ("alloy", "af_alloy"),
    ("ash", "am_michael"),
    ("ballad", "bm_george"),
    ("coral", "af_bella"),
    ("echo", "am_echo"),
    ("fable", "bm_fable"),
    ("onyx", "am_onyx"),
    ("nova", "af_nova"),
    ("sage", "af_sarah"),
    ("shimmer", "af_sky"),
    ("verse", "am_adam"),
    ("marin", "af_heart"),
    ("cedar", "am_fenrir"),
];
/// Language by the first letter of a Kokoro voice's name.
const LANGUAGES: [(char, &str); 9] = [
    ('a', "en-us"),
    ('b', "en-gb"),
    ('e', "es"),
    ('f', "fr-fr"),
    ('h', "hi"),
    ('i', "it"),
    ('j', "ja"),
    ('p', "pt-br"),
    ('z', "zh"),
];

fn language_of(voice: &str) -> &'static str {
    let first = voice.chars().next().unwrap_or_default();
    LANGUAGES.iter().find(|(letter, _)| *letter == first).map_or("", |(_, language)| language)
}

fn refused<T>(field: &'static str, reason: impl Into<String>) -> Result<T, FieldRefusal> {
    Err(FieldRefusal { field, reason: reason.into() })
}

impl Script {
    /// Creates it from a model's files. `espeak` is used for texts that the built-in readers do not support.
    ///
    /// # Errors
    /// [`LoadError`] naming the setting.
    pub fn new(files: &VoiceFiles, espeak: Option<EspeakNg>) -> Result<Script, LoadError> {
        let reader = TextReader::of(files, espeak)?;
        if files.kind == VoiceKind::Kokoro {
            let style = 2 * KokoroConfig::read(&files.config_file, &files.config)?.style;
            let default = files.voices.iter().position(|(name, _)| name == "af_heart").unwrap_or(0);
            let voices =
                files.voices.iter().map(|(name, voice)| (name.clone(), Some(voice.clone()))).collect();
            let sample_rate = crate::kokoro::SAMPLE_RATE;
            return Ok(Script { reader, style, voices, default, sample_rate, kokoro: true });
        }
        let config = VitsConfig::read(files, &Weights::new(&files.info.name, &files.tensors))?;
        let voices = speakers(files, config.speaker)?;
        let sample_rate = config.sample_rate;
        Ok(Script { reader, style: config.speaker, voices, default: 0, sample_rate, kokoro: false })
    }

    /// Sample rate in Hz.
    pub fn sample_rate(&self) -> u32 {
        self.sample_rate
    }

    /// Lists the voices, the default one first.
    pub fn voices(&self) -> Vec<VoiceInfo> {
        let info = |(name, _): &(String, Option<Tensor>)| VoiceInfo {
            name: name.clone(),
            language: self.language_of(name).to_owned(),
            gender: match name.chars().nth(1) {
                Some('f') if self.kokoro => "female",
                Some('m') if self.kokoro => "male",
                _ => "",
            },
            aliases: OPENAI.iter().filter(|(_, own)| own == name).map(|(alias, _)| *alias).collect(),
        };
        let rest =
            self.voices.iter().enumerate().filter(|(at, _)| *at != self.default).map(|(_, voice)| voice);
        self.voices.get(self.default).into_iter().chain(rest).map(info).collect()
    }

    fn language_of(&self, voice: &str) -> &str {
        if self.kokoro { language_of(voice) } else { &self.reader.language }
    }

    /// Parses a voice or a blend: indices of voices with their weights.
    fn blend(&self, asked: &str) -> Result<Vec<(usize, f32)>, FieldRefusal> {
        if asked.is_empty() {
            return Ok(vec![(self.default, 1.0)]);
        }
        let mut parts = Vec::new();
        for part in asked.split('+') {
            let (name, weight) = part.split_once(':').unwrap_or((part, "1"));
            let name = name.trim();
            let weight =
                weight.trim().parse::<f32>().ok().filter(|weight| weight.is_finite() && *weight > 0.0);
            let Some(weight) = weight else {
                return refused("voice", "the weight of a voice in a blend must be a number above 0");
            };
            parts.push((self.find(name)?, weight));
        }
        if parts.len() > BLEND_MAX {
            return refused("voice", format!("a blend is of at most {BLEND_MAX} voices"));
        }
        let all: f32 = parts.iter().map(|(_, weight)| weight).sum();
        parts.iter_mut().for_each(|(_, weight)| *weight /= all);
        Ok(parts)
    }

    fn find(&self, asked: &str) -> Result<usize, FieldRefusal> {
        let own = |name: &str| self.voices.iter().position(|(own, _)| own.eq_ignore_ascii_case(name));
        let openai = OPENAI.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(asked));
        match (own(asked), openai) {
            (Some(place), _) => Ok(place),
            // OpenAI's names always work: if the model lacks the voice, its default one speaks.
            (None, Some((_, name))) => Ok(own(name).unwrap_or(self.default)),
            (None, None) => {
                let names: Vec<&str> = self.voices.iter().map(|(name, _)| name.as_str()).collect();
                let shown: String = asked.chars().take(40).collect();
                refused("voice", format!("there is no voice {shown:?}; there are {}", names.join(", ")))
            }
        }
    }

    /// Prepares a text. Calls `interrupted` before every sentence, and stops if it returns true.
    ///
    /// # Errors
    /// [`FieldRefusal`] naming the field; also if the work was interrupted.
    pub fn speech(&self, ask: &Ask, interrupted: &dyn Fn() -> bool) -> Result<Speech, FieldRefusal> {
        let blend = self.blend(&ask.voice)?;
        let mut unknown_words = Vec::new();
        let runs = match &ask.input {
            Input::Text(text) => {
                check_length("text", text, TEXT_CHARS_MAX)?;
                let own = if self.kokoro { language_of(&self.voices[blend[0].0].0) } else { "" };
                let language = if ask.language.is_empty() { own } else { &ask.language };
                self.reader.runs(text, language, &mut unknown_words, interrupted)?
            }
            Input::Phonemes(phonemes) => {
                check_length("phonemes", phonemes, PHONEMES_CHARS_MAX)?;
                if let Some(letter) = self.reader.unknown_sign(phonemes) {
                    return refused("phonemes", format!("the model has no sign {letter:?}"));
                }
                sentences(phonemes)
            }
        };
        let (mut pieces, mut phonemes) = (Vec::new(), 0);
        let runs = joined(runs);
        // Other networks are fast enough to start a long sentence soon.
        for run in if self.kokoro { begun_soon(runs) } else { runs } {
            let tokens = self.reader.tokens(&run);
            for tokens in self.fitting(&run, tokens) {
                let style = self.style(&blend, tokens.len());
                phonemes += tokens.len() as u32;
                pieces.push(SpeechPiece { tokens: self.reader.surrounded(&tokens), style });
            }
        }
        if pieces.is_empty() {
            let field = if matches!(ask.input, Input::Text(_)) { "text" } else { "phonemes" };
            return refused(field, "there is nothing in it that can be said");
        }
        Ok(Speech { pieces, phonemes, unknown_words })
    }

    /// Splits phonemes into pieces that fit the network, at pauses.
    fn fitting(&self, run: &str, tokens: Vec<u32>) -> Vec<Vec<u32>> {
        let most = self.reader.signs_max;
        if tokens.is_empty() {
            return Vec::new();
        }
        if tokens.len() <= most {
            return vec![tokens];
        }
        let signs = self.reader.known(run);
        let (mut pieces, mut from) = (Vec::new(), 0);
        while tokens.len() - from > most {
            let window = &signs[from..from + most];
            let breath = |signs: &[char]| window.iter().rposition(|letter| signs.contains(letter));
            let cut = [&['.', '!', '?', '…'][..], &[':', ';'], &[',', '—'], &[' ']]
                .iter()
                .find_map(|signs| breath(signs).filter(|&at| at > most / 4))
                .map_or(most, |at| at + 1);
            pieces.push(tokens[from..from + cut].to_vec());
            from += cut;
        }
        pieces.push(tokens[from..].to_vec());
        pieces
    }

    /// Blended style for a piece of this many phonemes.
    fn style(&self, blend: &[(usize, f32)], phonemes: usize) -> Vec<f32> {
        let mut style = vec![0.0; self.style];
        for &(voice, weight) in blend {
            let Some(tensor) = &self.voices[voice].1 else { continue };
            let row = phonemes.saturating_sub(1).min(tensor.shape[0] - 1);
            let numbers = row_of(tensor, row, self.style);
            style.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += weight * number);
        }
        style
    }
}

/// Reads a row of a voice, as f32.
fn row_of(tensor: &Tensor, row: usize, width: usize) -> Vec<f32> {
    let size = tensor.bytes.len() / tensor.shape[0];
    let bytes = tensor.bytes.slice(row * size..(row + 1) * size);
    let shape = vec![1, width];
    let part = bytes.map(|bytes| Tensor { shape, bytes, ..tensor.clone() }.to_f32());
    // Types and shapes were checked when the model was opened.
    part.and_then(Result::ok).unwrap_or_default()
}

fn check_length(field: &'static str, text: &str, most: usize) -> Result<(), FieldRefusal> {
    let count = text.chars().count();
    match count {
        0 => refused(field, "must not be empty"),
        _ if count > most => refused(field, format!("has {count} characters; at most {most} are allowed")),
        _ => Ok(()),
    }
}

/// Voices of a VITS model: its speakers, by name if they have any.
fn speakers(files: &VoiceFiles, width: usize) -> Result<Vec<(String, Option<Tensor>)>, LoadError> {
    if width == 0 {
        let name = files.config["dataset"].as_str().filter(|name| !name.is_empty()).unwrap_or("default");
        return Ok(vec![(name.to_owned(), None)]);
    }
    let name = if files.kind == VoiceKind::Piper { "emb_g.weight" } else { "embed_speaker.weight" };
    let table = files.tensors.iter().find(|tensor| tensor.name == name && tensor.shape.len() == 2);
    let table = table.filter(|table| table.shape[1] == width && table.shape[0] > 0);
    let table = table.ok_or_else(|| LoadError::Missing {
        file: files.info.name.clone(),
        what: format!("tensor {name}"),
        hint: "; it has the numbers of the model's speakers".to_owned(),
    })?;
    let own = files.config["speaker_id_map"].as_object();
    let named = |row: usize| {
        let own = own.and_then(|own| own.iter().find(|(_, id)| id.as_u64() == Some(row as u64)));
        own.map_or_else(|| row.to_string(), |(name, _)| name.clone())
    };
    Ok((0..table.shape[0]).map(|row| (named(row), Some(table.rows(row..row + 1)))).collect())
}

/// Joins very short sentences with the next.
fn joined(runs: Vec<String>) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    for run in runs.into_iter().filter(|run| !run.is_empty()) {
        match joined.last_mut().filter(|last| last.chars().count() < PIECE_PHONEMES_MIN) {
            Some(last) => {
                last.push(' ');
                last.push_str(&run);
            }
            None => joined.push(run),
        }
    }
    joined
}

/// Splits a long first sentence at a pause.
fn begun_soon(mut runs: Vec<String>) -> Vec<String> {
    let Some(first) = runs.first() else { return runs };
    let signs: Vec<(usize, char)> = first.char_indices().collect();
    if signs.len() <= FIRST_PHONEMES_MAX {
        return runs;
    }
    let breath = |at: &usize| [',', ';', ':', '—', '…'].contains(&signs[*at].1) && signs[at + 1].1 == ' ';
    if let Some(at) = (PIECE_PHONEMES_MIN..signs.len() - PIECE_PHONEMES_MIN).find(breath) {
        let (head, rest) = first.split_at(signs[at + 1].0);
        let two = [head.to_owned(), rest.trim_start().to_owned()];
        runs.splice(0..1, two);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_first_sentence_begins_soon() {
        let soon = |runs: &[&str]| begun_soon(runs.iter().map(|&run| run.to_owned()).collect());
        let (head, rest) = ("wˈʌn tˈu θɹˈi fˈɔɹ fˈaɪv,", "sˈɪks — sˈɛvən, ".repeat(6));
        let long = format!("{head} {rest}ˈeɪt.");
        assert_eq!(soon(&[&long, &long]), [head.to_owned(), format!("{rest}ˈeɪt."), long.clone()]);
        // No split: a short sentence, one without a pause, and one whose parts would be too short.
        for whole in [&long[..60], &"sˈɪks".repeat(30), &format!("nˈoʊ, {}, jˈɛs.", "sˈɪks".repeat(30))]
        {
            assert_eq!(soon(&[whole]), [whole]);
        }
        assert!(soon(&[]).is_empty());
    }
}
