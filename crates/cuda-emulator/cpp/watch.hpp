// What the compiler's sanitizers are told of fibers, which they cannot see by themselves; without them, nothing.
//
// To ThreadSanitizer each fiber is a thread. Fibers hear of each other at barriers alone, not because one runs after the other, so that a
// missing barrier is a race whatever the schedule. What the emulator itself reads and writes is none of its business.
#pragma once

#if defined(__SANITIZE_THREAD__) && !defined(EMULATOR_COUNTS)
#define WATCH_NOTHING __attribute__((no_sanitize("thread"), noinline))
extern "C" {
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void* __tsan_get_current_fiber();
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* at);
void __tsan_release(void* at);
void __tsan_read16(void* at);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#else
#define WATCH_NOTHING
#ifdef EMULATOR_COUNTS
// Reads and writes are calls that count.cpp answers, and no sanitizer is there.
extern "C" void __tsan_read16(void* at);
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
extern "C" {
void __sanitizer_start_switch_fiber(void** kept, const void* bottom, unsigned long bytes);
void __sanitizer_finish_switch_fiber(void* kept, const void** bottom, unsigned long* bytes);
void __asan_unpoison_memory_region(const volatile void* at, unsigned long bytes);
}
#endif

namespace watch {

// Whether a sanitizer must be told of stacks.
#if (defined(__SANITIZE_THREAD__) && !defined(EMULATOR_COUNTS)) || defined(__SANITIZE_ADDRESS__)
constexpr bool WATCHES = true;
#else
constexpr bool WATCHES = false;
#endif

// A stack, as sanitizers know it.
struct Stack {
#if defined(__SANITIZE_THREAD__) && !defined(EMULATOR_COUNTS)
  void* thread = nullptr;
#endif
#ifdef __SANITIZE_ADDRESS__
  const void* bottom = nullptr;
  unsigned long bytes = 0;
  void* kept = nullptr;
#endif
};

// The stack that this runs on, which the system has made.
inline void is_host(Stack& stack) {
  (void)stack;
#if defined(__SANITIZE_THREAD__) && !defined(EMULATOR_COUNTS)
  stack.thread = __tsan_get_current_fiber();
#endif
}

// Memory that was stacks and will be something else, or another's: what ran there last has never returned.
inline void forgets(const void* at, unsigned long bytes) {
  (void)at, (void)bytes;
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(at, bytes);
#endif
}

// The stack of a fiber that has not begun.
inline void is_fiber(Stack& stack, const void* bottom, unsigned long bytes) {
  (void)stack, (void)bottom, (void)bytes;
#if defined(__SANITIZE_THREAD__) && !defined(EMULATOR_COUNTS)
  if (!stack.thread) stack.thread = __tsan_create_fiber(0);
#endif
#ifdef __SANITIZE_ADDRESS__
  stack.bottom = bottom, stack.bytes = bytes, stack.kept = nullptr;
#endif
  forgets(bottom, bytes);
}

// A fiber that will run no more.
inline void ends(Stack& stack) {
  (void)stack;
#if defined(__SANITIZE_THREAD__) && !defined(EMULATOR_COUNTS)
  if (stack.thread) __tsan_destroy_fiber(stack.thread);
  stack.thread = nullptr;
#endif
}

// Right before and right after another stack runs; `began` where a fiber does for the first time.
inline void leaves(Stack& from, const Stack& to) {
  (void)from, (void)to;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&from.kept, to.bottom, to.bytes);
#endif
#if defined(__SANITIZE_THREAD__) && !defined(EMULATOR_COUNTS)
  __tsan_switch_to_fiber(to.thread, 1);  // which orders nothing
#endif
}
inline void is_back(Stack& own) {
  (void)own;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(own.kept, nullptr, nullptr);
#endif
}
inline void began(Stack& host) {
  (void)host;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &host.bottom, &host.bytes);
#endif
}

// What is done before the one, by whomever, is done before what comes after the other.
inline void tells(void* at) {
  (void)at;
#if defined(__SANITIZE_THREAD__) && !defined(EMULATOR_COUNTS)
  __tsan_release(at);
#endif
}
inline void hears(void* at) {
  (void)at;
#if defined(__SANITIZE_THREAD__) && !defined(EMULATOR_COUNTS)
  __tsan_acquire(at);
#endif
}

// 16 bytes that the card reads where the emulator has another thread do it, or the system's library.
inline void reads16(const void* at) {
  (void)at;
#if defined(__SANITIZE_THREAD__) || defined(EMULATOR_COUNTS)
  __tsan_read16(const_cast<void*>(at));
#endif
}

// While there is one, what the fiber reads and writes is the emulator's.
struct Aside {
#if defined(__SANITIZE_THREAD__) && !defined(EMULATOR_COUNTS)
  Aside() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Aside() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  Aside() {}
  ~Aside() {}
#endif
  Aside(const Aside&) = delete;
};

}  // namespace watch
