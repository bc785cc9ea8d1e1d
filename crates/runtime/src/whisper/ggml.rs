//! Reads whisper.cpp's file of a Whisper model (github.com/ggml-org/whisper.cpp, `whisper_model_load`; written by
//! its `models/convert-*-to-ggml.py` and by its `quantize`): sizes, a filter bank, the tokens' bytes, and tensors
//! by OpenAI's names. Special tokens are not in the file: their IDs follow from the sizes, as in whisper.cpp. The
//! tokenizer's merges are not in it either, and are recovered from the order of its tokens. The filter bank is not
//! used.

use std::collections::{BTreeMap, HashMap};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use hanzo_engine_ops::DType;
use serde_json::{Map, Value, json};

use super::language;
use super::spec::{Stack, WhisperSpec};
use crate::error::LoadError;
use crate::limits::{TENSORS_MAX, VOCAB_MAX};
use crate::mapped::ModelBytes;
use crate::regular;
use crate::tensor::Tensor;
use crate::tokenizer::byte_char;

/// First bytes of a file: `ggml` as a number.
const MAGIC: [u8; 4] = 0x6767_6d6c_u32.to_le_bytes();
/// Version of quantised types, stored in thousands of a file's type. All ggml formats since 2023 have this version.
const QUANTIZATION_VERSION: u32 = 2;
const VERSION_FACTOR: u32 = 1000;
/// Size of the vocabulary of English-only models, and its text tokens; all others have one more text token.
const ENGLISH_VOCAB: usize = 51_864;
const ENGLISH_TEXT: usize = 50_256;
/// Tokens between the languages and the timestamps.
const TASKS: [&str; 6] = ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"];
/// Maximum bytes of a token, and below of a tensor's name.
const TOKEN_BYTES_MAX: usize = 192;
/// Maximum bytes of all tokens; a multilingual vocabulary has a fifth of it.
const TEXT_BYTES_MAX: usize = 2 << 20;
const NAME_BYTES_MAX: usize = 256;
/// Maximum number of dimensions of a tensor.
const DIMENSIONS_MAX: usize = 4;

/// Contents of a file.
pub(super) struct GgmlFile {
    pub(super) spec: WhisperSpec,
    /// `tokenizer.json`, as the library `tokenizers` writes it.
    pub(super) tokenizer_json: Vec<u8>,
    /// Tensors by transformers' names.
    pub(super) tensors: BTreeMap<String, Tensor>,
}

/// Whether a file starts like whisper.cpp's.
pub(crate) fn is_ggml(path: &Path) -> bool {
    let mut start = [0; MAGIC.len()];
    let read = regular::open(path).and_then(|(mut file, _)| file.read_exact(&mut start));
    read.is_ok() && start == MAGIC
}

/// The only whisper.cpp file of a directory, found by extension and first bytes.
pub(crate) fn in_directory(directory: &Path) -> Option<PathBuf> {
    let named = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "bin");
    let entries = std::fs::read_dir(directory).ok()?;
    let mut found =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(named).filter(|path| is_ggml(path));
    found.next().filter(|_| found.next().is_none())
}

