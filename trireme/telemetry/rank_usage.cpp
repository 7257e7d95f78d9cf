#include "trireme/telemetry/rank_usage.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "trireme/base/clock.h"

namespace trireme::telemetry {
namespace {

/// A writer that was preempted in a transition continues. One that was killed in it does not, so a reader
/// stops waiting.
constexpr std::int64_t kLongestWait_ns = 200'000'000;
constexpr std::uint64_t kWaits = 1 << 8;
constexpr int kMicrobatchShift = 32;

/// Bits: activity, whether it waits, and the micro-batch, which is -1 or more.
std::uint64_t pack(const ActivitySpan& span) {
  const auto microbatch = static_cast<std::uint64_t>(std::max(span.microbatch, -1) + 1);
  return static_cast<std::uint64_t>(span.activity) | (span.waits ? kWaits : 0) |
         microbatch << kMicrobatchShift;
}

ActivitySpan unpack(std::int64_t begin_ns, std::uint64_t state) {
  const auto activity = std::min<std::uint64_t>(state & 0xff, kNumActivities - 1);
  return {.begin_ns = begin_ns,
          .activity = static_cast<Activity>(activity),
          .waits = (state & kWaits) != 0,
          .microbatch = static_cast<int>(state >> kMicrobatchShift) - 1};
}

/// No read-modify-write: there is one writer.
void add(std::atomic<std::int64_t>& sum, std::int64_t value) {
  sum.store(sum.load(std::memory_order_relaxed) + value, std::memory_order_release);
}

}  // namespace

const char* name_of(Activity activity) {
  constexpr std::array<const char*, kNumActivities> kNames = {
      "other",   "data",      "forward", "backward",   "transfer",
      "weights", "gradients", "update",  "evaluation", "checkpoint"};
  return kNames[static_cast<std::size_t>(activity)];
}

void RankUsage::begin(int world_size) {
  pid_.store(::getpid(), std::memory_order_relaxed);
  world_size_.store(world_size, std::memory_order_relaxed);
  depth_.store(0, std::memory_order_relaxed);
  enter(Activity::kOther);
}

bool RankUsage::is_main_thread() const {
  return main_thread_.load(std::memory_order_relaxed) == static_cast<std::uint64_t>(::pthread_self());
}

void RankUsage::enter(Activity activity, int microbatch) {
  main_thread_.store(static_cast<std::uint64_t>(::pthread_self()), std::memory_order_relaxed);
  change(activity, depth_.load(std::memory_order_relaxed) > 0, microbatch);
  publish_counters();
}

void RankUsage::begin_wait() {
  if (!is_main_thread()) return;
  const std::int64_t depth = depth_.load(std::memory_order_relaxed);
  depth_.store(depth + 1, std::memory_order_relaxed);
  if (depth > 0) return;
  const ActivitySpan now = unpack(0, states_[(num_spans_.load(std::memory_order_relaxed) - 1) % kNumSpans]);
  change(now.activity, true, now.microbatch);
}

void RankUsage::end_wait() {
  if (!is_main_thread()) return;
  const std::int64_t depth = std::max<std::int64_t>(depth_.load(std::memory_order_relaxed) - 1, 0);
  depth_.store(depth, std::memory_order_relaxed);
  if (depth > 0) return;
  const ActivitySpan now = unpack(0, states_[(num_spans_.load(std::memory_order_relaxed) - 1) % kNumSpans]);
  change(now.activity, false, now.microbatch);
}

/// Adds the time of the current span, and begins the next.
void RankUsage::change(Activity activity, bool waits, int microbatch) {
  const std::int64_t at_ns = now_ns();
  const std::uint64_t odd = (sequence_.load(std::memory_order_relaxed) + 1) | 1;
  sequence_.store(odd, std::memory_order_relaxed);
  const std::uint64_t count = num_spans_.load(std::memory_order_relaxed);
  if (count > 0) {
    const std::size_t last = (count - 1) % kNumSpans;
    const ActivitySpan before = unpack(begins_ns_[last], states_[last]);
    const auto place = static_cast<std::size_t>(before.activity);
    add(spent_ns_[place], at_ns - before.begin_ns);
    if (before.waits) add(waited_ns_[place], at_ns - before.begin_ns);
  }
  const ActivitySpan next{.begin_ns = at_ns, .activity = activity, .waits = waits, .microbatch = microbatch};
  begins_ns_[count % kNumSpans].store(at_ns, std::memory_order_release);
  states_[count % kNumSpans].store(pack(next), std::memory_order_release);
  num_spans_.store(count + 1, std::memory_order_release);
  sequence_.store(odd + 1, std::memory_order_release);
}

void RankUsage::set_loader(double fill, std::int64_t batches, int depth) {
  loader_fill_.store(fill, std::memory_order_relaxed);
  loader_batches_.store(batches, std::memory_order_relaxed);
  loader_depth_.store(depth, std::memory_order_relaxed);
}

void RankUsage::set_device_memory(const MemoryUse& memory) {
  for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind)
    device_memory_[kind].store(memory.bytes[kind], std::memory_order_relaxed);
}

