//! espeak-ng (github.com/espeak-ng/espeak-ng), if installed: a child process that reads lines and writes
//! phonemes. It is licensed under the GPL, so it is never linked. A process that hangs, fails or gives invalid
//! output is treated as missing.

use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Name of the program.
const PROGRAM: &str = "espeak-ng";
/// Maximum run time of a child. A chapter takes it a tenth of a second.
const TIME_MAX: Duration = Duration::from_secs(5);
/// Interval between checks for an interruption.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Maximum bytes of its output.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Maximum child processes for one text, if its lines must be sent one by one.
const CHILDREN_MAX: usize = 64;
/// Maximum bytes of a voice's name.
const VOICE_BYTES_MAX: usize = 32;

/// Path and time limit of the program.
#[derive(Clone, Debug)]
pub struct EspeakNg {
    program: PathBuf,
    time_max: Duration,
}

impl EspeakNg {
    /// Finds the program in `PATH`.
    pub fn installed() -> Option<EspeakNg> {
        let folders = std::env::var_os("PATH")?;
        let places = std::env::split_paths(&folders).map(|folder| folder.join(PROGRAM));
        places.filter(|program| program.is_absolute() && program.is_file()).map(EspeakNg::at).next()
    }

    /// Uses the program at this path.
    pub fn at(program: PathBuf) -> EspeakNg {
        EspeakNg { program, time_max: TIME_MAX }
    }

    /// Phonemes of each part of a text, with `^` between letters of one sound. None if it lacks the voice or
    /// fails, or if `interrupted` returns true.
    pub(super) fn phonemes(
        &self,
        voice: &str,
        parts: &[String],
        interrupted: &dyn Fn() -> bool,
    ) -> Option<Vec<String>> {
        let letters = |byte: u8| byte.is_ascii_alphanumeric() || b"-_+".contains(&byte);
        if voice.is_empty() || voice.len() > VOICE_BYTES_MAX || !voice.bytes().all(letters) {
            return None;
        }
        if parts.is_empty() {
            return Some(Vec::new());
        }
        let lines = |text: &str| -> Option<Vec<String>> {
            let said = self.run(voice, text, interrupted).ok()?;
            let lines = said.lines().map(without_flags).filter(|line| !line.is_empty());
            Some(lines.collect()).filter(|lines: &Vec<String>| !lines.is_empty())
        };
        // A blank line ends a clause.
        let all = lines(&parts.iter().map(|part| bare(part)).collect::<Vec<_>>().join("\n\n"))?;
        if all.len() == parts.len() {
            return Some(all);
        }
        if parts.len() > CHILDREN_MAX {
            return None;
        }
        parts.iter().map(|part| lines(&bare(part)).map(|lines| lines.join(" "))).collect()
    }

