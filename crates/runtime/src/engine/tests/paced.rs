//! Use of step times by the engine: it records the cost of prompt rows and of the rows beside them, and ignores
//! steps that tell neither.

use super::*;

/// Engine that believes that a decoding step takes a second, however many rows decode ([`engine_of`]). Tests report
/// the times of its steps.
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
        self.engine.submit(job(id, (0..prompt).map(|i| 300 + i).collect(), 60));
    }

    /// Runs a step that is reported to take `seconds`. Returns its prompt rows and its decoding rows.
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
    // As many prompt rows as take as long as the decoding row; beside it they seem to take what they took alone.
    for _ in 0..3 {
        assert_eq!(paced.step(1.95), (10, 1));
    }
    // Every row seems to take twice as long: soon there are fewer prompt rows. The decoding row counts at its own
    // time.
    let rows: Vec<usize> = (0..6).map(|_| paced.step(3.0).0).collect();
    assert!(rows[1] < 10 && rows[5] <= 8, "{rows:?}");

    // Without reported times, as many go as are allowed.
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
    // No step was collected, so this time belongs to none.
    for _ in 0..20 {
        assert_eq!(paced.step(1000.0), (0, 0));
    }
    paced.engine.set_paused(JobId(1), false);
    assert_eq!(paced.step(1.0), (0, 1));
    paced.submit(2, 100);
    assert_eq!(paced.step(1.95), (10, 1));
}
