//! Reads CTranslate2's `model.bin` of a Whisper model (github.com/OpenNMT/CTranslate2,
//! `python/ctranslate2/specs/model_spec.py`, `_serialize`): version, name and revision, then variables, then
//! aliases. Strings are preceded by their length and end with a zero. 8-bit integers with a scale for each row
//! (`weight_scale`) become Q8_0, whose codes are the same.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use half::f16;
use hanzo_engine_ops::DType;

use super::spec::{Stack, WhisperSpec};
use crate::error::LoadError;
use crate::limits::TENSORS_MAX;
use crate::mapped::ModelBytes;
use crate::regular;
use crate::tensor::Tensor;

/// Name of the file in a directory.
pub(crate) const FILE: &str = "model.bin";
/// File version written since 2021.
const VERSION: u32 = 6;
/// Name of the only supported kind of model.
const KIND: &str = "WhisperSpec";
/// Maximum number of dimensions of a variable.
const DIMENSIONS_MAX: usize = 4;
/// Weights of a block of Q8_0, and its bytes.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 34;

/// Variable as stored.
struct Variable {
    shape: Vec<usize>,
    kind: u8,
    bytes: ModelBytes,
}

const F32: u8 = 0;
const I8: u8 = 1;
const I16: u8 = 2;
const F16: u8 = 4;
const BF16: u8 = 5;

/// Whether a file starts like one of a Whisper model.
pub(crate) fn is_whisper(path: &Path) -> bool {
    let mut start = [0; 6 + KIND.len()];
    let read = regular::open(path).and_then(|(mut file, _)| file.read_exact(&mut start));
    read.is_ok() && start.ends_with(KIND.as_bytes())
}

/// Opens a file. Returns the model's shape, and its tensors by transformers' names.
pub(super) fn open(path: &Path) -> Result<(WhisperSpec, BTreeMap<String, Tensor>), LoadError> {
    let bytes = ModelBytes::map(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
    read(&path.display().to_string(), &bytes)
}

/// Reads a file's bytes.
pub(super) fn read(
    file: &str,
    bytes: &ModelBytes,
) -> Result<(WhisperSpec, BTreeMap<String, Tensor>), LoadError> {
    let corrupt = |what: String, reason: String| LoadError::Corrupt { file: file.to_owned(), what, reason };
    let mut reader = Reader { file, bytes, at: 0 };
    let version = reader.u32("version")?;
    if version != VERSION {
        return Err(LoadError::Unsupported {
            file: file.to_owned(),
            key: "binary version".into(),
            value: version.to_string(),
            reason: format!("version {VERSION} is read here; convert the model again"),
        });
    }
    let kind = reader.string("name of the model")?;
    if kind != KIND {
        return Err(LoadError::Unsupported {
            file: file.to_owned(),
            key: "kind of model".into(),
            value: kind,
            reason: format!("of CTranslate2's models {KIND} alone is read here"),
        });
    }
    reader.u32("revision")?;
    let count = reader.u32("number of variables")? as usize;
    if count > TENSORS_MAX {
        return Err(corrupt("number of variables".into(), format!("{count} is more than {TENSORS_MAX}")));
    }
    let mut variables = BTreeMap::new();
    for _ in 0..count {
        let name = reader.string("name of a variable")?;
        let variable = reader.variable(&name)?;
        variables.insert(name, variable);
    }
    for _ in 0..reader.u32("number of aliases")?.min(TENSORS_MAX as u32) {
        let (alias, of) = (reader.string("alias")?, reader.string("alias")?);
        if let Some(Variable { shape, kind, bytes }) = variables.get(&of) {
            let variable = Variable { shape: shape.clone(), kind: *kind, bytes: bytes.clone() };
            variables.insert(alias, variable);
        }
    }
    Model { file: file.into(), variables }.convert()
}

struct Reader<'a> {
    file: &'a str,
    bytes: &'a ModelBytes,
    at: usize,
}

