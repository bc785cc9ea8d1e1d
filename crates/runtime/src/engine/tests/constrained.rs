//! Constrained answers of the demo model at a temperature where it says anything. Each satisfies its constraint, or
//! was cut and says so. Each is the same alone, in a batch, after preemption, and on an asynchronous device.

use hanzo_engine_constraints::{Grammar, Spec};
use serde_json::Value;

use super::*;
use crate::FinishReason;

/// Constraint, and a check whether an answer satisfies it.
type Case = (Spec, fn(&str) -> bool);

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Null)
}

fn cases() -> Vec<Case> {
    let schema = |source: &str| Spec::JsonSchema(source.to_owned());
    vec![
        (Spec::JsonObject, |text| json(text).is_object()),
        (
            schema(
                r#"{"type":"array","items":{"type":"integer","minimum":-20,"maximum":300},"minItems":1,"maxItems":4}"#,
            ),
            |text| {
                let is = |item: &Value| item.as_i64().is_some_and(|n| (-20..=300).contains(&n));
                json(text).as_array().is_some_and(|all| (1..=4).contains(&all.len()) && all.iter().all(is))
            },
        ),
        (
            schema(
                r#"{"type":"object","properties":{"größe":{"enum":["klein","groß",null]},"on":{"type":"boolean"}},"required":["größe","on"],"additionalProperties":false}"#,
            ),
            |text| {
                let value = json(text);
                let size = &value["größe"];
                value.as_object().is_some_and(|fields| fields.len() == 2)
                    && (size == "klein" || size == "groß" || size.is_null())
                    && value["on"].is_boolean()
            },
        ),
        (schema(r#"{"type":"string","minLength":3,"maxLength":6}"#), |text| {
            json(text).as_str().is_some_and(|text| (3..=6).contains(&text.chars().count()))
        }),
        (Spec::Regex("[a-c]{2,5}-[0-9]+x".into()), |text| {
            text.split_once('-').is_some_and(|(letters, rest)| {
                (2..=5).contains(&letters.len())
                    && letters.bytes().all(|byte| (b'a'..=b'c').contains(&byte))
                    && rest.strip_suffix('x').is_some_and(|digits| digits.parse::<f64>().is_ok())
            })
        }),
        (Spec::Choices(["ja", "jawohl", "nein"].map(String::from).to_vec()), |text| {
            ["ja", "jawohl", "nein"].contains(&text)
        }),
        (Spec::Gbnf("root ::= \"(\" (root | [0-9]) \")\"".into()), |text| {
            let middle = text.trim_matches(['(', ')']);
            middle.len() == 1 && text.matches('(').count() == text.matches(')').count()
        }),
    ]
}

fn jobs(engine: &Engine) -> Vec<Job> {
    let words = engine.text().vocabulary().unwrap();
    let prompt = engine.text().tokenizer.encode("Tell me about a fox. ", false).unwrap();
    (0..)
        .zip(cases().into_iter().cycle().take(21))
        .map(|(id, (spec, _))| Job {
            sampling: SamplingParams { temperature: 1.5, seed: id, ..SamplingParams::default() },
            // Some may continue after their end, and some must continue for longer than they can.
            stop: StopConditions {
                max_tokens: 60,
                ignore_eos: id % 3 == 0,
                min_tokens: if id % 4 == 0 { 30 } else { 0 },
                ..StopConditions::default()
            },
            constraint: Some(Grammar::compile(&spec, &words).unwrap()),
            ..job(id, prompt.clone(), 60)
        })
        .collect()
}

/// Text of each job's answer, and its finish reason.
fn answers(engine: &mut Engine, jobs: &[Job]) -> BTreeMap<u64, (String, FinishReason)> {
    let (mut events, mut texts, mut answers) = (Vec::new(), BTreeMap::<u64, String>::new(), BTreeMap::new());
    jobs.iter().for_each(|job| engine.submit(job));
    while !engine.is_idle() {
        engine.step(&mut events).unwrap();
        for event in events.drain(..) {
            match event.kind {
                EventKind::Delta { text, .. } => texts.entry(event.job.0).or_default().push_str(&text),
                EventKind::Finished { reason, .. } => {
                    answers.insert(event.job.0, (texts.remove(&event.job.0).unwrap_or_default(), reason));
                }
                EventKind::Started { .. } => {}
                other => panic!("job {} ended with {other:?}", event.job.0),
            }
        }
    }
    answers
}

