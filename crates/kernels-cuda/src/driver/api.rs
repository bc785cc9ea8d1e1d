//! Functions of the driver API, found by name in its library.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::path::Path;
use std::sync::OnceLock;

use libloading::Library;

use crate::device::DeviceError;

/// Result of a call: 0, or an error code.
pub(super) type Status = c_int;
/// Error code: out of memory.
pub(super) const OUT_OF_MEMORY: Status = 2;
/// Errors after which a context answers every call with an error until the process ends (cuda.h: "leaves the process
/// in an inconsistent state and any further CUDA work will return the same error").
const STICKY: &[Status] = &[214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721];

macro_rules! api {
    ($($name:ident($($kind:ty),* $(,)?);)*) => {
        /// Driver functions, under the driver's names.
        #[allow(non_snake_case)]
        #[derive(Debug)]
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($kind),*) -> Status,)*
            /// Error that ended the use of the GPU for good.
            ended: OnceLock<String>,
            /// The functions belong to it, and are unloaded with it.
            _library: Library,
        }

        impl Api {
            fn of(library: Library) -> Result<Api, libloading::Error> {
                // SAFETY: these are the functions' types in cuda.h, which `ptx/make` compares with it.
                Ok(unsafe {
                    Api {
                        $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())?,)*
                        ended: OnceLock::new(),
                        _library: library,
                    }
                })
            }
        }
    };
}

api! {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetName(*mut c_char, c_int, c_int);
    cuDeviceTotalMem_v2(*mut usize, c_int);
    cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    cuDevicePrimaryCtxRetain(*mut *mut c_void, c_int);
    cuDevicePrimaryCtxRelease_v2(c_int);
    cuCtxSetCurrent(*mut c_void);
    cuModuleLoadDataEx(*mut *mut c_void, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
    cuModuleUnload(*mut c_void);
    cuModuleGetFunction(*mut *mut c_void, *mut c_void, *const c_char);
    cuFuncSetAttribute(*mut c_void, c_int, c_int);
    cuMemAlloc_v2(*mut c_ulonglong, usize);
    cuMemFree_v2(c_ulonglong);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemsetD8Async(c_ulonglong, c_uchar, usize, *mut c_void);
    cuMemcpyHtoDAsync_v2(c_ulonglong, *const c_void, usize, *mut c_void);
    cuMemcpyDtoHAsync_v2(*mut c_void, c_ulonglong, usize, *mut c_void);
    cuMemcpyDtoDAsync_v2(c_ulonglong, c_ulonglong, usize, *mut c_void);
    cuMemcpy3DPeerAsync(*const c_void, *mut c_void);
    cuDeviceCanAccessPeer(*mut c_int, c_int, c_int);
    cuCtxEnablePeerAccess(*mut c_void, c_uint);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuEventCreate(*mut *mut c_void, c_uint);
    cuEventRecord(*mut c_void, *mut c_void);
    cuEventSynchronize(*mut c_void);
    cuEventDestroy_v2(*mut c_void);
    cuStreamCreate(*mut *mut c_void, c_uint);
    cuStreamDestroy_v2(*mut c_void);
    cuStreamSynchronize(*mut c_void);
    cuStreamWaitEvent(*mut c_void, *mut c_void, c_uint);
    cuLaunchKernelEx(*const c_void, *mut c_void, *mut *mut c_void, *mut *mut c_void);
    cuStreamBeginCapture_v2(*mut c_void, c_int);
    cuStreamEndCapture(*mut c_void, *mut *mut c_void);
    cuGraphInstantiateWithFlags(*mut *mut c_void, *mut c_void, c_ulonglong);
    cuGraphLaunch(*mut c_void, *mut c_void);
    cuGraphExecDestroy(*mut c_void);
    cuGraphDestroy(*mut c_void);
    cuGetErrorString(c_int, *mut *const c_char);
}

impl Api {
    /// Loads the first of these libraries that can be loaded.
    pub(super) fn load<'a>(libraries: impl Iterator<Item = &'a Path>) -> Result<Api, DeviceError> {
        let mut reason = String::new();
        for path in libraries {
            // SAFETY: the driver's library does nothing when it is loaded that this process would not want.
            match unsafe { Library::new(path) } {
                Ok(library) => {
                    let lacks = |error| {
                        let path = path.display();
                        DeviceError::Failed(format!(
                            "{path} is too old a driver: {error}; CUDA 12.0 is needed"
                        ))
                    };
                    return Api::of(library).map_err(lacks);
                }
                // The first library is the one that a system should have.
                Err(error) if reason.is_empty() => reason = error.to_string(),
                Err(_) => {}
            }
        }
        if reason.is_empty() {
            reason = "NVIDIA has none for this system".to_owned();
        }
        Err(DeviceError::Failed(format!("no CUDA driver: {reason}")))
    }

    /// Converts a call's result to an error with the driver's message. An error that ends the use of the GPU is
    /// repeated for every later call.
    pub(super) fn check(&self, call: &str, status: Status) -> Result<(), DeviceError> {
        if status == 0 {
            return Ok(());
        }
        let mut words = std::ptr::null();
        // SAFETY: where the words go, which are the driver's and stay.
        let known = unsafe { (self.cuGetErrorString)(status, &mut words) } == 0 && !words.is_null();
        let words = if known {
            // SAFETY: as above; they end with a zero.
            unsafe { CStr::from_ptr(words) }.to_string_lossy()
        } else {
            "no words for it".into()
        };
        let mut reason = format!("{call}: {words} (CUDA error {status})");
        if STICKY.contains(&status) {
            let _ = self.ended.set(reason.clone());
        }
        if self.ended.get().is_some() {
            reason += "; this process cannot use the card any more: start it again";
        }
        Err(DeviceError::Failed(reason))
    }

    /// Whether the GPU can still be used.
    pub(super) fn works(&self) -> Result<(), DeviceError> {
        match self.ended.get() {
            None => Ok(()),
            Some(reason) => Err(DeviceError::Failed(format!(
                "it failed before, with {reason}; this process cannot use the card any more: start it again"
            ))),
        }
    }
}
