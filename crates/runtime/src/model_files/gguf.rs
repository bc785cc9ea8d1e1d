//! [`ModelFiles`] from a parsed GGUF file.

use std::path::PathBuf;

use hanzo_engine_ops::DType;

use super::ModelFiles;
use crate::encoder;
use crate::error::LoadError;
use crate::gguf::{Gguf, Metadata};
use crate::load::gguf::{file_type, text_files};
use crate::load::{Found, ModelInfo, check_tokens, quantised, size_bytes};
use crate::overrides::Mmproj;
use crate::spec::{self, LayerPart, Names, Part, TransformerSpec};
use crate::tensor::Tensor;
use crate::vision::embedded::{self, FileParts, InsideTower};
use crate::vision::{TowerFiles, mmproj};

/// Classifier rows for yes and no, in a file made for reranking.
const SCORE: &str = "cls.output.weight";

impl ModelFiles {
    /// Opens the model of a parsed file with the requested tower, from the same file or a separate one. `fallback_name`
    /// is for files that do not name their model; `files` are the sources of the bytes.
    ///
    /// # Errors
    /// [`LoadError`] naming the file and the key or tensor in it, or the mismatch of the tower.
    pub(crate) fn from_gguf(
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

/// Opens the text model of a file.
fn of_text(fallback_name: &str, gguf: Gguf, files: Vec<PathBuf>) -> Result<ModelFiles, LoadError> {
    let spec = spec::from_gguf(&gguf, encoder::gguf_encoders())?;
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
