//! GPUs through the driver API (docs.nvidia.com/cuda/cuda-driver-api). The driver's library is loaded on demand, so a
//! program also starts without one and reports the reason. Nothing else of CUDA is needed.
//!
//! There is one context, one stream and one module for each GPU; work is done in order.

mod api;
mod early;
mod launch;
mod module;
mod peers;
mod registers;

use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, OnceLock};

use crate::device::{Device, DeviceError};
use crate::params::Address;
use crate::plan::{Kernel, Launch, Plan};
use crate::shapes::SHARED_BYTES;
use api::{Api, OUT_OF_MEMORY};
pub use early::ComputeCapability;
use early::EARLY_MIN;
use module::HOPPER;
pub use module::{CUBINS, Cubin, Form, fitting, hopper_ptx, ptx};

/// Names of the driver's library on this system.
const LIBRARIES: &[&str] = if cfg!(target_os = "windows") {
    &["nvcuda.dll"]
} else if cfg!(target_os = "linux") {
    &["libcuda.so.1", "libcuda.so"]
} else {
    &[]
};

/// Lowest supported compute capability. `VERSION_MIN` is the lowest driver version.
const CAPABILITY_MIN: ComputeCapability = ComputeCapability { major: 8, minor: 0 };
const VERSION_MIN: i32 = 12_000;
/// Attributes of a device.
const CAPABILITY_MAJOR: i32 = 75;
const CAPABILITY_MINOR: i32 = 76;
/// Attribute of a function: the largest dynamic shared memory of its blocks, in bytes.
const FUNCTION_SHARED_BYTES: i32 = 8;
/// Flag of a stream that does not wait for the default stream.
const STREAM_NON_BLOCKING: u32 = 1;
/// Flag of plain page-locked host memory. `EVENT_WITHOUT_TIME` is the flag of an event without timing.
const HOST_PLAIN: u32 = 0;
const EVENT_WITHOUT_TIME: u32 = 2;
/// Capture mode in which other threads are not affected.
const CAPTURE_THREAD_LOCAL: i32 = 1;
/// Driver version from which graphs preserve programmatic dependent launch.
const EARLY_VERSION_MIN: (i32, i32) = (12, 3);

/// Source of GPUs: the system's driver, or a library that a test supplies.
#[derive(Clone, Debug)]
pub struct Driver {
    libraries: Vec<PathBuf>,
    cubins: &'static [Cubin],
    in_turn: bool,
}

/// Properties of a GPU that the driver reports before it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardInfo {
    /// Ordinal, from 0, among the GPUs visible to this process.
    pub ordinal: usize,
    /// Model, such as `NVIDIA H200`.
    pub model: String,
    /// Compute capability.
    pub capability: ComputeCapability,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Version of CUDA that the driver supports, such as (13, 0).
    pub driver: (i32, i32),
}

impl fmt::Display for CardInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.driver;
        write!(f, "cuda:{}: {}, driver {major}.{minor}", self.ordinal, self.model)
    }
}

/// An opened GPU.
#[derive(Clone, Debug)]
pub struct Card {
    inner: Arc<Inner>,
}

/// Recorded launches of a GPU (a CUDA graph).
#[derive(Debug)]
pub struct CardGraph {
    exec: *mut c_void,
    card: Arc<Inner>,
}

/// Event of a GPU.
#[derive(Debug)]
pub struct CardMark {
    event: *mut c_void,
    card: Arc<Inner>,
}

// SAFETY: an event may be waited for from any thread.
unsafe impl Send for CardMark {}

// SAFETY: a graph may be launched from any thread, by one at a time.
unsafe impl Send for CardGraph {}

/// State of the warpgroup kernels, which GPUs of one compute capability have.
#[derive(Debug)]
enum Hopper {
    /// Not applicable to this GPU.
    NotMeant,
    /// The driver did not accept them.
    Refused(String),
    /// Module, and whether it gives the same bits as the others, once that was checked.
    Loaded(*mut c_void, OnceLock<bool>),
}

