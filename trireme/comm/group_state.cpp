#include "trireme/comm/internal/group_state.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <exception>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/comm/internal/timed_work.h"
#include "trireme/comm/internal/watcher.h"
#include "trireme/telemetry/rank_usage.h"
#include "trireme/wire/group_error.h"

namespace trireme::comm {
namespace {

constexpr std::size_t kStatusBytes = 200;
// How long a rank with a failed operation looks for the rank that caused it. After a connection broke, a dead
// rank of another host is only detected by seconds of silence.
constexpr double kPatienceAfterBreak_s = 3.5;
// The watcher normally ends waits. This limit ends one that the watcher cannot, after the backends' own
// deadline.
constexpr double kLastResort_s = 2 * kBackendMargin_s;

/// Bytes of the tensor that this rank sends; 0 without one.
std::uint64_t bytes_of(const Operation& operation) {
  if (operation.dtype == at::ScalarType::Undefined || operation.kind == OperationKind::kRecv) return 0;
  return static_cast<std::uint64_t>(operation.numel) * c10::elementSize(operation.dtype);
}

void show(const GroupParts& parts, const Operation& operation) {
  if (!parts.status) return;
  char line[kStatusBytes];
  const std::string_view shown(line, format_status(operation, parts.name, line, sizeof line));
  const std::lock_guard lock(parts.status->mutex);
  parts.status->page.set_operation(shown);
}

/// The failure of an operation, as its backend reports it.
struct Failure {
  enum class Kind {
    kOfGroup,      ///< has a user-readable explanation with the group's operation
    kExplained,    ///< has an explanation, perhaps with an operation of a part of the group
    kUnexplained,  ///< an error of a library, or the reason is published elsewhere
  };
  Kind kind;
  std::string what;
};

Failure failure_of(const std::exception_ptr& error, const std::string& group) {
  using Kind = Failure::Kind;
  try {
    std::rethrow_exception(error);
  } catch (const wire::GroupError& failure) {
    // An aborted operation has no cause of its own. The rank that aborted publishes the cause through the
    // watcher.
    if (failure.kind() == wire::GroupError::Kind::kGivenUp) return {Kind::kUnexplained, failure.what()};
    return {failure.group() == group ? Kind::kOfGroup : Kind::kExplained, failure.what()};
  } catch (const CommError& explained) {
    return {Kind::kExplained, explained.what()};
  } catch (const c10::Error& foreign) {
    return {Kind::kUnexplained, foreign.what_without_backtrace()};
  } catch (const std::exception& foreign) {
    return {Kind::kUnexplained, foreign.what()};
  }
}

std::int64_t ns_of(double seconds) { return std::llround(seconds * 1e9); }

}  // namespace

Group::State::~State() {
  if (parts.watcher) parts.watcher->keep_last_words(parts.name, recent());
  // A backend waits for running operations. After a failure or an exception, other ranks or this one may
  // never finish these.
  const bool in_failure = std::uncaught_exceptions() > 0 || (parts.watcher && parts.watcher->saw_failure());
  if (in_failure && parts.backend && !failed()) parts.backend->abort();
}

void Group::State::begin(Operation& operation) {
  check();
  operation.issued_s = now_s();
  const std::lock_guard lock(mutex_);
  operation.number = ++number_;
  operation.order = ++last_order(operation);
  if (parts.status && parts.backend) parts.status->page.usage().count_sent(bytes_of(operation));
  replaced_ = std::exchange(ring_[operation.number % kRingSize], operation);
  show(parts, operation);
}

void Group::State::withdraw(const Operation& operation) {
  const std::lock_guard lock(mutex_);
  ring_[operation.number % kRingSize] = replaced_;
  --last_order(operation);
  --number_;
}

void Group::State::wait(const Operation& operation, c10d::Work& work) {
  const double left_s = operation.issued_s + parts.slow_timeout_s + kLastResort_s - now_s();
  try {
    work.wait(whole_milliseconds(left_s));
  } catch (...) {
    fail_operation(operation, std::current_exception());
  }
  end(operation.number, OperationRecord::State::kDone, &work);
}

void Group::State::fail_operation(const Operation& operation, const std::exception_ptr& error) {
  note_failure(operation, error);
  throw_failure();
}

void Group::State::note_failure(const Operation& operation, const std::exception_ptr& error) {
  if (failed()) return end(operation.number, OperationRecord::State::kFailed);
  const auto [kind, what] = failure_of(error, parts.name);
  const std::string of_operation = text("rank ", parts.world_ranks[static_cast<std::size_t>(parts.rank)],
                                        ", group '", parts.name, "', ", operation.record().describe(), ": ");
  if (kind != Failure::Kind::kUnexplained) {
    end(operation.number, OperationRecord::State::kFailed);
    return fail(kind == Failure::Kind::kOfGroup ? what : of_operation + what);
  }
  // The operation stays pending during the call: the watcher looks for the ranks that block pending
  // operations.
  const std::string blamed =
      parts.watcher ? parts.watcher->explain(*this, operation, kPatienceAfterBreak_s) : std::string();
  end(operation.number, OperationRecord::State::kFailed);
  fail(of_operation + (blamed.empty() ? what : blamed));  // unless another rank's cause came first
}

bool Group::State::close_if_over(const Dropped& dropped) {
  if (!dropped.work->isCompleted()) return false;
  if (const auto error = dropped.work->exception()) {
    note_failure(dropped.operation, error);
  } else {
    end(dropped.operation.number, OperationRecord::State::kDone, dropped.work.get());
  }
  return true;
}

void Group::State::keep_dropped(const Operation& operation, Work work, Tensors tensors) {
  const std::lock_guard lock(mutex_);
  dropped_.push_back({operation, std::move(work), std::move(tensors)});
}

void Group::State::look_after_dropped() {
  std::vector<Dropped> dropped;
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(dropped_);
  }
  std::erase_if(dropped, [this](const Dropped& each) { return close_if_over(each); });
  const std::lock_guard lock(mutex_);
  for (auto& each : dropped) dropped_.push_back(std::move(each));
}

