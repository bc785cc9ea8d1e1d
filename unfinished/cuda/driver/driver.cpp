// The CUDA driver's calls that the engine makes, answered by the emulator: what a program that loads libcuda finds instead
// of it. Compiled with the kernels to one library. It holds the engine to what a card's driver would: calls in a context,
// modules that are PTX with those entries, memory that was allocated, nothing but launches while a stream is captured.
// HANZO_ENGINE_EMULATED_FAILS names a call that fails, or `all`.
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

extern "C" const void* emulator_kernel(const char* name, size_t* bytes, unsigned* threads);
extern "C" const char* emulator_launch(const void* kernel, const void* params, const unsigned* grid, unsigned threads, size_t shared_bytes, uint64_t seed);

namespace {

enum Result { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, INVALID_PTX = 218, NOT_FOUND = 500, LAUNCH_FAILED = 719, CAPTURE_UNSUPPORTED = 900 };

struct Node {
  const void* function;
  unsigned grid[3], threads, shared;
  std::vector<uint64_t> params;
};
struct Graph {
  std::vector<Node> nodes;
};
struct Stream {
  Graph* captured = nullptr;
};
struct Module {
  std::string ptx;
};

std::mutex mutex;
bool initialized;
int context_value;
thread_local bool current;
std::map<uint64_t, size_t> memory;

bool fails(const char* call) {
  const char* which = getenv("HANZO_ENGINE_EMULATED_FAILS");
  return which && (strcmp(which, "all") == 0 || strcmp(which, call) == 0);
}

bool allocated(uint64_t address, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex);
  auto next = memory.upper_bound(address);
  if (next == memory.begin()) return false;
  --next;
  return address + bytes <= next->first + next->second;
}

int run(const Node& node) {
  const char* failure = emulator_launch(node.function, node.params.data(), node.grid, node.threads, node.shared, 0);
  if (!failure) return SUCCESS;
  fprintf(stderr, "emulated launch: %s\n", failure);
  return LAUNCH_FAILED;
}

}  // namespace

#define CALL(name) \
  if (fails(name)) return 999
#define IN_CONTEXT(name) \
  CALL(name);            \
  if (!current) return INVALID_CONTEXT