#[derive(Debug)]
struct Inner {
    api: Api,
    info: CardInfo,
    device: i32,
    context: *mut c_void,
    module: *mut c_void,
    form: Form,
    hopper: Hopper,
    begins_early: bool, // whether kernels use programmatic dependent launch
    stream: *mut c_void,
    functions: Vec<*mut c_void>,   // by `Kernel`
    ways: Mutex<Vec<(i32, bool)>>, // devices that peer access was requested to, and whether there is any
}

// SAFETY: the driver may be called from any thread once its context is current there, which every call here sees to.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Default for Driver {
    /// The system's driver.
    fn default() -> Driver {
        Driver { libraries: LIBRARIES.iter().map(PathBuf::from).collect(), cubins: CUBINS, in_turn: false }
    }
}

impl Driver {
    /// A driver with this library instead of the system's.
    pub fn at(library: &Path) -> Driver {
        Driver { libraries: vec![library.to_owned()], cubins: CUBINS, in_turn: false }
    }

    /// The same driver with this machine code instead of the program's.
    pub fn with_machine_code(self, cubins: &'static [Cubin]) -> Driver {
        Driver { cubins, ..self }
    }

    /// The same driver without programmatic dependent launch, for comparison: each kernel begins when those before it
    /// have ended.
    pub fn in_turn(self) -> Driver {
        Driver { in_turn: true, ..self }
    }

    /// GPUs that this process may use, by ordinal.
    ///
    /// # Errors
    /// The reason if there are none: no driver, a driver that fails, or no visible GPU.
    pub fn cards(&self) -> Result<Vec<CardInfo>, DeviceError> {
        let (api, count) = self.start()?;
        (0..count).map(|ordinal| describe(&api, ordinal).map(|(info, _)| info)).collect()
    }

    /// Opens a GPU by its ordinal and loads the kernels.
    ///
    /// # Errors
    /// The reason if it cannot be used.
    pub fn open(&self, ordinal: usize) -> Result<Card, DeviceError> {
        let (api, count) = self.start()?;
        if ordinal >= count {
            let last = count - 1;
            return Err(DeviceError::Failed(format!(
                "there is no cuda:{ordinal}: the last card is cuda:{last}"
            )));
        }
        let (info, device) = describe(&api, ordinal)?;
        info.suits()?;
        let none = ptr::null_mut();
        let begins_early = !self.in_turn && info.capability >= EARLY_MIN && info.driver >= EARLY_VERSION_MIN;
        let mut inner = Inner {
            api,
            info,
            device,
            context: none,
            module: none,
            form: Form::Ptx(None),
            hopper: Hopper::NotMeant,
            begins_early,
            stream: none,
            functions: Vec::new(),
            ways: Mutex::default(),
        };
        inner.start(self.cubins)?;
        Ok(Card { inner: Arc::new(inner) })
    }

    /// The driver's functions, and the number of visible GPUs, at least one.
    fn start(&self) -> Result<(Api, usize), DeviceError> {
        let api = Api::load(self.libraries.iter().map(PathBuf::as_path))?;
        let mut count = 0;
        // SAFETY: no flags; and where a number goes.
        unsafe {
            api.check("cuInit", (api.cuInit)(0))?;
            api.check("cuDeviceGetCount", (api.cuDeviceGetCount)(&mut count))?;
        }
        match usize::try_from(count) {
            Ok(count @ 1..) => Ok((api, count)),
            _ => Err(DeviceError::Failed("the CUDA driver shows no card".to_owned())),
        }
    }
}

