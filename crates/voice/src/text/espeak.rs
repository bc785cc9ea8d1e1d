//! espeak-ng (github.com/espeak-ng/espeak-ng), where it is installed: a child that is sent lines and answers with phonemes. It is under
//! the GPL and never linked. One that hangs, fails or answers something else is as if it were not there.

use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// What the program is called.
const PROGRAM: &str = "espeak-ng";
/// How long a child may take; a chapter takes it a tenth of a second.
const TIME_MAX: Duration = Duration::from_secs(5);
/// How often it is looked meanwhile whether anybody waits for it.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Bytes that it may answer.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Children of one text, where its lines do not come apart and are asked for one by one.
const CHILDREN_MAX: usize = 64;
/// Bytes of a voice's name.
const VOICE_BYTES_MAX: usize = 32;

/// The program.
#[derive(Clone, Debug)]
pub struct EspeakNg {
    program: PathBuf,
    time_max: Duration,
}

impl EspeakNg {
    /// The one that the environment's `PATH` has.
    pub fn installed() -> Option<EspeakNg> {
        let folders = std::env::var_os("PATH")?;
        let places = std::env::split_paths(&folders).map(|folder| folder.join(PROGRAM));
        places.filter(|program| program.is_absolute() && program.is_file()).map(EspeakNg::at).next()
    }

    /// This program.
    pub fn at(program: PathBuf) -> EspeakNg {
        EspeakNg { program, time_max: TIME_MAX }
    }

    /// Phonemes of each part of a text, with `^` between letters of one sound. `None` where it has no such voice or fails, and
    /// where `interrupted` says to give up.
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
        // A blank line ends what is said in one breath.
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
                    // What it does not read shows in what it answers.
                    let _ = stdin.write_all(text.as_bytes());
                })
                .and_then(|_| {
                    thread::Builder::new().spawn_scoped(scope, move || {
                        let mut said = String::new();
                        let read = stdout.take(ANSWER_BYTES_MAX).read_to_string(&mut said);
                        // Nobody waits for what comes too late.
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
            // One that has answered has ended or has nothing left to do; one that hangs must not keep the threads.
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

/// A part without what the program would take for phonemes, for the end of a breath or for another line.
fn bare(part: &str) -> String {
    let sign = |letter: char| {
        let kept = letter.is_alphanumeric()
            || "'’-.,:%&+/°€£$\u{300}\u{301}\u{302}\u{303}\u{308}\u{327}".contains(letter);
        if kept || is_mark(letter) { letter } else { ' ' }
    };
    part.chars().map(sign).collect::<String>().trim_matches(['.', ',', ':', ' ']).to_owned()
}

/// Marks and vowel signs that belong to the letter before them, which scripts such as Devanagari write words with.
fn is_mark(letter: char) -> bool {
    matches!(letter, '\u{900}'..='\u{dff}' | '\u{5b0}'..='\u{5c7}' | '\u{610}'..='\u{65f}' | '\u{e30}'..='\u{e4e}')
}

/// A line without `(en)`, which says that a word is said as in another language.
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

    /// Whoever makes programs and runs them does it alone: a child of another test would hold a program open for writing.
    pub(in crate::text) fn alone() -> MutexGuard<'static, ()> {
        static ONE: Mutex<()> = Mutex::new(());
        ONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A program that does this.
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
        // Where lines do not come apart they are asked for one by one.
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
        // It does not read, and does not keep who writes.
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