#pragma GCC visibility push(default)
extern "C" {

int cuInit(unsigned flags) {
  CALL("cuInit");
  initialized = true;
  return flags == 0 ? SUCCESS : INVALID_VALUE;
}
int cuDriverGetVersion(int* version) {
  CALL("cuDriverGetVersion");
  *version = 13000;
  return SUCCESS;
}
int cuDeviceGetCount(int* count) {
  CALL("cuDeviceGetCount");
  *count = 1;
  return initialized ? SUCCESS : NOT_INITIALIZED;
}
int cuDeviceGet(int* device, int ordinal) {
  CALL("cuDeviceGet");
  *device = ordinal;
  return ordinal == 0 ? SUCCESS : INVALID_VALUE;
}
int cuDeviceGetName(char* name, int length, int) {
  CALL("cuDeviceGetName");
  snprintf(name, length, "Emulated Card");
  return SUCCESS;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  CALL("cuDeviceTotalMem_v2");
  *bytes = size_t(8) << 30;
  return SUCCESS;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  CALL("cuDeviceGetAttribute");
  *value = attribute == 75 ? 8 : 0;  // compute capability 8.0
  return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  CALL("cuDevicePrimaryCtxRetain");
  *context = &context_value;
  return SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
int cuCtxSetCurrent(void* context) {
  CALL("cuCtxSetCurrent");
  current = context == &context_value;
  return SUCCESS;
}
int cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
  IN_CONTEXT("cuModuleLoadDataEx");
  std::string ptx = static_cast<const char*>(image);
  if (ptx.find(".version ") == std::string::npos) return INVALID_PTX;
  *module = new Module{ptx};
  return SUCCESS;
}
int cuModuleUnload(void* module) {
  delete static_cast<Module*>(module);
  return SUCCESS;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  IN_CONTEXT("cuModuleGetFunction");
  const std::string& ptx = static_cast<Module*>(module)->ptx;
  if (ptx.find(std::string(".entry ") + name + "(") == std::string::npos) return NOT_FOUND;
  size_t bytes;
  unsigned threads;
  *function = const_cast<void*>(emulator_kernel(name, &bytes, &threads));
  return *function ? SUCCESS : NOT_FOUND;
}
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  IN_CONTEXT("cuMemAlloc_v2");
  if (bytes == 0) return INVALID_VALUE;
  if (bytes > size_t(8) << 30) return OUT_OF_MEMORY;
  void* made = aligned_alloc(256, (bytes + 255) / 256 * 256);
  memset(made, 0xff, bytes);
  *address = reinterpret_cast<uint64_t>(made);
  std::lock_guard<std::mutex> lock(mutex);
  memory[*address] = bytes;
  return SUCCESS;
}
int cuMemFree_v2(uint64_t address) {
  IN_CONTEXT("cuMemFree_v2");
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (!memory.erase(address)) return INVALID_VALUE;
  }
  free(reinterpret_cast<void*>(address));
  return SUCCESS;
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, Stream* stream) {
  IN_CONTEXT("cuMemsetD8Async");
  if (stream->captured) return CAPTURE_UNSUPPORTED;
  if (!allocated(to, bytes)) return INVALID_VALUE;
  memset(reinterpret_cast<void*>(to), value, bytes);
  return SUCCESS;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, Stream* stream) {
  IN_CONTEXT("cuMemcpyHtoDAsync_v2");
  if (stream->captured) return CAPTURE_UNSUPPORTED;
  if (!allocated(to, bytes)) return INVALID_VALUE;
  memcpy(reinterpret_cast<void*>(to), from, bytes);
  return SUCCESS;
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, Stream* stream) {
  IN_CONTEXT("cuMemcpyDtoHAsync_v2");
  if (stream->captured) return CAPTURE_UNSUPPORTED;
  if (!allocated(from, bytes)) return INVALID_VALUE;
  memcpy(to, reinterpret_cast<void*>(from), bytes);
  return SUCCESS;
}
int cuStreamCreate(Stream** stream, unsigned) {
  IN_CONTEXT("cuStreamCreate");
  *stream = new Stream;
  return SUCCESS;
}
int cuStreamDestroy_v2(Stream* stream) {
  delete stream;
  return SUCCESS;
}
int cuStreamSynchronize(Stream* stream) {
  IN_CONTEXT("cuStreamSynchronize");
  return stream->captured ? CAPTURE_UNSUPPORTED : SUCCESS;
}
int cuLaunchKernel(const void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y, unsigned threads_z, unsigned shared, Stream* stream, void** params, void** extra) {
  IN_CONTEXT("cuLaunchKernel");
  // A buffer of parameters and its size.
  if (params || threads_y != 1 || threads_z != 1 || extra[0] != reinterpret_cast<void*>(1) || extra[2] != reinterpret_cast<void*>(2) || extra[4]) return INVALID_VALUE;
  if (x == 0 || y == 0 || z == 0 || y > 65535 || z > 65535 || threads > 1024 || shared > 48 << 10) return INVALID_VALUE;
  const size_t bytes = *static_cast<size_t*>(extra[3]);
  Node node{function, {x, y, z}, threads, shared, std::vector<uint64_t>((bytes + 7) / 8)};
  memcpy(node.params.data(), extra[1], bytes);
  if (!stream->captured) return run(node);
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
  for (const Node& node : exec->nodes) {
    if (int result = run(node)) return result;
  }
  return SUCCESS;
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
  *words = result == 999 ? "unknown error" : result == OUT_OF_MEMORY ? "out of memory" : result == LAUNCH_FAILED ? "unspecified launch failure" : "invalid argument";
  return SUCCESS;
}
}
#pragma GCC visibility pop
