//! Overrides for a model's files at load: settings by key, rotary scaling, tokenizer and chat template. Settings
//! replace those of the files, so the same code reads and checks them. A setting that nothing reads is an error.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use crate::error::{LoadError, shorten};
use crate::gguf::{Gguf, Metadata, Value};
use crate::limits::{OVERRIDE_BYTES_MAX, OVERRIDES_MAX, TOPOLOGY_RULES_MAX};
use crate::load::{TextFiles, TokenizerSource, gguf, huggingface};
use crate::network::{Isq, IsqRule};
use crate::override_record::OverrideRecord;
use crate::spec::Config;

/// Overrides for a model's files. The default overrides nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overrides {
    /// Text of the chat template.
    pub chat_template: Option<String>,
    /// Source of the tokenizer: a directory, one of its files, or a GGUF file.
    pub tokenizer: Option<PathBuf>,
    /// Vision tower of a GGUF file's model.
    pub mmproj: Mmproj,
    /// Rotary scaling.
    pub rope: RopeOverrides,
    /// Settings by key.
    pub keys: Vec<KeyOverride>,
    /// Type that matrices are quantised to at load (in-situ quantisation).
    pub isq: Option<Isq>,
    /// Rules for the types of some matrices; if several match, the last counts.
    pub topology: Vec<IsqRule>,
    /// File of an importance matrix, which weights quantisation errors by column.
    pub imatrix: Option<PathBuf>,
}

/// Vision tower of a GGUF file's model, which is a separate file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mmproj {
    /// A matching file in the model's folder, if there is one.
    #[default]
    Beside,
    /// No tower: text only.
    None,
    /// This file.
    File(PathBuf),
}

/// Rotary scaling; unset values stay as in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RopeOverrides {
    /// Method.
    pub scaling: Option<Stretch>,
    /// Factor by which contexts get longer.
    pub scale: Option<f32>,
    /// Base of the frequencies.
    pub freq_base: Option<f32>,
    /// Original context length in tokens.
    pub original_context: Option<u32>,
    /// YaRN's factor for cosine and sine.
    pub attention_factor: Option<f32>,
    /// YaRN: frequencies with more turns than this within the original context stay unscaled.
    pub beta_fast: Option<f32>,
    /// YaRN: frequencies with fewer turns than this within the original context are scaled fully.
    pub beta_slow: Option<f32>,
}

/// Method of rotary scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stretch {
    /// No scaling.
    None,
    /// Scales all frequencies equally.
    Linear,
    /// Scales only the low frequencies (arxiv.org/abs/2309.00071).
    Yarn,
}

impl Stretch {
    /// All methods.
    pub const ALL: [Stretch; 3] = [Stretch::None, Stretch::Linear, Stretch::Yarn];

    /// Name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Stretch::None => "none",
            Stretch::Linear => "linear",
            Stretch::Yarn => "yarn",
        }
    }
}

impl FromStr for Stretch {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|stretch| stretch.name() == name);
        found.ok_or_else(|| format!("there is no way {name:?} to stretch; there are none, linear and yarn"))
    }
}

/// Setting and its new value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyOverride {
    /// Key of GGUF metadata or of `config.json`, where dots lead into objects.
    pub key: String,
    /// New value.
    pub value: KeyValue,
}

/// Typed value of a setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum KeyValue {
    /// `int:`
    Int(i64),
    /// `float:`
    Float(f64),
    /// `bool:`
    Bool(bool),
    /// `str:`
    Text(String),
}

impl FromStr for KeyOverride {
    type Err = String;

    /// Parses `KEY=TYPE:VALUE`, in llama.cpp's form.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{:?} is not KEY=TYPE:VALUE, with int, float, bool or str", shorten(text.into()));
        if text.len() > OVERRIDE_BYTES_MAX {
            return Err(format!("it has {} bytes; at most {OVERRIDE_BYTES_MAX} are possible", text.len()));
        }
        let (key, typed) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(wrong)?;
        let (kind, value) = typed.split_once(':').ok_or_else(wrong)?;
        let not = |what: &str| format!("{key}: {value:?} is not {what}");
        let value = match kind {
            "int" => KeyValue::Int(value.parse().map_err(|_| not("a whole number"))?),
            "float" => {
                let number = value.parse().ok().filter(|number: &f64| number.is_finite());
                KeyValue::Float(number.ok_or_else(|| not("a number"))?)
            }
            "bool" => KeyValue::Bool(value.parse().map_err(|_| not("true or false"))?),
            "str" => KeyValue::Text(value.to_owned()),
            _ => return Err(wrong()),
        };
        Ok(Self { key: key.to_owned(), value })
    }
}

