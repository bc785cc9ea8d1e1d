//! Towers inside a text model's GGUF file, as Ollama's converter writes them: `v.*`, `mm.*` and `a.*` tensors
//! beside the text's, and `<architecture>.vision.*` keys. The file is split in memory into the two files that
//! llama.cpp's converter would write, a text model and a tower (mmproj), and their readers read them. `families`
//! lists the differences in names for each architecture.

mod families;
mod mllama;

use std::collections::BTreeMap;
use std::sync::Arc;

use hanzo_engine_ops::{DType, quant};

use self::families::{Eyes, FAMILIES, OllamaFamily};
pub(crate) use self::families::{is_of_tower, runs};
use super::TowerFiles;
use super::spec::{COLORS, TextShape};
use crate::error::LoadError;
use crate::gguf::{Array, Gguf, Metadata, Value};
use crate::limits::LAYERS_MAX;
use crate::spec::{Config, TransformerSpec};
use crate::tensor::Tensor;

/// GGUF file of a generating model, split.
pub(crate) struct FileParts {
    /// Text model, as llama.cpp's converter writes it.
    pub(crate) text: Gguf,
    /// Tower from the file.
    pub(crate) tower: InsideTower,
}

/// Tower in a text model's file.
pub(crate) enum InsideTower {
    /// No tower.
    Absent,
    /// Tower in llama.cpp's form, except that rows of queries and keys are in the order of the model's own files.
    Readable(Gguf),
    /// Tower that llama.cpp's files do not have, in the form of the model's own files.
    Own(Box<OwnForm>),
    /// Tower that this build does not support, with the inputs that it takes.
    NotRun(&'static [&'static str]),
}

/// Tower in the form of the model's own files.
pub(crate) struct OwnForm {
    /// Settings of `config.json`.
    config: Config,
    /// Settings of `preprocessor_config.json`.
    settings: Config,
    tensors: Vec<Tensor>,
}

impl InsideTower {
    /// Opens the tower for the text model, whose keys are `words`; `None` if there is none that is supported.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key or tensor in it.
    pub(crate) fn open(
        self,
        words: &Metadata,
        text: &TransformerSpec,
    ) -> Result<Option<TowerFiles>, LoadError> {
        match self {
            InsideTower::Absent | InsideTower::NotRun(_) => Ok(None),
            InsideTower::Readable(gguf) => TowerFiles::of_embedded(gguf, words, text).map(Some),
            InsideTower::Own(own) => {
                let OwnForm { config, settings, tensors } = *own;
                let file = words.file();
                TowerFiles::of_settings(file, &config, &settings, tensors, TextShape::of(text)).map(Some)
            }
        }
    }
}

/// Splits a file. If the tower is not wanted, only the text model is returned.
///
/// # Errors
/// [`LoadError`] naming the file and the key or tensor in it; `Unsupported` for a model that is of no use without
/// its tower, if this build does not support that.
pub(crate) fn split(gguf: Gguf, sees: bool) -> Result<FileParts, LoadError> {
    let architecture = gguf.metadata.string("general.architecture")?.unwrap_or_default();
    if architecture == mllama::NAME {
        return mllama::split(gguf, sees);
    }
    let Some(family) = FAMILIES.iter().find(|family| family.name == architecture) else {
        return Ok(FileParts { text: gguf, tower: InsideTower::Absent });
    };
    let Gguf { version, metadata, tensors } = gguf;
    let (of_tower, mut tensors): (Vec<Tensor>, Vec<Tensor>) =
        tensors.into_iter().partition(|tensor| is_of_tower(&tensor.name));
    let mut keys = OllamaKeys { metadata: Arc::unwrap_or_clone(metadata), family };
    if !of_tower.is_empty() && family.is_useless_alone {
        return Err(keys.refused_alone());
    }
    let said = keys.take_tower();
    let tower = match (&family.eyes, of_tower.is_empty()) {
        (_, true) => InsideTower::Absent,
        (None, false) => InsideTower::NotRun(family.inputs),
        (Some(eyes), false) => InsideTower::Readable(keys.tower(eyes, said, of_tower, version)?),
    };
    let is_embedded = !matches!(tower, InsideTower::Absent);
    family.name_text(&mut tensors);
    keys.say_text(is_embedded, &mut tensors)?;
    let text = Gguf { version, metadata: Arc::new(keys.metadata), tensors };
    Ok(FileParts { text, tower })
}

/// Keys of a file, while they are converted.
struct OllamaKeys {
    metadata: Metadata,
    family: &'static OllamaFamily,
}

