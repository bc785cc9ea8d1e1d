//! CLIP and SigLIP against the library's own classes (make_vectors.py in tests/data/vision): vectors of texts and
//! of pictures in every kind of batch, and inputs that they refuse.

use std::fs;

use hanzo_engine_media::PictureOptions;
use serde_json::{Map, json};
use tempfile::TempDir;

use super::*;
use crate::error::LoadError;
use crate::vision::tests::{prompt, talks, texture};

const CASES: [&str; 3] = ["clip", "siglip", "siglip2"];
/// Maximum difference of a number, as a share of its vector's largest.
const TOLERANCE: f32 = 2e-4;

fn folder(case: &str) -> PathBuf {
    crate::decoder::tests::data("vision").join(case)
}

/// Output like the library's own features: the plain vector.
const BARE: Output = Output::Vector { dimensions: None, normalize: Some(false) };
const OWN: Output = Output::Vector { dimensions: None, normalize: None };

/// Every input of a golden file with its vector.
fn inputs(model: &Model, case: &str) -> Vec<(EmbedInput, Vec<f32>)> {
    let golden: Value = serde_json::from_slice(&fs::read(folder(case).join("golden.json")).unwrap()).unwrap();
    let texts = golden["texts"].as_array().unwrap().iter().map(|of| {
        let input = model.text_input(of["text"].as_str().unwrap(), &Prompt::Default);
        let tokens: Vec<u64> = input.tokens.iter().map(|&token| token.into()).collect();
        assert_eq!(json!(tokens), of["tokens"], "{case}: {}", of["text"]);
        (input, numbers(&of["vector"]))
    });
    let sight = model.text.sight.as_ref().expect("it sees");
    let pictures = golden["pictures"].as_array().unwrap().iter().map(|of| {
        let size = [0, 1].map(|side| of["size"][side].as_u64().unwrap());
        let span = sight.alone(sight.prepare(texture(size), PictureOptions::default()).unwrap()).unwrap();
        (model.embedder.picture(span, BARE).unwrap(), numbers(&of["vector"]))
    });
    // Alternate, so that steps have both.
    let (texts, pictures): (Vec<_>, Vec<_>) = (texts.collect(), pictures.collect());
    let mut all = Vec::new();
    for (index, text) in texts.into_iter().enumerate() {
        all.push(text);
        all.extend(pictures.get(index).cloned());
    }
    all
}

fn near(ours: &[f32], theirs: &[f32], of: &str) {
    assert_eq!(ours.len(), theirs.len(), "{of}");
    let range = theirs.iter().fold(0.0f32, |most, number| most.max(number.abs()));
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert!((ours - theirs).abs() < TOLERANCE * range, "{of}: {ours} is not {theirs}");
    }
}

#[test]
fn vectors_of_texts_and_pictures_are_the_librarys() {
    for case in CASES {
        let mut model = Model::open(&folder(case));
        let cases = inputs(&model, case);
        assert_eq!(cases.len(), 9);
        let mut alone = Vec::new();
        for (index, (input, expected)) in cases.iter().enumerate() {
            let bare = model.run(vec![input.clone()], BARE).remove(0);
            near(dense(&bare), expected, &format!("{case} {index}"));
            let own = model.run(vec![input.clone()], OWN).remove(0);
            assert!((length(dense(&own)) - 1.0).abs() < 1e-6, "vectors of both have one length");
            assert!(cosine(dense(&own), expected) > 0.999_999);
            let cut = Output::Vector { dimensions: Some(5), normalize: Some(false) };
            assert_eq!(dense(&model.run(vec![input.clone()], cut)[0]), &dense(&bare)[..5]);
            alone.push(bare);
        }
        let all: Vec<EmbedInput> = cases.iter().map(|(input, _)| input.clone()).collect();
        assert_eq!(model.run(all.clone(), BARE), alone, "{case}: together as alone");
        // Each of the four runs only once: its vector is kept, whatever other output is requested.
        let AnyEngine::Encoder(engine) = &model.engine else { panic!("a decoder") };
        assert_eq!(engine.stats().frames_seen, 4);
        let mut turned = all;
        turned.reverse();
        alone.reverse();
        let mut fresh = Model::open(&folder(case));
        assert_eq!(fresh.run(turned, BARE), alone, "{case}: the other way round");
    }
}

