//! Compilation of sources to a library by the system's C++ compiler, once for each content.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::{env, fs, thread};

/// Sources to compile: files by name, of which some are compiled separately and include the others.
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

/// File name of the library. A program that searches the library's folder first loads it instead of the driver's.
const LIBRARY: &str = "libcuda.so.1";

/// Compiler flags. The code is for this machine alone. Products are added by `fmaf` or not at all, as the kernels
/// specify and a GPU would.
const FLAGS: [&str; 9] = [
    "-std=c++17",
    "-O2",
    "-march=native",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wno-unknown-pragmas",
    "-fPIC",
    // Libraries of several sources are loaded together; their symbols must stay separate.
    "-fvisibility=hidden",
    "-pthread",
];

/// Flags for counting. As in ThreadSanitizer, each read and write of memory by a kernel is a call, which `count.cpp`
/// implements instead.
const COUNTING: [&str; 3] = ["-DEMULATOR_COUNTS", "-O1", "-fsanitize=thread"];

impl Default for Sources {
    /// The kernels without changes.
    fn default() -> Sources {
        let files = hanzo_engine_kernels_cuda::SOURCES.iter().chain(&EMULATOR);
        let files: BTreeMap<_, _> = files.map(|&(name, text)| (name, text.to_owned())).collect();
        let kernels = included(&files["kernels.cu"]).map(str::to_owned).collect();
        Sources { files, kernels, flags: Vec::new(), counts: false }
    }
}