void Group::State::end(std::uint64_t number, OperationRecord::State how, const c10d::Work* work) {
  const double now = now_s();
  const std::lock_guard lock(mutex_);
  Operation& operation = ring_[number % kRingSize];
  // Already closed, or overwritten by 64 later operations.
  if (operation.number != number || operation.state != OperationRecord::State::kIssued) return;
  operation.state = how;
  operation.done_s = now;
  show(parts, operation);
  telemetry::TraceBuffer* trace = trace_.load(std::memory_order_acquire);
  if (trace == nullptr || !trace->recording() || !parts.backend) return;
  telemetry::TraceSpan span = span_of(operation);
  span.end_ns = ns_of(work == nullptr ? now : ended_s_of(*work, now));
  trace->add(span);
}

void Group::State::set_trace(telemetry::Trace* trace) {
  const std::lock_guard lock(mutex_);
  trace_name_ = trace == nullptr ? nullptr : trace->intern(parts.name);
  trace_ = trace == nullptr ? nullptr : &trace->add_lanes("group " + parts.name);
}

telemetry::Trace* Group::State::trace() const {
  telemetry::TraceBuffer* trace = trace_.load(std::memory_order_acquire);
  return trace == nullptr ? nullptr : &trace->trace();
}

telemetry::TraceSpan Group::State::span_of(const Operation& operation) const {
  telemetry::TraceSpan span{.begin_ns = ns_of(operation.issued_s),
                            .category = "comm",
                            .name = name_of(operation.kind),
                            .group = trace_name_};
  span.arguments[0] = {"number", static_cast<std::int64_t>(operation.number)};
  if (operation.dtype != at::ScalarType::Undefined) {
    const auto size = static_cast<std::int64_t>(c10::elementSize(operation.dtype));
    span.arguments[1] = {"bytes", operation.numel * size};
  }
  if (operation.peer >= 0) span.arguments[2] = {"peer", operation.peer};
  return span;
}

Group::State::WaitScope::WaitScope(State& group, const Operation& operation)
    : group_(group), operation_(operation) {
  const telemetry::TraceBuffer* trace = group.trace_.load(std::memory_order_acquire);
  if (trace != nullptr && trace->recording() && group.parts.backend) begin_ns_ = now_ns();
  if (group.parts.status) group.parts.status->page.usage().begin_wait();
  const std::lock_guard lock(group.mutex_);
  group.waits_.push_back(operation);
}

Group::State::WaitScope::~WaitScope() {
  const std::lock_guard lock(group_.mutex_);
  std::erase_if(group_.waits_, [this](const Operation& o) { return o.number == operation_.number; });
  if (begin_ns_ != 0) group_.add_wait_span(operation_, begin_ns_);
  if (group_.parts.status) group_.parts.status->page.usage().end_wait();
}

