//! Tests of Qwen3-VL-Embedding, whose files are those of a chat model. It is detected automatically. Texts and
//! pictures become conversations with a system prompt, as in its authors' code, and can be written out in full too.

use hanzo_engine_proto::v1::embed_input::Input;

use super::pictures::png;
use super::talks::{media_part, text_part};
use super::*;

/// Tiny Qwen3-VL under the name of the embedding model, with the given files beside it.
fn folder(beside: &[(&str, &str)]) -> tempfile::TempDir {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join(if beside.is_empty() { "Qwen3-VL-Embedding-tiny" } else { "any" });
    std::fs::create_dir(&folder).unwrap();
    let from = data("vision/qwen3_vl");
    for name in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "preprocessor_config.json",
        "chat_template.jinja",
    ] {
        std::fs::copy(Path::new(&from).join(name), folder.join(name)).unwrap();
    }
    for (name, text) in beside {
        std::fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
        std::fs::write(folder.join(name), text).unwrap();
    }
    parent
}

fn path_in(parent: &tempfile::TempDir) -> String {
    let entry = std::fs::read_dir(parent.path()).unwrap().next().unwrap().unwrap();
    entry.path().display().to_string()
}

/// Files of sentence-transformers, as its integrations write them.
const MODULES: &[(&str, &str)] = &[
    (
        "modules.json",
        r#"[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.sentence_transformer.modules.normalize.Normalize"}]"#,
    ),
    (
        "1_Pooling/config.json",
        r#"{"word_embedding_dimension": 64, "pooling_mode": "lasttoken", "include_prompt": true}"#,
    ),
];

fn message(role: &str, parts: Vec<v1::ContentPart>) -> v1::Message {
    v1::Message { role: role.into(), content: parts, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_represents_is_known_by_itself() {
    let rig = Rig::start_with(|config| config.engine.kv_bytes = None).await;
    let (named, told) = (folder(&[]), folder(MODULES));
    for (alias, place) in [("named", &named), ("told", &told)] {
        let loaded = rig.load(&path_in(place), alias).await.unwrap().model.unwrap();
        let can = [v1::Capability::Vision, v1::Capability::Embed].map(i32::from);
        assert_eq!(loaded.capabilities, can, "{alias}");
        let embedder = loaded.embedder.unwrap();
        assert!(embedder.normalizes && embedder.pooling == "lasttoken", "{embedder:?}");
    }
    // The same files under another name are a chat model.
    let chats = rig.load(&data("vision/qwen3_vl"), "chats").await.unwrap().model.unwrap();
    assert!(chats.capabilities.contains(&v1::Capability::Chat.into()));

    let picture = v1::Media { data: png(64, 64).into(), ..Default::default() };
    let vectors = async |model: &str, inputs: Vec<Input>, instruction: &str| {
        let inputs = inputs.into_iter().map(|input| v1::EmbedInput { input: Some(input) }).collect();
        let instruction = instruction.to_owned();
        let request = v1::EmbedRequest { model: model.into(), inputs, instruction, ..Default::default() };
        let answer = rig.client().embed(request).await.unwrap().into_inner();
        answer.embeddings.into_iter().map(|one| one.values).collect::<Vec<_>>()
    };
    let written = |told: &str, parts: Vec<v1::ContentPart>| {
        let messages = vec![message("system", vec![text_part(told)]), message("user", parts)];
        Input::Chat(v1::Chat { messages, add_generation_prompt: Some(true), ..Default::default() })
    };
    let own = "Represent the user's input.";
    let both = || vec![media_part(picture.clone()), text_part("a cat")];
    let asked = |parts: Vec<v1::ContentPart>| {
        let chat = v1::Chat {
            messages: vec![message("user", parts)],
            add_generation_prompt: Some(false),
            ..Default::default()
        };
        Input::Chat(chat)
    };
    for model in ["named", "told"] {
        let short = vec![Input::Text("a cat".into()), Input::Picture(picture.clone()), asked(both())];
        let long = vec![
            written(own, vec![text_part("a cat")]),
            written(own, vec![media_part(picture.clone())]),
            written(own, both()),
        ];
        let found = vectors(model, short, "").await;
        assert_eq!(found, vectors(model, long.clone(), "").await, "{model}");
        assert!(found[0] != found[1] && found[1] != found[2] && found[0] != found[2]);
        // The chat model gives the same embeddings if the whole conversation is written out.
        assert_eq!(vectors("chats", long, "").await, found, "{model}");
        let told = vectors(model, vec![Input::Text("a cat".into())], "Find the animal.").await;
        assert_eq!(
            told,
            vectors(model, vec![written("Find the animal.", vec![text_part("a cat")])], "").await
        );
        assert_ne!(told[0], found[0]);
    }
    // A text that is too long is refused, or truncated if requested.
    let long = |truncate| v1::EmbedRequest {
        model: "named".into(),
        inputs: vec![v1::EmbedInput { input: Some(Input::Text("word ".repeat(20_000))) }],
        truncate,
        ..Default::default()
    };
    let refused = rig.client().embed(long(false)).await.unwrap_err();
    check_refused(&refused, Code::InvalidArgument, "inputs[0]: ");
    let cut = rig.client().embed(long(true)).await.unwrap().into_inner();
    assert!(cut.prompt_tokens > 100, "{}", cut.prompt_tokens);
    rig.stopped().await;
}