impl Reader<'_> {
    fn take(&mut self, what: &str, length: usize) -> Result<ModelBytes, LoadError> {
        let end = self.at.checked_add(length).filter(|&end| end <= self.bytes.len());
        let taken = end.and_then(|end| self.bytes.slice(self.at..end));
        let taken = taken.ok_or_else(|| LoadError::Corrupt {
            file: self.file.to_owned(),
            what: what.to_owned(),
            reason: format!("{length} bytes are expected at {}, and the file ends before", self.at),
        })?;
        self.at += length;
        Ok(taken)
    }

    fn u16(&mut self, what: &str) -> Result<u16, LoadError> {
        let bytes = self.take(what, 2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self, what: &str) -> Result<u32, LoadError> {
        let bytes = self.take(what, 4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn string(&mut self, what: &str) -> Result<String, LoadError> {
        let length = usize::from(self.u16(what)?);
        let bytes = self.take(what, length)?;
        let text = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
        String::from_utf8(text.to_vec()).map_err(|_| LoadError::Corrupt {
            file: self.file.to_owned(),
            what: what.to_owned(),
            reason: "it is no text".into(),
        })
    }

    fn variable(&mut self, name: &str) -> Result<Variable, LoadError> {
        let what = format!("variable {name}");
        let rank = usize::from(self.take(&what, 1)?[0]);
        let corrupt =
            |reason: String| LoadError::Corrupt { file: self.file.to_owned(), what: what.clone(), reason };
        if rank > DIMENSIONS_MAX {
            return Err(corrupt(format!("{rank} dimensions; at most {DIMENSIONS_MAX} are read")));
        }
        let file = self.file;
        let shape =
            (0..rank).map(|_| Ok(self.u32(&what)? as usize)).collect::<Result<Vec<_>, LoadError>>()?;
        let kind = self.take(&what, 1)?[0];
        let length = self.u32(&what)? as usize;
        let bytes = self.take(&what, length)?;
        let size = match kind {
            F32 | 3 => 4,
            I16 | F16 | BF16 => 2,
            I8 => 1,
            other => {
                return Err(LoadError::Unsupported {
                    file: file.to_owned(),
                    key: format!("type of {what}"),
                    value: other.to_string(),
                    reason: "float32, float16, bfloat16 and int8 are read".into(),
                });
            }
        };
        let elements = shape.iter().try_fold(1usize, |all, &side| all.checked_mul(side));
        if elements.and_then(|elements| elements.checked_mul(size)) != Some(length) {
            return Err(LoadError::Corrupt {
                file: file.to_owned(),
                what,
                reason: format!("{length} bytes are not those of {shape:?}"),
            });
        }
        Ok(Variable { shape, kind, bytes })
    }
}

struct Model {
    file: Arc<str>,
    variables: BTreeMap<String, Variable>,
}

impl Model {
    fn missing(&self, name: &str) -> LoadError {
        LoadError::Missing {
            file: self.file.to_string(),
            what: format!("variable {name}"),
            hint: String::new(),
        }
    }

    fn corrupt(&self, name: &str, reason: String) -> LoadError {
        LoadError::Corrupt { file: self.file.to_string(), what: format!("variable {name}"), reason }
    }

    fn variable(&self, name: &str) -> Result<&Variable, LoadError> {
        self.variables.get(name).ok_or_else(|| self.missing(name))
    }

    fn shape<const N: usize>(&self, name: &str) -> Result<[usize; N], LoadError> {
        let shape = &self.variable(name)?.shape;
        shape[..].try_into().map_err(|_| self.corrupt(name, format!("{shape:?} has not {N} dimensions")))
    }

    fn convert(self) -> Result<(WhisperSpec, BTreeMap<String, Tensor>), LoadError> {
        let [hidden, mels, _] = self.shape("encoder/conv1/weight")?;
        let stack = |side: &str| -> Result<Stack, LoadError> {
            let layers = (0..)
                .take_while(|layer| {
                    self.variables.contains_key(&format!("{side}/layer_{layer}/ffn/linear_0/weight"))
                })
                .count();
            let name = format!("{side}/num_heads");
            let heads = self.variable(&name)?;
            let heads = match (heads.kind, &heads.bytes[..]) {
                (I16, [low, high]) => usize::from(u16::from_le_bytes([*low, *high])),
                _ => return Err(self.corrupt(&name, "expected one int16".into())),
            };
            if heads == 0 || layers == 0 {
                return Err(self.corrupt(&name, format!("{heads} heads in {layers} layers")));
            }
            let [ffn, _] = self.shape(&format!("{side}/layer_0/ffn/linear_0/weight"))?;
            Ok(Stack { layers, heads, ffn })
        };
        let spec = WhisperSpec {
            mels,
            hidden,
            encoder: stack("encoder")?,
            decoder: stack("decoder")?,
            rows: self.shape::<2>("encoder/position_encodings/encodings")?[0],
            tokens: self.shape::<2>("decoder/position_encodings/encodings")?[0],
            vocab: self.shape::<2>("decoder/embeddings/weight")?[0],
            own_head: false,
        };
        spec.check().map_err(|(key, reason)| self.corrupt(key, reason))?;
        let mut tensors = Vec::new();
        let mut put = |name: String, tensor: Tensor| tensors.push((name, tensor));
        for conv in ["conv1", "conv2"] {
            for part in ["weight", "bias"] {
                put(format!("encoder.{conv}.{part}"), self.tensor(&format!("encoder/{conv}/{part}"))?);
            }
        }
        put("decoder.embed_tokens.weight".into(), self.tensor("decoder/embeddings/weight")?);
        for (side, stack) in [("encoder", spec.encoder), ("decoder", spec.decoder)] {
            let positions = self.tensor(&format!("{side}/position_encodings/encodings"))?;
            put(format!("{side}.embed_positions.weight"), positions);
            self.norm(&format!("{side}/layer_norm"), &format!("{side}.layer_norm"), &mut put)?;
            for layer in 0..stack.layers {
                let (from, to) = (format!("{side}/layer_{layer}"), format!("{side}.layers.{layer}"));
                let own: [&[&str]; 2] = [&["q_proj", "k_proj", "v_proj"], &["out_proj"]];
                let cross: [&[&str]; 3] = [&["q_proj"], &["k_proj", "v_proj"], &["out_proj"]];
                let mut attentions: Vec<(&str, &str, &[&[&str]])> =
                    vec![("self_attention", "self_attn", &own)];
                if side == "decoder" {
                    attentions.push(("attention", "encoder_attn", &cross));
                }
                for (name, canonical, matrices) in attentions {
                    for (index, parts) in matrices.iter().enumerate() {
                        let from = format!("{from}/{name}/linear_{index}");
                        self.linear(&from, parts, &format!("{to}.{canonical}"), &mut put)?;
                    }
                    let norm = format!("{to}.{canonical}_layer_norm");
                    self.norm(&format!("{from}/{name}/layer_norm"), &norm, &mut put)?;
                }
                self.linear(&format!("{from}/ffn/linear_0"), &["fc1"], &to, &mut put)?;
                self.linear(&format!("{from}/ffn/linear_1"), &["fc2"], &to, &mut put)?;
                self.norm(&format!("{from}/ffn/layer_norm"), &format!("{to}.final_layer_norm"), &mut put)?;
            }
        }
        Ok((spec, tensors.into_iter().collect()))
    }

    fn norm(&self, from: &str, to: &str, put: &mut dyn FnMut(String, Tensor)) -> Result<(), LoadError> {
        put(format!("{to}.weight"), self.tensor(&format!("{from}/gamma"))?);
        put(format!("{to}.bias"), self.tensor(&format!("{from}/beta"))?);
        Ok(())
    }

    /// Matrix of parts stacked by rows, and its bias.
    fn linear(
        &self,
        from: &str,
        parts: &[&str],
        to: &str,
        put: &mut dyn FnMut(String, Tensor),
    ) -> Result<(), LoadError> {
        for what in ["weight", "bias"] {
            let name = format!("{from}/{what}");
            let whole = self.tensor(&name)?;
            let rows = whole.shape.first().copied().unwrap_or(0);
            if !rows.is_multiple_of(parts.len()) || rows == 0 {
                return Err(self.corrupt(&name, format!("{rows} rows are not {} parts", parts.len())));
            }
            let each = rows / parts.len();
            for (index, part) in parts.iter().enumerate() {
                put(format!("{to}.{part}.{what}"), whole.rows(index * each..(index + 1) * each));
            }
        }
        Ok(())
    }

    fn tensor(&self, name: &str) -> Result<Tensor, LoadError> {
        let Variable { shape, kind, bytes } = self.variable(name)?;
        let file = self.file.clone();
        let of = |dtype, bytes| Tensor { file, name: name.to_owned(), dtype, shape: shape.clone(), bytes };
        match *kind {
            F32 => Ok(of(DType::F32, bytes.clone())),
            F16 => Ok(of(DType::F16, bytes.clone())),
            BF16 => Ok(of(DType::BF16, bytes.clone())),
            I8 => self.codes(name, shape, bytes),
            _ => Err(self.corrupt(name, "expected floats or int8".into())),
        }
    }

    /// Tensor from 8-bit integers with a scale for each row.
    fn codes(&self, name: &str, shape: &[usize], codes: &ModelBytes) -> Result<Tensor, LoadError> {
        let scale_name = format!("{name}_scale");
        let scales = self.variable(&scale_name)?;
        let rows = shape.first().copied().unwrap_or(0).max(1);
        let cols = codes.len() / rows;
        if cols == 0 {
            return Err(self.corrupt(name, format!("{shape:?} has no numbers")));
        }
        let whole = shape.len() == 2 && cols.is_multiple_of(BLOCK);
        let (F32, Ok(scales)) =
            (scales.kind, scales.bytes.chunks_exact(4).map(numbers).collect::<Result<Vec<f32>, ()>>())
        else {
            return Err(self.corrupt(&scale_name, "expected float32".into()));
        };
        // The scale's reciprocal is stored as a half.
        let sound = |scale: &f32| scale.is_finite() && *scale > 0.0 && f16::from_f32(1.0 / scale).is_finite();
        if scales.len() != rows || !scales.iter().all(sound) {
            return Err(self.corrupt(&scale_name, format!("expected {rows} numbers above 0.000016")));
        }
        let of = |dtype, bytes| Tensor {
            file: self.file.clone(),
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            bytes,
        };
        if !whole {
            // Small tensors become floats: convolutions, whose rows have three dimensions.
            let row = |(row, codes): (usize, &[u8])| {
                codes
                    .iter()
                    .flat_map(|&code| (f32::from(code.cast_signed()) / scales[row]).to_le_bytes())
                    .collect::<Vec<u8>>()
            };
            let bytes: Vec<u8> = codes.chunks_exact(cols).enumerate().flat_map(row).collect();
            return Ok(of(DType::F32, ModelBytes::from(bytes)));
        }
        let scales: Vec<f16> = scales.into_iter().map(|scale| f16::from_f32(1.0 / scale)).collect();
        let (source, row_bytes) = (codes.clone(), cols / BLOCK * BLOCK_BYTES);
        let bytes = ModelBytes::of_rows(rows, row_bytes, vec![codes.clone()], move |rows, out| {
            for (row, out) in rows.zip(out.chunks_exact_mut(row_bytes)) {
                let codes = &source[row * cols..][..cols];
                for (block, codes) in out.chunks_exact_mut(BLOCK_BYTES).zip(codes.chunks_exact(BLOCK)) {
                    block[..2].copy_from_slice(&scales[row].to_le_bytes());
                    block[2..].copy_from_slice(codes);
                }
            }
        });
        Ok(of(DType::Q8_0, bytes))
    }
}

fn numbers(bytes: &[u8]) -> Result<f32, ()> {
    bytes.try_into().map(f32::from_le_bytes).map_err(drop)
}
