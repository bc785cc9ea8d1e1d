//! Loads the kernels' shared library, compiled for the CPU, and runs kernels from it.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use hanzo_engine_kernels_cuda::{Kernel, Launch};

/// Look-up of a kernel by name; it writes the size of the parameters and the largest number of threads.
type KernelLookup = unsafe extern "C" fn(*const c_char, *mut usize, *mut c_uint) -> *const c_void;
/// Start of counting in ranges of addresses.
type CountStart = unsafe extern "C" fn(*const u64, usize);
/// Reader of the four counts.
type CountReader = unsafe extern "C" fn(*mut u64);
/// Launch of a kernel; it returns an error's text or null.
type KernelLaunch = unsafe extern "C" fn(
    *const c_void,
    *const c_void,
    *const c_uint,
    c_uint,
    usize,
    u64,
    c_uint,
) -> *const c_char;

/// Error of a library without count.cpp.
const NOT_COUNTING: &str = "the kernels were not compiled for counting";

/// Loaded library. The library is never unloaded: its threads may still run.
#[derive(Debug)]
pub(crate) struct Library {
    kernels: HashMap<Kernel, KernelEntry>,
    run: KernelLaunch,
    counter: Option<(CountStart, CountReader)>, // in kernels compiled for counting
}

#[derive(Clone, Copy, Debug)]
struct KernelEntry {
    kernel: *const c_void,
    threads_max: u32,
}

// SAFETY: the pointers stay valid, because the library is never unloaded, and any thread may call its functions.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    pub(crate) fn load(path: &Path) -> Arc<Library> {
        let name =
            CString::new(path.as_os_str().as_bytes()).expect("the path of the library contains a zero byte");
        // SAFETY: `Sources` compiled the library. Loading it runs its constructors, which register kernels.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: dlopen has failed, so there is a message. It is copied before another call replaces it.
            panic!("{}", unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy());
        }
        let symbol = |name: &CStr| {
            // SAFETY: the handle is open.
            let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
            assert!(!symbol.is_null(), "the library has no {name:?}, which emulator.cpp defines");
            symbol
        };
        // SAFETY: these are the functions' types in emulator.cpp.
        let find = unsafe { std::mem::transmute::<*mut c_void, KernelLookup>(symbol(c"emulator_kernel")) };
        // SAFETY: as above.
        let run =
            unsafe { std::mem::transmute::<*mut c_void, KernelLaunch>(symbol(c"emulator_launch_planted")) };
        let counts = [c"emulator_count", c"emulator_counted"].map(|name| {
            // SAFETY: as above; most libraries do not have them.
            unsafe { libc::dlsym(handle, name.as_ptr()) }
        });
        let counter = counts.iter().all(|symbol| !symbol.is_null()).then(|| {
            // SAFETY: these are the functions' types in count.cpp.
            unsafe {
                (
                    std::mem::transmute::<*mut c_void, CountStart>(counts[0]),
                    std::mem::transmute::<*mut c_void, CountReader>(counts[1]),
                )
            }
        });
        let mut kernels = HashMap::new();
        for &kernel in Kernel::ALL {
            let symbol = CString::new(kernel.symbol()).expect("the name of a kernel contains a zero byte");
            let (mut bytes, mut threads_max) = (0, 0);
            // SAFETY: the name ends with a zero, and `find` may write both numbers.
            let found = unsafe { find(symbol.as_ptr(), &mut bytes, &mut threads_max) };
            // A test may compile only some source files.
            if found.is_null() {
                continue;
            }
            assert_eq!(
                bytes,
                kernel.params_bytes(),
                "the parameters of {} have another size in params.cuh than here",
                kernel.symbol()
            );
            kernels.insert(kernel, KernelEntry { kernel: found, threads_max });
        }
        Arc::new(Library { kernels, run, counter })
    }

    /// Counts, from now on, bytes that launches read and write in these ranges, which are sorted.
    ///
    /// # Panics
    /// If kernels were not compiled for counting.
    pub(crate) fn count(&self, ranges: &[[u64; 2]]) {
        let (count, _) = self.counter.expect(NOT_COUNTING);
        // SAFETY: `ranges` has two numbers for each range. The function discards earlier counts.
        unsafe { count(ranges.as_ptr().cast(), ranges.len()) };
    }

    /// Bytes read, written, and touched before waiting for earlier kernels, each since the last call; and, since
    /// [`Library::count`], bytes both touched so and written: a race.
    pub(crate) fn counted(&self) -> [u64; 4] {
        let (_, counted) = self.counter.expect(NOT_COUNTING);
        let mut counts = [0; 4];
        // SAFETY: the function writes four numbers, for which `counts` has room.
        unsafe { counted(counts.as_mut_ptr()) };
        counts
    }

    /// True if the library contains this kernel.
    pub(crate) fn has(&self, kernel: Kernel) -> bool {
        self.kernels.contains_key(&kernel)
    }

    /// Runs a kernel to its end. `planted` is the number of a deliberate fault, 0 for none; `seed` orders the
    /// warps.
    ///
    /// # Safety
    /// As for `Device::launch`.
    pub(crate) unsafe fn launch(&self, launch: &Launch<'_>, seed: u64, planted: u32) -> Result<(), String> {
        let Some(&entry) = self.kernels.get(&launch.kernel) else {
            panic!("the library has no {}: its source file was not compiled", launch.kernel.symbol());
        };
        let grid = launch.grid;
        // Limits that a GPU enforces.
        if grid.threads > entry.threads_max
            || grid.shared_bytes > launch.kernel.shared_bytes_max()
            || grid.blocks[1].max(grid.blocks[2]) > 65_535
        {
            return Err(format!("{}: {grid:?} is more than a launch may ask for", launch.kernel.symbol()));
        }
        // Kernels get a copy that is aligned for their pointers.
        let params: Vec<u64> = launch
            .params
            .chunks(8)
            .map(|chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_ne_bytes(word)
            })
            .collect();
        // SAFETY: the kernel is from this library. The caller promises parameters of the size that it reads.
        let failure = unsafe {
            (self.run)(
                entry.kernel,
                params.as_ptr().cast(),
                grid.blocks.as_ptr(),
                grid.threads,
                grid.shared_bytes as usize,
                seed,
                planted,
            )
        };
        if failure.is_null() {
            return Ok(());
        }
        // SAFETY: the library describes failures in constant texts, which end with a zero and stay valid.
        let words = unsafe { CStr::from_ptr(failure) }.to_string_lossy();
        Err(format!("{}: {words}", launch.kernel.symbol()))
    }
}