/// Keys of the tower, without their prefix.
type Said = BTreeMap<String, Value>;

impl OllamaKeys {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.family.name)
    }

    fn refused_alone(&self) -> LoadError {
        LoadError::Unsupported {
            file: self.metadata.file().to_owned(),
            key: "general.architecture".into(),
            value: self.family.name.into(),
            reason: format!(
                "it reads {}, and this build does not run the tower in the file that does so; without it the model is of no use",
                self.family.inputs.join(" and ")
            ),
        }
    }

    /// Takes the keys of towers.
    fn take_tower(&mut self) -> Said {
        const BEGINNINGS: [&str; 5] = ["vision.", "audio.", "mm.", "sam.", "projector."];
        let prefix = self.key("");
        let names = self.metadata.iter().filter_map(|(key, _)| key.strip_prefix(&prefix));
        let is_of_tower = |name: &&str| {
            let own = BEGINNINGS.iter().any(|start| name.starts_with(start));
            own || self.family.tower_keys.contains(name)
        };
        let names: Vec<String> = names.filter(is_of_tower).map(str::to_owned).collect();
        let value = |name: String| {
            let value = self.metadata.take(&format!("{prefix}{name}"))?;
            Some((name, value))
        };
        names.into_iter().filter_map(value).collect()
    }

    /// Renames and completes the keys of the text model.
    fn say_text(&mut self, is_embedded: bool, tensors: &mut [Tensor]) -> Result<(), LoadError> {
        let family = self.family;
        for (from, to) in family.text_keys {
            if let Some(value) = self.metadata.take(&self.key(from)) {
                let to = self.key(to);
                if self.metadata.get(&to).is_none() {
                    self.metadata.set(&to, value);
                }
            }
        }
        for name in family.no_matter {
            self.metadata.take(&self.key(name));
        }
        (family.complete)(self, is_embedded, tensors)?;
        let experts = self.metadata.u32(&self.key("expert_count"))?.is_some_and(|count| count > 0);
        let text = family.text_of_experts.filter(|_| experts).unwrap_or(family.text);
        if text != family.name {
            let prefix = self.key("");
            let names: Vec<String> = self
                .metadata
                .iter()
                .filter_map(|(key, _)| Some(key.strip_prefix(&prefix)?.to_owned()))
                .collect();
            for name in names {
                if let Some(value) = self.metadata.take(&format!("{prefix}{name}")) {
                    self.metadata.set(&format!("{text}.{name}"), value);
                }
            }
            self.metadata.set("general.architecture", Value::String(text.into()));
        }
        Ok(())
    }

    /// Adds a key that the file lacks.
    fn default(&mut self, name: &str, value: Value) {
        let key = self.key(name);
        if self.metadata.get(&key).is_none() {
            self.metadata.set(&key, value);
        }
    }

    /// Builds the file of a tower.
    fn tower(&self, eyes: &Eyes, said: Said, tensors: Vec<Tensor>, version: u32) -> Result<Gguf, LoadError> {
        let mut entries = BTreeMap::from([
            ("general.architecture".to_owned(), Value::String("clip".into())),
            ("clip.has_vision_encoder".to_owned(), Value::Bool(true)),
            ("clip.projector_type".to_owned(), Value::String(eyes.projector.into())),
            (eyes.activation.to_owned(), Value::Bool(true)),
        ]);
        let mut deep = None;
        for (name, value) in said {
            if let Some(to) = self.said(eyes, &name, &value)? {
                entries.insert(to.to_owned(), value);
            } else if name == DEEP {
                deep = Some(value);
            }
        }
        let deep = self.layers(deep)?;
        let tensors = tensors.into_iter().map(|tensor| self.tower_tensor(eyes, &deep, tensor));
        let tensors: Vec<Tensor> = tensors.collect::<Result<_, _>>()?;
        (eyes.complete)(&mut entries, &tensors);
        let metadata = Arc::new(Metadata::new(self.metadata.file(), entries));
        Ok(Gguf { version, metadata, tensors })
    }

    /// Key in a tower's file for one of the model's; `None` if it only states a default.
    fn said<'a>(&self, eyes: &Eyes, name: &'a str, value: &Value) -> Result<Option<&'a str>, LoadError> {
        let key = self.key(name);
        let unsupported = |reason: &str| LoadError::Unsupported {
            file: self.metadata.file().to_owned(),
            key: key.clone(),
            value: value.to_string(),
            reason: reason.to_owned(),
        };
        if let Some((_, to)) = eyes.keys.iter().chain(families::KEYS).find(|(from, _)| *from == name) {
            // The converter writes an empty value for a missing setting.
            return Ok(Some(*to).filter(|_| !is_nothing(value)));
        }
        if let Some((_, usual)) = eyes.usual.iter().chain(families::USUAL).find(|(from, _)| *from == name) {
            return match is_nothing(value) || usual.is(value) {
                true => Ok(None),
                false => Err(unsupported(&format!("only {usual} is known"))),
            };
        }
        match name == DEEP || eyes.no_matter.contains(&name) || self.family.tower_keys.contains(&name) {
            true => Ok(None),
            false => Err(unsupported("it is not known, so what it changes would be lost")),
        }
    }

    /// Layer numbers in a list.
    fn layers(&self, list: Option<Value>) -> Result<Vec<usize>, LoadError> {
        let corrupt = || self.metadata.corrupt(&self.key(DEEP), "expected a list of layers");
        let Some(list) = list else { return Ok(Vec::new()) };
        let entries = BTreeMap::from([(DEEP.to_owned(), list)]);
        let numbers = Metadata::new(self.metadata.file(), entries).integers(DEEP)?.unwrap_or_default();
        let layer = |number: i64| usize::try_from(number).ok().filter(|&layer| layer < LAYERS_MAX);
        numbers.into_iter().map(|number| layer(number).ok_or_else(corrupt)).collect()
    }

    fn tower_tensor(&self, eyes: &Eyes, deep: &[usize], mut tensor: Tensor) -> Result<Tensor, LoadError> {
        for (from, to) in eyes.tensors {
            // Names of tensors outside layers start like this; parts of layers are inside the name.
            let found = match from.starts_with('.') {
                true => tensor.name.contains(from),
                false => tensor.name.starts_with(from),
            };
            if found {
                tensor.name = tensor.name.replacen(from, to, 1);
                break;
            }
        }
        if let Some(name) = deep_name(&tensor.name, deep) {
            tensor.name = name;
        }
        if tensor.name == "v.patch_embd.weight"
            && let &[packed, 2, height, width] = tensor.shape.as_slice()
            && packed.is_multiple_of(COLORS)
        {
            tensor.shape = vec![packed / COLORS, COLORS, 2, height, width];
        }
        Ok(if is_read_as_numbers(&tensor) { dequantised(tensor) } else { tensor })
    }
}

