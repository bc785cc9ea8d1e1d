//! [`ModelFiles`] from a parsed GGUF file.

use std::path::PathBuf;
use std::sync::Arc;

use hanzo_engine_kernels::DType;

use super::{
    Found, GenerationDefaults, ModelFiles, ModelInfo, TextFiles, TokenizerSource, check_tokens, quantised,
    size_bytes,
};
use crate::chat::ChatOpening;
use crate::error::LoadError;
use crate::gguf::{Gguf, Metadata};
use crate::overrides::Mmproj;
use crate::spec::{self, LayerPart, Names, Part, TransformerSpec};
use crate::tensor::Tensor;
use crate::vision::embedded::{self, FileParts, InsideTower};
use crate::vision::{TowerFiles, mmproj};

/// Names of `general.file_type`, by number; missing numbers were withdrawn from the format.
const FILE_TYPES: &[(u32, &str)] = &[
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4"),
    (39, "NVFP4"),
    (40, "Q1_0"),
    (41, "Q2_0"),
];

/// Classifier rows for yes and no, in a file made for reranking.
const SCORE: &str = "cls.output.weight";

/// Keys of tokens that end a text (eos), a turn (eot) or a message (eom).
const END_TOKENS: &[&str] =
    &["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// Assembles a file's model with the requested tower, from the same file or a separate one. `fallback_name` is for
/// files that do not name their model; `files` are the sources of the bytes.
///
/// # Errors
/// [`LoadError`] naming the file and the key or tensor in it, or the mismatch of the tower.
pub(crate) fn assemble(
    fallback_name: &str,
    gguf: Gguf,
    files: Vec<PathBuf>,
    wanted: &Mmproj,
) -> Result<ModelFiles, LoadError> {
    let FileParts { text, tower } = embedded::split(gguf, *wanted == Mmproj::Beside)?;
    let metadata = text.metadata.clone();
    let mut model = of_text(fallback_name, text, files)?;
    if let InsideTower::NotRun(inputs) = tower {
        model.info.not_read = inputs;
    }
    if *wanted != Mmproj::Beside || matches!(tower, InsideTower::Absent) {
        model.find_tower(wanted, &metadata)?;
        return Ok(model);
    }
    if let Some(tower) = tower.open(&metadata, &model.spec)? {
        model.see(tower);
    }
    Ok(model)
}

fn of_text(fallback_name: &str, gguf: Gguf, files: Vec<PathBuf>) -> Result<ModelFiles, LoadError> {
    let spec = spec::from_gguf(&gguf)?;
    let metadata = gguf.metadata;
    let file = metadata.file();
    let text = text_files(&metadata)?;
    check_tokens(file, spec.vocab, &text)?;
    let bytes_in_memory: u64 = gguf.tensors.iter().map(|tensor| tensor.bytes.len() as u64).sum();
    let names = spec::gguf_names(&spec.architecture).of_spec(&spec);
    let mut stored = quantised::of_gguf(gguf.tensors)?;
    stored.extend(curves(&spec, &metadata, names)?);
    let mut found = Found::new(file, names, stored)?;
    let tensors = found.resolve(&spec)?;
    let score = found.take_if_there(SCORE, &[2, spec.hidden])?;
    // Layers after the last that predict several tokens at once are not run.
    let more = format!("blk.{}.", spec.layers.len());
    let [long, short] = spec::LONG_FACTORS;
    let not_read = spec.shared_names(spec::gguf_names(&spec.architecture));
    let mut harmless = vec![spec::ROPE_FACTORS, long, short];
    harmless.extend(spec::predicts_more(&spec.architecture).then_some(more.as_str()));
    harmless.extend(not_read.iter().map(String::as_str));
    found.left_out(&spec.architecture, &harmless)?;
    let info = ModelInfo {
        name: metadata.string("general.name")?.unwrap_or(fallback_name).to_owned(),
        format: "gguf",
        architecture: spec.architecture.clone(),
        quantization: file_type(&metadata)?.unwrap_or_else(|| tensors.dominant_type()),
        parameters: tensors.parameters(),
        size_bytes: if files.is_empty() { bytes_in_memory } else { size_bytes(&files)? },
        context_tokens_max: spec.context_tokens_max,
        license: metadata.string("general.license")?.map(str::to_owned),
        not_read: spec::not_read(&spec.architecture),
        files,
    };
    Ok(ModelFiles { info, spec, text, tensors, tower: None, ear: None, score })
}

impl ModelFiles {
    /// Adds the vision tower from a separate GGUF file, if there is one.
    ///
    /// # Errors
    /// [`LoadError`] naming that file and its fault, or that it belongs to another model.
    fn find_tower(&mut self, wanted: &Mmproj, metadata: &Metadata) -> Result<(), LoadError> {
        let Some((path, gguf)) = mmproj::find(wanted, &self.info.files, &self.spec)? else { return Ok(()) };
        let tower = TowerFiles::of_mmproj(gguf, metadata, &self.spec)?;
        self.info.size_bytes += size_bytes(std::slice::from_ref(&path))?;
        self.info.files.push(path);
        self.see(tower);
        Ok(())
    }

    /// Adds a vision tower to the text model.
    fn see(&mut self, tower: TowerFiles) {
        tower.spec.fit(&mut self.spec);
        self.info.parameters += tower.parameters();
        self.info.not_read = &[];
        self.tower = Some(tower);
    }
}

/// Parameters of xIELU, which are in the metadata, as the tensors that other files have.
fn curves(spec: &TransformerSpec, metadata: &Metadata, names: &Names) -> Result<Vec<Tensor>, LoadError> {
    let mut tensors = Vec::new();
    for (key, part) in [
        ("xielu.alpha_p", LayerPart::CurvePositive),
        ("xielu.alpha_n", LayerPart::CurveNegative),
        ("xielu.beta", LayerPart::CurveLinear),
    ] {
        if !spec.curved {
            break;
        }
        let numbers = metadata.floats(key)?.ok_or_else(|| metadata.missing(key))?;
        if numbers.len() != spec.layers.len() {
            let reason = format!("{} numbers for {} layers", numbers.len(), spec.layers.len());
            return Err(metadata.corrupt(key, reason));
        }
        tensors.extend(numbers.into_iter().enumerate().map(|(layer, number)| Tensor {
            file: metadata.file().into(),
            name: names.of("", Part::Layer(layer, part).weight()),
            dtype: DType::F32,
            shape: if part == LayerPart::CurveLinear { Vec::new() } else { vec![1] },
            bytes: number.to_le_bytes().to_vec().into(),
        }));
    }
    Ok(tensors)
}

/// Text-related content of a file.
pub(crate) fn text_files(metadata: &Arc<Metadata>) -> Result<TextFiles, LoadError> {
    Ok(TextFiles {
        file: metadata.file().to_owned(),
        tokenizer: TokenizerSource::Gguf(metadata.clone()),
        chat_template: metadata.string("tokenizer.chat_template")?.map(str::to_owned),
        bos: metadata.u32("tokenizer.ggml.bos_token_id")?,
        eos: end_tokens(metadata)?,
        generation: generation(metadata)?,
        opening: ChatOpening::default(),
    })
}

fn end_tokens(metadata: &Metadata) -> Result<Vec<u32>, LoadError> {
    /// List of all end tokens, which Ollama's converter also writes.
    const ALL: &str = "tokenizer.ggml.eos_token_ids";
    let mut tokens = Vec::new();
    for key in END_TOKENS {
        tokens.extend(metadata.u32(key)?);
    }
    for token in metadata.integers(ALL)?.unwrap_or_default() {
        let token = u32::try_from(token);
        tokens.push(token.map_err(|_| metadata.corrupt(ALL, "a token is below 0"))?);
    }
    tokens.sort_unstable();
    tokens.dedup();
    Ok(tokens)
}

fn generation(metadata: &Metadata) -> Result<GenerationDefaults, LoadError> {
    Ok(GenerationDefaults {
        do_sample: None,
        temperature: metadata.f32("general.sampling.temp")?,
        top_k: metadata.u32("general.sampling.top_k")?,
        top_p: metadata.f32("general.sampling.top_p")?,
        min_p: metadata.f32("general.sampling.min_p")?,
        repetition_penalty: metadata.f32("general.sampling.penalty_repeat")?,
        repeat_last_n: metadata.i32("general.sampling.penalty_last_n")?,
        xtc_probability: metadata.f32("general.sampling.xtc_probability")?,
        xtc_threshold: metadata.f32("general.sampling.xtc_threshold")?,
        // An impossible default must not make every request fail.
        mirostat: metadata.u32("general.sampling.mirostat")?.filter(|version| *version == 2),
        mirostat_tau: metadata.f32("general.sampling.mirostat_tau")?,
        mirostat_eta: metadata.f32("general.sampling.mirostat_eta")?,
        ..GenerationDefaults::default()
    })
}

/// Name of a file's quantisation, if it has the number.
pub(crate) fn file_type(metadata: &Metadata) -> Result<Option<String>, LoadError> {
    let Some(number) = metadata.u32("general.file_type")? else { return Ok(None) };
    Ok(FILE_TYPES.iter().find(|(id, _)| *id == number).map(|(_, name)| (*name).to_owned()))
}
