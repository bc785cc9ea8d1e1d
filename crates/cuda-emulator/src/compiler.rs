//! From sources to a library, by the system's C++ compiler, once for each content.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{env, fs};

/// What is compiled: files by name.
#[derive(Clone, Debug)]
pub struct Sources {
    files: BTreeMap<&'static str, String>,
    flags: Vec<String>,
}

/// The emulator's own files.
const EMULATOR: [(&str, &str); 4] = [
    ("emulator.hpp", include_str!("../cpp/emulator.hpp")),
    ("watch.hpp", include_str!("../cpp/watch.hpp")),
    ("emulator.cpp", include_str!("../cpp/emulator.cpp")),
    ("driver.cpp", include_str!("../cpp/driver.cpp")),
];

/// What is made of them: a program whose libraries are looked for in its folder finds it instead of the driver's.
const LIBRARY: &str = "libcuda.so.1";

/// The code is for this machine alone. Products are added by `fmaf` or not at all, as the kernels say and a card would.
const FLAGS: [&str; 10] = [
    "-std=c++17",
    "-O2",
    "-march=native",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wno-unknown-pragmas",
    "-shared",
    "-fPIC",
    // Libraries of several sources are loaded side by side: what one has must not become another's.
    "-fvisibility=hidden",
    "-pthread",
];

impl Default for Sources {
    /// The kernels as they are.
    fn default() -> Sources {
        let files = hanzo_engine_kernels_cuda::SOURCES.iter().chain(&EMULATOR);
        Sources { files: files.map(|&(name, text)| (name, text.to_owned())).collect(), flags: Vec::new() }
    }
}

impl Sources {
    /// With one place of a file changed.
    ///
    /// # Panics
    /// Where the file does not have those words exactly once: the test is out of date.
    pub fn with(mut self, file: &str, words: &str, instead: &str) -> Sources {
        let Some(text) = self.files.get_mut(file) else { panic!("there is no {file}") };
        assert_eq!(text.matches(words).count(), 1, "{file} has {words:?} once");
        *text = text.replace(words, instead);
        self
    }

    /// With the kernels of these files alone, which takes the compiler a fraction of the time.
    ///
    /// # Panics
    /// Where there is no such file.
    pub fn only(mut self, files: &[&str]) -> Sources {
        let include = |file: &&str| {
            assert!(self.files.contains_key(file), "there is no {file}");
            format!("#include \"{file}\"\n")
        };
        let kernels = files.iter().map(include).collect();
        self.files.insert("kernels.cu", kernels);
        self
    }

    /// With a flag more for the compiler.
    pub fn with_flag(mut self, flag: &str) -> Sources {
        self.flags.push(flag.to_owned());
        self
    }

    /// The library's path: the kernels, and a driver whose launches run them (`cpp/driver.cpp`). Tests that ask for the same one
    /// wait for the first.
    ///
    /// # Panics
    /// Where it cannot be compiled, with what the compiler says.
    pub fn compile(&self) -> PathBuf {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let mut hasher = DefaultHasher::new();
        (&self.files, &self.flags, FLAGS, &compiler).hash(&mut hasher);
        let folder = target().join("cuda-emulator").join(format!("{:016x}", hasher.finish()));
        let library = folder.join(LIBRARY);
        if !library.exists() {
            // Two processes may do this at once: each in a folder of its own, and the last to be renamed stays.
            let own = folder.with_extension(std::process::id().to_string());
            fs::create_dir_all(&own).expect("a folder below the target folder");
            for (name, text) in &self.files {
                fs::write(own.join(name), text).expect("a source below the target folder");
            }
            self.run(&compiler, &own);
            fs::create_dir_all(&folder).expect("a folder below the target folder");
            fs::rename(own.join(LIBRARY), &library).expect("the library's name is free or its own");
            fs::remove_dir_all(&own).expect("the folder was made above");
        }
        library
    }

    fn run(&self, compiler: &str, folder: &Path) {
        let output = Command::new(compiler)
            .args(FLAGS)
            .args(&self.flags)
            .args(["-x", "c++", "kernels.cu", "emulator.cpp", "driver.cpp", "-o", LIBRARY])
            .current_dir(folder)
            .output()
            .unwrap_or_else(|error| {
                panic!(
                    "NO C++ COMPILER: the CUDA kernels are tested by compiling them for this processor, and {compiler} did \
                     not start: {error}. Install g++ or clang++, or name one in CXX"
                )
            });
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler} does not compile the kernels for the emulator:\n{said}");
    }
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
