#include "pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
static void relax() { _mm_pause(); }
#elif defined(__aarch64__)
static void relax() { asm volatile("yield"); }
#else
static void relax() {}
#endif

namespace forerun {
namespace {

using Clock = std::chrono::steady_clock;

// Helpers spin a little before they sleep. The caller waits only for pieces that somebody began, so a helper that wakes late costs nothing. One
// that the system halts within a piece does, as happens where another process keeps a core busy: if such a stall lasts longer than all work
// since the last one, the pool does without a helper for some time, each time for longer.
class Pool {
 public:
  explicit Pool(int threads) : num_active_(threads - 1) {
    for (int i = 0; i < threads - 1; ++i) helpers_.emplace_back([this, i] { help(i); });
  }

  int num_threads() const { return int(helpers_.size()) + 1; }

  void run(size_t pieces, void (*call)(const void*, size_t), const void* job) {
    std::unique_lock<std::mutex> lock(busy_, std::try_to_lock);
    if (pieces < 2 || helpers_.empty() || !lock) {
      for (size_t i = 0; i < pieces; ++i) call(job, i);
      return;
    }
    call_.store(call, std::memory_order_relaxed);
    job_.store(job, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    const uint64_t round = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(round << 32 | pieces);
    if (sleeping_.load()) ticket_.notify_all();
    const auto begun = Clock::now();
    take(round);
    wait_for_helpers(pieces, begun);
  }

 private:
  // ticket_: the round in the upper half, how many of its pieces nobody has taken in the lower. All that a helper decides on is in this one
  // number: one that comes late, while the next round is prepared, sees that its own has nothing left, or fails to exchange it.
  void take(uint64_t round) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (ticket >> 32 == round) {
      const auto call = call_.load(std::memory_order_relaxed);
      const void* job = job_.load(std::memory_order_relaxed);
      const size_t left = uint32_t(ticket);
      if (left == 0) return;
      if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) continue;
      call(job, left - 1);
      done_.fetch_add(1, std::memory_order_release);
      ticket = ticket_.load(std::memory_order_acquire);
    }
  }

  void wait_for_helpers(size_t pieces, Clock::time_point begun) {
    const auto now = Clock::now();
    while (done_.load(std::memory_order_acquire) < pieces) relax();
    const Clock::duration waited = Clock::now() - now;
    worked_ += now - begun;
    if (waited > STALL) note_stall(waited);
    if (num_active_.load(std::memory_order_relaxed) < int(helpers_.size()) && now > resume_at_) {
      ++num_active_;
      num_active_.notify_all();
    }
  }

  void note_stall(Clock::duration waited) {
    pause_ = waited < worked_ ? Clock::duration(0) : std::min<Clock::duration>(std::max(2 * pause_, 16 * waited), LONGEST_PAUSE);
    worked_ = Clock::duration(0);
    if (pause_ == Clock::duration(0) || num_active_.load() == 0) return;
    --num_active_;
    resume_at_ = Clock::now() + pause_;
  }

  void help(int number) {
    for (uint64_t seen = 0;;) {
      for (int active = num_active_.load(); number >= active; active = num_active_.load()) num_active_.wait(active);
      uint64_t ticket = ticket_.load();
      for (const auto end = Clock::now() + SPIN; ticket >> 32 == seen && Clock::now() < end; ticket = ticket_.load()) relax();
      if (ticket >> 32 == seen) {
        ++sleeping_;
        for (ticket = ticket_.load(); ticket >> 32 == seen; ticket = ticket_.load()) ticket_.wait(ticket);
        --sleeping_;
      }
      seen = ticket >> 32;
      take(seen);
    }
  }

  static constexpr auto SPIN = std::chrono::microseconds(20), STALL = std::chrono::microseconds(200);
  static constexpr auto LONGEST_PAUSE = std::chrono::seconds(1);
  std::mutex busy_;
  std::atomic<uint64_t> ticket_{0};
  std::atomic<void (*)(const void*, size_t)> call_{nullptr};
  std::atomic<const void*> job_{nullptr};
  std::atomic<size_t> done_{0};
  std::atomic<int> sleeping_{0}, num_active_;
  Clock::time_point resume_at_;  // this and the next two: of the caller that holds busy_
  Clock::duration worked_{0}, pause_{0};
  std::vector<std::thread> helpers_;
};

std::atomic<Pool*> the_pool{nullptr};  // never deleted: a task may still run while the process ends

}  // namespace

void run_pieces(size_t pieces, void (*call)(const void*, size_t), const void* job) { the_pool.load()->run(pieces, call, job); }

int num_threads() { return the_pool.load()->num_threads(); }

void set_num_threads(int threads) { the_pool.store(new Pool(threads)); }

namespace {
struct Memory {
  void* at = nullptr;
  size_t bytes = 0;
  ~Memory() { std::free(at); }

  void* reserve(size_t wanted) {
    if (bytes < wanted) {
      std::free(at);
      bytes = (wanted + 63) / 64 * 64;
      at = std::aligned_alloc(64, bytes);
    }
    return at;
  }
};
}  // namespace

void* scratch(size_t bytes) {
  thread_local Memory memory;
  return memory.reserve(bytes);
}

void* shared_scratch(size_t bytes) {
  thread_local Memory memory;
  return memory.reserve(bytes);
}

}  // namespace forerun