/// Opens a file.
pub(super) fn open(path: &Path) -> Result<GgmlFile, LoadError> {
    let bytes = ModelBytes::map(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
    read(&path.display().to_string(), &bytes)
}

/// Reads a file's bytes.
pub(super) fn read(file: &str, bytes: &ModelBytes) -> Result<GgmlFile, LoadError> {
    let mut reader = Reader { file, bytes, at: 0 };
    if reader.take("its first bytes", MAGIC.len())?[..] != MAGIC {
        return Err(reader.corrupt("its first bytes", "they are not whisper.cpp's"));
    }
    let mut sizes = [0; 11];
    for size in &mut sizes {
        *size = reader.u32("a size")? as usize;
    }
    let [vocab, rows, hidden, heads, layers, tokens, text_hidden, text_heads, text_layers, mels, kind] =
        sizes;
    let version = kind as u32 / VERSION_FACTOR;
    if version != 0 && version != QUANTIZATION_VERSION {
        return Err(LoadError::Unsupported {
            file: file.to_owned(),
            key: "version of quantised types".into(),
            value: version.to_string(),
            reason: format!("version {QUANTIZATION_VERSION} is read here; quantise the model again"),
        });
    }
    if text_hidden != hidden {
        return Err(reader.corrupt("sizes", format!("states of {hidden} and of {text_hidden} elements")));
    }
    let (bands, bins) = (reader.u32("filters")? as usize, reader.u32("filters")? as usize);
    let filters = bands.checked_mul(bins).and_then(|numbers| numbers.checked_mul(4));
    reader.take("filters", filters.unwrap_or(usize::MAX))?;
    if vocab > VOCAB_MAX {
        return Err(reader.corrupt("sizes", format!("{vocab} tokens; at most {VOCAB_MAX}")));
    }
    let tokenizer_json = tokenizer(&mut reader, vocab, rows)?;
    let mut tensors = BTreeMap::new();
    while reader.at < bytes.len() {
        if tensors.len() == TENSORS_MAX {
            return Err(reader.corrupt("tensors", format!("more than {TENSORS_MAX}")));
        }
        let tensor = reader.tensor()?;
        tensors.insert(tensor.name.clone(), tensor);
    }
    let inner = |side: &str| {
        let name = format!("{side}.layers.0.fc1.weight");
        let found = tensors.get(&name).and_then(|tensor: &Tensor| tensor.shape.first().copied());
        found.ok_or_else(|| LoadError::Missing {
            file: file.to_owned(),
            what: format!("tensor {side}.blocks.0.mlp.0.weight"),
            hint: "; a whole model has it".into(),
        })
    };
    let stack = |side, layers, heads| inner(side).map(|ffn| Stack { layers, heads, ffn });
    let spec = WhisperSpec {
        mels,
        hidden,
        encoder: stack("encoder", layers, heads)?,
        decoder: stack("decoder", text_layers, text_heads)?,
        rows,
        tokens,
        vocab,
        own_head: false,
    };
    spec.check_sizes().and_then(|()| spec.check()).map_err(|(key, reason)| reader.corrupt(key, reason))?;
    Ok(GgmlFile { spec, tokenizer_json, tensors })
}

/// Pairs of layer and head.
type Heads = &'static [(usize, usize)];

/// Heads of the cross-attention that align with the sound in OpenAI's models, as published (`whisper/__init__.py`),
/// by number of decoder layers and vocabulary size. Other models use the default heads.
const ALIGNMENT_HEADS: [(usize, usize, Heads); 10] = [
    (4, 51_864, &[(1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)]),
    (4, 51_865, &[(2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5)]),
    (4, 51_866, &[(2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14)]),
    (6, 51_864, &[(3, 3), (4, 7), (5, 1), (5, 5), (5, 7)]),
    (6, 51_865, &[(3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6)]),
    (12, 51_865, &[(5, 3), (5, 9), (8, 0), (8, 4), (8, 7), (8, 8), (9, 0), (9, 7), (9, 9), (10, 5)]),
    (
        12,
        51_864,
        &[
            (6, 6),
            (7, 0),
            (7, 3),
            (7, 8),
            (8, 2),
            (8, 5),
            (8, 7),
            (9, 0),
            (9, 4),
            (9, 8),
            (9, 10),
            (10, 0),
            (10, 1),
            (10, 2),
            (10, 3),
            (10, 6),
            (10, 11),
            (11, 2),
            (11, 4),
        ],
    ),
    (24, 51_865, &[(13, 15), (15, 4), (15, 15), (16, 1), (20, 0), (23, 4)]),
    (
        32,
        51_866,
        &[(7, 0), (10, 17), (12, 18), (13, 12), (16, 1), (17, 14), (19, 11), (21, 4), (24, 1), (25, 6)],
    ),
    (
        24,
        51_864,
        &[
            (11, 4),
            (14, 1),
            (14, 12),
            (14, 14),
            (15, 4),
            (16, 0),
            (16, 4),
            (16, 9),
            (17, 12),
            (17, 14),
            (18, 7),
            (18, 10),
            (18, 15),
            (20, 0),
            (20, 3),
            (20, 9),
            (20, 14),
            (21, 12),
        ],
    ),
];

/// Alignment heads, if the sizes are those of one of OpenAI's models.
pub(super) fn alignment_heads(spec: &WhisperSpec) -> Option<Vec<(usize, usize)>> {
    let found = ALIGNMENT_HEADS
        .iter()
        .find(|(layers, vocab, _)| (*layers, *vocab) == (spec.decoder.layers, spec.vocab));
    let heads = found.map(|(_, _, heads)| heads.to_vec());
    heads.filter(|heads| heads.iter().all(|(_, head)| *head < spec.decoder.heads))
}

struct Reader<'a> {
    file: &'a str,
    bytes: &'a ModelBytes,
    at: usize,
}