#[test]
fn answers_satisfy_their_constraints_however_they_are_computed() {
    let mut engine_of_all = engine(config(), false);
    let jobs = jobs(&engine_of_all);
    let among = answers(&mut engine_of_all, &jobs);
    assert_eq!(among.len(), jobs.len());
    let mut whole = 0;
    for ((id, (text, reason)), (spec, satisfies)) in among.iter().zip(cases().into_iter().cycle()) {
        match reason {
            FinishReason::Stop => assert!(satisfies(text), "{id}: {spec:?}: {text:?}"),
            FinishReason::Length => continue,
            FinishReason::ToolCalls => panic!("{id} has no tools"),
        }
        whole += 1;
    }
    assert!(whole >= 12, "only {whole} answers came to their end: {among:?}");
    // Few blocks: some are preempted and computed again.
    let tight = EngineConfig { kv_blocks: 12, context_tokens_max: 128, ..config() };
    let mut engine_of_few = engine(tight, false);
    assert_eq!(answers(&mut engine_of_few, &jobs), among);
    assert!(engine_of_few.stats().preemptions > 0, "nobody was put back");
    assert_eq!(answers(&mut engine(config(), true), &jobs), among, "on a device that runs ahead");
    let mut alone = BTreeMap::new();
    let mut one = engine(config(), false);
    jobs.iter().for_each(|job| alone.extend(answers(&mut one, std::slice::from_ref(job))));
    assert_eq!(alone, among);
}

