// The fibers behind emulator.hpp, and what the host calls. See there for what is emulated.
#include "emulator.hpp"

#include <sys/mman.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if !defined(__x86_64__) || defined(EMULATOR_UCONTEXT)
#include <ucontext.h>
#define EMULATOR_ASSEMBLY 0
#else
#define EMULATOR_ASSEMBLY 1
#endif

namespace emulator {

struct Block : Place {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  uint64_t generation = 0;
  unsigned count = 0, arrived = 0, alive = 0;  // threads
  void* host_stack_pointer = nullptr;
  watch::Stack host_watched;
  char begun = 0, ended = 0, told[2] = {};  // places that stand for what these order
  char* stacks = nullptr;
  size_t stacks_bytes = 0;
  char* mapped = nullptr;
  std::unique_ptr<char[]> shared;
  const char* failure = nullptr;
  Fiber* current = nullptr;  // that has come back to the host
  void (*run)(const void*) = nullptr;
  const void* params = nullptr;
#if !EMULATOR_ASSEMBLY
  ucontext_t host;
  std::vector<ucontext_t> contexts;
#endif
  ~Block() {
    for (Fiber& of : fibers) watch::ends(of.watched);
    give_stacks_back();
  }
  void give_stacks_back() {
    if (!stacks) return;
    watch::forgets(stacks, stacks_bytes);
    munmap(mapped, stacks_bytes + STACK_BYTES);
  }
};

static Block* block_of(const Fiber& of) { return const_cast<Block*>(static_cast<const Block*>(of.place)); }

static Kernel* kernels;

Kernel::Kernel(const char* name, size_t bytes, unsigned threads, void (*run)(const void*))
    : name(name), bytes(bytes), threads(threads), run(run), next(kernels) {
  kernels = this;
}

#if EMULATOR_ASSEMBLY
// Saves what a callee must keep on this stack, and goes on where the other has stopped.
extern "C" void emulator_switch(void** from, void* to);
asm(R"(
.text
.hidden emulator_switch
.globl emulator_switch
.type emulator_switch,@function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
static void switch_to_host(Block& block, Fiber& own) { emulator_switch(&own.stack_pointer, block.host_stack_pointer); }
static void switch_to_fiber(Block& block, Fiber& next) { emulator_switch(&block.host_stack_pointer, next.stack_pointer); }
static void switch_between(Block&, Fiber& own, Fiber& next) { emulator_switch(&own.stack_pointer, next.stack_pointer); }
#else
static ucontext_t* context_of(Block& block, Fiber& of) { return &block.contexts[&of - block.fibers.data()]; }
static void switch_to_host(Block& block, Fiber& own) { swapcontext(context_of(block, own), &block.host); }
static void switch_to_fiber(Block& block, Fiber& next) { swapcontext(&block.host, context_of(block, next)); }
static void switch_between(Block& block, Fiber& own, Fiber& next) { swapcontext(context_of(block, own), context_of(block, next)); }
#endif

// To ThreadSanitizer these are no functions, and `enter` is none: a fiber leaves them to never come back, once for each block.
WATCH_NOTHING static void to_host(Block& block, Fiber& own) {
  block.current = &own;
  watch::leaves(own.watched, block.host_watched);
  switch_to_host(block, own);
  watch::is_back(own.watched);
}
WATCH_NOTHING static void to_other(Block& block, Fiber& own, Fiber& next) {
  watch::leaves(own.watched, next.watched);
  switch_between(block, own, next);
  watch::is_back(own.watched);
}
static void to_fiber(Block& block, Fiber& next) {
  watch::leaves(block.host_watched, next.watched);
  switch_to_fiber(block, next);
  watch::is_back(block.host_watched);
}

static bool can_run(const Fiber& of) { return !of.done && !(of.waits_for && *of.waits_for == of.generation); }

// Runs the lane that the host would run next, or the host. Where sanitizers watch, a lane that has not begun is the host's to run, of which they
// are told where one begins.
static void hand_over(Block& block, Fiber& own) {
  Fiber* next = &own + 1;
  while (next < own.warp_end && !can_run(*next)) next++;
  if (next < own.warp_end && (next->begun || !watch::WATCHES)) {
    next->waits_for = nullptr;
    next->begun = true;
    to_other(block, own, *next);
  } else {
    to_host(block, own);
  }
}

void wait_for(const uint64_t* generation, uint64_t value) {
  Fiber& own = *fiber();
  Block& block = *block_of(own);
  while (*generation == value) {
    own.waits_for = generation;
    own.generation = value;
    hand_over(block, own);
  }
}

[[noreturn]] void fail(const char* what) {
  Fiber& own = *fiber();
  Block& block = *block_of(own);
  block.failure = what;
  for (;;) to_host(block, own);
}

static void release_barrier_if_all_came(Block& block) {
  if (block.arrived == block.alive && block.arrived > 0) {
    block.arrived = 0;
    block.generation++;
  }
}

void barrier() {
  const watch::Aside aside;
  Block& block = *block_of(*fiber());
  const uint64_t generation = block.generation;
  char* told = &block.told[generation & 1];
  watch::tells(told);
  block.arrived++;
  release_barrier_if_all_came(block);
  if (block.generation == generation) wait_for(&block.generation, generation);
  watch::hears(told);
}

void make_copies(uint64_t group) {
  std::vector<Copy>& copies = fiber()->copies;
  size_t made = 0;
  for (; made < copies.size() && copies[made].group < group; made++) {
    watch::reads16(copies[made].from);
    memcpy(copies[made].to, copies[made].from, 16);
  }
  copies.erase(copies.begin(), copies.begin() + made);
}

WATCH_NOTHING static void enter() {
  Fiber* own;
  Block* block;
  {
    const watch::Aside aside;
    own = fiber();
    block = block_of(*own);
  }
  watch::began(block->host_watched);
  watch::hears(&block->begun);
  block->run(block->params);
  if (own->early) fail("a thread has begun early and never waited for earlier kernels");
  // Nobody waits for the rest, which are read from all the same.
  make_copies(UINT64_MAX);
  watch::tells(&block->ended);
  {
    const watch::Aside aside;
    own->done = true;
    // Threads that have ended count as arrived, as on the device.
    watch::tells(&block->told[block->generation & 1]);
    block->alive--;
    release_barrier_if_all_came(*block);
  }
  if (!watch::WATCHES) hand_over(*block, *own);
  for (;;) to_host(*block, *own);
}

static void prepare(Block& block, Fiber& of) {
  of.begun = of.done = of.early = false;
  of.waits_for = nullptr;
  of.copies.clear();
  of.groups = 0;
  watch::is_fiber(of.watched, of.stack, STACK_BYTES);
  (void)block;
#if EMULATOR_ASSEMBLY
  void** top = reinterpret_cast<void**>(of.stack + STACK_BYTES - 64 - apart(reinterpret_cast<uintptr_t>(of.stack)));
  *--top = nullptr;  // where `enter` would return to
  *--top = reinterpret_cast<void*>(enter);
  for (int saved = 0; saved < 6; saved++) *--top = nullptr;
  of.stack_pointer = top;
#else
  ucontext_t& context = *context_of(block, of);
  getcontext(&context);
  context.uc_stack.ss_sp = of.stack + 64 * 65;  // behind what says which fiber it is
  context.uc_stack.ss_size = STACK_BYTES - 64 * 65;
  context.uc_link = nullptr;
  makecontext(&context, enter, 0);
#endif
}

// Runs each lane that can until none can; whether any could. Lanes hand over to those behind them themselves.
static bool run_warp(Block& block, unsigned warp) {
  bool ran = false;
  const unsigned first = warp * 32, end = std::min(first + 32, block.count);
  for (bool again = true; again && !block.failure;) {
    again = false;
    for (unsigned i = first; i < end && !block.failure; i++) {
      Fiber& next = block.fibers[i];
      if (!can_run(next)) continue;
      next.waits_for = nullptr;
      next.begun = true;
      to_fiber(block, next);
      i = block.current - block.fibers.data();
      again = ran = true;
    }
  }
  return ran;
}

static void shuffle(std::vector<unsigned>& order, uint64_t& random) {
  for (size_t last = order.size() - 1; last > 0; last--) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    std::swap(order[last], order[(random >> 33) % (last + 1)]);
  }
}

struct Launch {
  const Kernel* kernel;
  const void* params;
  Dim grid, threads;
  size_t shared_bytes;
  uint64_t seed;
  unsigned planted;
  std::atomic<uint64_t> next{0};
  std::atomic<const char*> failure{nullptr};
};

// One warp runs ahead as far as it can, then the next; which is first the seed says, and 0 that it is the first.
static void run_block(Block& block, uint64_t random, bool shuffled) {
  std::vector<unsigned> order(block.warps.size());
  for (unsigned i = 0; i < order.size(); i++) order[i] = i;
  while (block.alive > 0) {
    if (shuffled) shuffle(order, random);
    bool ran = false;
    for (unsigned warp : order) {
      ran |= run_warp(block, warp);
      if (block.failure) return;
    }
    if (!ran) {
      block.failure = "threads of a block wait for each other for ever, or lanes of a warp for one that has ended";
      return;
    }
  }
}

static void run_blocks(Launch& launch) {
  static thread_local Block of_thread;
  Block* asked = &of_thread;
  // Compilers that know where it comes from would rather ask again, which is a call, than keep it.
  asm("" : "+r"(asked));
  Block& own = *asked;
  const watch::Aside aside;
  watch::is_host(own.host_watched);
  const unsigned threads = launch.threads.x * launch.threads.y * launch.threads.z;
  const uint64_t blocks = uint64_t(launch.grid.x) * launch.grid.y * launch.grid.z;
  if (own.stacks_bytes < STACK_BYTES * threads) {
    own.give_stacks_back();
    own.stacks_bytes = STACK_BYTES * threads;
    own.mapped = static_cast<char*>(mmap(nullptr, own.stacks_bytes + STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    own.stacks = own.mapped + (STACK_BYTES - reinterpret_cast<uintptr_t>(own.mapped) % STACK_BYTES) % STACK_BYTES;
  }
  // What a sanitizer knows of a fiber stays with it: to begin with a thread anew takes it long.
  if (own.fibers.size() < threads) own.fibers.resize(threads);
  own.count = threads;
  own.warps.resize((threads + 31) / 32);
#if !EMULATOR_ASSEMBLY
  own.contexts.resize(threads);
#endif
  own.run = launch.kernel->run;
  own.params = launch.params;
  own.failure = nullptr;
  own.threads = launch.threads;
  own.grid = launch.grid;
  own.planted = launch.planted;
  for (unsigned i = 0; i < threads; i++) {
    Fiber& of = own.fibers[i];
    of.stack = own.stacks + STACK_BYTES * i;
    fiber_of(reinterpret_cast<uintptr_t>(of.stack)) = &of;
    of.place = &own;
    of.warp = &own.warps[i / 32];
    of.thread = {i % launch.threads.x, i / launch.threads.x % launch.threads.y, i / launch.threads.x / launch.threads.y};
    of.lane = i % 32;
    of.warp_end = own.fibers.data() + std::min(i / 32 * 32 + 32, threads);
  }
  for (uint64_t at; (at = launch.next++) < blocks && !launch.failure;) {
    own.index = {unsigned(at % launch.grid.x), unsigned(at / launch.grid.x % launch.grid.y), unsigned(at / launch.grid.x / launch.grid.y)};
    // Of exactly that size, so that AddressSanitizer sees what lies behind.
    static_assert(__STDCPP_DEFAULT_NEW_ALIGNMENT__ >= 16, "shared memory is aligned to 16 bytes");
    own.shared.reset(new char[launch.shared_bytes]);
    memset(own.shared.get(), 0xff, launch.shared_bytes);
    own.shared_memory = own.shared.get();
    own.shared_bytes = launch.shared_bytes;
    own.asynchronous.reset();
    own.alive = threads;
    own.arrived = 0;
    for (Warp& warp : own.warps) warp.arrived = 0;
    for (unsigned i = 0; i < threads; i++) prepare(own, own.fibers[i]);
    watch::tells(&own.begun);
    run_block(own, launch.seed + at, launch.seed != 0);
    watch::hears(&own.ended);
    if (own.failure) launch.failure = own.failure;
  }
}

// Threads that run blocks beside the caller's, of one launch at a time. Nobody waits for those that come late.
class Crew {
 public:
  static Crew& get() {
    static Crew* crew = new Crew;  // never ends: its threads may outlive all else
    return *crew;
  }
  void run(Launch& launch) {
    // Where another launch has the crew, the processors are busy as it is.
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn) return run_blocks(launch);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      launch_ = &launch;
      round_++;
    }
    begins_.notify_all();
    run_blocks(launch);
    std::unique_lock<std::mutex> lock(mutex_);
    launch_ = nullptr;
    ended_.wait(lock, [&] { return busy_ == 0; });
  }

 private:
  Crew() {
    const unsigned count = std::min(7u, std::max(1u, std::thread::hardware_concurrency()) - 1);
    for (unsigned i = 0; i < count; i++) std::thread([this] { work(); }).detach();
  }
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (uint64_t seen = 0;;) {
      begins_.wait(lock, [&] { return launch_ && round_ != seen; });
      seen = round_;
      Launch& launch = *launch_;
      busy_++;
      lock.unlock();
      run_blocks(launch);
      lock.lock();
      if (--busy_ == 0) ended_.notify_one();
    }
  }
  std::mutex turn_, mutex_;
  std::condition_variable begins_, ended_;
  Launch* launch_ = nullptr;  // while it has blocks
  uint64_t round_ = 0;
  unsigned busy_ = 0;  // threads that are in it
};

}  // namespace emulator

