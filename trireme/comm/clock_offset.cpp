#include "trireme/comm/clock_offset.h"

#include <limits>

namespace trireme::comm {
namespace {

constexpr int kRounds = 20;

/// Rank 0's side: answers every request of the other rank.
void tell_time(Group& group, int asker, const std::function<std::int64_t()>& own_ns, at::Tensor& message) {
  for (int round = 0; round < kRounds; ++round) {
    group.recv(message, asker);
    *message.mutable_data_ptr<std::int64_t>() = own_ns();
    group.send(message, asker);
  }
}

telemetry::ClockSample ask_time(Group& group, const std::function<std::int64_t()>& own_ns,
                                at::Tensor& message) {
  telemetry::ClockSample best{.error_ns = std::numeric_limits<std::int64_t>::max()};
  for (int round = 0; round < kRounds; ++round) {
    const std::int64_t asked_ns = own_ns();
    group.send(message, 0);
    group.recv(message, 0);
    const std::int64_t heard_ns = own_ns();
    const std::int64_t half_ns = (heard_ns - asked_ns + 1) / 2;
    if (half_ns >= best.error_ns) continue;
    const std::int64_t told_ns = *message.const_data_ptr<std::int64_t>();
    best = {.at_ns = heard_ns, .offset_ns = told_ns - (asked_ns + half_ns), .error_ns = half_ns};
  }
  return best;
}

}  // namespace

telemetry::ClockSample measure_clock_offset(Group& group, const std::function<std::int64_t()>& own_ns) {
  at::Tensor message = group.allocate(1, at::kLong);
  if (group.rank() > 0) return ask_time(group, own_ns, message);
  for (int asker = 1; asker < group.size(); ++asker) tell_time(group, asker, own_ns, message);
  return {.at_ns = own_ns(), .offset_ns = 0, .error_ns = 0};
}

}  // namespace trireme::comm