void RankUsage::publish_counters() {
  const auto disk = disk_bytes();
  for (std::size_t use = 0; use < kNumDiskUses; ++use) {
    disk_read_[use].store(disk[use].read, std::memory_order_relaxed);
    disk_written_[use].store(disk[use].written, std::memory_order_relaxed);
  }
  const MemoryUse memory = MemoryLedger::of_process().at_peak();
  for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind)
    memory_[kind].store(memory.bytes[kind], std::memory_order_relaxed);
}

/// False if a transition was written during the read.
bool RankUsage::read_times(Usage& usage) const {
  const std::uint64_t before = sequence_.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < kNumActivities; ++i) {
    usage.spent_ns[i] = spent_ns_[i].load(std::memory_order_acquire);
    usage.waited_ns[i] = waited_ns_[i].load(std::memory_order_acquire);
  }
  const std::uint64_t count = num_spans_.load(std::memory_order_acquire);
  usage.spans.clear();
  for (std::uint64_t i = count - std::min<std::uint64_t>(count, kNumSpans); i < count; ++i) {
    usage.spans.push_back(unpack(begins_ns_[i % kNumSpans].load(std::memory_order_acquire),
                                 states_[i % kNumSpans].load(std::memory_order_acquire)));
  }
  usage.now = usage.spans.empty() ? ActivitySpan() : usage.spans.back();
  return before % 2 == 0 && sequence_.load(std::memory_order_relaxed) == before;
}

Usage RankUsage::read() const {
  Usage usage;
  for (const std::int64_t give_up_ns = now_ns() + kLongestWait_ns; !read_times(usage);) {
    if (now_ns() > give_up_ns) break;
    ::sched_yield();
  }
  usage.pid = static_cast<int>(pid_.load(std::memory_order_relaxed));
  usage.world_size = static_cast<int>(world_size_.load(std::memory_order_relaxed));
  usage.role = static_cast<int>(role_.load(std::memory_order_relaxed));
  usage.loader_fill = loader_fill_.load(std::memory_order_relaxed);
  usage.loader_batches = loader_batches_.load(std::memory_order_relaxed);
  usage.loader_depth = static_cast<int>(loader_depth_.load(std::memory_order_relaxed));
  usage.sent_bytes = sent_bytes_.load(std::memory_order_relaxed);
  for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind) {
    usage.memory.bytes[kind] = memory_[kind].load(std::memory_order_relaxed);
    usage.device_memory.bytes[kind] = device_memory_[kind].load(std::memory_order_relaxed);
  }
  for (std::size_t use = 0; use < kNumDiskUses; ++use) {
    usage.disk[use] = {.read = disk_read_[use].load(std::memory_order_relaxed),
                       .written = disk_written_[use].load(std::memory_order_relaxed)};
  }
  return usage;
}

}  // namespace trireme::telemetry