impl Reader<'_> {
    fn corrupt(&self, what: &str, reason: impl Into<String>) -> LoadError {
        LoadError::Corrupt { file: self.file.to_owned(), what: what.to_owned(), reason: reason.into() }
    }

    fn take(&mut self, what: &str, length: usize) -> Result<ModelBytes, LoadError> {
        let end = self.at.checked_add(length).filter(|&end| end <= self.bytes.len());
        let taken = end.and_then(|end| self.bytes.slice(self.at..end)).ok_or_else(|| {
            self.corrupt(
                what,
                format!("{length} bytes are expected at {}, and the file ends before", self.at),
            )
        })?;
        self.at += length;
        Ok(taken)
    }

    fn u32(&mut self, what: &str) -> Result<u32, LoadError> {
        let bytes = self.take(what, 4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn tensor(&mut self) -> Result<Tensor, LoadError> {
        let (rank, length) = (self.u32("a tensor")? as usize, self.u32("a tensor")? as usize);
        let kind = self.u32("a tensor")?;
        if rank > DIMENSIONS_MAX || length > NAME_BYTES_MAX {
            let reason = format!("{rank} dimensions, and a name of {length} bytes at {}", self.at);
            return Err(self.corrupt("a tensor", reason));
        }
        let mut shape =
            (0..rank).map(|_| Ok(self.u32("a tensor")? as usize)).collect::<Result<Vec<_>, LoadError>>()?;
        // whisper.cpp stores the fastest dimension first.
        shape.reverse();
        let name = self.take("a tensor's name", length)?;
        let name =
            String::from_utf8(name.to_vec()).map_err(|_| self.corrupt("a tensor's name", "it is no text"))?;
        let what = format!("tensor {name}");
        let Some(dtype) = DType::from_ggml(kind) else {
            return Err(LoadError::Unsupported {
                file: self.file.to_owned(),
                key: format!("type of {what}"),
                value: kind.to_string(),
                reason: "it is none of ggml's that are known here".into(),
            });
        };
        let cols = shape.last().copied().unwrap_or(1);
        let rows = shape.iter().rev().skip(1).try_fold(1_usize, |rows, &side| rows.checked_mul(side));
        let size = rows.zip(dtype.bytes_of(cols)).and_then(|(rows, row)| rows.checked_mul(row));
        let size = size.ok_or_else(|| self.corrupt(&what, format!("{shape:?} is no shape of {dtype}")))?;
        let bytes = self.take(&what, size)?;
        // Biases of convolutions are stored as columns.
        if name.ends_with(".bias") {
            shape = vec![shape.iter().product()];
        }
        Ok(Tensor { file: self.file.into(), name: canonical(&name), dtype, shape, bytes })
    }
}

/// Converts OpenAI's name of a tensor to transformers' name. Unknown names stay, and are refused later.
fn canonical(name: &str) -> String {
    let Some((side, rest)) = name.split_once('.') else { return name.to_owned() };
    let whole = [
        ("positional_embedding", "embed_positions.weight"),
        ("token_embedding.weight", "embed_tokens.weight"),
        ("ln_post.weight", "layer_norm.weight"),
        ("ln_post.bias", "layer_norm.bias"),
        ("ln.weight", "layer_norm.weight"),
        ("ln.bias", "layer_norm.bias"),
    ];
    if let Some((_, own)) = whole.iter().find(|(known, _)| *known == rest) {
        return format!("{side}.{own}");
    }
    let block = rest.strip_prefix("blocks.").and_then(|rest| rest.split_once('.'));
    let Some((layer, part)) = block else { return name.to_owned() };
    let parts = [
        ("attn_ln.", "self_attn_layer_norm."),
        ("cross_attn_ln.", "encoder_attn_layer_norm."),
        ("mlp_ln.", "final_layer_norm."),
        ("mlp.0.", "fc1."),
        ("mlp.2.", "fc2."),
        ("attn.query.", "self_attn.q_proj."),
        ("attn.key.", "self_attn.k_proj."),
        ("attn.value.", "self_attn.v_proj."),
        ("attn.out.", "self_attn.out_proj."),
        ("cross_attn.query.", "encoder_attn.q_proj."),
        ("cross_attn.key.", "encoder_attn.k_proj."),
        ("cross_attn.value.", "encoder_attn.v_proj."),
        ("cross_attn.out.", "encoder_attn.out_proj."),
    ];
    let own = parts.iter().find_map(|(known, own)| Some(format!("{own}{}", part.strip_prefix(known)?)));
    own.map_or_else(|| name.to_owned(), |own| format!("{side}.layers.{layer}.{own}"))
}

/// Builds the tokenizer from the file's text tokens, and from the special tokens that follow from the sizes.
fn tokenizer(reader: &mut Reader<'_>, vocab: usize, rows: usize) -> Result<Vec<u8>, LoadError> {
    let count = reader.u32("tokens")? as usize;
    if count > vocab {
        return Err(reader.corrupt("tokens", format!("{count} of them; the model has {vocab}")));
    }
    let (mut words, mut all_bytes): (Vec<Vec<u8>>, usize) = (Vec::new(), 0);
    for token in 0..count {
        let length = reader.u32("a token")? as usize;
        all_bytes += length.min(TEXT_BYTES_MAX);
        if length > TOKEN_BYTES_MAX || all_bytes > TEXT_BYTES_MAX {
            let most =
                format!("{length} bytes; at most {TOKEN_BYTES_MAX}, and {TEXT_BYTES_MAX} of all together");
            return Err(reader.corrupt(&format!("token {token}"), most));
        }
        words.push(reader.take("a token", length)?.to_vec());
    }
    let text = match vocab {
        ENGLISH_VOCAB => ENGLISH_TEXT,
        _ if vocab > ENGLISH_VOCAB => ENGLISH_TEXT + 1,
        _ => count,
    };
    words.truncate(text);
    let moments = rows + 1;
    let besides = text + 2 + TASKS.len() + moments;
    let Some(languages) = vocab.checked_sub(besides).filter(|&count| count <= language::codes().count())
    else {
        let reason = format!("{vocab} tokens are not {text} of text, languages, and {moments} moments");
        return Err(reader.corrupt("tokens", reason));
    };
    let names =
        ["endoftext", "startoftranscript"].into_iter().chain(language::codes().take(languages)).chain(TASKS);
    let names = names.map(|name| format!("<|{name}|>"));
    let moments = (0..moments).map(|moment| format!("<|{:.2}|>", moment as f64 * 0.02));
    let added: Vec<Value> = names
        .chain(moments)
        .enumerate()
        .map(|(at, content)| {
            json!({
                "id": text + at, "content": content, "special": true,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            })
        })
        .collect();
    let mut all = Map::new();
    for (token, word) in words.iter().enumerate().filter(|(_, word)| !word.is_empty()) {
        all.insert(letters(word), token.into());
    }
    let merges: Vec<Value> =
        merges(&words).into_iter().map(|(a, b)| json!([letters(a), letters(b)])).collect();
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": all, "merges": merges},
    });
    Ok(tokenizer.to_string().into_bytes())
}

