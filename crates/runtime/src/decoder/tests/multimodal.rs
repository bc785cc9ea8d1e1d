//! The text of models that see or hear against the transformers library's own whole classes (tests/data/multimodal/make_multimodal.py
//! says how its numbers were made).

use serde_json::Value;

use super::*;

/// Folders, whether there is a GGUF file besides, and what is not read of the model.
const MULTIMODAL: &[(&str, bool, &str)] = &[
    ("gemma3", false, "images"),
    ("gemma3n", false, "images and audio"),
    ("gemma4", false, "images and audio"),
    ("llama4", false, "images"),
    ("mllama", false, "images"),
    ("mistral3", false, "images"),
    ("ministral3", true, "images"),
    ("llava", false, "images"),
    ("llava-next", false, "images"),
    ("llava-onevision", false, "images"),
    ("qwen2-vl", true, "images"),
    ("qwen2_5-vl", true, "images"),
    ("qwen3-vl", true, "images"),
    ("qwen3-vl-moe", true, "images"),
    ("glm4v", true, "images"),
    ("glm4v-moe", false, "images"),
    ("idefics3", false, "images"),
    ("smolvlm", false, "images"),
    ("internvl", false, "images"),
    ("cohere2-vision", false, "images"),
    ("aya-vision", false, "images"),
    ("voxtral", false, "audio"),
    ("qwen2-audio", false, "audio"),
];

fn folder(case: &str) -> PathBuf {
    data("multimodal").join(case)
}

#[test]
fn texts_of_models_that_see_or_hear_compute_what_the_library_does() {
    let cases: Vec<(&str, bool)> = MULTIMODAL.iter().map(|&(case, in_gguf, _)| (case, in_gguf)).collect();
    measured::check_kind("multimodal", &cases);
}

#[test]
fn what_is_not_read_of_a_model_is_told() {
    for &(case, _, inputs) in MULTIMODAL {
        let info = ModelFiles::open(&folder(case)).unwrap().info;
        assert_eq!(info.not_read.join(" and "), inputs, "{case}");
    }
    let in_gguf = ModelFiles::open(&folder("qwen3-vl").join("model.gguf")).unwrap().info;
    assert_eq!(in_gguf.not_read, ["images"]);
    let text_alone = ModelFiles::open(&data("tiny").join("qwen3")).unwrap().info;
    assert!(text_alone.not_read.is_empty());
}

/// As its makers published it, each expert's matrices turned over.
#[test]
fn experts_whose_inputs_are_outermost_are_the_same_model() {
    let from = folder("qwen3-vl-moe");
    let directory = tempfile::tempdir().unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(from.join(name), directory.path().join(name)).unwrap();
    }
    let bytes = fs::read(from.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let turned = |view: &TensorView<'_>| -> (Vec<usize>, Vec<u8>) {
        let &[count, rows, cols] = view.shape() else { return (view.shape().to_vec(), view.data().to_vec()) };
        let numbers = view.data().as_chunks::<2>().0;
        let at = |expert, col| (0..rows).map(move |row| numbers[(expert * rows + row) * cols + col]);
        let all = (0..count).flat_map(|expert| (0..cols).flat_map(move |col| at(expert, col)));
        (vec![count, cols, rows], all.flatten().collect())
    };
    let made: Vec<_> =
        file.tensors().into_iter().map(|(name, view)| (name, view.dtype(), turned(&view))).collect();
    let views = made
        .iter()
        .map(|(name, dtype, (shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    safetensors::serialize_to_file(views, None, &directory.path().join("model.safetensors")).unwrap();
    let text = Golden::read(&from).text();
    let logits = |path: &Path| {
        Runner::new(AnyBackend::new(ReferenceBackend::new()), &ModelFiles::open(path).unwrap()).prefill(&text)
    };
    assert!(logits(directory.path()) == logits(&from));
}

/// Only what is known to be of images or sound is left out.
#[test]
fn a_tensor_that_is_nobodys_is_refused() {
    let from = folder("qwen3-vl");
    let directory = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(&from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), directory.path().join(entry.file_name())).unwrap();
    }
    let weights = directory.path().join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    let at = bytes.windows(13).position(|window| window == b"model.visual.").unwrap();
    let mut changed = bytes.clone();
    changed[at..at + 13].copy_from_slice(b"model.sensual");
    fs::write(&weights, changed).unwrap();
    let error = ModelFiles::open(directory.path()).unwrap_err().to_string();
    assert!(error.contains("model.sensual"), "{error}");
}

fn text_of(settings: &str) -> (crate::spec::TransformerSpec, crate::spec::Multimodal) {
    let Value::Object(settings) = serde_json::from_str(settings).unwrap() else { panic!("no object") };
    let mut config = crate::spec::Config::new("config.json", settings);
    let found = crate::spec::Multimodal::take(&mut config).unwrap().expect("a text model inside");
    (crate::spec::from_config(&config, []).unwrap(), found)
}

/// Files say only what differs from what the text's class takes for granted.
#[test]
fn what_settings_leave_out_is_the_texts_own() {
    let (gemma, _) = text_of(
        r#"{"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106],
            "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
            "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
            "vision_config": {"hidden_size": 1152}}"#,
    );
    let heads = gemma.heads();
    assert_eq!((heads.heads, heads.kv_heads, heads.head_dim), (8, 4, 256));
    assert_eq!((gemma.vocab, gemma.context_tokens_max, gemma.layers.len()), (262_208, 131_072, 34));
    assert_eq!(gemma.layers[0].attention.window(), Some(1024));
    let (llava, _) = text_of(
        r#"{"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "text_config":
            {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096, "model_type": "llama",
            "rms_norm_eps": 1e-05, "vocab_size": 32064}, "vision_config": {"model_type": "clip_vision_model"}}"#,
    );
    assert_eq!(
        (llava.vocab, llava.hidden, llava.layers.len(), llava.heads().kv_heads),
        (32_064, 4096, 32, 32)
    );
    // A window that is null is none, where the class has one otherwise.
    let mistral = |window| {
        text_of(&format!(
            r#"{{"model_type": "mistral3", "text_config": {{"model_type": "mistral"{window}}}}}"#
        ))
        .0
    };
    assert_eq!(mistral("").layers[0].attention.window(), Some(4096));
    assert_eq!(mistral(r#", "sliding_window": null"#).layers[0].attention.window(), None);
    let (internvl, found) = text_of(
        r#"{"architectures": ["InternVLChatModel"], "model_type": "internvl_chat", "llm_config":
            {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896, "num_attention_heads": 14,
            "num_key_value_heads": 2, "num_hidden_layers": 24, "intermediate_size": 4864, "vocab_size": 151674}}"#,
    );
    assert_eq!((internvl.hidden, internvl.heads().head_dim, found.not_read()), (896, 64, &["images"][..]));
}

/// Where the template is of what prepares texts and images, it stands in a file of its own.
#[test]
fn a_processors_template_is_read() {
    let directory = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder("smolvlm")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), directory.path().join(entry.file_name())).unwrap();
    }
    let opened = || ModelFiles::open(directory.path()).map(|files| files.text.chat_template);
    assert_eq!(opened().unwrap(), None);
    let template = directory.path().join("chat_template.json");
    fs::write(&template, r#"{"chat_template": "{{ messages }}"}"#).unwrap();
    assert_eq!(opened().unwrap().as_deref(), Some("{{ messages }}"));
    fs::write(&template, r#"{"chat_template": 7}"#).unwrap();
    let error = opened().unwrap_err().to_string();
    assert!(error.contains("chat_template.json") && error.contains("key chat_template"), "{error}");
}