impl fmt::Display for KeyOverride {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            KeyValue::Int(number) => write!(to, "{}=int:{number}", self.key),
            KeyValue::Float(number) => write!(to, "{}=float:{number}", self.key),
            KeyValue::Bool(truth) => write!(to, "{}=bool:{truth}", self.key),
            KeyValue::Text(text) => write!(to, "{}=str:{text}", self.key),
        }
    }
}

impl RopeOverrides {
    fn numbers(&self) -> [(&'static str, Option<f32>); 5] {
        [
            ("rope_scale", self.scale),
            ("rope_freq_base", self.freq_base),
            ("yarn_attn_factor", self.attention_factor),
            ("yarn_beta_fast", self.beta_fast),
            ("yarn_beta_slow", self.beta_slow),
        ]
    }

    /// Checks that every number is finite and above 0.
    ///
    /// # Errors
    /// Name of the first invalid one, and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        for (name, number) in self.numbers() {
            if let Some(number) = number.filter(|number| !(number.is_finite() && *number > 0.0)) {
                return Err((name, format!("must be a number above 0, not {number}")));
            }
        }
        if self.original_context == Some(0) {
            return Err(("yarn_orig_ctx", "must be at least 1".into()));
        }
        if self.scaling == Some(Stretch::None) && self.scale.is_some() {
            return Err(("rope_scale", "needs a way to stretch: rope_scaling is none".into()));
        }
        let of_yarn = [
            ("yarn_attn_factor", self.attention_factor.is_some()),
            ("yarn_beta_fast", self.beta_fast.is_some()),
            ("yarn_beta_slow", self.beta_slow.is_some()),
            ("yarn_orig_ctx", self.original_context.is_some()),
        ];
        match of_yarn.into_iter().find(|(_, given)| *given) {
            Some((name, _)) if matches!(self.scaling, Some(Stretch::None | Stretch::Linear)) => {
                Err((name, "is YaRN's: set rope_scaling to yarn".into()))
            }
            _ => Ok(()),
        }
    }
}

