//! One target of `tests/src/fuzz.rs` under libFuzzer: the one that `FUZZ_TARGET` names.

#![no_main]

use std::{panic, sync::LazyLock};

use hanzo_engine_tests::fuzz::TARGETS;
use libfuzzer_sys::fuzz_target;

static READ: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    // A panic that a reader catches, as of the `tokenizers` crate, is none to libFuzzer: only what comes out of it is.
    panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let target = TARGETS.iter().find(|target| target.name == name);
    target.unwrap_or_else(|| panic!("FUZZ_TARGET is {name:?}, which is no target")).read
});

fuzz_target!(|input: &[u8]| READ(input));
