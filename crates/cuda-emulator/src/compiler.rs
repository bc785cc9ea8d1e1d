//! From sources to a library, by the system's C++ compiler, once for each content.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::{env, fs, thread};

/// What is compiled: files by name, of which some are compiled by themselves and include the others.
#[derive(Clone, Debug)]
pub struct Sources {
    files: BTreeMap<&'static str, String>,
    kernels: Vec<String>,
    flags: Vec<String>,
    counts: bool,
}

/// The emulator's own files.
const EMULATOR: [(&str, &str); 9] = [
    ("emulator.hpp", include_str!("../cpp/emulator.hpp")),
    ("cores.hpp", include_str!("../cpp/cores.hpp")),
    ("hopper.hpp", include_str!("../cpp/hopper.hpp")),
    ("watch.hpp", include_str!("../cpp/watch.hpp")),
    ("emulator.cpp", include_str!("../cpp/emulator.cpp")),
    ("driver.cpp", include_str!("../cpp/driver.cpp")),
    ("streams.hpp", include_str!("../cpp/streams.hpp")),
    ("cuda_types.hpp", include_str!("../cpp/cuda_types.hpp")),
    ("count.cpp", include_str!("../cpp/count.cpp")),
];

/// What is made of them: a program whose libraries are looked for in its folder finds it instead of the driver's.
const LIBRARY: &str = "libcuda.so.1";

/// The code is for this machine alone. Products are added by `fmaf` or not at all, as the kernels say and a card would.
const FLAGS: [&str; 9] = [
    "-std=c++17",
    "-O2",
    "-march=native",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wno-unknown-pragmas",
    "-fPIC",
    // Libraries of several sources are loaded side by side: what one has must not become another's.
    "-fvisibility=hidden",
    "-pthread",
];

/// As ThreadSanitizer has it, each read and write of memory that a kernel does is a call, which `count.cpp` answers in its place.
const COUNTING: [&str; 3] = ["-DEMULATOR_COUNTS", "-O1", "-fsanitize=thread"];

impl Default for Sources {
    /// The kernels as they are.
    fn default() -> Sources {
        let files = hanzo_engine_kernels_cuda::SOURCES.iter().chain(&EMULATOR);
        let files: BTreeMap<_, _> = files.map(|&(name, text)| (name, text.to_owned())).collect();
        let kernels = included(&files["kernels.cu"]).map(str::to_owned).collect();
        Sources { files, kernels, flags: Vec::new(), counts: false }
    }
}

