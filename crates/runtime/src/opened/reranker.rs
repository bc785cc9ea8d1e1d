//! Decoders as rerankers: the score of a pair is that of the answer yes over no.

use hanzo_engine_ops::quant::dequantize_row;

use crate::error::LoadError;
use crate::head::{Classifier, HeadActivation, HeadInput, HeadLayer, Scores};
use crate::load::TokenizerSource;
use crate::model_files::ModelFiles;
use crate::spec::Part;
use crate::tensor::Tensor;
use crate::tokenizer::Tokenizer;

/// Whether a decoder is a yes-or-no reranker: it has rows for the two answers, or its name or template says so.
pub(super) fn is_reranker(files: &ModelFiles) -> bool {
    let says = || {
        files.info.name.to_lowercase().contains("rerank")
            || files
                .text
                .chat_template
                .as_ref()
                .is_some_and(|template| template.contains("Judge whether the Document"))
    };
    files.score.is_some() || files.spec.architecture == "qwen3" && says()
}

/// Classifier for the score of yes over no: a single row, that of yes minus that of no.
pub(super) fn yes_no_classifier(files: &ModelFiles, tokenizer: &Tokenizer) -> Result<Classifier, LoadError> {
    let hidden = files.spec.hidden;
    let (yes, no) = match &files.score {
        Some(tensor) if is_no_first(files)? => (row(tensor, 1), row(tensor, 0)),
        Some(tensor) => (row(tensor, 0), row(tensor, 1)),
        None => {
            let id = |word: &str| {
                tokenizer.token_id(word).filter(|&id| (id as usize) < files.spec.vocab).ok_or_else(|| {
                    LoadError::Missing {
                        file: files.text.file.clone(),
                        what: format!("token {word:?}"),
                        hint: "; a reranker's score is that of its answers yes and no".into(),
                    }
                })
            };
            let head = if files.spec.head.tied() { Part::TokenEmbedding } else { Part::Head };
            let head = files.tensors.get(head.weight());
            (row(head, id("yes")? as usize), row(head, id("no")? as usize))
        }
    };
    let weight: Vec<f32> = yes.iter().zip(&no).map(|(yes, no)| yes - no).collect();
    let layer = HeadLayer {
        weight,
        inputs: hidden,
        outputs: 1,
        bias: None,
        activation: HeadActivation::Identity,
        norm: None,
    };
    Ok(Classifier {
        input: HeadInput::Last,
        layers: vec![layer],
        labels: vec!["yes".to_owned()],
        scores: Scores::Sigmoid,
    })
}

/// Whether a GGUF file's classifier has the row of no first.
fn is_no_first(files: &ModelFiles) -> Result<bool, LoadError> {
    let TokenizerSource::Gguf(metadata) = &files.text.tokenizer else { return Ok(false) };
    let labels = metadata.strings(&format!("{}.classifier.output_labels", files.spec.architecture))?;
    Ok(labels.and_then(<[String]>::first).is_some_and(|first| first.eq_ignore_ascii_case("no")))
}

/// Copies a row of a matrix as floats.
fn row(tensor: &Tensor, index: usize) -> Vec<f32> {
    let (rows, cols) = (tensor.shape[0], tensor.shape[1]);
    let bytes = tensor.bytes.len() / rows;
    let mut values = vec![0.0; cols];
    let row = tensor.rows(index..index + 1);
    debug_assert_eq!(row.bytes.len(), bytes);
    dequantize_row(tensor.dtype, &row.bytes.read(), &mut values);
    values
}