impl Overrides {
    /// Descriptions of what is overridden, for people.
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        names.extend(self.chat_template.as_ref().map(|text| format!("chat_template ({} bytes)", text.len())));
        names.extend(self.tokenizer.as_ref().map(|path| format!("tokenizer={}", path.display())));
        names.extend(match &self.mmproj {
            Mmproj::Beside => None,
            Mmproj::None => Some("mmproj=none".to_owned()),
            Mmproj::File(path) => Some(format!("mmproj={}", path.display())),
        });
        names.extend(self.rope.scaling.map(|scaling| format!("rope_scaling={}", scaling.name())));
        let number = |(name, number): (&str, Option<f32>)| number.map(|number| format!("{name}={number}"));
        names.extend(self.rope.numbers().into_iter().filter_map(number));
        names.extend(self.rope.original_context.map(|tokens| format!("yarn_orig_ctx={tokens}")));
        names.extend(self.isq.map(|isq| format!("isq={isq}")));
        names.extend(self.topology.iter().map(|rule| format!("topology {rule}")));
        names.extend(self.imatrix.as_ref().map(|path| format!("imatrix={}", path.display())));
        names.extend(self.keys.iter().map(|over| format!("override_kv {over}")));
        names
    }

    /// Checks the number of settings, and that none is given twice.
    ///
    /// # Errors
    /// The field and the reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        self.rope.check()?;
        if self.topology.len() > TOPOLOGY_RULES_MAX {
            let reason = format!("{} rules; at most {TOPOLOGY_RULES_MAX} are possible", self.topology.len());
            return Err(("topology", reason));
        }
        for (at, rule) in self.topology.iter().enumerate() {
            rule.check().map_err(|reason| ("topology", format!("rule {}: {reason}", at + 1)))?;
        }
        if self.imatrix.is_some() && self.isq.is_none() && self.topology.is_empty() {
            return Err(("imatrix", "weighs what a load quantises: set isq or a topology too".into()));
        }
        if let (Some(_), Some(isq), true) = (&self.imatrix, self.isq, self.topology.is_empty())
            && (isq.dtype().affine().is_some() || isq.dtype().is_fp8())
        {
            let reason = format!("{isq} weighs no columns: take another type, such as Q4_K, or leave it out");
            return Err(("imatrix", reason));
        }
        if self.keys.len() > OVERRIDES_MAX {
            return Err((
                "override_kv",
                format!("{} keys; at most {OVERRIDES_MAX} are possible", self.keys.len()),
            ));
        }
        let twice =
            |(at, over): (usize, &KeyOverride)| self.keys[..at].iter().any(|other| other.key == over.key);
        match self.keys.iter().enumerate().find(|&found| twice(found)) {
            Some((_, over)) => Err(("override_kv", format!("{} is given twice", over.key))),
            None => Ok(()),
        }
    }

    /// Record, for a file, of the overridden settings that are read.
    fn record(&self, file: &str) -> OverrideRecord {
        OverrideRecord::new(file, self.keys.iter().map(|over| (over.key.clone(), over.to_string())))
    }

    /// Applies the settings to a GGUF file.
    ///
    /// # Errors
    /// For keys whose value has another type in the file.
    pub(crate) fn over_gguf(&self, gguf: &mut Gguf) -> Result<OverrideRecord, LoadError> {
        if self.keys.is_empty() && self.rope == RopeOverrides::default() {
            return Ok(OverrideRecord::default());
        }
        let mut metadata = Metadata::clone(&gguf.metadata);
        let watched = self.record(metadata.file());
        for over in &self.keys {
            let value = as_in_file(&metadata, over)?;
            metadata.set(&over.key, value);
        }
        self.rope.over_metadata(&mut metadata)?;
        metadata.watch(watched.clone());
        gguf.metadata = Arc::new(metadata);
        Ok(watched)
    }

    /// Applies the settings to a `config.json`.
    ///
    /// # Errors
    /// For keys that lead into a value that is no object.
    pub(crate) fn over_config(&self, config: &mut Config) -> Result<OverrideRecord, LoadError> {
        let watched = self.record(&config.file);
        for over in &self.keys {
            put(config, over)?;
        }
        self.rope.over_config(config)?;
        config.watch(watched.clone());
        Ok(watched)
    }

    /// Checks overrides for a text-to-speech model, which supports none.
    ///
    /// # Errors
    /// `Unsupported` naming the override. Keys are reported as unread by [`OverrideRecord::check`].
    pub(crate) fn over_voice(&self, file: &str) -> Result<OverrideRecord, LoadError> {
        let said = [
            ("chat_template", self.chat_template.is_some()),
            ("tokenizer", self.tokenizer.is_some()),
            ("rope_scaling", self.rope != RopeOverrides::default()),
        ];
        match said.iter().find(|(_, said)| *said) {
            None => Ok(self.record(file)),
            Some((key, _)) => Err(LoadError::Unsupported {
                file: file.to_owned(),
                key: (*key).to_owned(),
                value: "something else than the files say".to_owned(),
                reason: "a model that speaks has none; leave it out".to_owned(),
            }),
        }
    }

    /// Text files of a Hugging Face directory, with the overrides for them. `config` and `generation_config` are the
    /// directory's settings.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key in it.
    pub(crate) fn text_files(
        &self,
        directory: &Path,
        config: &Config,
        generation_config: Option<&Config>,
    ) -> Result<TextFiles, LoadError> {
        // An override stands in for a tokenizer that the directory may lack.
        let stand_in = self.tokenizer.as_ref().map(|_| TokenizerSource::none());
        let mut text = huggingface::text_files(directory, config, generation_config, stand_in)?;
        self.over_text(&mut text)?;
        Ok(text)
    }

    /// Replaces texts of the model's files.
    ///
    /// # Errors
    /// For a tokenizer that cannot be read.
    pub(crate) fn over_text(&self, text: &mut TextFiles) -> Result<(), LoadError> {
        if let Some(template) = &self.chat_template {
            text.chat_template = Some(template.clone());
        }
        let Some(path) = &self.tokenizer else { return Ok(()) };
        if is_gguf(path) {
            let (opened, _) = crate::gguf::open(path)?;
            let other = gguf::text_files(&opened.metadata)?;
            // Its token IDs come with it.
            (text.tokenizer, text.bos, text.eos) = (other.tokenizer, other.bos, other.eos);
        } else {
            text.tokenizer = huggingface::tokenizer_at(path)?;
        }
        Ok(())
    }
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// The value in the type that the file has for the key, if it has one.
fn as_in_file(metadata: &Metadata, over: &KeyOverride) -> Result<Value, LoadError> {
    let wrong = |found: &Value| LoadError::Unsupported {
        file: metadata.file().to_owned(),
        key: "override_kv".into(),
        value: over.to_string(),
        reason: format!("the file has a value of type {} there", found.type_name()),
    };
    match (metadata.get(&over.key), &over.value) {
        (None | Some(Value::Bool(_)), KeyValue::Bool(truth)) => Ok(Value::Bool(*truth)),
        (None | Some(Value::String(_)), KeyValue::Text(text)) => Ok(Value::String(text.clone())),
        (None | Some(Value::F32(_) | Value::F64(_)), KeyValue::Float(number)) => Ok(Value::F64(*number)),
        (None, KeyValue::Int(number)) => Ok(Value::I64(*number)),
        (
            Some(
                Value::U8(_)
                | Value::I8(_)
                | Value::U16(_)
                | Value::I16(_)
                | Value::U32(_)
                | Value::I32(_)
                | Value::U64(_)
                | Value::I64(_),
            ),
            KeyValue::Int(number),
        ) => Ok(Value::I64(*number)),
        (Some(found), _) => Err(wrong(found)),
    }
}

