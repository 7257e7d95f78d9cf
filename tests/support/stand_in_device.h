#pragma once
// A mock device for tests without an accelerator, which uses libtorch's PrivateUse1 backend. The host cannot
// access its memory. So a forgotten copy is an immediate segmentation fault, and one next to a tensor of the
// device is an error. Its operators run on the CPU, on copies, and give the results of the CPU. Convolutions
// and attention are equal up to rounding where ATen chooses another kernel. Non-blocking copies are made
// late: from the host when the device next does something, to the host at the next wait for the device. It
// has streams and events. Work on one stream that uses memory of another stream without a wait is an error
// (stand_in_streams.h). The device is registered as "stand_in" when the library is loaded. Programs link it
// or preload it (LD_PRELOAD). Thread-safe.

#include <cstdint>
#include <memory>

namespace trireme::test {

constexpr const char* kStandInDevice = "stand_in";
constexpr int kNumStandInDevices = 4;

/// Number of tensors and numbers that were read back to the host, and of waits for the device, since the
/// start of the process. Each would block until all issued work is done. Copies inside operators and
/// non-blocking copies to pinned memory do not count.
std::int64_t reads_from_stand_in();

/// Number of waits for an event that was recorded on a stream, since the start of the process. Such a wait
/// does not include work that was issued after the event.
std::int64_t waits_for_events_of_stand_in();

/// Bytes of tensors and numbers that were copied to the host since the start of the process, also to pinned
/// memory. Copies inside operators do not count.
std::int64_t bytes_read_from_stand_in();

/// Number of host tensors that were copied to the device from memory that is not pinned, since the start of
/// the process. A real device would block.
std::int64_t copies_from_pageable_memory();

/// Number of copies between pinned memory and the device on another stream than the default one, since the
/// start of the process.
std::int64_t copies_on_own_streams_of_stand_in();

class StandInGraph;
/// Captures and replays the work that is issued to the device (stand_in_graph.h).
std::unique_ptr<StandInGraph> make_stand_in_graph();

}  // namespace trireme::test
