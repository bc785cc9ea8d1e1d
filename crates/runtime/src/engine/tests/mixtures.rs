//! Latent attention and mixtures of experts in the engine: prefix hits, drafts, and a small pool.

use super::*;

#[test]
fn latents_are_found_by_their_prefix_and_say_the_same() {
    for (case, kv_type) in
        [("deepseek-v3", KvType::F16), ("deepseek-v2-lite", KvType::Q8_0), ("gpt-oss", KvType::F16)]
    {
        let opened = OpenedModel::open(&crate::decoder::tests::data("mixtures").join(case)).unwrap();
        let config = EngineConfig { kv_type, context_tokens_max: 128, ..config() };
        let prompt: Vec<u32> = (0..60).map(|i| 3 + i * 37 % 150).collect();
        let plain = EngineConfig { speculation: Speculation::Off, prefix_cache: false, ..config };
        let (expected, cached) =
            tokens_of(&mut engine_of(&opened, plain, false), &job(1, prompt.clone(), 40));
        assert_eq!((expected.len(), cached), (40, 0), "{case}");
        let mut engine = engine_of(&opened, config, false);
        for (id, cached) in [(1, 0), (2, 48)] {
            let found = tokens_of(&mut engine, &job(id, prompt.clone(), 40));
            assert_eq!(found, (expected.clone(), cached), "{case}, time {id}");
        }
        // A prompt that shares two blocks and then differs gives the same tokens as alone.
        let other = [&prompt[..40], &[7, 9, 11]].concat();
        let alone = tokens_of(&mut engine_of(&opened, plain, false), &job(3, other.clone(), 20)).0;
        assert_eq!(tokens_of(&mut engine, &job(3, other, 20)), (alone, 32), "{case}, a prefix");
    }
}
