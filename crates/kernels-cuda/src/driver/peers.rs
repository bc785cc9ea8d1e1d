//! GPUs that read each other's memory: directly with peer access, and otherwise by the driver's copies through the
//! host.

use std::ffi::c_void;
use std::ptr;

use super::{Card, CardMark};
use crate::device::DeviceError;
use crate::peers::{Columns, DeviceRows, PeerDevice};

/// Memory type "device". `OPEN_ALREADY` is the driver's error if peer access is already enabled.
const MEMORY_OF_A_DEVICE: u32 = 2;
const OPEN_ALREADY: i32 = 704;

/// `CUDA_MEMCPY3D_PEER` of cuda.h.
#[repr(C)]
struct PeerCopy {
    from: Side,
    to: Side,
    width_bytes: usize,
    height: usize,
    depth: usize,
}

#[repr(C)]
struct Side {
    x_bytes: usize,
    y: usize,
    z: usize,
    lod: usize,
    kind: u32,
    host: *const c_void,
    device: u64,
    array: *const c_void,
    context: *mut c_void,
    pitch: usize,
    height: usize,
}

impl Side {
    fn of(card: &Card, DeviceRows { address, pitch }: DeviceRows) -> Side {
        let (host, array, context) = (ptr::null(), ptr::null(), card.inner.context);
        let (kind, device) = (MEMORY_OF_A_DEVICE, address.0);
        Side { x_bytes: 0, y: 0, z: 0, lod: 0, kind, host, device, array, context, pitch, height: 0 }
    }
}

impl Card {
    /// Enables peer access to another GPU when first requested, if there is any.
    fn open_way(&self, to: &Card) -> Result<bool, DeviceError> {
        let (own, api) = (&self.inner, &self.inner.api);
        let mut ways = own.ways.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if own.device == to.inner.device {
            return Ok(true);
        }
        if let Some(&(_, open)) = ways.iter().find(|(device, _)| *device == to.inner.device) {
            return Ok(open);
        }
        let mut can = 0;
        // SAFETY: where the answer goes, and two devices that are open.
        let asked = unsafe { (api.cuDeviceCanAccessPeer)(&mut can, own.device, to.inner.device) };
        api.check("cuDeviceCanAccessPeer", asked)?;
        if can != 0 {
            // SAFETY: both contexts are retained; this card's is current.
            match unsafe { (api.cuCtxEnablePeerAccess)(to.inner.context, 0) } {
                OPEN_ALREADY => {}
                opened => api.check("cuCtxEnablePeerAccess", opened)?,
            }
        }
        ways.push((to.inner.device, can != 0));
        Ok(can != 0)
    }
}

// SAFETY: streams keep the order of all that is asked for, an event that a stream waits for is reached before what
// comes behind.
unsafe impl PeerDevice for Card {
    fn follow(&self, mark: &CardMark) -> Result<(), DeviceError> {
        self.inner.enter()?;
        // SAFETY: this card's stream, and an event of whatever card, which has been recorded.
        let result = unsafe { (self.inner.api.cuStreamWaitEvent)(self.inner.stream, mark.event, 0) };
        self.inner.api.check("cuStreamWaitEvent", result)
    }

    fn reaches(&self, other: &Card) -> Result<bool, DeviceError> {
        self.inner.enter()?;
        self.open_way(other)
    }

    unsafe fn copy_columns(&self, of: &Card, columns: &Columns) -> Result<(), DeviceError> {
        self.inner.enter()?;
        self.open_way(of)?;
        let &Columns { from, to, bytes, rows } = columns;
        let (from, to) = (Side::of(of, from), Side::of(self, to));
        let copy = PeerCopy { from, to, width_bytes: bytes, height: rows, depth: 1 };
        // SAFETY: the struct is cuda.h's, and read before this returns; what it names is the caller's promise.
        let result =
            unsafe { (self.inner.api.cuMemcpy3DPeerAsync)(ptr::from_ref(&copy).cast(), self.inner.stream) };
        self.inner.api.check("cuMemcpy3DPeerAsync", result)
    }
}

/// Sizes as in cuda.h, including padding.
const _: () = assert!(size_of::<Side>() == 88 && size_of::<PeerCopy>() == 2 * 88 + 24);