/// Recovers the two tokens that each longer token was merged from: what its bytes become by the merges of earlier
/// tokens, in order. A token that does not become two parts was made by no merge.
fn merges(words: &[Vec<u8>]) -> Vec<(&[u8], &[u8])> {
    let ranks: HashMap<&[u8], usize> =
        words.iter().enumerate().rev().map(|(rank, word)| (word.as_slice(), rank)).collect();
    let mut merges = Vec::new();
    for (rank, word) in words.iter().enumerate().filter(|(_, word)| word.len() > 1) {
        // Positions where parts end.
        let mut ends: Vec<usize> = (0..=word.len()).collect();
        while ends.len() > 3 {
            let pairs = ends.windows(3).enumerate();
            let known = pairs.filter_map(|(at, ends)| Some((*ranks.get(&word[ends[0]..ends[2]])?, at)));
            let Some((_, at)) = known.filter(|(of, _)| *of < rank).min() else { break };
            ends.remove(at + 1);
        }
        if let [_, middle, _] = ends[..] {
            let (a, b) = word.split_at(middle);
            if ranks.contains_key(a) && ranks.contains_key(b) {
                merges.push((a, b));
            }
        }
    }
    merges
}

/// Spells bytes with the characters of byte-level tokenizers.
fn letters(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| byte_char(byte)).collect()
}
