// Threads that stay awake between the loops of one decode step and sleep between steps. Parts are taken, not
// dealt: a thread that the system holds up leaves its share to the others, and nobody waits for one that slept.

#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>

#include <immintrin.h>
#include <sched.h>
#include <unistd.h>

namespace team {

using Job = void (*)(const void*, int64_t);

// About 0.2 ms: longer than Python and one thread's work take from one shared loop to the next, adapters' included. With
// 30 us the others slept between loops, and steps of 8 rows took a tenth longer.
constexpr int SPINS = 10000;
constexpr int64_t MOST_THREADS = 256;

class Team {
 public:
  // Calls job(context, i) for each i < parts, on this thread and up to threads - 1 others.
  void run(int64_t parts, int64_t threads, Job job, const void* context) {
    // A second caller at the same time, and a child of fork(), which has none of the threads, work alone.
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (threads <= 1 || parts <= 1 || !lock || (started_ && owner_ != getpid())) {
      for (int64_t i = 0; i < parts; i++) job(context, i);
      return;
    }
    start(std::min(threads, MOST_THREADS) - 1);
    const uint32_t round = round_.load(std::memory_order_relaxed) + 1;
    // First nothing is to be had in this round: a thread that is late in the last one must not take a part of it
    // with some of the new round's job, and the exchange that it is about to make fails.
    next_.store(uint64_t{round} << 32 | UINT32_MAX);
    job_.store(job, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    helpers_.store(threads - 1, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    parts_.store(parts, std::memory_order_release);
    next_.store(uint64_t{round} << 32);
    round_.store(round);
    round_.notify_all();
    take(round);
    for (int spins = 0; done_.load(std::memory_order_acquire) < parts; spins++)
      spins < SPINS ? _mm_pause() : void(sched_yield());
  }

 private:
  void start(int64_t helpers) {
    owner_ = getpid();
    for (; started_ < helpers; started_++) std::thread(&Team::help, this, started_).detach();
  }

  [[noreturn]] void help(int64_t index) {
    uint32_t seen = 0;
    while (true) {
      uint32_t round = round_.load();
      for (int spins = 0; round == seen && spins < SPINS; spins++) {
        _mm_pause();
        round = round_.load();
      }
      if (round == seen) {
        round_.wait(seen);
        continue;
      }
      seen = round;
      if (index < helpers_.load(std::memory_order_relaxed)) take(round);
    }
  }

  // `next_` holds the round beside the next part: a late thread's exchange fails once the round is over, so what
  // it read of the job was this round's whenever it gets a part.
  void take(uint32_t round) {
    uint64_t next = next_.load();
    while (true) {
      const int64_t part = uint32_t(next);
      const int64_t parts = parts_.load(std::memory_order_acquire);
      const Job job = job_.load(std::memory_order_relaxed);
      const void* context = context_.load(std::memory_order_relaxed);
      if (next >> 32 != round || part >= parts) return;
      if (!next_.compare_exchange_weak(next, next + 1)) continue;
      job(context, part);
      done_.fetch_add(1, std::memory_order_release);
      next = next_.load();
    }
  }

  std::mutex mutex_;
  pid_t owner_ = 0;
  int64_t started_ = 0;
  std::atomic<Job> job_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<int64_t> parts_{0}, helpers_{0}, done_{0};
  alignas(64) std::atomic<uint64_t> next_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
};

// Never destroyed: its threads may outlive the process's other statics.
inline Team& instance() {
  static Team* const held = new Team;
  return *held;
}

template <typename Function>
void run(int64_t parts, int64_t threads, const Function& function) {
  instance().run(
      parts, threads, [](const void* context, int64_t part) { (*static_cast<const Function*>(context))(part); },
      &function);
}

}  // namespace team
