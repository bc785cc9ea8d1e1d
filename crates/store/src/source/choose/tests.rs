//! Tests of the choice among the files of a repository.

use super::*;

fn chosen(names: &[&str], choice: Option<&str>, folders: &[&str]) -> Result<Vec<String>, PullError> {
    chosen_with(names, choice, folders, &[], &[])
}

fn chosen_with(
    names: &[&str],
    choice: Option<&str>,
    folders: &[&str],
    include: &[&str],
    exclude: &[&str],
) -> Result<Vec<String>, PullError> {
    let listing: Vec<ListedFile> = names
        .iter()
        .map(|name| ListedFile { name: (*name).to_owned(), size_bytes: None, digest: None })
        .collect();
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let (include, exclude) =
        (Globs::new("include", &owned(include))?, Globs::new("exclude", &owned(exclude))?);
    let wish = Wish { choice, mlx: false, include: &include, exclude: &exclude };
    let chosen = choose("o/r", &listing, &owned(folders), &wish)?;
    Ok(chosen.files.into_iter().map(|at| listing[at].name.clone()).collect())
}

#[test]
fn of_models_in_one_file_the_one_that_is_meant() {
    let names = ["README.md", "ggml-base.en.bin", "ggml-base.en-q5_1.bin", "ggml-tiny-encoder.mlmodelc.zip"];
    assert_eq!(chosen(&names, Some("base.en-q5_1"), &[]).unwrap(), ["ggml-base.en-q5_1.bin"]);
    assert_eq!(chosen(&names, Some("ggml-base.en.bin"), &[]).unwrap(), ["ggml-base.en.bin"]);
    let Err(PullError::Choice { candidates, .. }) = chosen(&names, Some("huge"), &[]) else { panic!() };
    assert_eq!(candidates, ["base.en", "base.en-q5_1"]);
    assert!(matches!(chosen(&names, None, &[]), Err(PullError::Choice { .. })));
    assert_eq!(chosen(&names[..2], None, &[]).unwrap(), ["ggml-base.en.bin"]);
    let whisper = ["config.json", "ggml-model.bin", "model.safetensors", "tokenizer.json"];
    assert!(!chosen(&whisper, None, &[]).unwrap().contains(&"ggml-model.bin".to_owned()));
    let piper = ["en/a-low.onnx", "en/a-low.onnx.json", "en/b-low.onnx", "en/b-low.onnx.json", "other.onnx"];
    assert_eq!(chosen(&piper, Some("a-low"), &[]).unwrap(), ["en/a-low.onnx", "en/a-low.onnx.json"]);
    assert!(matches!(chosen(&piper, None, &[]), Err(PullError::Choice { .. })));
    assert!(matches!(chosen(&piper, Some("other.onnx"), &[]), Err(PullError::Refused { .. })));
    let kokoro = ["config.json", "kokoro-v1_0.pth", "voices/af_heart.pt", "samples/a.wav", "other/x.pt"];
    assert_eq!(chosen(&kokoro, None, &[]).unwrap(), ["kokoro-v1_0.pth", "config.json", "voices/af_heart.pt"]);
}

