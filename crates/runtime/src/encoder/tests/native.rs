//! Encoders as transformers 5 saves its own classes, whose settings it has moved (tests/data/encoders/make_native.py).

use super::*;

const CASES: [&str; 5] =
    ["native-gte", "native-nomic_bert", "native-modernbert", "native-gemma3_text", "native-roberta"];

#[test]
fn checkpoints_of_the_library_s_own_classes_compute_what_it_does() {
    for (case, files) in CASES.into_iter().map(|case| (case, open(case))).chain(twins()) {
        let bytes = fs::read(directory(case).join("golden.safetensors")).unwrap();
        let stored = crate::safetensors::parse("golden", &bytes.into()).unwrap();
        let by_name = |name: String| stored.iter().find(|tensor| tensor.name == name).unwrap();
        for text in 0..2 {
            let tokens = &by_name(format!("tokens.{text}")).bytes;
            let text = Golden {
                tokens: tokens.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect(),
                types: Vec::new(),
                expected: by_name(format!("hidden.{text}")).to_f32().unwrap(),
                probabilities: Vec::new(),
            };
            on_every_backend!(&files, case, |runner, label| {
                let share =
                    largest_difference(&runner.hidden(&[&text])[0], &text.expected) / range(&text.expected);
                println!("{label}: {} tokens: {share:e} of the range", text.tokens.len());
                assert!(share <= TOLERANCE, "{label}: {} tokens differ by {share}", text.tokens.len());
            });
        }
    }
}

/// The same as GGUF files, as llama.cpp's converter writes them.
fn twins() -> impl Iterator<Item = (&'static str, EncoderFiles)> {
    ["native-modernbert", "native-gemma3_text"].into_iter().map(|case| {
        let bytes = fs::read(directory(case).join("model.gguf")).unwrap();
        let gguf = crate::gguf::Gguf::parse("model.gguf", &bytes.into()).unwrap();
        assert!(is_encoder_gguf(&gguf.metadata).unwrap(), "{case}");
        (case, EncoderFiles::from_gguf(case, gguf, Vec::new()).unwrap())
    })
}
