//! Cards, through the driver's own interface (docs.nvidia.com/cuda/cuda-driver-api), which is loaded when it is asked for: a
//! program starts where there is none, and hears why. Of CUDA nothing else is needed.
//!
//! One context, one stream and one module a card; work is done in the order in which it was asked for.

mod api;

use std::ffi::{CStr, CString, c_void};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use crate::device::{Device, DeviceError};
use crate::params::Address;
use crate::plan::{Kernel, Launch, Plan};
use api::{Api, OUT_OF_MEMORY};

/// The kernels for the driver's compiler, which makes them the card's own when they are loaded, and keeps that.
pub const PTX: &str = include_str!("../ptx/kernels.ptx");

/// The names under which a system has the driver's library.
const LIBRARIES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

/// Compute capability from which the kernels run.
const CAPABILITY_MIN: (i32, i32) = (8, 0);
/// Attributes of a device.
const CAPABILITY_MAJOR: i32 = 75;
const CAPABILITY_MINOR: i32 = 76;
/// Captures what this thread launches, and minds no other.
const CAPTURE_THREAD_LOCAL: i32 = 1;
/// What the entries of a launch's `extra` are.
const PARAMS: *mut c_void = 1 as *mut c_void;
const PARAMS_BYTES: *mut c_void = 2 as *mut c_void;

/// A card.
#[derive(Clone, Debug)]
pub struct Card {
    inner: Arc<Inner>,
}

/// Launches of a card, recorded.
#[derive(Debug)]
pub struct CardGraph {
    exec: *mut c_void,
    card: Arc<Inner>,
}

// SAFETY: a graph may be launched from any thread, by one at a time.
unsafe impl Send for CardGraph {}

#[derive(Debug)]
struct Inner {
    api: Api,
    name: String,
    memory_bytes: u64,
    device: i32,
    context: *mut c_void,
    module: *mut c_void,
    stream: *mut c_void,
    functions: Vec<*mut c_void>, // by `Kernel`
}

// SAFETY: the driver may be called from any thread once its context is current there, which every call here sees to.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Card {
    /// How many cards there are.
    ///
    /// # Errors
    /// Why none can be used: there is no driver, or it fails.
    pub fn count() -> Result<usize, DeviceError> {
        Card::count_of(&Api::load(LIBRARIES.iter().map(Path::new))?)
    }

    fn count_of(api: &Api) -> Result<usize, DeviceError> {
        let mut count = 0;
        // SAFETY: no flags; and where a number goes.
        unsafe {
            api.check("cuInit", (api.cuInit)(0))?;
            api.check("cuDeviceGetCount", (api.cuDeviceGetCount)(&mut count))?;
        }
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// A card by its number, from 0, with the kernels loaded.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn open(ordinal: usize) -> Result<Card, DeviceError> {
        Card::open_in(LIBRARIES.iter().map(Path::new), ordinal)
    }

    /// As [`Card::open`], by the first of these libraries that is there: for tests, which bring one.
    ///
    /// # Errors
    /// As [`Card::open`].
    pub fn open_in<'a>(libraries: impl Iterator<Item = &'a Path>, ordinal: usize) -> Result<Card, DeviceError> {
        let api = Api::load(libraries)?;
        let count = Card::count_of(&api)?;
        if ordinal >= count {
            return Err(DeviceError::Failed(format!("there is no card {ordinal}: the driver has {count}")));
        }
        let (mut device, mut version, mut bytes, mut capability) = (0, 0, 0, (0, 0));
        let mut name = [0; 128];
        // SAFETY: each call is given where its answer goes, the name's room with its length.
        unsafe {
            api.check("cuDeviceGet", (api.cuDeviceGet)(&mut device, ordinal as i32))?;
            api.check("cuDriverGetVersion", (api.cuDriverGetVersion)(&mut version))?;
            api.check("cuDeviceGetName", (api.cuDeviceGetName)(name.as_mut_ptr(), name.len() as i32 - 1, device))?;
            api.check("cuDeviceTotalMem", (api.cuDeviceTotalMem_v2)(&mut bytes, device))?;
            let attribute = |value: &mut i32, of| {
                api.check("cuDeviceGetAttribute", (api.cuDeviceGetAttribute)(value, of, device))
            };
            attribute(&mut capability.0, CAPABILITY_MAJOR)?;
            attribute(&mut capability.1, CAPABILITY_MINOR)?;
        }
        // SAFETY: the last byte of the room was not given away, so there is a zero.
        let model = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let driver = format!("driver for CUDA {}.{}", version / 1000, version % 1000 / 10);
        let name = format!("cuda:{ordinal}: {model}, {driver}");
        if capability < CAPABILITY_MIN {
            let (major, minor) = capability;
            let (least, _) = CAPABILITY_MIN;
            return Err(DeviceError::Failed(format!(
                "{name}: its compute capability is {major}.{minor}, and the kernels are for {least}.0 and above"
            )));
        }
        let mut inner = Inner {
            api,
            name,
            memory_bytes: bytes as u64,
            device,
            context: ptr::null_mut(),
            module: ptr::null_mut(),
            stream: ptr::null_mut(),
            functions: Vec::new(),
        };
        inner.start()?;
        Ok(Card { inner: Arc::new(inner) })
    }

    /// Bytes of the card's memory.
    pub fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes
    }
}

