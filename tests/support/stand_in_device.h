#pragma once
// A device for tests where no accelerator is, by libtorch's door for devices of others (PrivateUse1). Its
// memory cannot be reached from the host: addresses of its tensors lead nowhere, so that a copy that was
// forgotten is a segmentation fault at once, and one next to a tensor of the device an error. Its operators
// run on the CPU, on copies, and give the CPU's numbers (convolutions and attention up to rounding where ATen
// takes another kernel). Copies that need not block are made late: from the host when the device next does
// something, to the host when somebody waits for the device. It has streams and events: what is done on one
// stream with memory that another has used, without having waited for that, is an error (stand_in_streams.h).
// Registered as "stand_in" when the library is
// loaded: programs link it, or have it preloaded (LD_PRELOAD). Thread-safe.

#include <cstdint>
#include <memory>

namespace trireme::test {

constexpr const char* kStandInDevice = "stand_in";
constexpr int kNumStandInDevices = 4;

/// Tensors and numbers that were read back to the host since the process began, and waits for the device.
/// Each is a moment in which all that the device was given would have had to be waited for; what operators
/// copy by themselves, and copies to pinned memory that need not block, are not counted.
std::int64_t reads_from_stand_in();

/// Waits for an event that was recorded on a stream, since the process began: not for what the device was
/// given after it.
std::int64_t waits_for_events_of_stand_in();

/// Bytes of tensors and numbers that were copied to the host since the process began, to pinned memory as
/// well. What operators copy by themselves is not counted.
std::int64_t bytes_read_from_stand_in();

/// Tensors of the host that were copied to the device since the process began, from memory that is not
/// pinned: a device would have had to be waited for.
std::int64_t copies_from_pageable_memory();

/// Copies between pinned memory and the device on another stream than its default one, since the process
/// began.
std::int64_t copies_on_own_streams_of_stand_in();

class StandInGraph;
/// Captures and replays what the device is given (stand_in_graph.h).
std::unique_ptr<StandInGraph> make_stand_in_graph();

}  // namespace trireme::test