    fn run(&self, voice: &str, text: &str, interrupted: &dyn Fn() -> bool) -> io::Result<String> {
        if interrupted() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let mut child = Command::new(&self.program)
            .args(["-q", "--ipa", "--tie=^", "-b", "1", "-v", voice, "--stdin"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let said = thread::scope(|scope| {
            let (Some(mut stdin), Some(stdout)) = pipes else { return Err(io::ErrorKind::BrokenPipe.into()) };
            let (done, answer) = mpsc::channel();
            let begun = thread::Builder::new()
                .spawn_scoped(scope, move || {
                    // Unread input shows in the output.
                    let _ = stdin.write_all(text.as_bytes());
                })
                .and_then(|_| {
                    thread::Builder::new().spawn_scoped(scope, move || {
                        let mut said = String::new();
                        let read = stdout.take(ANSWER_BYTES_MAX).read_to_string(&mut said);
                        // The receiver may have stopped waiting.
                        let _ = done.send(read.map(|_| said));
                    })
                });
            let began = Instant::now();
            let said = begun.and_then(|_| {
                loop {
                    match answer.recv_timeout(LOOK_EVERY.min(self.time_max)) {
                        Ok(said) => break said,
                        Err(RecvTimeoutError::Timeout)
                            if began.elapsed() < self.time_max && !interrupted() => {}
                        Err(_) => break Err(io::ErrorKind::TimedOut.into()),
                    }
                }
            });
            // A child that has answered has nothing left to do, and one that hangs must not block the threads.
            let _ = child.kill();
            said
        });
        child.wait()?;
        said.and_then(|said| match said.len() as u64 {
            ANSWER_BYTES_MAX.. => Err(io::ErrorKind::FileTooLarge.into()),
            _ => Ok(said),
        })
    }
}

/// Removes characters that the program would take for phonemes, for the end of a clause, or for another line.
fn bare(part: &str) -> String {
    let sign = |letter: char| {
        let kept = letter.is_alphanumeric()
            || "'’-.,:%&+/°€£$\u{300}\u{301}\u{302}\u{303}\u{308}\u{327}".contains(letter);
        if kept || is_mark(letter) { letter } else { ' ' }
    };
    part.chars().map(sign).collect::<String>().trim_matches(['.', ',', ':', ' ']).to_owned()
}

/// Returns true for combining marks and vowel signs, which scripts such as Devanagari need within words.
fn is_mark(letter: char) -> bool {
    matches!(letter, '\u{900}'..='\u{dff}' | '\u{5b0}'..='\u{5c7}' | '\u{610}'..='\u{65f}' | '\u{e30}'..='\u{e4e}')
}

/// Removes flags such as `(en)`, which mark a word pronounced as in another language.
fn without_flags(line: &str) -> String {
    let (mut said, mut inside) = (String::with_capacity(line.len()), false);
    for letter in line.chars() {
        match letter {
            '(' => inside = true,
            ')' => inside = false,
            letter if !inside => said.push(letter),
            _ => {}
        }
    }
    said.trim().to_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::Instant;

    use super::*;

    /// Lock for tests that write and run programs. The child of a concurrent test could hold a program open for
    /// writing.
    pub(in crate::text) fn alone() -> MutexGuard<'static, ()> {
        static ONE: Mutex<()> = Mutex::new(());
        ONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a program that runs this script.
    pub(in crate::text) fn stand_in(folder: &Path, script: &str) -> EspeakNg {
        let program = folder.join(PROGRAM);
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        EspeakNg::at(program)
    }

    fn parts(parts: &[&str]) -> Vec<String> {
        parts.iter().map(|&part| part.to_owned()).collect()
    }

    #[test]
    fn lines_are_what_was_asked_for() {
        let (_alone, folder) = (alone(), tempfile::tempdir().unwrap());
        let echo = stand_in(folder.path(), r#"[ "$7" = de ] && sed -e 's/^./(en)&/' -e 's/a/A/'"#);
        let said = echo.phonemes("de", &parts(&["ja, [[x]]", "nah"]), &|| false);
        assert_eq!(said.unwrap(), ["jA,   x", "nAh"]);
        assert!(echo.phonemes("fr", &parts(&["ja"]), &|| false).is_none(), "there is no such voice");
        assert!(echo.phonemes("../de", &parts(&["ja"]), &|| false).is_none(), "that is no name of a voice");
        // Lines that cannot be separated are sent one by one.
        let joins = stand_in(folder.path(), "cat; echo; echo more");
        assert_eq!(joins.phonemes("de", &parts(&["a", "b"]), &|| false).unwrap(), ["a more", "b more"]);
    }

    #[test]
    fn one_that_fails_or_hangs_is_not_there() {
        let (_alone, folder) = (alone(), tempfile::tempdir().unwrap());
        let words = parts(&["one"]);
        assert!(EspeakNg::at(folder.path().join("none")).phonemes("en", &words, &|| false).is_none());
        assert!(stand_in(folder.path(), "exit 1").phonemes("en", &words, &|| false).is_none());
        assert!(stand_in(folder.path(), r"printf '\377'").phonemes("en", &words, &|| false).is_none());
        let begun = Instant::now();
        assert!(stand_in(folder.path(), "exec cat /dev/zero").phonemes("en", &words, &|| false).is_none());
        // A program that does not read its input must not block the writer.
        let large = vec!["a".repeat(1 << 20)];
        assert!(stand_in(folder.path(), "exit 0").phonemes("en", &large, &|| false).is_none());
        assert!(begun.elapsed() < TIME_MAX, "{:?}", begun.elapsed());
        let hangs =
            EspeakNg { time_max: Duration::from_millis(50), ..stand_in(folder.path(), "exec sleep 60") };
        assert!(hangs.phonemes("en", &words, &|| false).is_none());
        assert!(begun.elapsed() < 2 * TIME_MAX, "{:?}", begun.elapsed());
    }

    #[test]
    fn one_that_nobody_waits_for_is_ended() {
        let (_alone, folder) = (alone(), tempfile::tempdir().unwrap());
        let hangs = stand_in(folder.path(), "exec sleep 60");
        let began = Instant::now();
        let is_over = || began.elapsed() > Duration::from_millis(100);
        assert!(hangs.phonemes("en", &parts(&["one"]), &is_over).is_none());
        assert!(began.elapsed() < TIME_MAX / 2, "{:?}", began.elapsed());
        assert!(hangs.phonemes("en", &parts(&["one"]), &|| true).is_none());
    }
}
