//! Every fuzz target on its corpus, and on inputs made from it: the same ones each time, and so many times as many of them as
//! `HANZO_ENGINE_MUTATIONS` says.

use std::{fs, panic, thread, time::Instant};

use hanzo_engine_tests::fuzz::{Mutator, TARGETS, corpus, finish};

/// An input that takes longer is a fault: the slowest of them takes a hundredth of it.
const SLOW_S: f32 = 20.0;

fn run(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target");
    let mut files: Vec<_> =
        fs::read_dir(corpus(name)).expect("a corpus").flatten().map(|entry| entry.path()).collect();
    files.sort();
    let inputs: Vec<Vec<u8>> = files.iter().map(|path| fs::read(path).expect("an input")).collect();
    assert!(inputs.len() > 1, "the corpus of {name} has {} inputs", inputs.len());
    let read = |what: &dyn Fn() -> String, input: &[u8]| {
        let began = Instant::now();
        let ended = panic::catch_unwind(|| (target.read)(input));
        let seconds = began.elapsed().as_secs_f32();
        if ended.is_err() || seconds > SLOW_S {
            let kept = std::env::temp_dir().join(format!("fuzz-{name}-{:016x}", fingerprint(input)));
            fs::write(&kept, input).expect("written");
            panic!("{name}: {} after {seconds:.1} s; the input is kept as {}", what(), kept.display());
        }
    };
    for (path, input) in files.iter().zip(&inputs) {
        read(&|| format!("{} fails", path.display()), input);
    }
    let mut mutator = Mutator::new(&inputs, 15);
    let times =
        std::env::var("HANZO_ENGINE_MUTATIONS").ok().map_or(1, |times| times.parse().expect("a number"));
    for number in 0..times * target.mutations {
        read(&|| format!("mutation {number} fails"), &mutator.input());
    }
    finish();
}

fn fingerprint(input: &[u8]) -> u64 {
    input
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// One thread for each, because some keep a folder of their own.
#[test]
fn strangers_bytes_are_refused_or_read() {
    let started: Vec<_> =
        TARGETS.iter().map(|target| (target.name, thread::spawn(|| run(target.name)))).collect();
    let failed: Vec<_> =
        started.into_iter().filter_map(|(name, run)| run.join().err().map(|_| name)).collect();
    assert!(failed.is_empty(), "{failed:?}: see above");
}
