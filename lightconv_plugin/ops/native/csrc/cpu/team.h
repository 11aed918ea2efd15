// Threads that stay together during one operator with many short parallel parts.
//
// OpenMP's threads sleep between two parts, or read a number until there is work. To wake them takes longer than some
// parts; and where another job uses the processor, they read in its place, and every part waits for all of them. Here
// they are woken once, and claim pieces of one part after the other. The leader claims pieces, too, so a thread that gets
// no processor delays little.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>

#include "tensor.h"

namespace lightconv {

class Team {
 public:
  // Calls work() on this thread, the leader, while torch's other threads help with its calls of `in_ranges`.
  template <class Work>
  static void lead(const Work& work) {
    const int64_t threads = torch::stable::get_num_threads();
    if (threads < 2 || present() != nullptr) return work();
    Team team(threads);
    std::exception_ptr error;  // parallel_for would lose its message
    torch::stable::parallel_for(0, threads, 1, [&](int64_t begin, int64_t) {
      if (begin > 0) return team.follow();
      present() = &team;
      try {
        work();
      } catch (...) {
        error = std::current_exception();
      }
      present() = nullptr;
      team.ticket_ = kOver;
      team.ticket_.notify_all();
    });
    if (error) std::rethrow_exception(error);
  }

  // The team that this thread leads, or null.
  static Team*& present() {
    thread_local Team* team = nullptr;
    return team;
  }

  // Calls body(begin, end) for ranges that make up [0, count), of at least `grain` numbers where possible.
  template <class Body>
  void run(int64_t count, int64_t grain, const Body& body) {
    const int64_t pieces = std::min((count + grain - 1) / grain, 4 * threads_);
    if (pieces < 2) {
      if (count > 0) body(0, count);
      return;
    }
    const auto call = [](const void* any, int64_t begin, int64_t end) { (*static_cast<const Body*>(any))(begin, end); };
    const Part part{call, &body, count, (count + pieces - 1) / pieces};
    finished_ = 0;
    part_ = &part;
    ticket_ = ++number_ << 32 | static_cast<uint64_t>(pieces);
    ticket_.notify_all();
    for (uint64_t ticket = ticket_; ticket & kPieces; ticket = ticket_) claim(ticket);
    for (int64_t seen = finished_; seen < pieces; seen = finished_) wait(finished_, seen);
  }

 private:
  struct Part {
    void (*call)(const void* body, int64_t begin, int64_t end);
    const void* body;
    int64_t count, size;  // of the range, and of a piece
  };
  // A ticket has the number of a part and, in the lower half, the number of its pieces that nobody has claimed.
  static constexpr uint64_t kPieces = UINT32_MAX, kOver = UINT64_MAX << 32;

  explicit Team(int64_t threads) : threads_(threads) {}

  void follow() {
    for (uint64_t ticket = ticket_; ticket != kOver; ticket = ticket_)
      if (!(ticket & kPieces)) wait(ticket_, ticket);
      else claim(ticket);
  }

  // Claims a piece of the ticket's part, and computes it, unless another thread was faster.
  void claim(uint64_t ticket) {
    // until the claim succeeds, the leader may go on to another part: then the ticket has changed, and it fails
    const Part* part = part_;
    if (!ticket_.compare_exchange_strong(ticket, ticket - 1)) return;
    const int64_t begin = static_cast<int64_t>((ticket & kPieces) - 1) * part->size;
    if (begin < part->count) part->call(part->body, begin, std::min(part->count, begin + part->size));
    ++finished_;
    finished_.notify_one();
  }

  // Waits until the number differs from `seen`: for some time by reading it again, and then asleep.
  template <class Number>
  static void wait(const std::atomic<Number>& number, Number seen) {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::microseconds(50);
    do {
      for (int i = 0; i < 16; ++i) {
        if (number != seen) return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
    } while (Clock::now() < end);
    number.wait(seen);
  }

  const int64_t threads_;
  uint64_t number_ = 0;
  std::atomic<const Part*> part_{nullptr};
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int64_t> finished_{0};
};

// Calls body(begin, end) on threads, for ranges that make up [0, count), of at least `grain` numbers where possible.
template <class Body>
void in_ranges(int64_t count, int64_t grain, const Body& body) {
  if (Team* team = Team::present())
    team->run(count, std::max<int64_t>(1, grain), body);
  else
    torch::stable::parallel_for(0, count, std::max<int64_t>(1, grain), body);
}

}  // namespace lightconv
