//! Kernel launches.

use std::ffi::c_void;
use std::ptr;

use super::Inner;
use crate::device::DeviceError;
use crate::plan::Launch;

/// Keys in a launch's `extra` array.
const PARAMS: *mut c_void = ptr::without_provenance_mut(1);
const PARAMS_BYTES: *mut c_void = ptr::without_provenance_mut(2);
/// Launch attribute of programmatic dependent launch: the kernel may begin before earlier ones in the stream have
/// ended.
const MAY_BEGIN_EARLY: u32 = 6;

/// `CUlaunchConfig` of cuda.h.
#[repr(C)]
struct LaunchConfig {
    blocks: [u32; 3],
    threads: [u32; 3],
    shared_bytes: u32,
    stream: *mut c_void,
    attributes: *const Attribute,
    count: u32,
}

/// `CUlaunchAttribute`.
#[repr(C)]
struct Attribute {
    id: u32,
    unused: u32,
    value: [u32; 16],
}

impl Inner {
    /// # Safety
    /// As [`crate::Device::launch`]; the context is current.
    pub(super) unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        let mut bytes = launch.params.len();
        let mut extra = [
            PARAMS,
            launch.params.as_ptr().cast_mut().cast(),
            PARAMS_BYTES,
            ptr::from_mut(&mut bytes).cast(),
            ptr::null_mut(),
        ];
        let mut early = Attribute { id: MAY_BEGIN_EARLY, unused: 0, value: [0; 16] };
        early.value[0] = 1;
        let config = LaunchConfig {
            blocks: launch.grid.blocks,
            threads: [launch.grid.threads, 1, 1],
            shared_bytes: launch.grid.shared_bytes,
            stream: self.stream,
            attributes: &early,
            count: u32::from(self.begins_early),
        };
        // SAFETY: the function is the kernel's, whose parameters are as large as `Plan::push` asserts; they are copied
        // before this returns, and so is all else. What parameters name is the caller's promise.
        let result = unsafe {
            (self.api.cuLaunchKernelEx)(
                ptr::from_ref(&config).cast(),
                self.functions[launch.kernel as usize],
                ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        };
        self.api.check(launch.kernel.symbol(), result)
    }
}
