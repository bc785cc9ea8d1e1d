//! Overrides on the small models of the tests.

use std::path::{Path, PathBuf};

use super::*;
use crate::opened::OpenedModel;
use crate::spec::{RopeScaling, RopeSpec};

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(path)
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/hanzo-demo/hanzo-demo-Q8_0.gguf")
}

fn keys(list: &[&str]) -> Overrides {
    let keys = list.iter().map(|text| text.parse().unwrap()).collect();
    Overrides { keys, ..Overrides::default() }
}

fn rope(path: &Path, rope: RopeOverrides) -> (RopeSpec, u32) {
    let opened = OpenedModel::open_with(path, &Overrides { rope, ..Overrides::default() }).unwrap();
    let spec = &opened.decoder().unwrap().spec;
    (spec.ropes[0].clone(), spec.context_tokens_max)
}

#[test]
fn settings_as_they_are_written() {
    for (text, key, value) in [
        ("a.b=int:-3", "a.b", KeyValue::Int(-3)),
        ("a=float:1e-3", "a", KeyValue::Float(1e-3)),
        ("a=bool:true", "a", KeyValue::Bool(true)),
        ("a=str:b=c:d", "a", KeyValue::Text("b=c:d".into())),
    ] {
        let read: KeyOverride = text.parse().unwrap();
        assert_eq!((read.key.as_str(), &read.value), (key, &value));
        assert_eq!(read.to_string().parse::<KeyOverride>().unwrap(), read);
    }
    let long = format!("a=str:{}", "x".repeat(OVERRIDE_BYTES_MAX));
    for text in
        ["", "a", "a=b", "=int:1", "a=int:", "a=int:1.5", "a=float:nan", "a=bool:yes", "a=u8:1", &long]
    {
        assert!(text.parse::<KeyOverride>().is_err(), "{text}");
    }
    let error = keys(&["a=int:1", "b=int:1", "a=int:2"]).check().unwrap_err();
    assert_eq!(error, ("override_kv", "a is given twice".to_owned()));
    let error = keys(&vec!["a=int:1"; OVERRIDES_MAX + 1]).check().unwrap_err();
    assert!(error.1.contains("at most 64"), "{error:?}");
}

#[test]
fn settings_of_files_give_way() {
    for path in [demo(), data("tiny/qwen3")] {
        let is_gguf = path.is_file();
        let (context, eps) = if is_gguf {
            ("qwen3.context_length=int:128", "qwen3.attention.layer_norm_rms_epsilon=float:0.25")
        } else {
            ("max_position_embeddings=int:128", "rms_norm_eps=float:0.25")
        };
        let opened = OpenedModel::open_with(&path, &keys(&[context, eps])).unwrap();
        let spec = &opened.decoder().unwrap().spec;
        assert_eq!((spec.context_tokens_max, spec.norm.eps), (128, 0.25), "{}", path.display());
        opened.text_model().unwrap();
        opened.check_overrides().unwrap();
        // A key that nothing reads is no setting of this model.
        let opened = OpenedModel::open_with(&path, &keys(&["contxt=int:1"])).unwrap();
        opened.text_model().unwrap();
        let error = opened.check_overrides().unwrap_err().to_string();
        assert!(error.contains("override_kv") && error.contains("contxt=int:1"), "{error}");
    }
    // The tokenizer reads its own keys.
    let opened = OpenedModel::open_with(&demo(), &keys(&["tokenizer.ggml.pre=str:qwen9"])).unwrap();
    let error = opened.text_model().map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.ggml.pre") && error.contains("qwen9"), "{error}");
    opened.check_overrides().unwrap();
    let error =
        OpenedModel::open_with(&demo(), &keys(&["qwen3.context_length=str:long"])).unwrap_err().to_string();
    assert!(error.contains("override_kv") && error.contains("type u32"), "{error}");
    let error = OpenedModel::open_with(&demo(), &keys(&["general.architecture=str:qwenx"])).unwrap_err();
    assert!(error.to_string().contains("qwenx"), "{error}");
    let error = OpenedModel::open_with(&data("tiny/qwen3"), &keys(&["text_config.x=int:1"])).unwrap_err();
    assert!(error.to_string().contains("no object text_config"), "{error}");
    // An encoder's too.
    let opened =
        OpenedModel::open_with(&data("encoders/bert-mean"), &keys(&["layer_norm_eps=float:0.5"])).unwrap();
    let crate::Network::Encoder(files) = &opened.network else { panic!("an encoder") };
    assert_eq!(files.spec.norm.eps, 0.5);
    opened.check_overrides().unwrap();
}