/// Sets a key of a configuration; `text_config.rope_theta` is in the object that its first part names.
fn put(config: &mut Config, over: &KeyOverride) -> Result<(), LoadError> {
    let value = match &over.value {
        KeyValue::Int(number) => Json::from(*number),
        KeyValue::Float(number) => Json::from(*number),
        KeyValue::Bool(truth) => Json::from(*truth),
        KeyValue::Text(text) => Json::from(text.as_str()),
    };
    let mut at = &mut config.settings;
    let mut parts = over.key.split('.').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            at.insert(part.to_owned(), value);
            return Ok(());
        }
        match at.get_mut(part) {
            Some(Json::Object(inner)) => at = inner,
            _ => {
                return Err(LoadError::Unsupported {
                    file: config.file.clone(),
                    key: "override_kv".into(),
                    value: over.to_string(),
                    reason: format!("the file has no object {part}"),
                });
            }
        }
    }
    Ok(())
}

impl RopeOverrides {
    fn over_metadata(&self, metadata: &mut Metadata) -> Result<(), LoadError> {
        if *self == RopeOverrides::default() {
            return Ok(());
        }
        let family = metadata.string("general.architecture")?.unwrap_or_default().to_owned();
        let key = |key: &str| format!("{family}.{key}");
        let context_key = key("context_length");
        let context = metadata.u32(&context_key)?.unwrap_or(0);
        let original_key = key("rope.scaling.original_context_length");
        let original = self.original_context.or(metadata.u32(&original_key)?).unwrap_or(context);
        let mut set = |name: &str, value: Value| metadata.set(&key(name), value);
        if let Some(scaling) = self.scaling {
            set("rope.scaling.type", Value::String(scaling.name().into()));
        }
        if let Some(scale) = self.scale {
            set("rope.scaling.factor", Value::F32(scale));
            set("context_length", Value::U32(context.max(stretched(original, scale))));
        }
        if self.scale.is_some() || self.original_context.is_some() {
            set("rope.scaling.original_context_length", Value::U32(original));
        }
        for (name, number) in [
            ("rope.freq_base", self.freq_base),
            ("rope.scaling.attn_factor", self.attention_factor),
            ("rope.scaling.yarn_beta_fast", self.beta_fast),
            ("rope.scaling.yarn_beta_slow", self.beta_slow),
        ] {
            if let Some(number) = number {
                set(name, Value::F32(number));
            }
        }
        Ok(())
    }

