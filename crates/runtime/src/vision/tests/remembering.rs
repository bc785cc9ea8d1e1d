//! Cross-attention of Llama 3.2 Vision: pixels of tiles, texts beside pictures of other sequences, room in the
//! cross-attention cache, and refusals.

use super::*;
use crate::limits::PICTURES_REMEMBERED;
use crate::{EmbedInput, RequestError};

const CASE: &str = "mllama";

#[test]
fn tiles_are_the_processors() {
    let (_, text) = open(CASE);
    let bytes = fs::read(folder(CASE).join("golden.safetensors")).unwrap();
    let numbers = crate::safetensors::parse("golden", &bytes.into()).unwrap();
    let mut resized = 0;
    for (index, talk) in talks(CASE).iter().enumerate() {
        let golden = numbers.iter().find(|found| found.name == format!("pixels.{index}")).unwrap();
        let (golden, side) = (golden.to_f32().unwrap(), 32);
        let (_, spans) = prompt(&text, talk);
        for (span, golden) in spans.iter().zip(golden.chunks_exact(3 * side * side)) {
            let line = span.whole[1] as usize * 8 * 3;
            for (place, &expected) in golden.iter().enumerate() {
                let (color, row, column) = (place / side / side, place / side % side, place % side);
                let found = f32::from(span.pixels[row * line + column * 3 + color]) / 127.5 - 1.0;
                assert!(
                    (found - expected).abs() < 2.0 / 255.0 + 1e-3,
                    "{index} {place}: {found} for {expected}"
                );
            }
            resized += usize::from(span.whole != [4, 4]);
        }
    }
    assert!(resized > 2);
}

#[test]
fn texts_beside_pictures_are_what_they_are_alone() {
    let model = open(CASE);
    let talks = talks(CASE);
    let text = |id| Job { media: [].into(), ..job(id, &model.1, &talks[2]) };
    let mut one = engine(&model, 64);
    one.submit(text(1));
    let alone = finish(&mut one)[&JobId(1)].clone();
    // The class also skips the cross-attention layers for texts.
    let directory = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(folder(CASE).join(name), directory.path().join(name)).unwrap();
    }
    let opened = OpenedModel::open(directory.path()).unwrap();
    assert_eq!(opened.info().not_read, ["images"]);
    assert_eq!(opened.decoder().unwrap().spec.layers.len(), 3);
    let blind = Arc::new(opened.text_model().unwrap());
    let backend = cpu(Tier::detect().unwrap());
    let decoder = Decoder::load(&backend, opened.decoder().unwrap(), &mut |_| ()).unwrap();
    let embedder = Arc::new(opened.embedder(&blind.tokenizer, 512).unwrap());
    let mut passing = Engine::new(backend, decoder, blind, embedder, config(&opened, 64, 96)).unwrap();
    passing.submit(text(1));
    assert_eq!(finish(&mut passing)[&JobId(1)], alone);
    for step_tokens_max in [9, 64, 512] {
        let mut engine = engine(&model, step_tokens_max);
        (2..4).for_each(|id| engine.submit(text(id)));
        talks.iter().zip(10..).for_each(|(talk, id)| engine.submit(job(id, &model.1, talk)));
        (4..6).for_each(|id| engine.submit(text(id)));
        let found = finish(&mut engine);
        assert!((2..6).all(|id| found[&JobId(id)] == alone), "in steps of {step_tokens_max}");
        assert!(talks.iter().zip(10..).all(|(talk, id)| found[&JobId(id)].tokens == talk.greedy));
    }
}

