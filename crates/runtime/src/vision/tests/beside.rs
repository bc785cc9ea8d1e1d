//! Sizes of picture pieces beside decoding sequences, by times from a simulated clock.

use std::cell::Cell;

use super::*;

/// Clock by which every operation takes a second.
fn slow() -> impl Fn() -> u64 {
    let now = Cell::new(0);
    move || now.replace(now.get() + 1_000_000_000)
}

/// Number of steps until the given number of frames is done. By the clock a piece takes a second, and each step is
/// reported to take 1.001 s.
fn steps_to_see(
    engine: &mut Engine,
    frames: u64,
    clock: &impl Fn() -> u64,
    events: &mut Vec<Event>,
) -> usize {
    let all = engine.stats().frames_seen + frames;
    let mut steps = 0;
    while engine.stats().frames_seen < all {
        engine.step_by(clock, events).unwrap();
        engine.took(1.001);
        steps += 1;
        assert!(steps < 100_000, "it never ends");
    }
    steps
}

#[test]
fn a_picture_is_seen_in_small_pieces_beside_who_decodes_and_in_large_ones_alone() {
    for case in ["smolvlm", "qwen2_5_vl", "qwen3_vl", "llava_next"] {
        let (model, talks) = (open(case), talks(case));
        let clock = slow();
        let mut engine = engine(&model, 64);
        let mut events = Vec::new();
        let mut text = Job { media: [].into(), ..job(1, &model.1, &talks[0]) };
        text.stop.max_tokens = 300;
        engine.submit(&text);
        for _ in 0..6 {
            engine.step(&mut events).unwrap();
            engine.took(0.001);
        }
        let seeing = job(2, &model.1, &talks[1]);
        let frames = seeing.media.len() as u64;
        assert!(frames > 1, "{case}");
        engine.submit(&seeing);
        let beside = steps_to_see(&mut engine, frames, &clock, &mut events);
        // Except the first, whose cost is not known yet, each frame takes several pieces for its layers and
        // squares.
        assert!(beside > 4 * frames as usize, "{case}: {frames} frames in {beside} steps");
        let tokens = drawn(&events)[&JobId(1)].tokens.len();
        assert!(tokens >= beside.min(280), "{case}: {tokens} tokens in {beside} steps");
        while engine.has_work() {
            engine.step(&mut events).unwrap();
        }
        assert_eq!(drawn(&events)[&JobId(2)].tokens, talks[1].greedy, "{case}");
        // No sequence decodes any more: each frame is a single piece, and the last one's rows let its job enter.
        let seeing = job(3, &model.1, &talks[2]);
        let frames = seeing.media.len() as u64;
        engine.submit(&seeing);
        let alone = steps_to_see(&mut engine, frames, &clock, &mut events);
        assert!(alone <= frames as usize, "{case}: {frames} frames in {alone} steps");
        while engine.has_work() {
            engine.step(&mut events).unwrap();
        }
        assert_eq!(drawn(&events)[&JobId(3)].tokens, talks[2].greedy, "{case}");
        engine.check();
    }
}