/// Key of the layers after which additional rows are made (DeepStack).
const DEEP: &str = "vision.deepstack_visual_indexes";

/// Name of a DeepStack tensor, with the layer's number instead of its index in the list.
fn deep_name(name: &str, deep: &[usize]) -> Option<String> {
    let rest = name.strip_prefix("v.deepstack_merger.").or_else(|| name.strip_prefix("v.deepstack."))?;
    let (index, own) = rest.split_once('.')?;
    let layer = deep.get(index.parse::<usize>().ok()?)?;
    Some(format!("v.deepstack.{layer}.{}", own.replace("linear_fc", "fc")))
}

/// Whether a value stands for an unset one.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::U32(0) | Value::I32(0) | Value::U64(0) | Value::I64(0) => true,
        Value::F32(number) => *number == 0.0,
        Value::String(text) => text.is_empty(),
        Value::Array(array) => array.is_empty(),
        _ => false,
    }
}

/// Whether a tensor is quantised and must be dequantised, because it is not a matrix that is used in its stored
/// type.
fn is_read_as_numbers(tensor: &Tensor) -> bool {
    const MATRICES: [&str; 5] = ["v.blk.", "v.deepstack.", "mm.0.", "mm.1.", "mm.2."];
    let is_matrix = tensor.shape.len() == 2 && MATRICES.iter().any(|start| tensor.name.starts_with(start));
    tensor.dtype.block_weights() > 1 && !is_matrix
}

/// Converts a tensor to F32.
fn dequantised(tensor: Tensor) -> Tensor {
    let Some(&cols) = tensor.shape.last() else { return tensor };
    let mut values = vec![0.0; tensor.elements()];
    let stored = tensor.bytes.read();
    for (stored, values) in
        stored.chunks_exact(stored.len() / (tensor.elements() / cols)).zip(values.chunks_exact_mut(cols))
    {
        quant::dequantize_row(tensor.dtype, stored, values);
    }
    drop(stored);
    let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
    Tensor { dtype: DType::F32, bytes: bytes.into(), ..tensor }
}

/// Array of floats in metadata.
fn colors(numbers: [f32; 3]) -> Value {
    Value::Array(Array::F32(numbers.to_vec()))
}
