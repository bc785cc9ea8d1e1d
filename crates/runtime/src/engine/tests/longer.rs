//! Completions that grow beyond the original context, where longer texts use other rotary frequencies: each token
//! is the one that the transformers library samples from the whole text computed anew.

use std::fs;

use super::*;
use crate::decoder::tests::data;

/// A prompt, and the greedy tokens after it.
fn golden(folder: &Path) -> [Vec<u32>; 2] {
    let bytes = fs::read(folder.join("golden.safetensors")).unwrap();
    let tensors = crate::safetensors::parse("golden", &bytes.into()).unwrap();
    ["short", "greedy"].map(|name| {
        let tensor = tensors.iter().find(|tensor| tensor.name == name).unwrap();
        tensor.bytes.as_chunks::<4>().0.iter().map(|&bytes| u32::from_le_bytes(bytes)).collect()
    })
}

#[test]
fn a_text_that_grows_beyond_the_original_context_is_computed_anew() {
    for case in ["phi3", "phi4-mini", "phimoe", "minicpm3", "llama"] {
        let folder = data("longrope").join(case);
        let [prompt, greedy] = golden(&folder);
        let opened = OpenedModel::open(&folder).unwrap();
        for (ahead, speculation, prefix_cache) in [
            (false, Speculation::Off, true),
            (true, Speculation::Off, true),
            (true, Speculation::Ngram, false),
            (false, Speculation::Ngram, true),
        ] {
            let config = EngineConfig { context_tokens_max: 128, speculation, prefix_cache, ..config() };
            let mut engine = engine_of(&opened, config, ahead);
            let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
            let greedy_job = |id, tokens: &[u32], most: usize| Job {
                sampling: sampling.clone(),
                ..job(id, tokens.to_vec(), most as u32)
            };
            // Alone; then from a prompt within the longer text, whose blocks have their own frequencies.
            let whole = greedy_job(1, &prompt, greedy.len());
            assert_eq!(tokens_of(&mut engine, &whole).0, greedy, "{case}, {ahead}, {speculation:?}");
            engine.check();
            let text = [&prompt[..], &greedy[..8]].concat();
            let rest = greedy_job(2, &text, greedy.len() - 8);
            assert_eq!(tokens_of(&mut engine, &rest).0, greedy[8..], "{case}: from a longer prompt");
            let short = greedy_job(3, &text[..16], greedy.len() - 4);
            assert_eq!(tokens_of(&mut engine, &short).0, greedy[4..], "{case}: from a prompt as long");
            // Together, with some prompts that are long already.
            let mut jobs = [whole, rest, short];
            jobs.iter_mut().zip(4..).for_each(|(job, id)| job.id = JobId(id));
            jobs.iter().for_each(|job| engine.submit(job));
            let (mut events, mut said) = (Vec::new(), BTreeMap::<u64, Vec<u32>>::new());
            while engine.has_work() {
                engine.step(&mut events).unwrap();
                engine.check();
            }
            for event in events {
                if let EventKind::Delta { tokens, .. } = event.kind {
                    said.entry(event.job.0).or_default().extend(tokens);
                }
            }
            let expected = [(4, greedy.clone()), (5, greedy[8..].to_vec()), (6, greedy[4..].to_vec())];
            assert_eq!(said, BTreeMap::from(expected), "{case}: beside each other");
        }
    }
}
