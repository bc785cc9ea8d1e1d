//! Towers inside of a text model's GGUF file, as Ollama's converter writes them: `v.*`, `mm.*` and `a.*` tensors beside the text's,
//! and `<architecture>.vision.*` keys. The file is split in memory into the two files that llama.cpp's converter writes, a text model
//! and a tower (mmproj), whose readers read them. `families` says how each architecture's names differ.

mod families;
mod mllama;

use std::collections::BTreeMap;
use std::sync::Arc;

use hanzo_engine_kernels::{DType, quant};

use self::families::{Eyes, FAMILIES, OllamaFamily};
pub(crate) use self::families::{is_of_tower, runs};
use super::TowerFiles;
use super::files::reader;
use super::spec::COLORS;
use crate::error::LoadError;
use crate::gguf::{Array, Gguf, Metadata, Value};
use crate::limits::LAYERS_MAX;
use crate::spec::{Config, TransformerSpec};
use crate::tensor::Tensor;

/// A GGUF file of a model that generates, split.
pub(crate) struct FileParts {
    /// The text model, as llama.cpp's converter writes it.
    pub(crate) text: Gguf,
    /// The tower that was in the file.
    pub(crate) tower: InsideTower,
}

/// The tower in a text model's file.
pub(crate) enum InsideTower {
    /// No tower.
    Absent,
    /// A file as llama.cpp's, but for the rows of queries and keys: their order is that of the model's own files.
    Readable(Gguf),
    /// A tower that llama.cpp's files do not have, in the words of the model's own files.
    Own(Box<OwnForm>),
    /// A tower that this build does not run, with the inputs that it reads.
    NotRun(&'static [&'static str]),
}

/// A tower in the words of the model's own files.
pub(crate) struct OwnForm {
    /// The settings of `config.json`.
    config: Config,
    /// The settings of `preprocessor_config.json`.
    settings: Config,
    tensors: Vec<Tensor>,
}

impl InsideTower {
    /// Opens the tower for the text model, of whose keys `words` are; none where there is none that is run.
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
                TowerFiles::of_settings(file, &config, &settings, tensors, reader(text)).map(Some)
            }
        }
    }
}

/// Splits a file. Of a model whose tower is not wanted it is the text alone.
///
/// # Errors
/// [`LoadError`] naming the file and the key or tensor in it; `Unsupported` of a model that is of no use without its tower, where
/// this build does not run that.
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

/// The keys of a file, on the way from one form to the other.
struct OllamaKeys {
    metadata: Metadata,
    family: &'static OllamaFamily,
}

/// Keys about the tower, without what they begin with.
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

    /// Takes the keys about towers.
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

    /// Renames and completes the keys about the text.
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

    /// A tower's file.
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

    /// The key of a tower's file for one of the model's; none where it says what goes without saying.
    fn said<'a>(&self, eyes: &Eyes, name: &'a str, value: &Value) -> Result<Option<&'a str>, LoadError> {
        let key = self.key(name);
        let unsupported = |reason: &str| LoadError::Unsupported {
            file: self.metadata.file().to_owned(),
            key: key.clone(),
            value: value.to_string(),
            reason: reason.to_owned(),
        };
        if let Some((_, to)) = eyes.keys.iter().chain(families::KEYS).find(|(from, _)| *from == name) {
            // The converter writes what a model's settings lack as nothing.
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

    /// The numbers of layers in a list.
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
            // Names of tensors of no layer begin so; what layers have is somewhere inside.
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

/// Layers after which rows are made besides.
const DEEP: &str = "vision.deepstack_visual_indexes";

/// The name of a tensor that makes rows of what a layer between gives, by the layer's number rather than by its place in the list.
fn deep_name(name: &str, deep: &[usize]) -> Option<String> {
    let rest = name.strip_prefix("v.deepstack_merger.").or_else(|| name.strip_prefix("v.deepstack."))?;
    let (index, own) = rest.split_once('.')?;
    let layer = deep.get(index.parse::<usize>().ok()?)?;
    Some(format!("v.deepstack.{layer}.{}", own.replace("linear_fc", "fc")))
}

/// Whether a value stands for none.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::U32(0) | Value::I32(0) | Value::U64(0) | Value::I64(0) => true,
        Value::F32(number) => *number == 0.0,
        Value::String(text) => text.is_empty(),
        Value::Array(array) => array.is_empty(),
        _ => false,
    }
}

/// Whether a tensor is quantised and none of the matrices that are computed in the type that they are stored in.
fn is_read_as_numbers(tensor: &Tensor) -> bool {
    const MATRICES: [&str; 5] = ["v.blk.", "v.deepstack.", "mm.0.", "mm.1.", "mm.2."];
    let is_matrix = tensor.shape.len() == 2 && MATRICES.iter().any(|start| tensor.name.starts_with(start));
    tensor.dtype.block_weights() > 1 && !is_matrix
}

/// The same numbers in F32.
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

/// An array of numbers in metadata.
fn colors(numbers: [f32; 3]) -> Value {
    Value::Array(Array::F32(numbers.to_vec()))
}