/// Properties of a GPU, and the driver's handle for it.
fn describe(api: &Api, ordinal: usize) -> Result<(CardInfo, i32), DeviceError> {
    let (mut device, mut version, mut bytes) = (0, 0, 0);
    let mut capability = ComputeCapability { major: 0, minor: 0 };
    let mut name: [c_char; 128] = [0; 128];
    // SAFETY: each call is given where its answer goes, the name's room with its length.
    unsafe {
        api.check("cuDeviceGet", (api.cuDeviceGet)(&mut device, ordinal as i32))?;
        api.check("cuDriverGetVersion", (api.cuDriverGetVersion)(&mut version))?;
        api.check(
            "cuDeviceGetName",
            (api.cuDeviceGetName)(name.as_mut_ptr(), name.len() as i32 - 1, device),
        )?;
        api.check("cuDeviceTotalMem", (api.cuDeviceTotalMem_v2)(&mut bytes, device))?;
        let attribute = |value: &mut i32, of| {
            api.check("cuDeviceGetAttribute", (api.cuDeviceGetAttribute)(value, of, device))
        };
        attribute(&mut capability.major, CAPABILITY_MAJOR)?;
        attribute(&mut capability.minor, CAPABILITY_MINOR)?;
    }
    // SAFETY: the last byte of the room was not given away, so there is a zero.
    let model = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let driver = (version / 1000, version % 1000 / 10);
    Ok((CardInfo { ordinal, model, capability, memory_bytes: bytes as u64, driver }, device))
}

impl CardInfo {
    /// Checks that the kernels run on this GPU.
    ///
    /// # Errors
    /// The reason if they do not.
    pub fn suits(&self) -> Result<(), DeviceError> {
        let ComputeCapability { major, minor } = self.capability;
        if self.capability < CAPABILITY_MIN {
            return Err(DeviceError::Failed(format!(
                "{self}: its compute capability is {major}.{minor}, and the kernels are for {}.0 and above",
                CAPABILITY_MIN.major
            )));
        }
        if 1000 * self.driver.0 + 10 * self.driver.1 < VERSION_MIN {
            return Err(DeviceError::Failed(format!("{self}: a driver for CUDA 12.0 or newer is needed")));
        }
        Ok(())
    }
}

impl Card {
    /// Properties that the driver reports.
    pub fn info(&self) -> &CardInfo {
        &self.inner.info
    }

    /// Form in which the kernels were loaded.
    pub fn form(&self) -> &Form {
        &self.inner.form
    }

    /// Description of the loaded kernels for people, including the warpgroup kernels as far as known: a backend checks
    /// them.
    pub fn kernels(&self) -> String {
        let early = if self.inner.begins_early { "; each begins while those before it end" } else { "" };
        let form = format!("{}{early}", self.inner.form);
        let wide = match &self.inner.hopper {
            Hopper::NotMeant => return form,
            Hopper::Refused(why) => format!("not loaded: {why}"),
            Hopper::Loaded(_, agree) => match agree.get() {
                None => "not tried yet".to_owned(),
                Some(true) => "in use".to_owned(),
                Some(false) => "not in use: they add up otherwise than the others".to_owned(),
            },
        };
        format!("{form}; those of groups of warps {wide}")
    }

    /// Free device memory in bytes.
    ///
    /// # Errors
    /// The GPU fails.
    pub fn free_bytes(&self) -> Result<u64, DeviceError> {
        self.inner.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: where two numbers go.
        let result = unsafe { (self.inner.api.cuMemGetInfo_v2)(&mut free, &mut total) };
        self.inner.api.check("cuMemGetInfo", result).map(|()| free as u64)
    }
}

impl Inner {
    /// Creates the context, the stream and the module. After a failure `drop` releases what was created.
    fn start(&mut self, cubins: &[Cubin]) -> Result<(), DeviceError> {
        // SAFETY: where the context goes.
        let retained = unsafe { (self.api.cuDevicePrimaryCtxRetain)(&mut self.context, self.device) };
        self.api.check("cuDevicePrimaryCtxRetain", retained)?;
        self.enter()?;
        // SAFETY: where the stream goes.
        let made = unsafe { (self.api.cuStreamCreate)(&mut self.stream, STREAM_NON_BLOCKING) };
        self.api.check("cuStreamCreate", made)?;
        (self.module, self.form) = module::load(&self.api, self.info.capability, cubins)?;
        let general = Kernel::ALL.iter().filter(|kernel| !kernel.is_wide());
        self.functions = general.map(|&kernel| self.find(self.module, kernel)).collect::<Result<_, _>>()?;
        if self.info.capability == HOPPER {
            self.start_hopper();
            self.api.works()?;
        }
        Ok(())
    }

