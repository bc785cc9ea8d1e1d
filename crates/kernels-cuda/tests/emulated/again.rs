//! Running a test again in a separate process with other environment variables.

use std::process::Command;

const AGAIN: &str = "HANZO_ENGINE_TEST_AGAIN";

/// Whether this is the process that [`in_a_process`] started.
pub(crate) fn is_again() -> bool {
    std::env::var_os(AGAIN).is_some()
}

/// Runs the test of this name with these variables; it must pass there.
pub(crate) fn in_a_process(test: &str, variables: &[(&str, &str)]) {
    let (success, said) = ended(test, variables);
    // A missing test would end successfully too.
    assert!(success && said.contains("1 passed"), "{test} with {variables:?} has not passed:\n{said}");
}

/// Runs the test of this name with these variables. Returns whether it succeeded, and its output followed by its exit
/// status.
pub(crate) fn ended(test: &str, variables: &[(&str, &str)]) -> (bool, String) {
    let program = std::env::current_exe().expect("a program knows its path");
    let run = Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env(AGAIN, "1")
        .envs(variables.iter().copied())
        .output()
        .expect("this program starts");
    let said = [run.stdout, run.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (run.status.success(), format!("{said}\n{}", run.status))
}
