//! Layers that keep a state against the transformers library (tests/data/states/make_states.py says how its numbers were made).

use hanzo_engine_ops::{KvLayout, KvType};

use super::*;

#[test]
fn states_compute_what_the_library_does() {
    for (case, path) in files_of("states") {
        let golden = Golden::read(&data("states").join(case));
        let files = ModelFiles::open(&path).unwrap_or_else(|error| panic!("{error}"));
        let allowed = TOLERANCE * range(&golden.logits);
        on_every_backend!(&files, path.display(), |runner, label| {
            let off = largest_difference(&runner.prefill(&golden.text()), &golden.logits);
            println!("{label}: {:.1e} of the range", off / range(&golden.logits));
            assert!(off <= allowed, "{label}: logits differ by {off}, allowed are {allowed}");
            let tokens = runner.greedy(&golden.prompt, 7, golden.greedy.len(), |_, _| false);
            assert_eq!(tokens, golden.greedy, "{label}: a prompt in chunks, then one by one");
        });
    }
}

#[test]
fn states_have_the_same_bits_however_a_batch_is_made() {
    for (case, path) in files_of("states") {
        let files = ModelFiles::open(&path).unwrap();
        let mut runner = Runner::new(fastest(), &files);
        let text = Golden::read(&data("states").join(case)).text();
        let whole = runner.prefill(&text);
        let vocab = files.spec.vocab;
        let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>();
        // Both states were used before. One sequence goes on behind another that begins, where it stood alone before.
        let (blocks, others) = (scattered(1), scattered(0));
        runner.step(&[Work { tokens: &text[5..30], rows: 25, blocks: &blocks }]);
        let first = runner.step(&[Work { tokens: &text[..19], rows: 19, blocks: &blocks }]);
        let both = runner.step(&[
            Work { tokens: &text[..33], rows: 33, blocks: &others },
            Work { tokens: &text[..20], rows: 1, blocks: &blocks },
        ]);
        assert!(bits(&first) == bits(&whole[..19 * vocab]), "{}: a state used again", path.display());
        assert!(bits(&both[..33 * vocab]) == bits(&whole[..33 * vocab]), "{}: a prompt", path.display());
        assert!(
            bits(&both[33 * vocab..]) == bits(&whole[19 * vocab..20 * vocab]),
            "{}: a decode",
            path.display()
        );
    }
}

#[test]
fn states_are_planned_to_the_byte_and_take_no_block() {
    let files = ModelFiles::open(&data("states").join("qwen3-next")).unwrap();
    let backend = fastest();
    let bytes = |blocks, sequences| backend.kv_bytes(&files.spec.kv_spec(blocks, KvType::F16, sequences));
    // Three layers, each with 3 inputs of 128 channels and 4 heads of 16 by 16, in f32.
    assert_eq!(bytes(0, 5), 5 * 3 * 4 * (3 * 128 + 4 * 16 * 16));
    // One layer with keys and values of 2 heads of 16, in halves.
    assert_eq!(bytes(7, 0), 7 * BLOCK_TOKENS * 2 * 2 * 16 * 2);
    assert_eq!(bytes(7, 5), bytes(7, 0) + bytes(0, 5));
    let spec = files.spec.kv_spec(7, KvType::Q8_0, 5);
    assert_eq!(spec.states, 5);
    let kept = spec.layers.iter().filter(|layout| matches!(layout, KvLayout::State(_))).count();
    assert_eq!((kept, spec.planes().len(), spec.groups.count()), (3, 1, 1));
}

#[test]
fn the_plan_of_states_is_what_loading_takes() {
    let files = ModelFiles::open(&data("states").join("qwen3-next")).unwrap();
    let backend = fastest();
    let plan = Decoder::plan(&backend, &files);
    let decoder = Decoder::load(&backend, &files, &mut |_| ()).unwrap();
    let matrices = packed_bytes(&backend, &decoder.network);
    let (hidden, head) = (32, 16);
    let of_layers = 4 * (2 * hidden + hidden) + 2 * head + 3 * (128 * 4 + 4 + 4 + 16);
    let vectors = of_layers + hidden + decoder.spec().ropes[0].dim / 2;
    assert_eq!(plan.weights_bytes, (matrices + 4 * vectors) as u64);
    let limits = decoder.spec().step_limits(10, 2, 100);
    // Those of attention and its gate, of the experts and the one beside them, and of states.
    let (attention, mlp, states) = (128 + 64 + 64, 2 * 32 + 32 + hidden, 128 + 64 + 4 + 4 + 64);
    let buffers = 4 * 10 * (3 * hidden + attention + mlp + states);
    assert_eq!(plan.scratch_bytes(&backend, &limits), (buffers + backend.scratch_bytes(&limits)) as u64);
}
