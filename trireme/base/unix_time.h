#pragma once
// The calendar clock, for times that outlive a process. It may be set, and hosts differ: a difference of two
// readings may be negative. Stateless; thread-safe.

namespace trireme {

/// Seconds since 1970.
double unix_now_s();

/// Start time of this process; now where the kernel has none.
double process_began_unix_s();

}  // namespace trireme