/// Qwen3-VL-Embedding has the class of the chat model; its vector is the row of a conversation's last token.
#[test]
fn conversations_with_pictures_become_vectors() {
    const CASE: &str = "qwen3_vl";
    let expected = fs::read(folder(CASE).join("vectors.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let mut model = Model::open(&folder(CASE));
    let inputs: Vec<EmbedInput> = talks(CASE)
        .iter()
        .map(|talk| {
            let (tokens, media) = prompt(&model.text, talk);
            model.embedder.chat(tokens, media).unwrap()
        })
        .collect();
    assert!(inputs.iter().any(|input| input.tokens.len() > 100), "longer than a step");
    let mut alone = Vec::new();
    for (input, expected) in inputs.iter().zip(expected.as_array().unwrap()) {
        let vector = Model::open(&folder(CASE)).run(vec![input.clone()], OWN).remove(0);
        let near = cosine(dense(&vector), &numbers(expected));
        assert!(near > 1.0 - HALVES, "{near}");
        assert!((length(dense(&vector)) - 1.0).abs() < 1e-6);
        alone.push(vector);
    }
    assert_ne!(alone[0], alone[2]);
    assert_eq!(model.run(inputs.clone(), OWN), alone, "together as alone");
    let seen = |model: &Model| match &model.engine {
        AnyEngine::Decoder(engine) => engine.stats().frames_seen,
        AnyEngine::Encoder(_) => panic!("an encoder"),
    };
    assert_eq!(seen(&model), 5);
    // Picture rows are kept, and a prefix is cached.
    assert_eq!(model.run(inputs, OWN), alone, "as before");
    assert_eq!(seen(&model), 5);
    let AnyEngine::Decoder(engine) = &model.engine else { panic!("an encoder") };
    assert!(engine.stats().prefix_hit_tokens > 0);
    // Another picture gives another vector, even with equal tokens.
    let mut talk = talks(CASE).remove(0);
    talk.pictures =
        vec![hanzo_engine_media::Picture { rgb: vec![200; 64 * 64 * 3], ..talk.pictures.remove(0) }];
    let (tokens, media) = prompt(&model.text, &talk);
    let other = model.embedder.chat(tokens, media).unwrap();
    let other = model.run(vec![other], OWN).remove(0);
    assert!(cosine(dense(&other), dense(&alone[0])) < 0.9999);
    let long = model.embedder.chat(vec![1; 5000], Vec::new()).unwrap_err();
    assert!(matches!(long, RequestError::InputLength { .. }), "{long}");
}

#[test]
fn every_tier_sees_alike() {
    for case in ["clip", "siglip"] {
        for tier in Tier::available() {
            let mut model = Model::on(&folder(case), tier);
            for (index, (input, expected)) in inputs(&model, case).into_iter().enumerate() {
                let vector = model.run(vec![input], BARE).remove(0);
                let near = cosine(dense(&vector), &expected);
                assert!(near > 0.9999, "{case} {index} on {tier:?}: {near}");
            }
        }
    }
}

#[test]
fn who_leaves_takes_his_picture_along() {
    let mut model = Model::open(&folder("clip"));
    let cases = inputs(&model, "clip");
    let AnyEngine::Encoder(engine) = &mut model.engine else { panic!("a decoder") };
    let job = |id: u64, input: &EmbedInput| EmbedJob {
        id: JobId(id),
        inputs: vec![input.clone()],
        output: BARE,
        priority: 0,
        client: None,
    };
    let (text, picture) = (&cases[0].0, &cases[1].0);
    assert!(text.media.is_empty() && !picture.media.is_empty());
    engine.submit_inputs(&job(1, picture));
    engine.submit_inputs(&job(2, text));
    let mut events = Vec::new();
    let report = engine.step(&mut events).unwrap();
    assert_eq!(report.sequences, 2, "a layer of one beside the other");
    assert!(
        events.iter().all(|event| event.job == JobId(2) || matches!(event.kind, EventKind::Started { .. }))
    );
    assert!(engine.has_work());
    engine.cancel(JobId(1));
    assert!(!engine.has_work());
    events.clear();
    engine.submit_inputs(&job(3, picture));
    while engine.has_work() {
        engine.step(&mut events).unwrap();
    }
    let Some(Event { kind: EventKind::Computed(computed), .. }) = events.last() else { panic!("{events:?}") };
    near(dense(computed), &cases[1].1, "after one that was given up");
}

#[test]
fn a_picture_is_one_vector() {
    let model = Model::open(&folder("siglip"));
    let (picture, _) = inputs(&model, "siglip").remove(1);
    let refused = |output| model.embedder.picture(picture.media[0].clone(), output).unwrap_err().to_string();
    for output in [Output::Tokens, Output::Sparse, Output::Scores { raw: true }] {
        assert!(refused(output).contains("one vector"), "{output:?}");
    }
}

/// A copy of a model's folder, to be spoilt.
fn copy(case: &str) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in fs::read_dir(folder(case)).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    copy
}

/// Changes settings of a file; null removes one.
fn change(at: &Path, name: &str, part: Option<&str>, settings: Value) {
    let file = at.join(name);
    let mut all: Map<String, Value> = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let of = match part {
        Some(part) => all[part].as_object_mut().unwrap(),
        None => &mut all,
    };
    of.extend(settings.as_object().unwrap().clone());
    fs::write(file, serde_json::to_vec(&all).unwrap()).unwrap();
}

fn opened(at: &Path) -> Result<Embedder, LoadError> {
    let opened = OpenedModel::open(at)?;
    let text = opened.text_model()?;
    opened.embedder(&text.tokenizer, 4096)
}

#[test]
fn what_makes_another_model_is_named() {
    let (config, pixels) = ("config.json", "preprocessor_config.json");
    let vision = Some("vision_config");
    for (case, file, part, settings, names) in [
        ("siglip", config, vision, json!({"vision_use_head": false}), "vision_use_head = false"),
        ("siglip", config, Some("text_config"), json!({"projection_size": 20}), "text_model.head"),
        ("siglip", config, vision, json!({"hidden_act": "quick_gelu"}), "hidden_act"),
        ("siglip", pixels, None, json!({"size": {"height": 32, "width": 32}}), "image_size"),
        (
            "siglip",
            pixels,
            None,
            json!({"image_processor_type": "Siglip2ImageProcessor"}),
            "Siglip2ImageProcessor",
        ),
        ("siglip2", "tokenizer_config.json", None, json!({"pad_token": "<void>"}), "<void>"),
        ("clip", pixels, None, json!({"do_center_crop": false}), "do_center_crop"),
        (
            "clip",
            pixels,
            None,
            json!({"feature_extractor_type": "BlipFeatureExtractor"}),
            "image_processor_type",
        ),
        ("clip", config, None, json!({"projection_dim": 21}), "text_projection"),
        ("clip", config, None, json!({"architectures": ["CLIPForImageClassification"]}), "architectures"),
        ("clip", config, vision, json!({"patch_size": 7}), "patch_embedding"),
        ("clip", config, vision, json!({"num_channels": 1}), "num_channels"),
    ] {
        let copy = copy(case);
        change(copy.path(), file, part, settings.clone());
        let Err(error) = opened(copy.path()) else { panic!("{case} opens with {settings}") };
        assert!(error.to_string().contains(names), "{settings}: {error}");
    }
}

#[test]
fn without_its_processor_a_model_is_one_of_texts() {
    let copy = copy("clip");
    fs::remove_file(copy.path().join("preprocessor_config.json")).unwrap();
    let opened = OpenedModel::open(copy.path()).unwrap();
    assert_eq!(opened.info().not_read, ["images"]);
    assert!(opened.text_model().unwrap().sight.is_none());
    let mut model = Model::open(copy.path());
    let whole = inputs(&Model::open(&folder("clip")), "clip");
    let (text, expected) = &whole[0];
    near(dense(&model.run(vec![text.clone()], BARE)[0]), expected, "a text");
}

#[test]
fn older_files_are_read_as_newer_ones() {
    let copy = copy("clip");
    // If a setting is in both, the second one counts.
    let text = json!({"text_config_dict": {"hidden_size": 32, "num_hidden_layers": 3, "hidden_act": null}});
    change(copy.path(), "config.json", None, text);
    change(copy.path(), "config.json", Some("text_config"), json!({"num_hidden_layers": 2}));
    // As sentence-transformers keeps it.
    let inner = copy.path().join("0_CLIPModel");
    fs::create_dir(&inner).unwrap();
    for file in fs::read_dir(copy.path()).unwrap().map(Result::unwrap).filter(|file| file.path().is_file()) {
        fs::rename(file.path(), inner.join(file.file_name())).unwrap();
    }
    let modules = json!([{"idx": 0, "name": "0", "path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}]);
    fs::write(copy.path().join("modules.json"), modules.to_string()).unwrap();
    let mut model = Model::open(copy.path());
    for (input, expected) in inputs(&model, "clip").into_iter().take(2) {
        near(dense(&model.run(vec![input], BARE)[0]), &expected, "as before");
    }
}