/// Fault to plant: a file, words in it, and their replacement.
pub type Fault = (&'static str, &'static str, &'static str);

/// The part of these words that is replaced, and an expression or statement that chooses the replacement by the
/// fault's number at launch.
fn planted(words: &str, instead: &str, number: usize) -> (Range<usize>, String) {
    let same = |(a, b): &(u8, u8)| a == b;
    let is_end = |byte: u8| matches!(byte, b';' | b'{' | b'}');
    let behind_ends = |text: &str| text.bytes().rposition(is_end).map_or(0, |at| at + 1);
    let is_whole = |text: &str| text.matches('{').count() == text.matches('}').count();
    // Whole statements before and after it are unchanged.
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

/// Files that a source includes.
fn included(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'))
}

/// Number of running compilers, over all threads.
static COMPILERS: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// Permission to run a compiler, returned when dropped. Also after a failure, so that nobody waits for it.
struct CompilerPermit;

impl CompilerPermit {
    /// Waits until fewer compilers run than there are processors.
    fn begin() -> CompilerPermit {
        let (running, ended) = &COMPILERS;
        let most = thread::available_parallelism().map_or(1, usize::from);
        let lock = running.lock().unwrap_or_else(PoisonError::into_inner);
        let lock = ended.wait_while(lock, |running| *running >= most);
        *lock.unwrap_or_else(PoisonError::into_inner) += 1;
        CompilerPermit
    }
}

impl Drop for CompilerPermit {
    fn drop(&mut self) {
        let (running, ended) = &COMPILERS;
        *running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ended.notify_one();
    }
}

/// Makes a file of this name if it does not exist. Threads that need the same file wait for the first. Of two
/// processes, the last to finish keeps its own.
fn make_once(file: &Path, make: impl FnOnce(&Path)) {
    static TURNS: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
    let turn =
        TURNS.lock().unwrap_or_else(PoisonError::into_inner).entry(file.to_owned()).or_default().clone();
    let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
    if !file.exists() {
        let own = file.with_extension(std::process::id().to_string());
        make(&own);
        fs::rename(&own, file)
            .unwrap_or_else(|error| panic!("{} cannot be written: {error}", file.display()));
    }
}

fn write(file: &Path, text: &str) {
    fs::write(file, text).unwrap_or_else(|error| panic!("{} cannot be written: {error}", file.display()));
}

fn create_folder(folder: &Path) {
    fs::create_dir_all(folder)
        .unwrap_or_else(|error| panic!("{} cannot be created: {error}", folder.display()));
}

fn key(of: impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

impl Sources {
    /// The same sources with one place of a file changed.
    ///
    /// # Panics
    /// If the file does not contain those words exactly once: the test is out of date.
    pub fn with(mut self, file: &str, words: &str, instead: &str) -> Sources {
        let (text, first) = self.find(file, words);
        text.replace_range(first..first + words.len(), instead);
        self
    }

    /// A file, and the position of these words, which occur once.
    fn find(&mut self, file: &str, words: &str) -> (&mut String, usize) {
        let Some(text) = self.files.get_mut(file) else { panic!("no source file is named {file}") };
        let mut places = text.match_indices(words).map(|(at, _)| at);
        let (Some(first), None) = (places.next(), places.next()) else {
            panic!("{file} does not contain {words:?} exactly once: the test is out of date")
        };
        (text, first)
    }

    /// The same sources with planted faults: places that have other words in a launch that asks for the fault by
    /// number ([`crate::EmulatedDevice::planted`]), all in one compilation. Words are an expression, or, if they end with a
    /// semicolon, statements that declare nothing. Unchanged statements may stand before and after so that the place
    /// is found.
    ///
    /// # Panics
    /// As [`Sources::with`], and if two faults are at one place.
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
            let text = self.files.get_mut(file).expect("a file that was found is gone");
            for (place, instead) in places.into_iter().rev() {
                text.replace_range(place, &instead);
            }
        }
        self
    }

    /// The same sources with the kernels for compute capability 9.0.
    pub fn with_wide(mut self) -> Sources {
        self.kernels.extend(included(&self.files["hopper.cu"]).map(str::to_owned));
        self
    }

    /// The same sources with the kernels of these files alone.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn only(mut self, files: &[&str]) -> Sources {
        let there = |file: &&str| {
            assert!(self.files.contains_key(file), "no source file is named {file}");
            (*file).to_owned()
        };
        self.kernels = files.iter().map(there).collect();
        self
    }

    /// The same sources with an additional compiler flag.
    pub fn with_flag(mut self, flag: &str) -> Sources {
        self.flags.push(flag.to_owned());
        self
    }

    /// The same sources with kernels that count their reads and writes.
    pub(crate) fn counting(self) -> Sources {
        Sources { counts: true, ..self }
    }

    /// Compiles the library and returns its path: the kernels, and a driver whose launches run them
    /// (`cpp/driver.cpp`). Object files are cached by content, file by file, so changing some kernels recompiles only
    /// those.
    ///
    /// # Panics
    /// If it cannot be compiled, with the compiler's message.
    pub fn compile(&self) -> PathBuf {
        let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let kept = target().join("cuda-emulator");
        let counter = self.counts.then_some("count.cpp");
        // The largest come first; others are compiled beside them.
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
        create_folder(&sources);
        for (name, text) in &self.files {
            let file = sources.join(name);
            // Another thread's compiler may be reading it.
            make_once(&file, |own| write(own, text));
        }
        thread::scope(|scope| {
            for (unit, object) in units.iter().zip(&objects) {
                scope.spawn(|| {
                    make_once(object, |own| {
                        let flags = self.flags_of(unit).into_iter();
                        let out = ["-x", "c++", "-c", unit, "-o"].map(str::to_owned);
                        let _running = CompilerPermit::begin();
                        run(&compiler, &sources, flags.chain(out), own);
                    });
                });
            }
        });
        create_folder(&folder);
        make_once(&library, |own| {
            let flags = FLAGS.into_iter().map(str::to_owned).chain(self.flags.iter().cloned());
            let objects = objects.iter().map(|object| object.to_string_lossy().into_owned());
            let out = ["-shared".to_owned()].into_iter().chain(objects).chain(["-o".to_owned()]);
            run(&compiler, &sources, flags.chain(out), own);
        });
        library
    }

    /// A unit, and everything that it includes.
    fn read_by<'a>(&'a self, unit: &'a str) -> impl Iterator<Item = (&'a str, &'a String)> {
        let (mut found, mut next) = (BTreeSet::new(), vec![unit]);
        while let Some(name) = next.pop() {
            if let Some(text) = self.files.get(name).filter(|_| found.insert(name)) {
                next.extend(included(text));
            }
        }
        found.into_iter().map(|name| (name, &self.files[name]))
    }

    /// Compiler flags for a unit. The driver runs no kernel code, and the emulator is always optimised, unless it is
    /// instrumented.
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

/// Runs the compiler to make a file.
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

/// Folder that this program was built in.
fn target() -> PathBuf {
    let program = env::current_exe().expect("the path of this program is unknown");
    let is_target = |folder: &&Path| folder.join("CACHEDIR.TAG").exists();
    match program.ancestors().skip(1).find(is_target) {
        Some(target) => target.to_path_buf(),
        None => env::temp_dir(),
    }
}
