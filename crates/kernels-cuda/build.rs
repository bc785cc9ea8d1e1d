//! Packs the kernels for `src/driver/module.rs`: `ptx/kernels.ptx`, which is text of some MB, and `ptx/hopper.ptx`. In
//! a release build with ptxas, or if `HANZO_ENGINE_CUBINS` asks for it, also packs the machine code that ptxas makes
//! of them, so that no driver has to compile. Nothing of CUDA is needed otherwise.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io, thread};

/// Architectures with machine code. Code for one with an `a` runs on that one alone; other code also runs on later
/// ones of the same major number.
const ARCHS: [&str; 6] = ["80", "86", "89", "90a", "100a", "120a"];
/// Architecture of `ptx/hopper.ptx`.
const HOPPER: &str = "90a";
/// Environment variable that selects architectures: their names, separated by commas, or `all`, or `none`. Unset: all
/// in a release build with ptxas.
const ASKED: &str = "HANZO_ENGINE_CUBINS";
/// Environment variable with the folder of CUDA's compilers, if they are not in `PATH`.
const CUDA: &str = "CUDA_HOME";
/// First version of ptxas that knows all architectures.
const PTXAS_MIN: (u32, u32) = (12, 8);

#[allow(unreachable_pub)] // The crate shows what it has.
#[path = "src/driver/early.rs"]
mod early;
#[path = "src/driver/registers.rs"]
mod registers;

use registers::{To, rewritten};

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let sources = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("ptx");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-env-changed={ASKED}");
    println!("cargo:rerun-if-env-changed={CUDA}");
    for name in ["kernels", "hopper"] {
        let ptx = sources.join(format!("{name}.ptx"));
        println!("cargo:rerun-if-changed={}", ptx.display());
        pack(distances(&fs::read_to_string(&ptx)?)?.as_bytes(), &out.join(format!("{name}.ptx.deflated")))?;
    }
    let (archs, ptxas) = match env::var(ASKED) {
        Ok(words) => {
            let archs = asked(&words)?;
            let ptxas = if archs.is_empty() { None } else { Some(ptxas()?) };
            (archs, ptxas)
        }
        Err(_) => found()?,
    };
    if let Some(ptxas) = ptxas {
        // Each takes the compiler half a minute.
        thread::scope(|scope| {
            let (ptxas, sources, out) = (&ptxas, &sources, &out);
            let begin = |(name, arch)| scope.spawn(move || compile(ptxas, sources, name, arch, out));
            let running: Vec<_> = modules(&archs).map(begin).collect();
            running.into_iter().try_for_each(|one| one.join().expect("a compiler's thread does not panic"))
        })?;
    }
    for of in ["kernels", "hopper"] {
        let mut list = String::from("&[");
        for (_, arch) in modules(&archs).filter(|(name, _)| *name == of) {
            let file = out.join(format!("{of}.sm_{arch}.deflated"));
            write!(list, "({arch:?}, include_bytes!({file:?}).as_slice()),")?;
        }
        fs::write(out.join(format!("{of}.cubins.rs")), list + "]")?;
    }
    Ok(())
}

/// Modules to compile, each for an architecture.
fn modules<'a>(archs: &'a [&'static str]) -> impl Iterator<Item = (&'static str, &'static str)> + 'a {
    let hopper = archs.iter().filter(|arch| **arch == HOPPER).map(|&arch| ("hopper", arch));
    archs.iter().map(|&arch| ("kernels", arch)).chain(hopper)
}

fn pack(bytes: &[u8], to: &Path) -> io::Result<()> {
    fs::write(to, miniz_oxide::deflate::compress_to_vec(bytes, 9))
}

/// A module as `src/driver/module.rs` unpacks it.
fn distances(module: &str) -> Result<String, Failure> {
    let distances = rewritten(module, To::Distances);
    match rewritten(&distances, To::Numbers) == module {
        true => Ok(distances),
        false => Err("src/driver/registers.rs does not give this PTX back as it was".into()),
    }
}

/// Requested architectures.
fn asked(words: &str) -> Result<Vec<&'static str>, Failure> {
    match words.trim() {
        "all" => return Ok(ARCHS.to_vec()),
        "none" => return Ok(Vec::new()),
        _ => {}
    }
    let words = || words.split(',').map(str::trim).filter(|word| !word.is_empty());
    if let Some(word) = words().find(|word| !ARCHS.contains(word)) {
        let known = ARCHS.join(",");
        return Err(format!(
            "{ASKED} has {word:?}: it names architectures of cards, such as {known}, with commas between, or is `all` or `none`"
        )
        .into());
    }
    Ok(ARCHS.into_iter().filter(|arch| words().any(|word| word == *arch)).collect())
}

/// Default architectures of a release: all, if there is a recent ptxas. Each takes half a minute of processor time,
/// which other builds save.
fn found() -> Result<(Vec<&'static str>, Option<PathBuf>), Failure> {
    let is_there = || Command::new(program()).arg("--version").output().is_ok();
    if env::var("PROFILE")? != "release" || !is_there() {
        return Ok((Vec::new(), None));
    }
    match ptxas() {
        Ok(ptxas) => Ok((ARCHS.to_vec(), Some(ptxas))),
        Err(why) => {
            println!(
                "cargo:warning=no machine code for cards, whose drivers compile the kernels then: {why}"
            );
            Ok((Vec::new(), None))
        }
    }
}

fn program() -> PathBuf {
    env::var_os(CUDA).map_or("ptxas".into(), |cuda| Path::new(&cuda).join("bin/ptxas"))
}

/// Path of ptxas, which must be recent enough.
fn ptxas() -> Result<PathBuf, Failure> {
    let program = program();
    let needed = format!(
        "Machine code is made by ptxas of CUDA {}.{} or newer: name its folder in {CUDA}, or have none with {ASKED}=none",
        PTXAS_MIN.0, PTXAS_MIN.1
    );
    let name = program.display();
    let said = Command::new(&program)
        .arg("--version")
        .output()
        .map_err(|error| format!("{name} does not start: {error}. {needed}"))?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let release = said.split_once("release ").and_then(|(_, rest)| {
        let (major, rest) = rest.split_once('.')?;
        let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    });
    match release {
        Some(release) if release >= PTXAS_MIN => Ok(program),
        Some((major, minor)) => Err(format!("{name} is of CUDA {major}.{minor}. {needed}").into()),
        None => Err(format!("{name} does not say its release. {needed}").into()),
    }
}

/// Compiles machine code, and packs it.
fn compile(ptxas: &Path, sources: &Path, name: &str, arch: &str, out: &Path) -> Result<(), Failure> {
    let ptx = out.join(format!("{name}.sm_{arch}.ptx"));
    let number: i32 = arch.trim_end_matches('a').parse()?;
    let module = fs::read_to_string(sources.join(format!("{name}.ptx")))?;
    let capability = early::ComputeCapability { major: number / 10, minor: number % 10 };
    fs::write(&ptx, early::text_for(capability, &module))?;
    let cubin = out.join(format!("{name}.sm_{arch}.cubin"));
    let output =
        Command::new(ptxas).arg(format!("-arch=sm_{arch}")).arg(ptx).arg("-o").arg(&cubin).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{} makes no machine code for sm_{arch}: {said}", ptxas.display()).into());
    }
    pack(&fs::read(cubin)?, &out.join(format!("{name}.sm_{arch}.deflated")))?;
    Ok(())
}
