//! The same prompt gives the same tokens whatever else the engine is doing.

use hanzo_engine_tests::demo::{self, Answer, Asked};

fn prompts() -> Vec<Asked> {
    let text = demo::text();
    (0..16)
        .map(|i| {
            let question = match i % 4 {
                0 => "Tell me a story about a fox named Mia.".to_string(),
                1 => format!("What is {} + {}?", 10 + i, 90 - i),
                2 => format!("Count from {i} to {}.", i + 20),
                _ => format!(
                    "The code for Alice is {}. {} What is the code for Alice?",
                    4000 + i,
                    "The code for Bob is 7730. ".repeat(3 * i)
                ),
            };
            let messages = serde_json::json!([{"role": "user", "content": question}]);
            let prompt =
                text.prompt_from_chat(&demo::chat(&messages, &serde_json::Value::Null, false), 4096, &|| {
                    false
                });
            Asked::greedy(prompt.expect("a prompt").tokens)
                .tokens(20 + 7 * i as u32)
                .past_the_end()
                .drawn(i as u64)
        })
        .collect()
}

#[test]
fn alone_together_and_permuted_are_the_same() {
    let asked = prompts();
    let alone: Vec<Answer> =
        asked.iter().map(|one| demo::run(&mut demo::engine(), [one.clone()]).remove(0)).collect();
    let together = demo::run(&mut demo::engine(), asked.clone());
    assert_same(&together, &alone, "together");

    let mut order: Vec<usize> = (0..asked.len()).map(|i| (i * 7 + 3) % asked.len()).collect();
    let permuted = demo::run(&mut demo::engine(), order.iter().map(|&i| asked[i].clone()));
    for (place, i) in order.drain(..).enumerate() {
        assert_same(&permuted[place..=place], &alone[i..=i], "permuted");
    }
}

/// Says where two answers part, not all that they say.
fn assert_same(got: &[Answer], want: &[Answer], what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let same = got.tokens.iter().zip(&want.tokens).take_while(|(a, b)| a == b).count();
        let (a, b) = (got.tokens.len(), want.tokens.len());
        assert!(got == want, "{what}: answer {i} parts after {same} tokens of {a} and {b}");
    }
}

#[test]
fn small_chunks_preemption_and_reuse_change_nothing() {
    let asked = prompts();
    let alone = demo::run(&mut demo::engine(), asked.clone());

    let mut cut = demo::engine_with(|config| {
        config.step_tokens_max = 24;
        config.prefill_tokens_beside_decodes = 5;
        config.sequences_max = 8;
    });
    assert_same(&demo::run(&mut cut, asked.clone()), &alone, "prompts cut into chunks of 5 to 24");
    let hits = cut.stats().prefix_hit_tokens;
    assert_same(&demo::run(&mut cut, asked.clone()), &alone, "prompts found in the cache");
    assert!(cut.stats().prefix_hit_tokens > hits + 100, "the second round finds its prompts");

    let mut tight = demo::engine_with(|config| {
        config.kv_blocks = 45;
        config.context_tokens_max = 720;
    });
    assert_same(&demo::run(&mut tight, asked), &alone, "sequences put back and computed again");
    let stats = tight.stats();
    assert!(stats.preemptions > 0, "45 blocks were meant to be too few");
    assert_eq!((stats.blocks_used, stats.running, stats.waiting), (0, 0, 0));
}