/// A file, words of it, and others instead.
pub type Fault = (&'static str, &'static str, &'static str);

/// What of these words is said otherwise, and what stands there for a launch to choose by the fault's number.
fn planted(words: &str, instead: &str, number: usize) -> (Range<usize>, String) {
    let same = |(a, b): &(u8, u8)| a == b;
    let is_end = |byte: u8| matches!(byte, b';' | b'{' | b'}');
    let behind_ends = |text: &str| text.bytes().rposition(is_end).map_or(0, |at| at + 1);
    let is_whole = |text: &str| text.matches('{').count() == text.matches('}').count();
    // Whole statements before and behind are as they were.
    let before = words.bytes().zip(instead.bytes()).take_while(same).count();
    let mut start = behind_ends(&words[..before]);
    let left = words.len().min(instead.len()) - start;
    let behind = words.bytes().rev().zip(instead.bytes().rev()).take(left).take_while(same).count();
    let first = words.len() - behind;
    let is_ended = words[start..first].trim_end().bytes().last().is_some_and(is_end);
    let next = || words[first..].bytes().position(is_end).map_or(words.len(), |at| first + at + 1);
    let end = if is_ended { first } else { next() };
    while start > 0 && !is_whole(&words[start..end]) {
        start = behind_ends(&words[..start - 1]);
    }
    let (own, other) = (&words[start..end], &instead[start..instead.len() - (words.len() - end)]);
    if own.trim_end().ends_with(';') {
        return (start..end, format!("{{ if (PLANTED({number})) {{ {other} }} else {{ {own} }} }}"));
    }
    (0..words.len(), format!("(PLANTED({number}) ? ({instead}) : ({words}))"))
}

/// The files that a source includes.
fn included(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'))
}

/// Compilers that run, of all threads' asking.
static COMPILERS: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// One of them, until it is dropped: also when it has failed, so that nobody waits for it.
struct Running;

impl Running {
    /// When there are not as many as processors.
    fn begin() -> Running {
        let (running, ended) = &COMPILERS;
        let most = thread::available_parallelism().map_or(1, usize::from);
        let lock = running.lock().unwrap_or_else(PoisonError::into_inner);
        let lock = ended.wait_while(lock, |running| *running >= most);
        *lock.unwrap_or_else(PoisonError::into_inner) += 1;
        Running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let (running, ended) = &COMPILERS;
        *running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ended.notify_one();
    }
}

/// Makes a file of this name, if nobody has: threads that ask for the same one wait for the first, and of two processes, the last to be done
/// has its own stay.
fn make_once(file: &Path, make: impl FnOnce(&Path)) {
    static TURNS: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
    let turn =
        TURNS.lock().unwrap_or_else(PoisonError::into_inner).entry(file.to_owned()).or_default().clone();
    let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
    if !file.exists() {
        let own = file.with_extension(std::process::id().to_string());
        make(&own);
        fs::rename(&own, file).expect("the name is free or its own");
    }
}

fn key(of: impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

impl Sources {
    /// With one place of a file changed.
    ///
    /// # Panics
    /// Where the file does not have those words exactly once: the test is out of date.
    pub fn with(mut self, file: &str, words: &str, instead: &str) -> Sources {
        let (text, first) = self.find(file, words);
        text.replace_range(first..first + words.len(), instead);
        self
    }

    /// A file, and where it has these words, once.
    fn find(&mut self, file: &str, words: &str) -> (&mut String, usize) {
        let Some(text) = self.files.get_mut(file) else { panic!("there is no {file}") };
        let mut places = text.match_indices(words).map(|(at, _)| at);
        let (Some(first), None) = (places.next(), places.next()) else {
            panic!("{file} must have {words:?} once")
        };
        (text, first)
    }

    /// With places that have other words in a launch that asks for it ([`crate::Emulated::planted`]), which is the first of them, the second and
    /// so on: all of them in one compilation. Words are an expression; or, where they end with a semicolon, statements that declare nothing, of
    /// which those that stay may stand before and behind so that the place is found.
    ///
    /// # Panics
    /// As [`Sources::with`], and where two are at one place.
    pub fn with_planted(mut self, faults: &[Fault]) -> Sources {
        let mut places: BTreeMap<&str, Vec<(Range<usize>, String)>> = BTreeMap::new();
        for (number, &(file, words, instead)) in faults.iter().enumerate() {
            let (own, instead) = planted(words, instead, number + 1);
            let first = self.find(file, words).1 + own.start;
            places.entry(file).or_default().push((first..first + own.len(), instead));
        }
        for (file, mut places) in places {
            places.sort_by_key(|(place, _)| place.start);
            let apart = places.windows(2).all(|two| two[0].0.end <= two[1].0.start);
            assert!(apart, "two faults of {file} are at one place: {places:?}");
            let text = self.files.get_mut(file).expect("it was found");
            for (place, instead) in places.into_iter().rev() {
                text.replace_range(place, &instead);
            }
        }
        self
    }

    /// With the kernels for compute capability 9.0 too.
    pub fn with_wide(mut self) -> Sources {
        self.kernels.extend(included(&self.files["hopper.cu"]).map(str::to_owned));
        self
    }

    /// With the kernels of these files alone.
    ///
    /// # Panics
    /// Where there is no such file.
    pub fn only(mut self, files: &[&str]) -> Sources {
        let there = |file: &&str| {
            assert!(self.files.contains_key(file), "there is no {file}");
            (*file).to_owned()
        };
        self.kernels = files.iter().map(there).collect();
        self
    }

    /// With a flag more for the compiler.
    pub fn with_flag(mut self, flag: &str) -> Sources {
        self.flags.push(flag.to_owned());
        self
    }

    /// With kernels that count what they read and write.
    pub(crate) fn counting(self) -> Sources {
        Sources { counts: true, ..self }
    }

    /// The library's path: the kernels, and a driver whose launches run them (`cpp/driver.cpp`). What is compiled is kept by what it is
    /// made of, file by file, so that kernels of which some were changed take the compiler as long as these.
    ///
    /// # Panics
    /// Where it cannot be compiled, with what the compiler says.
    pub fn compile(&self) -> PathBuf {
        let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let kept = target().join("cuda-emulator");
        let counter = self.counts.then_some("count.cpp");
        // The largest come first: others are compiled beside them.
        let mut units: Vec<&str> = self.kernels.iter().map(String::as_str).collect();
        units.sort_by_key(|unit| {
            std::cmp::Reverse(self.read_by(unit).map(|(_, text)| text.len()).sum::<usize>())
        });
        units.extend(["emulator.cpp", "driver.cpp"].into_iter().chain(counter));
        let objects: Vec<PathBuf> = units
            .iter()
            .map(|unit| {
                let files: Vec<_> = self.read_by(unit).collect();
                kept.join(format!("{}.o", key((unit, files, self.flags_of(unit), &compiler))))
            })
            .collect();
        let folder = kept.join(key((&objects, &self.flags, &compiler)));
        let library = folder.join(LIBRARY);
        if library.exists() {
            return library;
        }
        let sources = kept.join(format!("{}.sources.{}", key(&self.files), std::process::id()));
        fs::create_dir_all(&sources).expect("a folder below the target folder");
        for (name, text) in &self.files {
            let file = sources.join(name);
            // Another thread may have the compiler read it.
            make_once(&file, |own| fs::write(own, text).expect("a source below the target folder"));
        }
        thread::scope(|scope| {
            for (unit, object) in units.iter().zip(&objects) {
                scope.spawn(|| {
                    make_once(object, |own| {
                        let flags = self.flags_of(unit).into_iter();
                        let out = ["-x", "c++", "-c", unit, "-o"].map(str::to_owned);
                        let _running = Running::begin();
                        run(&compiler, &sources, flags.chain(out), own);
                    });
                });
            }
        });
        fs::create_dir_all(&folder).expect("a folder below the target folder");
        make_once(&library, |own| {
            let flags = FLAGS.into_iter().map(str::to_owned).chain(self.flags.iter().cloned());
            let objects = objects.iter().map(|object| object.to_string_lossy().into_owned());
            let out = ["-shared".to_owned()].into_iter().chain(objects).chain(["-o".to_owned()]);
            run(&compiler, &sources, flags.chain(out), own);
        });
        library
    }

    /// A unit, and all that it includes.
    fn read_by<'a>(&'a self, unit: &'a str) -> impl Iterator<Item = (&'a str, &'a String)> {
        let (mut found, mut next) = (BTreeSet::new(), vec![unit]);
        while let Some(name) = next.pop() {
            if let Some(text) = self.files.get(name).filter(|_| found.insert(name)) {
                next.extend(included(text));
            }
        }
        found.into_iter().map(|name| (name, &self.files[name]))
    }

    /// The compiler's flags for a unit. The driver runs no kernel's code, and what runs kernels is as fast as it can be whatever they are: but
    /// for what is watched.
    fn flags_of(&self, unit: &str) -> Vec<String> {
        let is_watched = self.flags.iter().any(|flag| flag.starts_with("-fsanitize"));
        let is_own = |flag: &&String| match unit {
            "driver.cpp" => false,
            "emulator.cpp" => is_watched || !flag.starts_with("-O"),
            _ => true,
        };
        let counting = match (self.counts, unit) {
            (true, unit) if unit.ends_with(".cu") => &COUNTING[..],
            (true, "emulator.cpp" | "count.cpp") => &COUNTING[..1],
            _ => &[],
        };
        let own = self.flags.iter().filter(is_own).cloned();
        FLAGS.iter().chain(counting).map(|&flag| flag.to_owned()).chain(own).collect()
    }
}

/// Runs the compiler, which makes a file.
fn run(compiler: &str, folder: &Path, arguments: impl Iterator<Item = String>, out: &Path) {
    let output = Command::new(compiler).args(arguments).arg(out).current_dir(folder).output().unwrap_or_else(|error| {
        panic!(
            "NO C++ COMPILER: the CUDA kernels are tested by compiling them for this processor, and {compiler} did \
             not start: {error}. Install g++ or clang++, or name one in CXX"
        )
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler} does not compile the kernels for the emulator:\n{said}");
}

/// Where this program was built.
fn target() -> PathBuf {
    let program = env::current_exe().expect("a program knows its path");
    let is_target = |folder: &&Path| folder.join("CACHEDIR.TAG").exists();
    match program.ancestors().skip(1).find(is_target) {
        Some(target) => target.to_path_buf(),
        None => env::temp_dir(),
    }
}
