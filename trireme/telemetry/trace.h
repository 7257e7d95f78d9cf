#pragma once
// Timeline of one rank: spans (begin, end, name, a few numbers) in memory, for the trace of a run
// (trace_file.h). Each thread, and each group of ranks, has a TraceBuffer of its own: adding a span there
// takes no lock and, but for every 512th, no allocation. Memory is bounded: when the given number of spans is
// held, later ones are counted and dropped. Off is a null pointer: a TraceScope without a buffer reads no
// clock. Thread safety: making buffers and interning from any thread; a buffer has one writing thread at a
// time; reading while others write is fine. Times are of the monotonic clock, in nanoseconds.

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "trireme/base/clock.h"

namespace trireme::telemetry {

/// A number that belongs to a span. The key is a literal; null: there is none.
struct TraceArgument {
  const char* key = nullptr;
  std::int64_t value = 0;
};

/// Texts are literals, or interned by the Trace.
struct TraceSpan {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  const char* category = "";
  const char* name = "";
  const char* group = nullptr;  ///< of ranks; null: none
  int thread = 0;  ///< the kernel's number of the thread; 0: the span may overlap others of its buffer
  std::array<TraceArgument, 3> arguments{};
};

struct TraceOptions {
  std::int64_t first_step = 0;                   ///< spans are taken from the begin of that step on
  std::int64_t last_step = INT64_MAX;            ///< up to its end
  std::size_t max_spans = std::size_t{1} << 18;  ///< of the rank; about 100 bytes each
};

class Trace;

/// Where one thread, or one group of ranks, puts its spans; lives as long as the trace.
class TraceBuffer {
 public:
  TraceBuffer(Trace& trace, std::string name, int thread)
      : trace_(trace), name_(std::move(name)), thread_(thread) {}
  ~TraceBuffer();
  TraceBuffer(const TraceBuffer&) = delete;
  TraceBuffer& operator=(const TraceBuffer&) = delete;

  Trace& trace() const { return trace_; }
  const std::string& name() const { return name_; }
  /// The thread that it belongs to; 0 when it belongs to none.
  int thread() const { return thread_; }
  /// False outside of the steps that are traced.
  bool recording() const;
  /// Keeps the span, for any value of recording().
  void add(const TraceSpan& span);
  void for_each(const std::function<void(const TraceSpan&)>& visit) const;

 private:
  static constexpr std::size_t kChunkSpans = 512;
  struct Chunk {
    std::array<TraceSpan, kChunkSpans> spans;
    std::atomic<std::size_t> size{0};
    std::atomic<Chunk*> next{nullptr};
  };

  Trace& trace_;
  const std::string name_;
  const int thread_;
  std::atomic<Chunk*> first_{nullptr};
  Chunk* last_ = nullptr;
};

class Trace {
 public:
  /// The calling thread is the rank's main thread.
  explicit Trace(const TraceOptions& options = {});
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// The buffer of the thread that made the trace.
  TraceBuffer& main() { return *main_; }
  /// For the calling thread. Lives as long as the trace.
  TraceBuffer& add_thread(const std::string& name);
  /// For spans that may overlap, of any thread: the operations of a group, buckets.
  TraceBuffer& add_lanes(const std::string& name);
  /// A copy of the text that lives as long as the trace.
  const char* intern(const std::string& text);

  /// Called by the main thread when a step begins: starts and ends the recording.
  void begin_step(std::int64_t step);
  bool recording() const { return recording_.load(std::memory_order_relaxed); }

  std::uint64_t num_dropped() const { return num_dropped_.load(std::memory_order_relaxed); }
  /// Buffers in the order in which they were made.
  std::vector<const TraceBuffer*> buffers() const;

 private:
  friend class TraceBuffer;
  /// False, and one span counted as dropped, when there is no room for another chunk.
  bool take_chunk(std::size_t spans);

  const TraceOptions options_;
  std::atomic<bool> recording_{false};
  std::atomic<std::size_t> num_reserved_{0};
  std::atomic<std::uint64_t> num_dropped_{0};
  mutable std::mutex mutex_;
  std::deque<TraceBuffer> buffers_;
  std::set<std::string> texts_;
  TraceBuffer* main_;
};

/// The kernel's number of the calling thread.
int this_thread_number();

/// The main thread's buffer; null when nothing is traced.
inline TraceBuffer* main_of(Trace* trace) { return trace == nullptr ? nullptr : &trace->main(); }

inline bool TraceBuffer::recording() const { return trace_.recording(); }

/// A span from its construction to its destruction, on the buffer's thread.
class TraceScope {
 public:
  TraceScope(TraceBuffer* buffer, const char* category, const char* name, TraceArgument argument = {})
      : buffer_(buffer != nullptr && buffer->recording() ? buffer : nullptr) {
    if (buffer_ != nullptr) begin(category, name, argument);
  }
  ~TraceScope() {
    if (buffer_ != nullptr) end();
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  void begin(const char* category, const char* name, TraceArgument argument);
  void end();

  TraceBuffer* buffer_;
  std::int64_t begin_ns_;
  const char* category_;
  const char* name_;
  TraceArgument argument_;
};

}  // namespace trireme::telemetry