    /// Loads the warpgroup kernels; without them the others are used.
    fn start_hopper(&mut self) {
        let module = match module::load_hopper(&self.api) {
            Ok(module) => module,
            Err(error) => return self.hopper = Hopper::Refused(error.to_string()),
        };
        let wide = Kernel::ALL.iter().filter(|kernel| kernel.is_wide());
        match wide.map(|&kernel| self.find(module, kernel)).collect::<Result<Vec<_>, _>>() {
            Ok(functions) => {
                self.functions.extend(functions);
                self.hopper = Hopper::Loaded(module, OnceLock::new());
            }
            Err(error) => {
                self.hopper = Hopper::Refused(error.to_string());
                // SAFETY: the module was loaded above, and nothing of it was kept.
                unsafe { (self.api.cuModuleUnload)(module) };
            }
        }
    }

    /// A kernel of a module, allowed to use as much shared memory as it needs.
    fn find(&self, module: *mut c_void, kernel: Kernel) -> Result<*mut c_void, DeviceError> {
        let symbol = CString::new(kernel.symbol()).expect("a symbol has no zero");
        let mut function = ptr::null_mut();
        // SAFETY: where the function goes, a module that was loaded, and a name that ends with a zero.
        let got = unsafe { (self.api.cuModuleGetFunction)(&mut function, module, symbol.as_ptr()) };
        self.api.check(kernel.symbol(), got)?;
        if kernel.shared_bytes_max() > SHARED_BYTES {
            let bytes = kernel.shared_bytes_max() as i32;
            // SAFETY: the function is the one that the line before has found.
            let set = unsafe { (self.api.cuFuncSetAttribute)(function, FUNCTION_SHARED_BYTES, bytes) };
            self.api.check("cuFuncSetAttribute", set)?;
        }
        Ok(function)
    }

