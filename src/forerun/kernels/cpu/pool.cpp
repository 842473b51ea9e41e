#include "pool.h"

#include <atomic>
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

// Helpers spin a little before they sleep. The caller waits only for pieces that somebody began, so a helper that wakes late costs nothing.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { help(); });
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
    pieces_.store(pieces, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    const uint64_t round = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(round << 32);
    if (sleeping_.load()) ticket_.notify_all();
    take(round);
    while (done_.load(std::memory_order_acquire) < pieces) relax();
  }

 private:
  // ticket_: the round in the upper half, the next piece in the lower.
  void take(uint64_t round) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (ticket >> 32 == round) {
      const auto call = call_.load(std::memory_order_relaxed);
      const void* job = job_.load(std::memory_order_relaxed);
      const size_t piece = uint32_t(ticket);
      if (piece >= pieces_.load(std::memory_order_relaxed)) return;
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;  // else call and job are this round's
      call(job, piece);
      done_.fetch_add(1, std::memory_order_release);
      ticket = ticket_.load(std::memory_order_acquire);
    }
  }

  void help() {
    for (uint64_t seen = 0;;) {
      uint64_t ticket = ticket_.load();
      for (int spins = 0; ticket >> 32 == seen && spins < SPINS; ++spins) relax(), ticket = ticket_.load();
      if (ticket >> 32 == seen) {
        ++sleeping_;
        for (ticket = ticket_.load(); ticket >> 32 == seen; ticket = ticket_.load()) ticket_.wait(ticket);
        --sleeping_;
      }
      seen = ticket >> 32;
      take(seen);
    }
  }

  static constexpr int SPINS = 2000;
  std::mutex busy_;
  std::atomic<uint64_t> ticket_{0};
  std::atomic<void (*)(const void*, size_t)> call_{nullptr};
  std::atomic<const void*> job_{nullptr};
  std::atomic<size_t> pieces_{0}, done_{0};
  std::atomic<int> sleeping_{0};
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