/// Called under the mutex.
void Group::State::add_wait_span(const Operation& operation, std::int64_t begin_ns) {
  telemetry::TraceBuffer* trace = trace_.load(std::memory_order_acquire);
  if (trace == nullptr) return;
  telemetry::TraceSpan span = span_of(operation);
  span.begin_ns = begin_ns;
  span.end_ns = now_ns();
  span.category = "wait";
  span.name = "waiting for other ranks";
  span.thread = telemetry::this_thread_number();
  trace->add(span);
}

bool Group::State::enter_failure(const std::string& cause) {
  const std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) return false;
  cause_ = cause;
  failed_.store(true, std::memory_order_release);
  return true;
}

void Group::State::fail(const std::string& cause) {
  if (!enter_failure(cause)) return;
  if (parts.watcher) parts.watcher->publish_failure(parts.name, cause);
  if (parts.backend) parts.backend->abort();
  fail_parts(cause);
  std::shared_ptr<State> whole;
  {
    const std::lock_guard lock(mutex_);
    whole = whole_.lock();
  }
  if (whole) whole->fail(cause);
}

void Group::State::fail_told(const std::string& cause) {
  if (!enter_failure(cause)) return;
  if (parts.backend) parts.backend->abort();
  fail_parts(cause);
}

void Group::State::fail_parts(const std::string& cause) {
  std::vector<std::weak_ptr<State>> made;
  {
    const std::lock_guard lock(mutex_);
    made = parts_;
  }
  for (const auto& each : made) {
    if (const auto part = each.lock()) part->fail_told(cause);
  }
}

Group Group::State::make_part(const std::vector<int>& members, const std::string& wish) {
  check();
  std::vector<int> world_ranks;
  for (const int member : members) world_ranks.push_back(parts.world_ranks[static_cast<std::size_t>(member)]);
  const int number = ++num_parts_[wish];
  const std::string name = text(parts.name, ".", wish);
  Group part = parts.make_group(world_ranks, number == 1 ? name : text(name, "#", number));
  {
    const std::lock_guard lock(part.state().mutex_);
    part.state().whole_ = weak_from_this();
  }
  {
    const std::lock_guard lock(mutex_);
    parts_.push_back(part.state_);
  }
  if (failed()) fail_parts(cause_);  // it has failed meanwhile
  return part;
}

void Group::State::check() const {
  if (failed()) throw_failure();
}

void Group::State::throw_failure() const {
  const std::lock_guard lock(mutex_);
  throw CommError(cause_);
}

std::vector<Operation> Group::State::recent() const {
  const std::lock_guard lock(mutex_);
  std::vector<Operation> result;
  const std::uint64_t first = number_ < kRingSize ? 1 : number_ - kRingSize + 1;
  for (std::uint64_t number = first; number <= number_; ++number) result.push_back(ring_[number % kRingSize]);
  return result;
}

std::vector<Operation> Group::State::waits() const {
  const std::lock_guard lock(mutex_);
  return waits_;
}

void Group::State::show_missing(const Operation& operation, const std::vector<int>& missing) {
  constexpr std::size_t kMaxShown = 16;
  if (!parts.status) return;
  char line[kStatusBytes];
  std::string shown(line, format_status(operation, parts.name, line, sizeof line));
  for (std::size_t i = 0; i < std::min(missing.size(), kMaxShown); ++i)
    shown += text(i == 0 ? "; waits for ranks " : ",", missing[i]);
  const std::lock_guard lock(mutex_);
  // The operation may have ended, and the page then shows a later one.
  const bool is_shown =
      operation.number == number_ &&
      std::ranges::any_of(waits_, [&](const Operation& each) { return each.number == operation.number; });
  if (!is_shown) return;
  const std::lock_guard page_lock(parts.status->mutex);
  if (parts.status->page.read().operation != shown) parts.status->page.set_operation(shown);
}

bool Group::State::is_running(std::uint64_t number) const {
  const auto is_it = [&](const Operation& o) { return o.number == number; };
  const std::lock_guard lock(mutex_);
  const Operation& kept = ring_[number % kRingSize];
  return (is_it(kept) && kept.state == OperationRecord::State::kIssued) ||
         std::any_of(waits_.begin(), waits_.end(), is_it);
}

std::vector<Operation> Group::State::pending() const {
  auto result = recent();
  std::erase_if(result, [](const Operation& o) { return o.state != OperationRecord::State::kIssued; });
  return result;
}

std::uint64_t& Group::State::last_order(const Operation& operation) {
  if (is_collective(operation.kind)) return num_collectives_;
  auto& counts = operation.kind == OperationKind::kSend ? num_sends_ : num_recvs_;
  return counts[static_cast<std::size_t>(operation.peer)];
}

}  // namespace trireme::comm