#[test]
fn ropes_are_stretched() {
    let yarn = RopeOverrides {
        scaling: Some(Stretch::Yarn),
        scale: Some(4.0),
        original_context: Some(64),
        beta_fast: Some(16.0),
        attention_factor: Some(1.5),
        ..RopeOverrides::default()
    };
    for path in [demo(), data("tiny/qwen3")] {
        let (plain, context) = rope(&path, RopeOverrides::default());
        let (stretched, longer) = rope(&path, yarn);
        let RopeScaling::Yarn { factor, beta_fast, beta_slow, original_context, .. } = stretched.scaling
        else {
            panic!("{stretched:?}")
        };
        assert_eq!((factor, beta_fast, beta_slow, original_context), (4.0, 16.0, 1.0, 64));
        assert_eq!(longer, context.max(256), "{}", path.display());
        // GGUF's factor multiplies YaRN's own; that of a configuration replaces it.
        let beside = if path.is_file() { 0.1 * 4.0_f32.ln() + 1.0 } else { 1.0 };
        assert!((stretched.magnitude - 1.5 * beside).abs() < 1e-6, "{stretched:?}");
        let (linear, longer) = rope(&path, RopeOverrides { scale: Some(2.0), ..RopeOverrides::default() });
        assert_eq!((linear.scaling, longer), (RopeScaling::Linear { factor: 2.0 }, 2 * context));
        let (based, _) = rope(&path, RopeOverrides { freq_base: Some(12_345.0), ..RopeOverrides::default() });
        assert_eq!((based.base, based.scaling), (12_345.0, plain.scaling));
        let (none, _) =
            rope(&path, RopeOverrides { scaling: Some(Stretch::None), ..RopeOverrides::default() });
        assert_eq!(none.scaling, RopeScaling::None);
    }
    let refused = |rope: RopeOverrides| rope.check().unwrap_err().0;
    assert_eq!(refused(RopeOverrides { scale: Some(0.0), ..yarn }), "rope_scale");
    assert_eq!(refused(RopeOverrides { freq_base: Some(f32::NAN), ..yarn }), "rope_freq_base");
    assert_eq!(refused(RopeOverrides { scaling: Some(Stretch::None), ..yarn }), "rope_scale");
    assert_eq!(refused(RopeOverrides { scaling: Some(Stretch::Linear), ..yarn }), "yarn_attn_factor");
    assert!(yarn.check().is_ok() && "ntk".parse::<Stretch>().is_err());
}

#[test]
fn texts_give_way() {
    let template =
        Overrides { chat_template: Some("{{ messages[0].content }}!".into()), ..Overrides::default() };
    for path in [demo(), data("tiny/qwen3")] {
        let opened = OpenedModel::open_with(&path, &template).unwrap();
        assert_eq!(opened.text_files().chat_template, template.chat_template);
    }
    let of = |tokenizer: PathBuf| Overrides { tokenizer: Some(tokenizer), ..Overrides::default() };
    let ids =
        |opened: &OpenedModel| opened.text_model().unwrap().tokenizer.encode("Hello, world", false).unwrap();
    let own = ids(&OpenedModel::open(&demo()).unwrap());
    // The tokenizer of a directory, of its file, and of a GGUF file with its end tokens.
    let other = data("tiny/qwen3");
    let theirs = ids(&OpenedModel::open(&other).unwrap());
    assert_ne!(own, theirs);
    for path in [other.clone(), other.join("tokenizer.json")] {
        assert_eq!(ids(&OpenedModel::open_with(&demo(), &of(path)).unwrap()), theirs);
    }
    let opened = OpenedModel::open_with(&demo(), &of(demo())).unwrap();
    assert_eq!(ids(&opened), own);
    // Its end tokens come with it, and must be among the model's tokens.
    let error = OpenedModel::open_with(&other, &of(demo())).unwrap_err().to_string();
    assert!(error.contains("not among the 160"), "{error}");
    for missing in ["/no/such/tokenizer.json", "/no/such/thing", "/no/such.gguf"] {
        let error = OpenedModel::open_with(&demo(), &of(missing.into())).unwrap_err().to_string();
        assert!(error.contains(missing), "{error}");
    }
    // A directory without a tokenizer.
    let bare = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(&other).unwrap().flatten() {
        if file.file_name() != "tokenizer.json" && file.path().is_file() {
            std::fs::copy(file.path(), bare.path().join(file.file_name())).unwrap();
        }
    }
    assert!(OpenedModel::open(bare.path()).is_err());
    assert_eq!(ids(&OpenedModel::open_with(bare.path(), &of(other)).unwrap()), theirs);
}
