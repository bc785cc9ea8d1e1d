// Streams of emulated cards: what they were asked for is done when somebody waits for it, no sooner, and one thread at a time does it. A kernel
// that waits for another card has the other streams done meanwhile, each by a thread of its own; what it waits for may be there already, and then
// it goes on at once or when none of the others can, as it happens. So what is read before it is there, or written while another still reads
// it, is found out, if not at the first time.
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

struct Graph;

namespace streams {

// A thread that does what streams were asked for.
struct Worker {
  std::function<bool()> ready;  // whether what it stands still for is there; none where it does not stand still
  bool has_patience = false;    // which comes to an end: it goes on, and hears that nobody does
  bool goes_on() const { return !ready || ready(); }
};

struct Stream {
  void* context;
  Graph* captured = nullptr;
  Worker* owner = nullptr;  // that is in the middle of it
  std::deque<std::function<int()>> work;
  uint64_t asked = 0, done = 0;
};

struct State {
  std::mutex mutex;  // of all that is here, and of every stream's
  std::condition_variable changed;
  std::vector<Worker*> workers;
  Worker* now = nullptr;  // whose turn it is
  std::set<Stream*> all;
  uint64_t random = 1;
};
// Never gone: threads may stand still in it when the process ends.
inline State& state() {
  static State* state = new State;
  return *state;
}
inline std::atomic<int> sticky;
inline thread_local Worker* own;

// Gives the turn to the next that goes on, and has it back later; at once where there is none. Where nobody can go on, it is who has patience
// that does: false for that one, and for one who has none where nobody has.
inline bool pass(std::unique_lock<std::mutex>& lock) {
  State& of = state();
  const size_t count = of.workers.size(), at = std::find(of.workers.begin(), of.workers.end(), own) - of.workers.begin();
  Worker* next = nullptr;
  const auto look = [&](auto fits) {
    for (size_t behind = 1; behind < count && !next; behind++) {
      Worker* worker = of.workers[(at + behind) % count];
      if (fits(worker)) next = worker;
    }
  };
  look([](Worker* worker) { return worker->goes_on(); });
  const bool others_must = !own->goes_on() && !own->has_patience;
  if (!next && others_must) look([](Worker* worker) { return worker->has_patience; });
  const bool found = next;
  if (found) {
    of.now = next;
    of.changed.notify_all();
    of.changed.wait(lock, [&] { return of.now == own; });
  }
  const bool goes_on = own->goes_on() || (others_must && found);
  own->ready = nullptr;
  return goes_on;
}

inline void begin(Worker* worker) {
  own = worker;
  state().workers.push_back(worker);
}

// Leaves the turn to whoever goes on, or to one who is to hear that nobody does; `nobody`: to who asks for it next.
inline void end(bool nobody) {
  State& of = state();
  of.workers.erase(std::find(of.workers.begin(), of.workers.end(), own));
  of.now = nullptr;
  if (!nobody && !of.workers.empty()) {
    auto next = std::find_if(of.workers.begin(), of.workers.end(), [](Worker* worker) { return worker->goes_on(); });
    of.now = next == of.workers.end() ? of.workers.front() : *next;
  }
  own = nullptr;
  of.changed.notify_all();
}

// What comes next of a stream.
inline void do_next(Stream* stream, std::unique_lock<std::mutex>& lock) {
  const std::function<int()> work = stream->work.front();
  lock.unlock();
  if (!sticky) work();
  lock.lock();
  stream->work.pop_front();
  ++stream->done;
}

// Does what a stream was asked for, up to there. What a launch that fails leaves undone stays so.
inline int advance(Stream* stream, uint64_t until = UINT64_MAX) {
  State& of = state();
  std::unique_lock<std::mutex> lock(of.mutex);
  Worker worker;
  const bool begins = !own;
  if (begins) {
    begin(&worker);
    of.changed.wait(lock, [&] { return !of.now || of.now == &worker; });
    of.now = &worker;
  }
  while (stream->done < until && !stream->work.empty()) {
    if (stream->owner && stream->owner != own) {
      own->ready = [=] { return !stream->owner || stream->done >= until; };
      if (!pass(lock)) {
        fprintf(stderr, "emulated streams: all wait for each other\n");
        sticky = 719;
        break;
      }
      continue;
    }
    stream->owner = own;
    do_next(stream, lock);
    stream->owner = nullptr;
  }
  if (begins) end(true);
  return sticky;
}

inline int ask(Stream* stream, std::function<int()> work) {
  std::lock_guard<std::mutex> lock(state().mutex);
  stream->work.push_back(std::move(work));
  ++stream->asked;
  return 0;
}

// What is freed is waited for.
inline int advance_all() {
  std::set<Stream*> all;
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    all = state().all;
  }
  for (Stream* stream : all) advance(stream);
  return sticky;
}

// A thread that does a stream's work as long as somebody stands still.
inline void work_on(Stream* stream, Worker* worker) {
  State& of = state();
  std::unique_lock<std::mutex> lock(of.mutex);
  own = worker;
  of.changed.wait(lock, [&] { return of.now == worker; });
  const auto stands = [](Worker* other) { return !other->goes_on(); };
  do {
    do_next(stream, lock);
  } while (!stream->work.empty() && std::any_of(of.workers.begin(), of.workers.end(), stands));
  stream->owner = nullptr;
  end(false);
  delete worker;
}

// Stands still until another card has told a turn; false where nobody will.
inline bool hear(const uint64_t* flag, uint64_t turn) {
  State& of = state();
  const auto told = [=] { return __atomic_load_n(flag, __ATOMIC_ACQUIRE) >= turn; };
  if (!own) return told();  // no driver has launched it
  std::unique_lock<std::mutex> lock(of.mutex);
  of.random = of.random * 6364136223846793005u + 1442695040888963407u;
  if (told() && of.random >> 63) return true;
  for (Stream* stream : of.all) {
    if (stream->owner || stream->work.empty()) continue;
    stream->owner = new Worker;
    of.workers.push_back(stream->owner);
    std::thread(work_on, stream, stream->owner).detach();
  }
  own->ready = told;
  own->has_patience = true;
  const bool heard = pass(lock);
  own->has_patience = false;
  return heard;
}

}  // namespace streams
