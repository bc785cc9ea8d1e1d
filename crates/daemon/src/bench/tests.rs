//! Tests of the benchmark with the demo model, and of the arguments that it refuses.

use super::*;

fn args() -> BenchOptions {
    BenchOptions {
        model: crate::DEMO_MODEL.into(),
        store_dir: None,
        prompt_lens: vec![20],
        gen_lens: vec![3],
        depths: vec![0],
        batches: vec![1],
        reps: 2,
        threads: Some(1),
        gpu_layers: None,
        split_mode: SplitMode::Layer,
        devices: vec![crate::config::DeviceName::Cpu],
        limits: false,
        kv_type: KvType::F16,
    }
}

#[test]
fn deviation_is_of_a_sample() {
    assert_eq!(mean_and_deviation(&[2.0, 4.0]), (3.0, 2.0_f64.sqrt()));
    assert_eq!(mean_and_deviation(&[5.0]), (5.0, 0.0));
}

#[test]
fn the_demo_model_has_a_speed() {
    let mut seen = Vec::new();
    let report = run(&args(), |progress| seen.push(progress)).unwrap();
    let tests: Vec<&str> = report.rows.iter().map(|row| row.test.as_str()).collect();
    assert_eq!(tests, ["pp20", "tg3"]);
    for row in &report.rows {
        assert!(row.tokens_per_s > 0.0 && row.stddev.is_finite(), "{row:?}");
        assert_eq!((row.samples.len(), row.shares), (2, None));
        assert_eq!(mean_and_deviation(&row.samples), (row.tokens_per_s, row.stddev));
    }
    assert_eq!(report.limits, None);
    assert!(report.device.contains("1 thread"), "{}", report.device);
    assert!(seen.contains(&BenchProgress::Running { test: "tg3".into(), run: 2, percent: 0 }));
}

#[test]
fn every_depth_and_batch_has_a_row() {
    let all = BenchOptions { depths: vec![0, 48, 112], batches: vec![1, 5], threads: Some(2), ..args() };
    let mut seen = Vec::new();
    let rows = run(&all, |progress| seen.push(progress)).unwrap().rows;
    let tests: Vec<&str> = rows.iter().map(|row| row.test.as_str()).collect();
    assert_eq!(
        tests,
        [
            "pp20",
            "pp20@d48",
            "pp20@d112",
            "tg3",
            "tg3 b5",
            "tg3@d48",
            "tg3@d48 b5",
            "tg3@d112",
            "tg3@d112 b5"
        ]
    );
    let numbers: Vec<_> =
        rows.iter().map(|row| (row.kind, row.n_prompt, row.n_gen, row.depth, row.batch)).collect();
    assert_eq!(numbers[2], ("prompt", 20, 0, 112, 1));
    assert_eq!(numbers[8], ("generation", 0, 3, 112, 5));
    assert!(rows.iter().all(|row| row.tokens_per_s > 0.0), "{rows:?}");
    // The cache is filled once, however many measurements there are.
    let filled = |test: &str| {
        let is = |progress: &&BenchProgress| matches!(progress, BenchProgress::Filling { test: of, percent: 100 } if of == test);
        seen.iter().filter(is).count()
    };
    assert_eq!((filled("tg3"), filled("pp20@d48"), filled("tg3@d112 b5")), (0, 1, 1));
}

/// A prompt longer than one step, a depth above one step, and a block that is full exactly when the prompt ends.
#[test]
fn long_prompts_are_cut_where_the_depth_ends() {
    let long = BenchOptions {
        prompt_lens: vec![600, 64],
        gen_lens: vec![],
        depths: vec![576],
        reps: 1,
        threads: Some(2),
        ..args()
    };
    let mut percents = Vec::new();
    let rows = run(&long, |progress| {
        if let BenchProgress::Running { test, run: 1, percent } = progress
            && test == "pp600@d576"
        {
            percents.push(percent);
        }
    });
    assert_eq!(rows.unwrap().rows.len(), 2);
    assert_eq!(percents, [0, 85, 100], "512 tokens, then 88");
}

/// Does not check that shares are below 1: other work on the machine shifts both the limits and the rates.
#[test]
fn a_share_is_of_what_the_machine_can_do() {
    let report =
        run(&BenchOptions { depths: vec![64], batches: vec![4], limits: true, ..args() }, |_| {}).unwrap();
    let limits = report.limits.unwrap();
    for limit in [limits.read_bytes_per_s, limits.int8_ops_per_s, limits.f32_ops_per_s] {
        assert!(limit > 1e6 && limit.is_finite(), "{limits:?}");
    }
    // A byte of the file is a weight, apart from scales, norms and the vocabulary.
    let file = crate::DEMO_GGUF.len() as f64;
    for row in &report.rows {
        let shares = row.shares.unwrap();
        let products = shares.arithmetic * limits.int8_ops_per_s / row.tokens_per_s / 2.0;
        // Only the last token of a prompt goes through the head.
        let least = if row.kind == "generation" { 0.8 } else { 0.3 };
        assert!((least..1.1).contains(&(products / file)), "{}: {products} a token", row.test);
        assert_eq!(shares.read.is_some(), row.kind == "generation");
        if let Some(read) = shares.read {
            let bytes = read * limits.read_bytes_per_s / row.tokens_per_s * row.batch as f64;
            assert!((0.8..1.25).contains(&(bytes / file)), "{}: {bytes} a step", row.test);
        }
    }
}

#[test]
fn what_cannot_be_measured_says_why() {
    let refused = |args: BenchOptions| run(&args, |_| {}).unwrap_err();
    let of_args = |args: BenchOptions| match refused(args) {
        BenchError::Args(reason) => reason,
        other => panic!("{other}"),
    };
    assert!(matches!(
        refused(BenchOptions { prompt_lens: vec![10_000_000], ..args() }),
        BenchError::Request(_)
    ));
    let deep = refused(BenchOptions { depths: vec![16 << 20], ..args() });
    assert!(deep.to_string().contains("16777236"), "{deep}");
    assert!(of_args(BenchOptions { prompt_lens: vec![], gen_lens: vec![], ..args() }).contains("nothing"));
    assert!(of_args(BenchOptions { split_mode: SplitMode::Row, ..args() }).contains("two cards and more"));
    assert!(of_args(BenchOptions { reps: 0, ..args() }).contains("at least 1"));
    assert!(of_args(BenchOptions { batches: vec![0], ..args() }).contains("at least 1"));
    assert!(of_args(BenchOptions { depths: vec![100], ..args() }).contains("96 or 112"));
    assert!(of_args(BenchOptions { batches: vec![513], ..args() }).contains("at most 512"));
    assert!(of_args(BenchOptions { batches: vec![4], gen_lens: vec![], ..args() }).contains("generate"));
}

#[test]
fn what_does_not_fit_the_memory_is_refused_with_the_numbers() {
    let files = resolve(crate::DEMO_MODEL, None).unwrap().source.open().unwrap();
    let fits = EngineMemory { weights_bytes: 1, kv_bytes: 2, scratch_bytes: 3 };
    assert!(check_fits(&fits, files.info(), Some(6)).is_ok());
    let too_much = EngineMemory { kv_bytes: 1 << 60, ..fits };
    let error = check_fits(&too_much, files.info(), Some(6)).unwrap_err().to_string();
    assert!(error.contains(&(1_u64 << 60).to_string()) && error.contains("smaller batch"), "{error}");
}
