// The CUDA driver's calls that the engine makes, answered by the emulator: what a program that loads libcuda finds instead
// of it. It holds the engine to what a card's driver would: calls in a context, modules that are PTX with those entries and
// parameters of that size, memory that was allocated, nothing but launches while a stream is captured; and after a failed
// launch, the same error for ever. Work is done as late as a card may do it, when somebody waits: so who reads or changes what a
// copy is still to read or change is found out. The environment says what else it is:
//   HANZO_ENGINE_EMULATED_FAILS    a call that fails, or `all`; with `@N` behind it, from the Nth time on; with `!` behind that, as
//                                  a launch that failed does, after which nothing works
//   HANZO_ENGINE_EMULATED_MEMORY   bytes of a card's memory (8 GiB without)
//   HANZO_ENGINE_EMULATED_CARDS    how many cards there are (1 without)
//   HANZO_ENGINE_EMULATED_CAPABILITY  a card's compute capability (8.0 without)
//   HANZO_ENGINE_EMULATED_COUNTS   a file that is told at the end how often each call was made
//   HANZO_ENGINE_EMULATED_WAITS    `none`: streams wait for no event, which is a fault
//   HANZO_ENGINE_EMULATED_WAYS     which cards have ways to each other's memory: `all`, `none` (every second to those beside it without)
//   HANZO_ENGINE_EMULATED_QUEUE    how much a stream may be asked for before who asks for more waits (1024 without)
//   CUDA_VISIBLE_DEVICES           as the driver has it: empty, there is none
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cuda_types.hpp"
#include "streams.hpp"

extern "C" const void* emulator_kernel(const char* name, size_t* bytes, unsigned* threads);
extern "C" const char* emulator_launch(const void* kernel, const void* params, const unsigned* grid, unsigned threads, size_t shared_bytes, uint64_t seed);

namespace emulator {
bool hears(const uint64_t* flag, uint64_t turn);
}

namespace {

enum Result {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  NO_BINARY_FOR_GPU = 209,
  PEER_ACCESS_UNSUPPORTED = 217,
  INVALID_PTX = 218,
  NOT_FOUND = 500,
  PEER_ACCESS_ALREADY_ENABLED = 704,
  LAUNCH_FAILED = 719,
  CAPTURE_UNSUPPORTED = 900,
  UNKNOWN = 999,
};

using streams::Stream;
using streams::advance;
using streams::advance_all;
using streams::ask;
using streams::sticky;

struct Node {
  const void* kernel;
  unsigned grid[3], threads, shared;
  std::vector<uint64_t> params;
};
}  // namespace
struct Graph {
  std::vector<Node> nodes;
};
namespace {
// All that was asked for before it.
struct Event {
  Stream* stream = nullptr;
  uint64_t until = 0;
};
struct Module {
  std::string ptx;
};
struct Function {
  const void* kernel;
  size_t bytes;
  unsigned threads_max;
  unsigned shared_max = 48 << 10;
  bool waits = false;  // for kernels before it
};

std::mutex mutex;
std::atomic<bool> initialized;
char contexts[8];
thread_local void* current;
struct Allocation {
  size_t bytes;
  void* context;  // whose card's; the host's is no card's
};
std::map<uint64_t, Allocation> memory, host_memory;
std::set<std::pair<void*, void*>> ways;  // of a card to another's memory
std::map<void*, size_t> memory_used;
std::map<std::string, uint64_t> counts;

void write_counts() {
  const char* path = getenv("HANZO_ENGINE_EMULATED_COUNTS");
  FILE* file = path ? fopen(path, "w") : nullptr;
  if (!file) return;
  std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [call, count] : counts) fprintf(file, "%s %llu\n", call.c_str(), (unsigned long long)count);
  fclose(file);
}

// Counts a call; what it fails with, if it is one that fails.
int fails(const char* call) {
  std::lock_guard<std::mutex> lock(mutex);
  const uint64_t times = ++counts[call];
  const char* which = getenv("HANZO_ENGINE_EMULATED_FAILS");
  if (!which) return SUCCESS;
  const std::string name(which, strcspn(which, "@!"));
  const char* from = strchr(which, '@');
  if ((name != "all" && name != call) || times < (from ? strtoull(from + 1, nullptr, 10) : 1)) return SUCCESS;
  if (!strchr(which, '!')) return UNKNOWN;
  sticky = LAUNCH_FAILED;
  return LAUNCH_FAILED;
}