impl Inner {
    /// Makes the context, the stream and the module; what was made before a failure is given back by `drop`.
    fn start(&mut self) -> Result<(), DeviceError> {
        let ptx = CString::new(PTX).expect("PTX is text without a zero");
        // SAFETY: each call is given where its answer goes; the image ends with a zero, and there are no options.
        unsafe {
            let retain = (self.api.cuDevicePrimaryCtxRetain)(&mut self.context, self.device);
            self.api.check("cuDevicePrimaryCtxRetain", retain)?;
            self.enter()?;
            self.api.check("cuStreamCreate", (self.api.cuStreamCreate)(&mut self.stream, 1))?;
            let load = (self.api.cuModuleLoadDataEx)(
                &mut self.module,
                ptx.as_ptr().cast(),
                0,
                ptr::null_mut(),
                ptr::null_mut(),
            );
            self.api.check("cuModuleLoadDataEx, which compiles the kernels", load)?;
            for kernel in Kernel::ALL {
                let symbol = CString::new(kernel.symbol()).expect("a symbol has no zero");
                let mut function = ptr::null_mut();
                let get = (self.api.cuModuleGetFunction)(&mut function, self.module, symbol.as_ptr());
                self.api.check(kernel.symbol(), get)?;
                self.functions.push(function);
            }
        }
        Ok(())
    }

    /// Makes this card's context the calling thread's.
    fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: the context was retained, and is until the last handle is dropped.
        self.api.check("cuCtxSetCurrent", unsafe { (self.api.cuCtxSetCurrent)(self.context) })
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        let [x, y, z] = launch.grid.blocks;
        let mut bytes = launch.params.len();
        let mut extra = [
            PARAMS,
            launch.params.as_ptr().cast_mut().cast(),
            PARAMS_BYTES,
            ptr::from_mut(&mut bytes).cast(),
            ptr::null_mut(),
        ];
        // SAFETY: the function is the kernel's, whose parameters are as large as `Plan::push` asserts; they are copied before
        // this returns. What they name is the caller's promise (`Device::launch`).
        let result = unsafe {
            (self.api.cuLaunchKernel)(
                self.functions[launch.kernel as usize],
                x,
                y,
                z,
                launch.grid.threads,
                1,
                1,
                launch.grid.shared_bytes,
                self.stream,
                ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        };
        self.api.check(launch.kernel.symbol(), result)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.context.is_null() || self.enter().is_err() {
            return;
        }
        // SAFETY: each was made by `start`, and nobody is left who uses it. A failure leaves nothing to be done.
        unsafe {
            if !self.stream.is_null() {
                (self.api.cuStreamDestroy_v2)(self.stream);
            }
            if !self.module.is_null() {
                (self.api.cuModuleUnload)(self.module);
            }
            (self.api.cuDevicePrimaryCtxRelease_v2)(self.device);
        }
    }
}

