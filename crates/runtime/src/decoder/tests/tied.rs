//! Heads that the configuration ties and the files do not, computed: a head that is stored alone is the embedding too, and two
//! matrices with other numbers are both used, whatever the configuration says.

use serde_json::Value;

use super::*;
use crate::model_files::tests::tied::TiedCase;

/// Families whose golden values were made with the embedding for a head.
const TIED: &[&str] = &[
    "tiny/qwen3",
    "dense/gemma2",
    "dense/gpt2",
    "dense/cohere",
    "dense/bloom",
    "dense/opt",
    "dense/gemma3n",
    "states/lfm2",
    "multimodal/gemma3",
    "multimodal/cohere2-vision",
];

/// Families whose golden values were made with a head of its own.
const OWN: &[&str] = &[
    "tiny/llama-linear",
    "tiny/mixtral",
    "dense/gpt-neox",
    "dense/phi",
    "dense/olmo2",
    "mixtures/deepseek-v3",
    "states/qwen3_5",
    "multimodal/llava",
    "multimodal/qwen2-vl",
    "multimodal/llama4",
];

fn check(case: &str, copy: &Path) {
    let golden = Golden::read(&data(case));
    let files = ModelFiles::open(copy).unwrap_or_else(|error| panic!("{case}: {error}"));
    let mut runner = Runner::new(AnyBackend::new(ReferenceBackend::new()), &files);
    let found = largest_difference(&runner.prefill(&golden.text()), &golden.logits);
    let allowed = TOLERANCE * range(&golden.logits);
    assert!(found <= allowed, "{case}: logits differ by {found}, allowed are {allowed}");
}

#[test]
fn a_head_that_is_stored_alone_is_the_embedding_too() {
    for case in TIED {
        check(case, TiedCase::of(case).with_head_alone().path());
    }
}

/// The name of a head's tensor in place of the embedding's.
fn as_head(name: &str) -> String {
    name.replace("model.embed_tokens.", "lm_head.")
}

/// A copy of a quantised checkpoint whose embedding, with its scales, is called the head; with `both` it has both, and the head's rows are
/// turned by one.
fn quantised(folder: &Path, both: bool) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, directory.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = directory.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for settings in ["quantization", "quantization_config"] {
        let Some(settings) = config.get_mut(settings).and_then(Value::as_object_mut) else { continue };
        let own = settings.get("model.embed_tokens").cloned();
        settings.extend(own.map(|own| ("lm_head".to_owned(), own)));
    }
    fs::write(path, config.to_string()).unwrap();
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = Vec::new();
    for (name, view) in file.tensors() {
        let mut data = view.data().to_vec();
        let is_embedding = name.starts_with("model.embed_tokens.");
        if both && is_embedding {
            tensors.push((name.clone(), view.dtype(), view.shape().to_vec(), data.clone()));
            data.rotate_right(view.data().len() / view.shape()[0]);
        }
        let name = if is_embedding { as_head(&name) } else { name };
        tensors.push((name, view.dtype(), view.shape().to_vec(), data));
    }
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    fs::write(directory.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap())
        .unwrap();
    directory
}

#[test]
fn quantised_checkpoints_keep_the_rule() {
    let mut checked = 0;
    for entry in fs::read_dir(data("formats")).unwrap() {
        let folder = entry.unwrap().path();
        let weights = folder.join("model.safetensors");
        if !weights.exists() || folder.file_name().unwrap().to_string_lossy().starts_with("bert") {
            continue;
        }
        let case = folder.display();
        let golden =
            crate::safetensors::parse("golden", &fs::read(folder.join("golden.safetensors")).unwrap().into());
        let golden = golden.unwrap();
        let by_name = |name: &str| golden.iter().find(|tensor| tensor.name == name).unwrap();
        let tokens =
            by_name("tokens").bytes.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes));
        let (tokens, logits) = (tokens.collect::<Vec<u32>>(), by_name("logits").to_f32().unwrap());
        let alone = quantised(&folder, false);
        let files = ModelFiles::open(alone.path()).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert!(files.spec.head.tied(), "{case}");
        let found = Runner::new(AnyBackend::new(ReferenceBackend::new()), &files).prefill(&tokens);
        let off = largest_difference(&found, &logits);
        assert!(off <= 4e-3 * range(&logits), "{case}: logits differ by {off}");
        // Each logit is that of the token before.
        let both = quantised(&folder, true);
        let files = ModelFiles::open(both.path()).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert!(!files.spec.head.tied(), "{case}");
        let mut turned = Runner::new(AnyBackend::new(ReferenceBackend::new()), &files).prefill(&tokens);
        turned.chunks_exact_mut(files.spec.vocab).for_each(|row| row.rotate_left(1));
        let off = largest_difference(&turned, &logits);
        assert!(off <= 4e-3 * range(&logits), "{case}: logits of a turned head differ by {off}");
        checked += 1;
    }
    assert!(checked > 30, "{checked} formats");
}

#[test]
fn a_head_of_other_numbers_is_used_though_the_configuration_ties_it() {
    for case in OWN {
        check(case, TiedCase::of(case).with_setting("true true").path());
    }
}