int cards() {
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  if (visible && (!*visible || *visible == '-')) return 0;
  const char* count = getenv("HANZO_ENGINE_EMULATED_CARDS");
  return count ? atoi(count) : 1;
}

// Compute capability, major and minor number.
int capability(bool minor) {
  const char* both = getenv("HANZO_ENGINE_EMULATED_CAPABILITY");
  if (!both) return minor ? 0 : 8;
  const char* point = strchr(both, '.');
  return minor ? (point ? atoi(point + 1) : 0) : atoi(both);
}

// Every second card has a way to those beside it.
bool has_way(int device, int peer) {
  const char* which = getenv("HANZO_ENGINE_EMULATED_WAYS");
  return device != peer && (which ? !strcmp(which, "all") : (device + peer) % 2 == 1);
}

size_t memory_total() {
  const char* bytes = getenv("HANZO_ENGINE_EMULATED_MEMORY");
  return bytes ? strtoull(bytes, nullptr, 10) : size_t(8) << 30;
}

// What an address is in, so many bytes of it; none where it is in nothing.
const Allocation* within(const std::map<uint64_t, Allocation>& memory, uint64_t address, size_t bytes) {
  auto next = memory.upper_bound(address);
  if (next == memory.begin()) return nullptr;
  --next;
  const uint64_t at = address - next->first, size = next->second.bytes;
  return at <= size && bytes <= size - at ? &next->second : nullptr;
}

bool allocated(uint64_t address, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex);
  const Allocation* found = within(memory, address, bytes);
  return found && found->context == current;
}
bool page_locked(const void* address, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex);
  return within(host_memory, reinterpret_cast<uint64_t>(address), bytes);
}
// Whether a kernel is told of another card's memory, which it could not read.
bool is_elsewhere(const std::vector<uint64_t>& params) {
  std::lock_guard<std::mutex> lock(mutex);
  for (size_t at = 0; at < params.size(); ++at) {
    const Allocation* found = within(memory, params[at], 1);
    if (!found || found->context == current || ways.count({current, found->context})) continue;
    fprintf(stderr, "emulated launch: word %zu of its parameters is memory of another card\n", at);
    return true;
  }
  return false;
}

// Where memory of so many bytes lies in a mapping that ends with a page nobody may touch.
struct Place {
  size_t mapped, first;
};
Place place(size_t bytes) {
  const size_t page = sysconf(_SC_PAGESIZE), aligned = (bytes + 15) / 16 * 16, pages = (aligned + page - 1) / page * page;
  return {pages + page, pages - aligned};
}

// How much of a stream must have been done before it is asked for more.
uint64_t behind(const Stream* stream) {
  const char* queue = getenv("HANZO_ENGINE_EMULATED_QUEUE");
  const uint64_t room = queue ? strtoull(queue, nullptr, 10) : 1024;
  std::lock_guard<std::mutex> lock(streams::state().mutex);
  return stream->asked > room ? stream->asked - room : 0;
}

int run(const Node& node) {
  const char* failure = emulator_launch(node.kernel, node.params.data(), node.grid, node.threads, node.shared, 0);
  if (!failure) return SUCCESS;
  fprintf(stderr, "emulated launch: %s\n", failure);
  sticky = LAUNCH_FAILED;
  return LAUNCH_FAILED;
}

// Bytes of an entry's parameters, as PTX declares them; 0 without such an entry.
size_t params_of(const std::string& ptx, const char* name) {
  const size_t entry = ptx.find(std::string(".entry ") + name + "(");
  if (entry == std::string::npos) return 0;
  const size_t open = ptx.find(std::string(name) + "_param_0[", entry);
  return open == std::string::npos ? 0 : strtoull(ptx.c_str() + ptx.find('[', open) + 1, nullptr, 10);
}

}  // namespace

// As dev::hear has it (emulator.hpp).
bool emulator::hears(const uint64_t* flag, uint64_t turn) { return streams::hear(flag, turn); }

#define CALL(name) \
  if (int failed = fails(name)) return failed