impl Drop for CardGraph {
    fn drop(&mut self) {
        if self.card.enter().is_ok() {
            // SAFETY: made by `record`, and nobody else has it.
            unsafe { (self.card.api.cuGraphExecDestroy)(self.exec) };
        }
    }
}

// SAFETY: memory is the driver's, which gives nobody what another holds; the stream keeps the order of all that is asked for,
// and `download` waits for it.
unsafe impl Device for Card {
    type Graph = CardGraph;

    fn name(&self) -> String {
        self.inner.name.clone()
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        self.inner.enter()?;
        let mut address = 0;
        // SAFETY: where the address goes.
        match unsafe { (self.inner.api.cuMemAlloc_v2)(&mut address, bytes) } {
            OUT_OF_MEMORY => Err(DeviceError::OutOfMemory),
            result => self.inner.api.check("cuMemAlloc", result).map(|()| Address(address)),
        }
    }

    unsafe fn free(&self, address: Address, _bytes: usize) {
        // A card that fails here fails the next step too, which can say so.
        if self.inner.enter().is_ok() {
            // SAFETY: the caller's promise; the driver waits for what was launched.
            unsafe { (self.inner.api.cuMemFree_v2)(address.0) };
        }
    }

    unsafe fn zero(&self, address: Address, bytes: usize) -> Result<(), DeviceError> {
        self.inner.enter()?;
        // SAFETY: the caller's promise.
        let result = unsafe { (self.inner.api.cuMemsetD8Async)(address.0, 0, bytes, self.inner.stream) };
        self.inner.api.check("cuMemsetD8Async", result)
    }

    unsafe fn upload(&self, to: Address, from: &[u8]) -> Result<(), DeviceError> {
        self.inner.enter()?;
        // SAFETY: the caller's promise. The host's memory is not page-locked: the driver has copied it when this returns.
        let result = unsafe {
            (self.inner.api.cuMemcpyHtoDAsync_v2)(to.0, from.as_ptr().cast(), from.len(), self.inner.stream)
        };
        self.inner.api.check("cuMemcpyHtoDAsync", result)
    }

    unsafe fn download(&self, from: Address, to: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.enter()?;
        // SAFETY: the caller's promise; the copy is waited for before `to` is given back.
        let result = unsafe {
            (self.inner.api.cuMemcpyDtoHAsync_v2)(to.as_mut_ptr().cast(), from.0, to.len(), self.inner.stream)
        };
        let waited = self.wait();
        self.inner.api.check("cuMemcpyDtoHAsync", result).and(waited)
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        self.inner.enter()?;
        self.inner.launch(launch)
    }

    fn record(&self, plan: &Plan) -> Result<CardGraph, DeviceError> {
        let (card, api) = (&self.inner, &self.inner.api);
        card.enter()?;
        let (mut graph, mut exec) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the stream is this card's, and each call is given where its answer goes. What is launched meanwhile is
        // recorded and not run. The capture is ended whatever came of it.
        unsafe {
            api.check("cuStreamBeginCapture", (api.cuStreamBeginCapture_v2)(card.stream, CAPTURE_THREAD_LOCAL))?;
            let launched = plan.iter().try_for_each(|launch| card.launch(&launch));
            let ended = api.check("cuStreamEndCapture", (api.cuStreamEndCapture)(card.stream, &mut graph));
            let made = launched.and(ended).and_then(|()| {
                api.check("cuGraphInstantiate", (api.cuGraphInstantiateWithFlags)(&mut exec, graph, 0))
            });
            if !graph.is_null() {
                (api.cuGraphDestroy)(graph);
            }
            made?;
        }
        Ok(CardGraph { exec, card: card.clone() })
    }

    unsafe fn replay(&self, graph: &CardGraph) -> Result<(), DeviceError> {
        self.inner.enter()?;
        // SAFETY: the graph is this card's; what it names is the caller's promise.
        let result = unsafe { (self.inner.api.cuGraphLaunch)(graph.exec, self.inner.stream) };
        self.inner.api.check("cuGraphLaunch", result)
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.inner.enter()?;
        // SAFETY: the stream is this card's.
        self.inner.api.check("cuStreamSynchronize", unsafe { (self.inner.api.cuStreamSynchronize)(self.inner.stream) })
    }
}
