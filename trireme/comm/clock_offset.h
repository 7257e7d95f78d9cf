#pragma once
// How far this rank's monotonic clock is from that of the group's rank 0. Each other rank in turn asks rank 0
// for its time some times; the question and answer that were over soonest count, and rank 0's time is taken
// to be that of the middle between them. The error is at most half of that round trip, however unlike the two
// ways are. (F. Cristian, "Probabilistic clock synchronization", Distributed Computing 3, 1989, section 4;
// the choice of the shortest round trip as in NTP's clock filter, RFC 5905, section 10.) Ranks of one host
// share the clock; they are measured like the others, and come out near 0.

#include <cstdint>
#include <functional>

#include "trireme/comm/group.h"
#include "trireme/telemetry/aligned_clock.h"

namespace trireme::comm {

/// Collective. Costs some 20 messages to and fro per rank, one rank after the other. `own_ns` is the clock
/// that is measured. Throws CommError.
telemetry::ClockSample measure_clock_offset(Group& group, const std::function<std::int64_t()>& own_ns);

}  // namespace trireme::comm