#define HOST_CALLS extern "C" __attribute__((visibility("default")))

// The kernel of a name, or null; how many bytes its parameters are, and threads a block may have.
HOST_CALLS const void* emulator_kernel(const char* name, size_t* bytes, unsigned* threads) {
  for (const emulator::Kernel* kernel = emulator::kernels; kernel; kernel = kernel->next) {
    if (strcmp(kernel->name, name) != 0) continue;
    *bytes = kernel->bytes;
    *threads = kernel->threads;
    return kernel;
  }
  return nullptr;
}

// Runs every block, with a fault of those that are compiled in, or none; what went wrong, or null.
HOST_CALLS const char* emulator_launch_planted(const void* kernel, const void* params, const unsigned* grid, unsigned threads, size_t shared_bytes, uint64_t seed, unsigned planted) {
  emulator::Launch launch{static_cast<const emulator::Kernel*>(kernel), params, {grid[0], grid[1], grid[2]}, {threads, 1, 1}, shared_bytes, seed, planted};
  // Few blocks are done before others would have heard of them; and while some wait for other cards, these need the others.
  if (uint64_t(grid[0]) * grid[1] * grid[2] < 16 || !strcmp(launch.kernel->name, "kernel_meet"))
    emulator::run_blocks(launch);
  else
    emulator::Crew::get().run(launch);
  return launch.failure;
}

HOST_CALLS const char* emulator_launch(const void* kernel, const void* params, const unsigned* grid, unsigned threads, size_t shared_bytes, uint64_t seed) {
  return emulator_launch_planted(kernel, params, grid, threads, shared_bytes, seed, 0);
}
