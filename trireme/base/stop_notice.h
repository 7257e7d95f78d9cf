#pragma once
// The message of a process on standard error when it is asked to stop (SIGINT, SIGTERM), at once, from the
// signal's handler. At most one notice per process at a time.

namespace trireme {

/// Said when a StopRequest takes its first signal; a literal that ends in a line break, null: nothing.
void announce_stops(const char* notice);

/// Until a StopRequest takes them over, SIGINT and SIGTERM are answered with the notice, and end the process
/// as they always do. Also lets signals through that were blocked while the program was loaded.
void end_with_notice(const char* notice);

}  // namespace trireme
