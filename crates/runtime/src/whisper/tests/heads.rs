//! Output heads of Whisper models: tied to the embedding, a head that is stored alone, and a head with other
//! numbers, as in other families.

use ::safetensors::tensor::TensorView;
use ::safetensors::{SafeTensors, serialize};

use super::*;

const EMBEDDING: &str = "model.decoder.embed_tokens.weight";
const HEAD: &str = "proj_out.weight";

/// Copy of the small model with the embedding, the head or both; the head's rows are rotated by `turned`.
fn with(names: &[&str], turned: usize, tied: Option<bool>) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder("small")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, directory.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = directory.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let settings = config.as_object_mut().unwrap();
    settings.remove("tie_word_embeddings");
    settings.extend(tied.map(|tied| ("tie_word_embeddings".to_owned(), tied.into())));
    fs::write(path, config.to_string()).unwrap();
    let path = directory.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let embedding = file.tensor(EMBEDDING).unwrap();
    let (dtype, shape) = (embedding.dtype(), embedding.shape().to_vec());
    let mut head = embedding.data().to_vec();
    let row_bytes = head.len() / shape[0];
    head.rotate_right(turned * row_bytes);
    let mut views: Vec<(String, TensorView<'_>)> = file.tensors();
    views.retain(|(name, _)| name != HEAD && (name != EMBEDDING || names.contains(&EMBEDDING)));
    if names.contains(&HEAD) {
        views.push((HEAD.to_owned(), TensorView::new(dtype, shape, &head).unwrap()));
    }
    fs::write(path, serialize(views, None).unwrap()).unwrap();
    directory
}

fn opened(directory: &tempfile::TempDir) -> OpenedModel {
    OpenedModel::open(directory.path()).unwrap()
}

#[test]
fn a_head_that_is_stored_alone_or_twice_is_the_embedding() {
    for names in [&[EMBEDDING][..], &[HEAD], &[EMBEDDING, HEAD]] {
        let directory = with(names, 0, Some(true));
        let opened = opened(&directory);
        assert!(!files(&opened).spec.own_head, "{names:?}");
        check_numbers(AnyBackend::new(ReferenceBackend::new()), &opened, "small", "one matrix");
    }
}

#[test]
fn a_head_of_other_numbers_is_used() {
    for tied in [Some(true), Some(false), None] {
        let directory = with(&[EMBEDDING, HEAD], 1, tied);
        let opened = opened(&directory);
        let (files, golden) = (files(&opened), golden("small"));
        let spec = files.spec.clone();
        assert!(spec.own_head, "{tied:?}");
        let mut model = Whisper::load(
            AnyBackend::new(ReferenceBackend::new()),
            files,
            WeightType::Stored,
            2,
            &mut |_| (),
        )
        .unwrap();
        model.hear(1, window(&spec, &sound(golden.samples)), &[]);
        while model.listen(1).unwrap().is_none() {}
        let mut logits = Vec::new();
        for (at, &token) in golden.greedy.iter().enumerate().take(4) {
            let writing = SlotTokens { slot: 1, before: at, tokens: vec![token], wanted: vec![0] };
            model.write(&[writing], &[], &mut logits).unwrap();
            // Logits are shifted by one token, as the head's rows were rotated.
            logits.rotate_left(1);
            let worst = difference(&logits, &golden.logits[at * spec.vocab..][..spec.vocab]);
            assert!(worst < 2e-3, "{tied:?}: logits of token {at} differ by {worst}");
        }
    }
}

#[test]
fn a_head_that_is_not_tied_must_be_there() {
    let error = OpenedModel::open(with(&[EMBEDDING], 0, Some(false)).path()).unwrap_err().to_string();
    assert!(error.contains("tensor proj_out.weight is missing"), "{error}");
}
