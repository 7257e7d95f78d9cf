#include "trireme/comm/internal/group_state.h"

#include <algorithm>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

constexpr std::size_t kStatusBytes = 200;

void show(const GroupParts& parts, const Operation& operation) {
  if (!parts.status) return;
  char line[kStatusBytes];
  parts.status->set_operation({line, format_status(operation, parts.name, line, sizeof line)});
}

}  // namespace

void Group::State::begin(Operation& operation) {
  check();
  operation.issued_s = now_s();
  const std::lock_guard lock(mutex_);
  operation.number = ++number_;
  ring_[operation.number % kRingSize] = operation;
  show(parts, operation);
}

void Group::State::wait(const Operation& operation, c10d::Work& work) {
  const double left_s = operation.issued_s + parts.timeout_s - now_s();
  try {
    work.wait(std::chrono::milliseconds(std::max<std::int64_t>(1, static_cast<std::int64_t>(left_s * 1000))));
  } catch (const std::exception& error) {
    fail_operation(operation, error.what());
  }
  if (failed() && !work.isSuccess()) fail_operation(operation, "aborted");
  end(operation.number, OperationRecord::State::kDone);
}

void Group::State::fail_operation(const Operation& operation, const std::string& what) {
  end(operation.number, OperationRecord::State::kFailed);
  if (!failed()) {
    fail(text("rank ", parts.world_ranks[static_cast<std::size_t>(parts.rank)], " in group '", parts.name,
              "': ", operation.record().describe(), ": ", what));
  }
  throw_failure();
}

void Group::State::end(std::uint64_t number, OperationRecord::State how) {
  const double now = now_s();
  const std::lock_guard lock(mutex_);
  Operation& operation = ring_[number % kRingSize];
  if (operation.number != number) return;  // 64 younger operations have been issued meanwhile
  operation.state = how;
  operation.done_s = now;
  show(parts, operation);
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
  if (parts.publish_failure) parts.publish_failure(cause);
  if (parts.backend) parts.backend->abort();
}

void Group::State::fail_told(const std::string& cause) {
  if (enter_failure(cause) && parts.backend) parts.backend->abort();
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

std::vector<Operation> Group::State::pending() const {
  auto result = recent();
  std::erase_if(result, [](const Operation& o) { return o.state != OperationRecord::State::kIssued; });
  return result;
}

std::uint64_t Group::State::last_number() const {
  const std::lock_guard lock(mutex_);
  return number_;
}

}  // namespace trireme::comm