#[test]
fn who_leaves_makes_room_for_who_waits() {
    let model = open(CASE);
    let talks = talks(CASE);
    // One layer per step, and as few rows as possible.
    let mut engine = engine(&model, 9);
    let mut events = Vec::new();
    engine.submit(&Job { media: [].into(), ..job(0, &model.1, &talks[0]) });
    // Two pictures each, so that the third job waits for an earlier one.
    let three = [(1, 1), (2, 2), (3, 1)].map(|(id, of): (u64, usize)| {
        let mut job = job(id, &model.1, &talks[of]);
        if id == 3 {
            job.media = job
                .media
                .iter()
                .rev()
                .cloned()
                .enumerate()
                .map(|(at, span)| MediaSpan { first: job.media[at].first, ..span })
                .collect();
        }
        job
    });
    three.iter().for_each(|job| engine.submit(job));
    for steps in 0..400 {
        engine.step(&mut events).unwrap();
        engine.check();
        if steps % 7 == 3 && engine.stats().waiting == 0 {
            break;
        }
    }
    // Pictures in an order that is not cached.
    let mut last = job(9, &model.1, &talks[2]);
    let [one, two] =
        [0, 1].map(|of: usize| MediaSpan { first: last.media[of].first, ..last.media[1 - of].clone() });
    last.media = [one, two].into();
    let again = || last.clone();
    // At any stage, cancelling frees everything that the job holds.
    for steps in 0..60 {
        engine.submit(again());
        for _ in 0..steps {
            engine.step(&mut events).unwrap();
        }
        engine.cancel(JobId(9));
        engine.check();
    }
    engine.cancel(JobId(2));
    events.clear();
    engine.submit(&Job { id: JobId(10), ..three[0].clone() });
    engine.submit(again());
    engine.set_paused(JobId(9), true);
    engine.set_paused(JobId(9), false);
    while engine.has_work() {
        engine.step(&mut events).unwrap();
    }
    engine.check();
    assert!(engine.is_idle());
    assert_eq!(drawn(&events)[&JobId(10)].tokens, talks[1].greedy);
    assert_eq!(drawn(&events)[&JobId(9)].tokens.len(), 32);
}

#[test]
fn what_cannot_be_remembered_is_refused_by_name() {
    let model = open(CASE);
    let (opened, text) = &model;
    let sight = text.sight.as_ref().unwrap();
    let one = || sight.prepare(texture([32, 32]), PictureOptions::default()).unwrap();
    let tokens = vec![268; PICTURES_REMEMBERED + 1];
    let many = (0..tokens.len()).map(|_| one()).collect();
    let refused = sight.place(&tokens, many, &text.tokenizer).unwrap_err().to_string();
    assert!(refused.contains("4 pictures at most"), "{refused}");
    let (tokens, media) = sight.place(&[1, 268, 2], vec![one()], &text.tokenizer).unwrap();
    let embedder = opened.embedder(&text.tokenizer, 512).unwrap();
    let refused: Result<EmbedInput, RequestError> = embedder.chat(tokens, media);
    assert!(refused.unwrap_err().to_string().contains("pictures"));
    let with = |change: &dyn Fn(&mut Value, &mut Value)| {
        let directory = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(folder(CASE)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), directory.path().join(entry.file_name())).unwrap();
        }
        let read = |name: &str| -> Value {
            serde_json::from_slice(&fs::read(directory.path().join(name)).unwrap()).unwrap()
        };
        let (mut model, mut processor) = (read("config.json"), read("processor_config.json"));
        change(&mut model, &mut processor["image_processor"]);
        fs::write(directory.path().join("config.json"), model.to_string()).unwrap();
        fs::write(directory.path().join("processor_config.json"), processor.to_string()).unwrap();
        OpenedModel::open(directory.path()).map(drop).unwrap_err().to_string()
    };
    for (named, change) in [
        (
            "max_num_tiles",
            &(|_: &mut Value, of: &mut Value| of["max_image_tiles"] = 3.into())
                as &dyn Fn(&mut Value, &mut Value),
        ),
        ("image_size", &|_, of| of["size"] = serde_json::json!({"height": 40, "width": 40})),
        ("do_pad", &|_, of| of["do_pad"] = false.into()),
        ("vision_output_dim", &|of, _| of["vision_config"]["vision_output_dim"] = 96.into()),
        ("intermediate_layers_indices", &|of, _| {
            of["vision_config"]["intermediate_layers_indices"] = serde_json::json!([3, 0]);
        }),
        ("supported_aspect_ratios", &|of, _| {
            of["vision_config"]["supported_aspect_ratios"] = serde_json::json!([[1, 1]]);
        }),
        ("image_token_index", &|of, _| of["image_token_index"] = 7.into()),
        ("cross_attention_layers", &|of, _| {
            of["text_config"]["cross_attention_layers"] = serde_json::json!([1, 9]);
        }),
    ] {
        let refused = with(change);
        assert!(refused.contains(named), "{named}: {refused}");
    }
}
