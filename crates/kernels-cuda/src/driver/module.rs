//! Loading of the kernels: as machine code, if the program has some that runs on the GPU (`build.rs` makes it if it
//! can), or else as PTX, which the driver compiles.

use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::ptr;

use super::api::Api;
use super::early::{ComputeCapability, text_for};
use super::registers::{To, rewritten};
use crate::device::DeviceError;

/// Machine code for an architecture such as `90a`, deflated.
pub type Cubin = (&'static str, &'static [u8]);

/// Machine code in this program; none if it was built without ptxas or not as a release.
pub const CUBINS: &[Cubin] = include!(concat!(env!("OUT_DIR"), "/kernels.cubins.rs"));
const HOPPER_CUBINS: &[Cubin] = include!(concat!(env!("OUT_DIR"), "/hopper.cubins.rs"));
/// The compute capability with additional warpgroup kernels.
pub(super) const HOPPER: ComputeCapability = ComputeCapability { major: 9, minor: 0 };

/// Option with a buffer for the messages of the driver's compiler. `COMPILER_WORDS_BYTES` gives its size.
const COMPILER_WORDS: i32 = 5;
const COMPILER_WORDS_BYTES: i32 = 6;
const COMPILER_WORDS_MAX: usize = 4 << 10;

/// Form in which the kernels were loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// Machine code for an architecture.
    MachineCode(&'static str),
    /// PTX, with the reason why machine code for the GPU, if there was any, was not used.
    Ptx(Option<String>),
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::MachineCode(arch) => write!(f, "machine code for sm_{arch}"),
            Form::Ptx(None) => f.write_str("PTX, compiled by the driver"),
            Form::Ptx(Some(why)) => write!(f, "PTX, compiled by the driver: {why}"),
        }
    }
}

/// PTX of the kernels, before it is adapted to a GPU. The driver compiles it when it is loaded and caches the result.
/// The program holds it compressed to a tenth, because few programs run on a GPU.
pub fn ptx() -> Vec<u8> {
    text(include_bytes!(concat!(env!("OUT_DIR"), "/kernels.ptx.deflated")))
}

/// PTX of the kernels for compute capability 9.0 alone.
pub fn hopper_ptx() -> Vec<u8> {
    text(include_bytes!(concat!(env!("OUT_DIR"), "/hopper.ptx.deflated")))
}

/// A module's text, whose registers the build wrote as distances.
fn text(packed: &[u8]) -> Vec<u8> {
    let distances = String::from_utf8(inflated(packed)).expect("PTX is ASCII");
    rewritten(&distances, To::Numbers).into_bytes()
}

fn inflated(packed: &[u8]) -> Vec<u8> {
    miniz_oxide::inflate::decompress_to_vec(packed).expect("`build.rs` deflated it")
}

/// Best fitting machine code for a compute capability. Code for an architecture with an `a` runs on that one alone;
/// other code runs on those of the same major number and no smaller minor number
/// (docs.nvidia.com/cuda/cuda-c-programming-guide, binary compatibility).
pub fn fitting(capability: ComputeCapability, cubins: &[Cubin]) -> Option<Cubin> {
    let minor_of = |arch: &str| {
        let digits = arch.trim_end_matches('a');
        let number: i32 = digits.parse().ok()?;
        let (major, minor) = (number / 10, number % 10);
        let runs = if digits == arch { minor <= capability.minor } else { minor == capability.minor };
        (major == capability.major && runs).then_some(minor)
    };
    let fit = cubins.iter().filter_map(|&cubin| Some((minor_of(cubin.0)?, cubin)));
    fit.max_by_key(|&(minor, (arch, _))| (minor, arch.ends_with('a'))).map(|(_, cubin)| cubin)
}

/// Loads the kernels into the current context, in the best available form.
pub(super) fn load(
    api: &Api,
    capability: ComputeCapability,
    cubins: &[Cubin],
) -> Result<(*mut c_void, Form), DeviceError> {
    load_of(api, capability, cubins, ptx)
}

/// Loads the kernels for compute capability 9.0.
pub(super) fn load_hopper(api: &Api) -> Result<*mut c_void, DeviceError> {
    load_of(api, HOPPER, HOPPER_CUBINS, hopper_ptx).map(|(module, _)| module)
}

fn load_of(
    api: &Api,
    capability: ComputeCapability,
    cubins: &[Cubin],
    ptx: fn() -> Vec<u8>,
) -> Result<(*mut c_void, Form), DeviceError> {
    let mut why = None;
    if let Some((arch, packed)) = fitting(capability, cubins) {
        match load_image(api, &inflated(packed), "cuModuleLoadDataEx") {
            Ok(module) => return Ok((module, Form::MachineCode(arch))),
            Err(error) => why = Some(format!("it does not take the machine code for sm_{arch}: {error}")),
        }
    }
    let text = String::from_utf8(ptx()).expect("PTX is text");
    let text = CString::new(text_for(capability, &text)).expect("PTX is text without a zero");
    let module = load_image(api, text.as_bytes_with_nul(), "cuModuleLoadDataEx, which compiles the kernels")?;
    Ok((module, Form::Ptx(why)))
}

/// Loads an image: machine code, which contains its length, or PTX that ends with a zero byte.
fn load_image(api: &Api, image: &[u8], call: &str) -> Result<*mut c_void, DeviceError> {
    let mut module = ptr::null_mut();
    let mut words = vec![0u8; COMPILER_WORDS_MAX];
    let mut options = [COMPILER_WORDS, COMPILER_WORDS_BYTES];
    // The second value is the number itself, as a pointer.
    let mut values = [words.as_mut_ptr().cast(), ptr::without_provenance_mut(COMPILER_WORDS_MAX - 1)];
    // SAFETY: where the module goes, an image as the line above has it, and two options, of which the first is room of
    // as many bytes as the second says.
    let loaded = unsafe {
        (api.cuModuleLoadDataEx)(
            &mut module,
            image.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    api.check(call, loaded).map_err(|error| {
        let words = CStr::from_bytes_until_nul(&words).map_or_else(|_| "".into(), CStr::to_string_lossy);
        let words: Vec<&str> = words.split_whitespace().collect();
        DeviceError::Failed(format!("{error} {}", words.join(" ")).trim_end().to_owned())
    })?;
    Ok(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_is_the_closest_that_runs() {
        let all = ["80", "86", "89", "90a", "100a", "120a"].map(|arch| (arch, [].as_slice()));
        let of = |major, minor| fitting(ComputeCapability { major, minor }, &all).map(|(arch, _)| arch);
        assert_eq!(of(8, 0), Some("80"));
        assert_eq!(of(8, 6), Some("86"));
        // Orin, without separate machine code.
        assert_eq!(of(8, 7), Some("86"));
        assert_eq!(of(8, 9), Some("89"));
        assert_eq!(of(9, 0), Some("90a"));
        assert_eq!(of(10, 0), Some("100a"));
        assert_eq!(of(12, 0), Some("120a"));
        // Code with an `a` runs nowhere else, and no code runs on another generation.
        let others = [(7, 5), (9, 1), (10, 3), (11, 0), (12, 1), (13, 0)];
        assert_eq!(others.map(|(major, minor)| of(major, minor)), [None; 6]);
        let few = [("86", [].as_slice())];
        let ampere = ComputeCapability { major: 8, minor: 0 };
        assert_eq!(fitting(ampere, &few), None);
        assert_eq!(fitting(ComputeCapability { major: 8, minor: 9 }, &few).map(|(arch, _)| arch), Some("86"));
        assert_eq!(fitting(ampere, &[]), None);
    }
}
