//! The demo model against values computed by an independent implementation (transformers, float32): prompts,
//! token ids, greedy continuations, and the share of the held-out tasks it solves.

use hanzo_engine_runtime::FinishReason;
use hanzo_engine_tests::demo::{self, Asked};
use serde_json::Value;

fn data(name: &str) -> String {
    let path = format!("{}/data/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("an array of ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// A gap this small between the two best logits may go either way in other arithmetic than float32.
const MARGIN_MIN: f64 = 0.05;

#[test]
fn prompts_and_greedy_continuations_are_the_reference_s() {
    let golden: Value = serde_json::from_str(&data("golden.json")).expect("JSON");
    let mut engine = demo::engine();
    let (mut compared, mut stopped) = (0, 0);
    for row in golden["prompts"].as_array().expect("prompts") {
        let chat =
            demo::chat(&row["messages"], &row["tools"], row["enable_thinking"].as_bool().expect("a bool"));
        let prompt = engine.text().prompt_from_chat(&chat, 4096, &|| false).expect("a prompt");
        assert_eq!(prompt.text, row["prompt"].as_str().expect("a prompt"));
        assert_eq!(prompt.tokens, ids(&row["prompt_ids"]), "{}", prompt.text);

        // What comes after a call this close is a matter of rounding; the decoder's own test goes up to the call.
        if row["smallest_margin_until_eos"].as_f64().expect("a margin") < MARGIN_MIN {
            continue;
        }
        // The end, which is never drawn here, and past it the reference's margins were not recorded.
        let until = row["ids_until_eos"].as_u64().expect("a count") as usize;
        let sure = until - usize::from(until < 64);
        let want = ids(&row["greedy_ids"]);
        let asked = Asked::greedy(prompt.tokens).tokens(64);
        let answers = demo::run(&mut engine, [asked.clone().past_the_end(), asked]);
        let [past, answer] = &answers[..] else { panic!("{} answers", answers.len()) };
        assert_eq!(past.tokens[..sure], want[..sure], "{}", prompt.text);
        // Where the end is not ignored, it is drawn where the reference draws it, and nothing after it.
        assert_eq!(answer.tokens[..], want[..until], "{}", prompt.text);
        let eos = &engine.text().eos;
        let ends = |tokens: &[u32]| tokens.iter().filter(|token| eos.contains(token)).count();
        if until < 64 {
            assert_eq!(answer.reason, Some(FinishReason::Stop), "{}", prompt.text);
            assert!(answer.tokens.last().is_some_and(|last| eos.contains(last)), "{:?}", answer.tokens);
            assert_eq!(ends(&answer.tokens), 1, "{:?}", answer.tokens);
            stopped += 1;
        } else {
            assert_eq!(answer.reason, Some(FinishReason::Length), "{}", prompt.text);
        }
        // Where it is, it is never drawn, however likely, and the answer is as long as it may be.
        assert_eq!((past.tokens.len(), ends(&past.tokens)), (64, 0), "{:?}", past.tokens);
        assert_eq!(past.reason, Some(FinishReason::Length), "{}", prompt.text);
        compared += 1;
    }
    assert!(compared > 10 && stopped > 8, "{compared} prompts compared, {stopped} of which stop");
}

#[test]
fn solves_what_its_card_says() {
    let rows: Vec<Value> =
        data("eval.jsonl").lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let mut engine = demo::engine();
    let mut asked = Vec::new();
    for row in &rows {
        let chat =
            demo::chat(&row["messages"], &row["tools"], row["enable_thinking"].as_bool().expect("a bool"));
        let prompt = engine.text().prompt_from_chat(&chat, 4096, &|| false).expect("a prompt");
        assert_eq!(prompt.tokens.len() as u64, row["prompt_tokens"].as_u64().expect("a count"));
        let reference = row["reference"].as_str().expect("a reference");
        let tokens = engine.text().tokenizer.encode(reference, false).expect("tokens").len() as u32 + 60;
        asked.push(Asked::greedy(prompt.tokens).tokens(tokens.max(40)));
    }
    let answers = demo::run(&mut engine, asked);
    let solved = rows.iter().zip(&answers).filter(|(row, answer)| passes(row, &answer.text)).count();
    let card = rows.iter().filter(|row| row["pass"] == true).count();
    let same =
        rows.iter().zip(&answers).filter(|(row, answer)| row["output"] == answer.text.as_str()).count();
    println!("solved {solved} of {}, the card says {card}; {same} answers equal to the letter", rows.len());
    let point = rows.len() / 100;
    assert!(solved.abs_diff(card) <= point, "solved {solved} of {}, the card says {card}", rows.len());
}

/// The checks of the model's own evaluation.
fn passes(row: &Value, output: &str) -> bool {
    let mut text = output;
    if row["enable_thinking"] == true {
        let Some((thought, answer)) =
            text.strip_prefix("<think>\n").and_then(|rest| rest.split_once("\n</think>\n\n"))
        else {
            return false;
        };
        if thought.is_empty() {
            return false;
        }
        text = answer;
    }
    let text = text.trim();
    let expected = row["expected"].as_str().unwrap_or_default();
    match row["check"].as_str().expect("a check") {
        "exact" => text == expected.trim(),
        "contains" => text.to_lowercase().contains(&expected.to_lowercase()),
        "json" => serde_json::from_str::<Value>(text)
            .is_ok_and(|got| serde_json::from_str::<Value>(expected).is_ok_and(|want| got == want)),
        "tool" => {
            let calls: Option<Vec<Value>> = text
                .split("<tool_call>\n")
                .skip(1)
                .filter_map(|rest| rest.split_once("\n</tool_call>"))
                .map(|(call, _)| serde_json::from_str(call).ok())
                .collect();
            calls.is_some_and(|calls| Value::Array(calls) == row["expected"])
        }
        other => panic!("no such check: {other}"),
    }
}