#define IN_CONTEXT(name)            \
  CALL(name);                       \
  if (int failed = sticky) return failed; \
  if (!current) return INVALID_CONTEXT

#pragma GCC visibility push(default)
extern "C" {

int cuInit(unsigned flags) {
  CALL("cuInit");
  if (!initialized.exchange(true)) atexit(write_counts);
  if (flags != 0) return INVALID_VALUE;
  return cards() == 0 ? NO_DEVICE : SUCCESS;
}
int cuDriverGetVersion(int* version) {
  CALL("cuDriverGetVersion");
  *version = 13000;
  return SUCCESS;
}
int cuDeviceGetCount(int* count) {
  CALL("cuDeviceGetCount");
  *count = cards();
  return initialized ? SUCCESS : NOT_INITIALIZED;
}
int cuDeviceGet(int* device, int ordinal) {
  CALL("cuDeviceGet");
  *device = ordinal;
  return ordinal >= 0 && ordinal < cards() ? SUCCESS : INVALID_DEVICE;
}
int cuDeviceGetName(char* name, int length, int) {
  CALL("cuDeviceGetName");
  snprintf(name, length, "Emulated Card");
  return SUCCESS;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  CALL("cuDeviceTotalMem_v2");
  *bytes = memory_total();
  return SUCCESS;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  CALL("cuDeviceGetAttribute");
  *value = attribute == 75 || attribute == 76 ? capability(attribute == 76) : 0;
  return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  CALL("cuDevicePrimaryCtxRetain");
  if (device < 0 || device >= 8) return INVALID_DEVICE;
  *context = contexts + device;
  return SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
int cuCtxSetCurrent(void* context) {
  CALL("cuCtxSetCurrent");
  if (context < contexts || context >= contexts + 8) return INVALID_CONTEXT;
  current = context;
  return SUCCESS;
}
int cuModuleLoadDataEx(Module** module, const void* image, unsigned count, int* options, void** values) {
  IN_CONTEXT("cuModuleLoadDataEx");
  // Where its words go, and in how many bytes.
  if (count != 2 || options[0] != 5 || options[1] != 6) return INVALID_VALUE;
  std::string ptx = static_cast<const char*>(image);
  // Machine code is what a test takes for it: the first bytes of such files, the number of the architecture, and then the module.
  if (ptx.rfind("\x7f" "ELF", 0) == 0) {
    const size_t line = ptx.find('\n');
    if (line == std::string::npos) return INVALID_IMAGE;
    if (atoi(ptx.c_str() + 4) != 10 * capability(false) + capability(true)) return NO_BINARY_FOR_GPU;
  }
  if (ptx.find(".version ") == std::string::npos) {
    snprintf(static_cast<char*>(values[0]), reinterpret_cast<size_t>(values[1]), "emulated: there is no .version");
    return INVALID_PTX;
  }
  // Of the instructions that only newer cards have, such text has none for others, and with them it says which cards it is for.
  const bool newer = capability(false) >= 9, has = ptx.find("griddepcontrol.") != std::string::npos;
  if (ptx[0] != '\x7f' && (newer ? ptx.find(".target sm_90") == std::string::npos : has)) {
    snprintf(static_cast<char*>(values[0]), reinterpret_cast<size_t>(values[1]), "emulated: griddepcontrol needs .target sm_90 and such a card");
    return INVALID_PTX;
  }
  *module = new Module{ptx};
  return SUCCESS;
}
int cuModuleUnload(Module* module) {
  delete module;
  return SUCCESS;
}
int cuModuleGetFunction(Function** function, Module* module, const char* name) {
  IN_CONTEXT("cuModuleGetFunction");
  Function found{};
  found.kernel = emulator_kernel(name, &found.bytes, &found.threads_max);
  // The module's kernel, the emulated one and the engine's must agree on what they are given.
  if (!found.kernel || params_of(module->ptx, name) != found.bytes) return NOT_FOUND;
  const size_t entry = module->ptx.find(std::string(".entry ") + name + "("), next = module->ptx.find(".visible .entry ", entry);
  found.waits = module->ptx.find("griddepcontrol.wait;", entry) < next;
  *function = new Function(found);  // the module's, which lives as long as the process does
  return SUCCESS;
}
int cuFuncSetAttribute(Function* function, int attribute, int value) {
  IN_CONTEXT("cuFuncSetAttribute");
  // Bytes of shared memory of a block, of which the cards with the least have so many, and those of 9.0 more.
  if (attribute != 8 || value < 0 || value > (capability(false) == 9 ? 227 : 99) << 10) return INVALID_VALUE;
  function->shared_max = value;
  return SUCCESS;
}
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  IN_CONTEXT("cuMemAlloc_v2");
  if (bytes == 0) return INVALID_VALUE;
  std::lock_guard<std::mutex> lock(mutex);
  if (memory_used[current] + bytes > memory_total()) return OUT_OF_MEMORY;
  const Place at = place(bytes);
  char* mapped = static_cast<char*>(mmap(nullptr, at.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (mapped == MAP_FAILED) return OUT_OF_MEMORY;
  const size_t page = sysconf(_SC_PAGESIZE);
  mprotect(mapped + at.mapped - page, page, PROT_NONE);
  // A cache of gigabytes is not filled: what is never written is zeros there.
  if (bytes <= size_t(64) << 20) memset(mapped + at.first, 0xff, bytes);
  *address = reinterpret_cast<uint64_t>(mapped + at.first);
  memory[*address] = {bytes, current};
  memory_used[current] += bytes;
  return SUCCESS;
}
int cuMemFree_v2(uint64_t address) {
  IN_CONTEXT("cuMemFree_v2");
  if (int failed = advance_all()) return failed;
  std::lock_guard<std::mutex> lock(mutex);
  auto found = memory.find(address);
  if (found == memory.end()) return INVALID_VALUE;
  const Place at = place(found->second.bytes);
  munmap(reinterpret_cast<char*>(address) - at.first, at.mapped);
  memory_used[found->second.context] -= found->second.bytes;
  memory.erase(found);
  return SUCCESS;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  IN_CONTEXT("cuMemGetInfo_v2");
  std::lock_guard<std::mutex> lock(mutex);
  *total = memory_total();
  *free = *total - memory_used[current];
  return SUCCESS;
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, Stream* stream) {
  IN_CONTEXT("cuMemsetD8Async");
  if (stream->captured) return CAPTURE_UNSUPPORTED;
  if (!allocated(to, bytes)) return INVALID_VALUE;
  return ask(stream, [=] {
    memset(reinterpret_cast<void*>(to), value, bytes);
    return 0;
  });
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, Stream* stream) {
  IN_CONTEXT("cuMemcpyHtoDAsync_v2");
  if (stream->captured) return CAPTURE_UNSUPPORTED;
  if (!allocated(to, bytes)) return INVALID_VALUE;
  if (page_locked(from, bytes)) {
    return ask(stream, [=] {
      memcpy(reinterpret_cast<void*>(to), from, bytes);
      return 0;
    });
  }
  // Other memory is copied when this returns.
  std::vector<char> copied(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
  return ask(stream, [to, copied] {
    memcpy(reinterpret_cast<void*>(to), copied.data(), copied.size());
    return 0;
  });
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, Stream* stream) {
  IN_CONTEXT("cuMemcpyDtoHAsync_v2");
  if (stream->captured) return CAPTURE_UNSUPPORTED;
  if (!allocated(from, bytes)) return INVALID_VALUE;
  ask(stream, [=] {
    memcpy(to, reinterpret_cast<void*>(from), bytes);
    return 0;
  });
  return page_locked(to, bytes) ? SUCCESS : advance(stream);
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, Stream* stream) {
  IN_CONTEXT("cuMemcpyDtoDAsync_v2");
  if (stream->captured) return CAPTURE_UNSUPPORTED;
  if (!allocated(from, bytes) || !allocated(to, bytes)) return INVALID_VALUE;
  return ask(stream, [=] {
    memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
    return 0;
  });
}
int cuMemcpy3DPeerAsync(const PeerCopy* copy, Stream* stream) {
  IN_CONTEXT("cuMemcpy3DPeerAsync");
  if (stream->captured) return CAPTURE_UNSUPPORTED;
  for (const Side* side : {&copy->from, &copy->to}) {
    if (side->x || side->y || side->z || side->lod || side->kind != 2 || side->pitch < copy->width) return INVALID_VALUE;
    std::lock_guard<std::mutex> lock(mutex);
    const Allocation* found = within(memory, side->device, (copy->height - 1) * side->pitch + copy->width);
    if (!found || found->context != side->context) return INVALID_VALUE;
  }
  if (copy->depth != 1 || copy->height == 0 || copy->to.context != current) return INVALID_VALUE;
  return ask(stream, [copy = *copy] {
    for (size_t row = 0; row < copy.height; ++row) {
      memmove(reinterpret_cast<void*>(copy.to.device + row * copy.to.pitch), reinterpret_cast<void*>(copy.from.device + row * copy.from.pitch), copy.width);
    }
    return 0;
  });
}
int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  IN_CONTEXT("cuDeviceCanAccessPeer");
  *can = has_way(device, peer);
  return SUCCESS;
}
int cuCtxEnablePeerAccess(void* context, unsigned flags) {
  IN_CONTEXT("cuCtxEnablePeerAccess");
  const long own = static_cast<char*>(current) - contexts, peer = static_cast<char*>(context) - contexts;
  if (flags != 0 || !has_way(own, peer)) return PEER_ACCESS_UNSUPPORTED;
  std::lock_guard<std::mutex> lock(mutex);
  return ways.insert({current, context}).second ? SUCCESS : PEER_ACCESS_ALREADY_ENABLED;
}
int cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) {
  IN_CONTEXT("cuMemHostAlloc");
  if (bytes == 0 || flags != 0) return INVALID_VALUE;
  *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!*memory) return OUT_OF_MEMORY;
  memset(*memory, 0xff, bytes);
  std::lock_guard<std::mutex> lock(mutex);
  host_memory[reinterpret_cast<uint64_t>(*memory)] = {bytes, nullptr};
  return SUCCESS;
}
int cuMemFreeHost(void* memory) {
  IN_CONTEXT("cuMemFreeHost");
  if (int failed = advance_all()) return failed;
  std::lock_guard<std::mutex> lock(mutex);
  if (!host_memory.erase(reinterpret_cast<uint64_t>(memory))) return INVALID_VALUE;
  free(memory);
  return SUCCESS;
}
int cuEventCreate(Event** event, unsigned flags) {
  IN_CONTEXT("cuEventCreate");
  *event = new Event;
  return flags == 2 ? SUCCESS : INVALID_VALUE;
}
int cuEventRecord(Event* event, Stream* stream) {
  IN_CONTEXT("cuEventRecord");
  if (stream->captured) return CAPTURE_UNSUPPORTED;
  std::lock_guard<std::mutex> lock(streams::state().mutex);
  *event = {stream, stream->asked};
  return SUCCESS;
}
int cuEventSynchronize(Event* event) {
  IN_CONTEXT("cuEventSynchronize");
  return event->stream ? advance(event->stream, event->until) : SUCCESS;
}
int cuEventDestroy_v2(Event* event) {
  delete event;
  return SUCCESS;
}
int cuStreamCreate(Stream** stream, unsigned) {
  IN_CONTEXT("cuStreamCreate");
  *stream = new Stream;
  (*stream)->context = current;
  std::lock_guard<std::mutex> lock(streams::state().mutex);
  streams::state().all.insert(*stream);
  return SUCCESS;
}
int cuStreamDestroy_v2(Stream* stream) {
  advance(stream);
  {
    std::lock_guard<std::mutex> lock(streams::state().mutex);
    streams::state().all.erase(stream);
  }
  delete stream;
  return SUCCESS;
}
// What comes behind is done when what the event stands behind has been, whatever stream that is of.
int cuStreamWaitEvent(Stream* stream, Event* event, unsigned flags) {
  IN_CONTEXT("cuStreamWaitEvent");
  if (stream->captured) return CAPTURE_UNSUPPORTED;
  if (flags != 0 || stream->context != current) return INVALID_VALUE;
  if (!event->stream || event->stream == stream) return SUCCESS;
  const char* waits = getenv("HANZO_ENGINE_EMULATED_WAITS");
  if (waits && !strcmp(waits, "none")) return SUCCESS;
  return ask(stream, [other = event->stream, until = event->until] { return advance(other, until); });
}
int cuStreamSynchronize(Stream* stream) {
  IN_CONTEXT("cuStreamSynchronize");
  return stream->captured ? CAPTURE_UNSUPPORTED : advance(stream);
}
int cuLaunchKernelEx(const LaunchConfig* config, Function* function, void** params, void** extra) {
  IN_CONTEXT("cuLaunchKernelEx");
  const auto [x, y, z] = config->grid;
  Stream* stream = static_cast<Stream*>(config->stream);
  // A buffer of parameters and its size.
  if (params || config->threads[1] != 1 || config->threads[2] != 1 || extra[0] != reinterpret_cast<void*>(1) || extra[2] != reinterpret_cast<void*>(2) || extra[4]) return INVALID_VALUE;
  if (x == 0 || y == 0 || z == 0 || y > 65535 || z > 65535 || config->threads[0] > function->threads_max || config->shared > function->shared_max) return INVALID_VALUE;
  // What begins early must wait by itself: a card would take a kernel that does not, whose numbers would be anything.
  if (config->count > 1 || (config->count == 1 && (config->attributes->id != 6 || config->attributes->value.early != 1 || capability(false) < 9 || !function->waits))) return INVALID_VALUE;
  const size_t bytes = *static_cast<size_t*>(extra[3]);
  if (bytes != function->bytes) return INVALID_VALUE;
  Node node{function->kernel, {x, y, z}, config->threads[0], config->shared, std::vector<uint64_t>((bytes + 7) / 8)};
  memcpy(node.params.data(), extra[1], bytes);
  if (stream->context != current || is_elsewhere(node.params)) return INVALID_CONTEXT;
  if (config->count == 1) {
    std::lock_guard<std::mutex> lock(mutex);
    ++counts["launches that may begin early"];
  }
  if (!stream->captured) {
    ask(stream, [node] { return run(node); });
    const uint64_t until = behind(stream);
    return until > 0 ? advance(stream, until) : SUCCESS;
  }
  stream->captured->nodes.push_back(node);
  return SUCCESS;
}
int cuStreamBeginCapture_v2(Stream* stream, int mode) {
  IN_CONTEXT("cuStreamBeginCapture_v2");
  if (stream->captured || mode != 1) return INVALID_VALUE;
  stream->captured = new Graph;
  return SUCCESS;
}
int cuStreamEndCapture(Stream* stream, Graph** graph) {
  IN_CONTEXT("cuStreamEndCapture");
  if (!stream->captured) return INVALID_VALUE;
  *graph = stream->captured;
  stream->captured = nullptr;
  return SUCCESS;
}
int cuGraphInstantiateWithFlags(Graph** exec, Graph* graph, unsigned long long flags) {
  IN_CONTEXT("cuGraphInstantiateWithFlags");
  *exec = new Graph(*graph);
  return flags == 0 ? SUCCESS : INVALID_VALUE;
}
int cuGraphLaunch(Graph* exec, Stream* stream) {
  IN_CONTEXT("cuGraphLaunch");
  if (stream->captured) return CAPTURE_UNSUPPORTED;
  return ask(stream, [nodes = exec->nodes] {
    for (const Node& node : nodes) {
      if (int result = run(node)) return result;
    }
    return 0;
  });
}
int cuGraphExecDestroy(Graph* exec) {
  delete exec;
  return SUCCESS;
}
int cuGraphDestroy(Graph* graph) {
  delete graph;
  return SUCCESS;
}
int cuGetErrorString(int result, const char** words) {
  switch (result) {
    case OUT_OF_MEMORY: *words = "out of memory"; break;
    case NO_DEVICE: *words = "no CUDA-capable device is detected"; break;
    case INVALID_IMAGE: *words = "device kernel image is invalid"; break;
    case NO_BINARY_FOR_GPU: *words = "no kernel image is available for execution on the device"; break;
    case INVALID_PTX: *words = "a PTX JIT compilation failed"; break;
    case LAUNCH_FAILED: *words = "unspecified launch failure"; break;
    case UNKNOWN: *words = "unknown error"; break;
    default: *words = "invalid argument";
  }
  return SUCCESS;
}
}
#pragma GCC visibility pop