    /// Makes this GPU's context current on the calling thread.
    fn enter(&self) -> Result<(), DeviceError> {
        self.api.works()?;
        // SAFETY: the context was retained, and is until the last handle is dropped.
        self.api.check("cuCtxSetCurrent", unsafe { (self.api.cuCtxSetCurrent)(self.context) })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A failed context is cleaned up by the driver when the process ends.
        if self.context.is_null() || self.enter().is_err() {
            return;
        }
        // SAFETY: each was made by `start`, and nobody is left who uses it. A failure leaves nothing to be done.
        unsafe {
            if !self.stream.is_null() {
                (self.api.cuStreamDestroy_v2)(self.stream);
            }
            if let Hopper::Loaded(module, _) = self.hopper {
                (self.api.cuModuleUnload)(module);
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

impl Drop for CardMark {
    fn drop(&mut self) {
        if self.card.enter().is_ok() {
            // SAFETY: made by `mark`, and nobody else has it.
            unsafe { (self.card.api.cuEventDestroy_v2)(self.event) };
        }
    }
}

// SAFETY: memory is the driver's, which gives nobody what another holds; the stream keeps the order of all that is
// asked for, and `download` waits for it.
unsafe impl Device for Card {
    type Graph = CardGraph;
    type Mark = CardMark;

    fn name(&self) -> String {
        self.inner.info.to_string()
    }

    fn wide(&self) -> Option<&OnceLock<bool>> {
        match &self.inner.hopper {
            Hopper::Loaded(_, agree) => Some(agree),
            _ => None,
        }
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
        // A GPU that fails here also fails in the next step, which can report it.
        if self.inner.enter().is_ok() {
            // SAFETY: the caller's promise; the driver waits for what was launched.
            let _ = unsafe { (self.inner.api.cuMemFree_v2)(address.0) };
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
        // SAFETY: the caller's promise. The host's memory is not page-locked: the driver has copied it when this
        // returns.
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

    fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, DeviceError> {
        self.inner.enter()?;
        let mut memory = ptr::null_mut();
        // SAFETY: where the address goes.
        let result = unsafe { (self.inner.api.cuMemHostAlloc)(&mut memory, bytes, HOST_PLAIN) };
        self.inner.api.check("cuMemHostAlloc", result)?;
        NonNull::new(memory.cast()).ok_or(DeviceError::OutOfMemory)
    }

    unsafe fn free_host(&self, memory: NonNull<u8>, _bytes: usize) {
        if self.inner.enter().is_ok() {
            // SAFETY: the caller's promise.
            unsafe { (self.inner.api.cuMemFreeHost)(memory.as_ptr().cast()) };
        }
    }

    unsafe fn upload_later(&self, to: Address, from: NonNull<u8>, bytes: usize) -> Result<(), DeviceError> {
        self.inner.enter()?;
        // SAFETY: the caller's promise.
        let result = unsafe {
            (self.inner.api.cuMemcpyHtoDAsync_v2)(to.0, from.as_ptr().cast(), bytes, self.inner.stream)
        };
        self.inner.api.check("cuMemcpyHtoDAsync", result)
    }

    unsafe fn download_later(&self, from: Address, to: NonNull<u8>, bytes: usize) -> Result<(), DeviceError> {
        self.inner.enter()?;
        // SAFETY: the caller's promise.
        let result = unsafe {
            (self.inner.api.cuMemcpyDtoHAsync_v2)(to.as_ptr().cast(), from.0, bytes, self.inner.stream)
        };
        self.inner.api.check("cuMemcpyDtoHAsync", result)
    }

    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
        self.inner.enter()?;
        // SAFETY: the caller's promise.
        let result = unsafe { (self.inner.api.cuMemcpyDtoDAsync_v2)(to.0, from.0, bytes, self.inner.stream) };
        self.inner.api.check("cuMemcpyDtoDAsync", result)
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        self.inner.enter()?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.launch(launch) }
    }

    fn record(&self, plan: &Plan) -> Result<CardGraph, DeviceError> {
        let (card, api) = (&self.inner, &self.inner.api);
        card.enter()?;
        let (mut graph, mut exec) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the stream is this card's, and each call is given where its answer goes. What is launched meanwhile
        // is recorded and not run. The capture is ended whatever came of it.
        unsafe {
            api.check(
                "cuStreamBeginCapture",
                (api.cuStreamBeginCapture_v2)(card.stream, CAPTURE_THREAD_LOCAL),
            )?;
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
        let result = unsafe { (self.inner.api.cuStreamSynchronize)(self.inner.stream) };
        self.inner.api.check("cuStreamSynchronize", result)
    }

    fn mark(&self) -> Result<CardMark, DeviceError> {
        let (card, api) = (&self.inner, &self.inner.api);
        card.enter()?;
        let mut event = ptr::null_mut();
        // SAFETY: where the event goes.
        api.check("cuEventCreate", unsafe { (api.cuEventCreate)(&mut event, EVENT_WITHOUT_TIME) })?;
        let mark = CardMark { event, card: card.clone() };
        // SAFETY: the event that was made, and this card's stream.
        api.check("cuEventRecord", unsafe { (api.cuEventRecord)(event, card.stream) }).map(|()| mark)
    }

    fn reach(&self, mark: &CardMark) -> Result<(), DeviceError> {
        self.inner.enter()?;
        // SAFETY: the event is this card's.
        let result = unsafe { (self.inner.api.cuEventSynchronize)(mark.event) };
        self.inner.api.check("cuEventSynchronize", result)
    }
}