    fn over_config(&self, config: &mut Config) -> Result<(), LoadError> {
        const ORIGINAL: &str = "original_max_position_embeddings";
        const CONTEXT: &str = "max_position_embeddings";
        if *self == RopeOverrides::default() {
            return Ok(());
        }
        let file = config.file.clone();
        let refuse = |reason: &str| LoadError::Unsupported {
            file: file.clone(),
            key: "rope_scaling".into(),
            value: self.scaling.map_or("as in the file", Stretch::name).into(),
            reason: reason.into(),
        };
        // Multimodal models keep the text model's settings apart.
        let nested = matches!(config.get("text_config"), Some(Json::Object(text)) if text.contains_key("num_hidden_layers"));
        let settings = match config.settings.get_mut("text_config") {
            Some(Json::Object(text)) if nested => text,
            _ => &mut config.settings,
        };
        let name = match settings.get("rope_scaling") {
            Some(Json::Object(_)) => "rope_scaling",
            _ if settings.contains_key("rope_parameters") => "rope_parameters",
            _ => "rope_scaling",
        };
        let mut rope = match settings.get(name) {
            Some(Json::Object(rope)) => rope.clone(),
            _ => Map::new(),
        };
        if rope.values().any(Json::is_object) {
            return Err(refuse(
                "its layers have several ropes, and each has its own stretch; use override_kv",
            ));
        }
        let number = |from: &Map<String, Json>, key: &str| {
            from.get(key).and_then(Json::as_u64).and_then(|number| u32::try_from(number).ok())
        };
        let context = number(settings, CONTEXT).unwrap_or(0);
        let stated = number(settings, ORIGINAL).or(number(&rope, ORIGINAL));
        let original = self.original_context.or(stated).unwrap_or(context);
        if let Some(scaling) = self.scaling {
            rope.retain(|key, _| matches!(key.as_str(), "rope_theta" | "partial_rotary_factor"));
            let name = if scaling == Stretch::None { "default" } else { scaling.name() };
            rope.insert("rope_type".into(), name.into());
        }
        if let Some(scale) = self.scale {
            let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Json::as_str);
            if matches!(kind, None | Some("default")) {
                rope.insert("rope_type".into(), "linear".into());
            }
            rope.insert("factor".into(), f64::from(scale).into());
            settings.insert(CONTEXT.into(), context.max(stretched(original, scale)).into());
        }
        let kind =
            rope.get("rope_type").or_else(|| rope.get("type")).and_then(Json::as_str).unwrap_or_default();
        if kind == "yarn" && (self.scale.is_some() || self.original_context.is_some()) {
            rope.insert(ORIGINAL.into(), original.into());
            if settings.contains_key(ORIGINAL) {
                settings.insert(ORIGINAL.into(), original.into());
            }
        }
        self.put_factors(&mut rope, settings);
        settings.insert(name.into(), Json::Object(rope));
        Ok(())
    }

    /// Puts the factors and the base into the settings of the `rope`; the base into those around it if it stands there.
    fn put_factors(&self, rope: &mut Map<String, Json>, settings: &mut Map<String, Json>) {
        for (key, number) in [
            ("attention_factor", self.attention_factor),
            ("beta_fast", self.beta_fast),
            ("beta_slow", self.beta_slow),
        ] {
            if let Some(number) = number {
                rope.insert(key.into(), f64::from(number).into());
            }
        }
        if let Some(base) = self.freq_base {
            let holder = if rope.contains_key("rope_theta") { rope } else { settings };
            holder.insert("rope_theta".into(), f64::from(base).into());
        }
    }
}

/// Context length in tokens after scaling.
fn stretched(original: u32, scale: f32) -> u32 {
    (f64::from(original) * f64::from(scale)) as u32
}

#[cfg(test)]
mod tests;