#[test]
fn of_gguf_one_quantization_whole() {
    let names = [
        "README.md",
        "mmproj-m-F16.gguf",
        "m-Q4_K_M.gguf",
        "m-Q4_K_S.gguf",
        "Q8_0/m-Q8_0-00001-of-00002.gguf",
        "Q8_0/m-Q8_0-00002-of-00002.gguf",
        "m-UD-Q2_K_XL.gguf",
        "m-BF16.gguf",
    ];
    // Its projector is chosen with it.
    let tower = "mmproj-m-F16.gguf";
    assert_eq!(chosen(&names, None, &[]).unwrap(), ["m-Q4_K_M.gguf", tower]);
    let parts = ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf", tower];
    assert_eq!(chosen(&names, Some("q8_0"), &[]).unwrap(), parts);
    assert_eq!(chosen(&names, Some(parts[1]), &[]).unwrap(), parts);
    assert_eq!(chosen(&names, Some("UD-Q2_K_XL"), &[]).unwrap(), ["m-UD-Q2_K_XL.gguf", tower]);
    assert_eq!(chosen(&names, Some("Q2_K_XL"), &[]).unwrap(), ["m-UD-Q2_K_XL.gguf", tower]);
    let several =
        ["m-Q8_0.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf", "x/mmproj-F16.gguf", "mmproj-F32.gguf"];
    assert_eq!(chosen(&several, None, &[]).unwrap(), ["m-Q8_0.gguf", "mmproj-F16.gguf"]);
    let without = chosen_with(&several, None, &[], &[], &["*mmproj*"]);
    assert_eq!(without.unwrap(), ["m-Q8_0.gguf"]);
    let error = chosen(&names, Some("Q5_K_M"), &[]).unwrap_err().to_string();
    assert!(error.contains("Q5_K_M") && error.contains("Q4_K_S") && error.contains("UD-Q2_K_XL"), "{error}");
    let error = chosen(&names[..5], Some("Q8_0"), &[]).unwrap_err().to_string();
    assert!(error.contains("1 of its 2 parts"), "{error}");
    assert_eq!(chosen(&["a-Q8_0.gguf", "a-Q5_0.gguf"], None, &[]).unwrap(), ["a-Q8_0.gguf"]);
    assert_eq!(chosen(&["only-F16.gguf"], None, &[]).unwrap(), ["only-F16.gguf"]);
    assert!(matches!(chosen(&["a-F16.gguf", "b-F32.gguf"], None, &[]), Err(PullError::Choice { .. })));
    assert!(matches!(chosen(&["a-Q8_0.gguf", "b-Q8_0.gguf"], None, &[]), Err(PullError::Choice { .. })));
}

#[test]
fn of_safetensors_what_the_runtime_reads() {
    let names = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "README.md",
        "tokenizer.json",
        "consolidated.safetensors",
        "onnx/model.onnx",
        "pytorch_model.bin",
        "1_Pooling/config.json",
        "modules.json",
        "original/params.json",
        "chat_template.jinja",
        "m.gguf",
        "LICENSE",
        "a.py",
    ];
    let found = chosen(&names, None, &["1_Pooling"]).unwrap();
    assert_eq!(
        found,
        [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "1_Pooling/config.json",
            "LICENSE",
            "chat_template.jinja",
            "config.json",
            "modules.json",
            "tokenizer.json",
        ]
    );
    assert_eq!(chosen(&["config.json", "pytorch_model.bin"], None, &[]).unwrap().len(), 2);
    let beside = ["model.safetensors", "pytorch_model.bin", "2_Dense/pytorch_model.bin", "3_Dense/a.bin"];
    let found = chosen(&beside, None, &["2_Dense", "3_Dense"]).unwrap();
    assert_eq!(found, ["2_Dense/pytorch_model.bin", "model.safetensors"]);
    assert!(matches!(chosen(&["config.json", "README.md"], None, &[]), Err(PullError::Refused { .. })));
    assert!(matches!(chosen(&["model.safetensors"], Some("Q8_0"), &[]), Err(PullError::Choice { .. })));
    let by_glob = chosen_with(&names, None, &[], &["*.gguf", "*.json"], &["mod*.json"]).unwrap();
    assert_eq!(
        by_glob,
        ["m.gguf", "1_Pooling/config.json", "config.json", "original/params.json", "tokenizer.json"]
    );
    assert!(chosen_with(&names, None, &[], &["["], &[]).is_err());
}

#[test]
fn quantizations_are_read_from_names() {
    let of = |name| quantization_of(name).map(|(label, _)| label);
    assert_eq!(of("Qwen3-4B-Q4_K_M.gguf"), Some("Q4_K_M".into()));
    assert_eq!(of("qwen3.q8_0.gguf"), Some("Q8_0".into()));
    assert_eq!(of("model-IQ4_XS.gguf"), Some("IQ4_XS".into()));
    assert_eq!(of("F16-finetune-Q4_K.gguf"), Some("Q4_K".into()));
    assert_eq!(of("bf16/model.gguf"), Some("BF16".into()));
    assert_eq!(of("model.gguf"), None);
    assert_eq!(of("SEQ8_0X.gguf"), None);
}