#[test]
fn what_is_not_drawn_has_no_log_probability() {
    let mut engine = engine(config(), false);
    let mut jobs = jobs(&engine);
    jobs.truncate(7);
    for job in &mut jobs {
        job.sampling.logprobs = Some(20);
    }
    let (mut events, mut seen) = (Vec::new(), 0);
    jobs.iter().for_each(|job| engine.submit(job));
    while !engine.is_idle() {
        engine.step(&mut events).unwrap();
        for event in events.drain(..) {
            let EventKind::Delta { logprobs, .. } = event.kind else { continue };
            for logprob in logprobs.into_iter().map(|of| of.logprob) {
                let sum: f32 = logprob.top.iter().map(|&(_, value)| value.exp()).sum();
                assert!(logprob.logprob.is_finite() && sum <= 1.0001, "{logprob:?}");
                assert!(logprob.top.iter().all(|(_, value)| value.is_finite()), "{logprob:?}");
                seen += 1;
            }
        }
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn what_an_answer_must_say_is_drafted_too() {
    let sentence = "The quick brown fox jumps over the lazy dog, and the lazy dog sleeps on. ".repeat(3);
    let steps = [Speculation::Off, Speculation::Ngram].map(|speculation| {
        let mut engine = engine(EngineConfig { speculation, ..config() }, false);
        let text = engine.text().clone();
        let one = Spec::Choices(vec![sentence.clone()]);
        let job = Job {
            constraint: Some(Grammar::compile(&one, &text.vocabulary().unwrap()).unwrap()),
            prediction: text.tokenizer.encode(&sentence, false).unwrap().into(),
            sampling: SamplingParams { temperature: 1.5, ..SamplingParams::default() },
            ..job(1, text.tokenizer.encode("Say it. ", false).unwrap(), 200)
        };
        let answers = answers(&mut engine, std::slice::from_ref(&job));
        assert_eq!(answers[&1], (sentence.clone(), FinishReason::Stop), "{speculation}");
        let stats = engine.stats();
        assert_eq!(stats.accepted_draft_tokens > 10, speculation == Speculation::Ngram, "{stats:?}");
        stats.steps
    });
    assert!(steps[1] * 4 < steps[0] * 3, "{steps:?} steps without and with drafts");
}

#[test]
fn what_is_drafted_across_the_end_of_reasoning_satisfies_the_constraint() {
    let mut prediction: Arc<[u32]> = Arc::default();
    for speculation in [Speculation::Off, Speculation::Ngram] {
        let mut engine = engine(EngineConfig { speculation, ..config() }, false);
        let text = engine.text().clone();
        let close = text.tokenizer.token_id("</think>").expect("the demo model has the token");
        let thought = text.tokenizer.encode("x", false).unwrap()[0];
        let no = Spec::Choices(vec!["no, no, no, and again no, no, no".into()]);
        let job = Job {
            constraint: Some(Grammar::compile(&no, &text.vocabulary().unwrap()).unwrap()),
            split_reasoning: true,
            starts_in_reasoning: true,
            // The reasoning goes on until its penalty outweighs the model's preference, and would go on further if
            // nothing forbade it.
            sampling: SamplingParams {
                logit_bias: vec![(thought, 100.0), (close, 91.0)],
                frequency_penalty: 2.0,
                ..SamplingParams::default()
            },
            prediction: prediction.clone(),
            ..job(1, text.tokenizer.encode("Say no. ", false).unwrap(), 60)
        };
        engine.submit(&job);
        let (mut events, mut said) = (Vec::new(), Vec::new());
        while !engine.is_idle() {
            engine.step(&mut events).unwrap();
        }
        let last = events.last().map(|event| event.kind.clone());
        assert!(matches!(last, Some(EventKind::Finished { reason: FinishReason::Stop, .. })), "{last:?}");
        for event in events {
            if let EventKind::Delta { tokens, .. } = event.kind {
                said.extend(tokens);
            }
        }
        let end = said.iter().position(|&token| token == close).expect("it thinks");
        assert!(end > 2, "and for a while: {said:?}");
        if speculation == Speculation::Ngram {
            assert_eq!(said[..], prediction[..]);
            assert!(engine.stats().accepted_draft_tokens > 6, "{:?}", engine.stats());
        }
        prediction = said.into();
    }
}

/// Text and tokens of a job's answer, its last event, and the number of steps until then.
type Run = (String, usize, String, u64);

fn runs(engine: &mut Engine, jobs: &[Job]) -> BTreeMap<u64, Run> {
    let (began, mut runs, mut events) = (engine.stats().steps, BTreeMap::<u64, Run>::new(), Vec::new());
    jobs.iter().for_each(|job| engine.submit(job));
    while !engine.is_idle() {
        engine.step(&mut events).unwrap();
        engine.check();
        for event in events.drain(..) {
            let run = runs.entry(event.job.0).or_default();
            match event.kind {
                EventKind::Delta { text, tokens, .. } => {
                    run.0.push_str(&text);
                    run.1 += tokens.len();
                }
                // How many of its tokens were drafted depends on what has ended before.
                EventKind::Finished { reason, .. } => {
                    (run.2, run.3) = (format!("{reason:?}"), engine.stats().steps - began);
                }
                last => (run.2, run.3) = (format!("{last:?}"), engine.stats().steps - began),
            }
        }
    }
    runs
}

#[test]
fn a_slow_grammar_keeps_no_other_answer_waiting() {
    let mut engine = engine(config(), false);
    let text = engine.text().clone();
    let words = text.vocabulary().unwrap();
    // Each token more makes the mask of the next one slower, until it has more items than are allowed.
    let ambiguous = "root ::= s \"zKT\"\ns ::= s s s | s s | [a-z ] | \"\"";
    let grammar = Grammar::compile(&Spec::Gbnf(ambiguous.into()), &words).unwrap();
    let prompt = text.tokenizer.encode("Tell me about a fox. ", false).unwrap();
    let slow = |id| Job {
        constraint: Some(grammar.clone()),
        sampling: SamplingParams { temperature: 1.5, seed: id, ..SamplingParams::default() },
        ..job(id, prompt.clone(), 30)
    };
    let plain = Job {
        stop: StopConditions { max_tokens: 100, ignore_eos: true, ..StopConditions::default() },
        ..job(3, prompt.clone(), 100)
    };
    let jobs = [slow(1), slow(2), plain];
    let without_steps =
        |runs: BTreeMap<u64, Run>| runs.into_iter().map(|(id, run)| (id, (run.0, run.1, run.2)));
    let alone: Vec<_> =
        jobs.iter().flat_map(|job| without_steps(runs(&mut engine, std::slice::from_ref(job)))).collect();
    let together = runs(&mut engine, &jobs);
    let steps: Vec<u64> = together.values().map(|run| run.3).collect();
    for ((id, (text, tokens, last)), (_, other)) in without_steps(together).zip(&alone) {
        // The clock ends a slow grammar's answer, sooner on a busy machine. Up to its end the text is the same.
        match last == other.2 && !last.contains("takes too long to check") {
            true => assert_eq!((&text, tokens), (&other.0, other.1)),
            false => assert!(
                id != 3 && (text.starts_with(&other.0) || other.0.starts_with(&text)),
                "{id}: {text:?}, {last}; {other:?}"
            ),
        }
    }
    let letters = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b' ');
    for (_, (text, tokens, last)) in &alone[..2] {
        assert!(letters(text) && *tokens > 5 && !last.contains("Failed { error"), "{text:?}, {last}");
    }
    // The third ran in steps in which the others waited for their masks.
    assert!(steps[2] <= 110 && (0..2).any(|at| steps[at] > alone[at].1.1 as u64 + 5), "{steps:?}, {alone:?}");
}
