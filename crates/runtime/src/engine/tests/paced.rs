//! What the engine makes of how long its steps took: it hands on what rows of prompts take, and what others do beside them, and
//! nothing of steps that tell neither.

use super::*;

/// An engine that has heard that a row which decodes takes a second, however many there are ([`engine_of`]), and the rows of prompts
/// in the next step, where another sequence decodes.
struct Paced {
    engine: Engine,
    events: Vec<Event>,
}

impl Paced {
    fn new(prefill_tokens_beside_decodes: usize) -> Paced {
        let config = EngineConfig {
            prefill_tokens_beside_decodes,
            speculation: Speculation::Off,
            prefix_cache: false,
            ..config()
        };
        Paced { engine: engine(config, false), events: Vec::new() }
    }

    fn submit(&mut self, id: u64, prompt: u32) {
        self.engine.submit(&job(id, (0..prompt).map(|i| 300 + i).collect(), 60));
    }

    /// Rows of prompts and of decodes in a step, which seemed to take so long.
    fn step(&mut self, seconds: f32) -> (usize, usize) {
        let report = self.engine.step(&mut self.events).unwrap();
        self.engine.took(seconds);
        (report.prefill_tokens, report.decode_tokens)
    }
}

#[test]
fn a_step_s_time_is_of_its_rows() {
    let mut paced = Paced::new(32);
    paced.submit(1, 10);
    assert_eq!(paced.step(0.95), (10, 0), "not quite a tenth of a second each");
    assert_eq!(paced.step(1.0), (0, 1));
    paced.submit(2, 400);
    // As many as take as long as the row that decodes; beside it they take what they took alone.
    for _ in 0..3 {
        assert_eq!(paced.step(1.95), (10, 1));
    }
    // Each of them seems to take twice as long: soon they are fewer, which counts the one that decodes as what it takes.
    let rows: Vec<usize> = (0..6).map(|_| paced.step(3.0).0).collect();
    assert!(rows[1] < 10 && rows[5] <= 8, "{rows:?}");

    // Without a word of it as many go as may.
    let mut silent = Paced::new(32);
    silent.submit(1, 10);
    silent.engine.step(&mut silent.events).unwrap();
    silent.engine.step(&mut silent.events).unwrap();
    silent.submit(2, 400);
    assert_eq!(silent.engine.step(&mut silent.events).unwrap().prefill_tokens, 32);
}

#[test]
fn a_call_without_a_step_tells_nothing() {
    let mut paced = Paced::new(32);
    paced.submit(1, 10);
    paced.step(0.95);
    paced.engine.set_paused(JobId(1), true);
    // Nothing was waited for: what this took is no step's.
    for _ in 0..20 {
        assert_eq!(paced.step(1000.0), (0, 0));
    }
    paced.engine.set_paused(JobId(1), false);
    assert_eq!(paced.step(1.0), (0, 1));
    paced.submit(2, 100);
    assert_eq!(paced.step(1.95), (10, 1));
}
