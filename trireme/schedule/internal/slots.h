#pragma once
// Lays an order of computations out as a table in which every action takes one slot: an idle slot is added
// where a forward (or a full backward) would be before the slot in which its input is made. PyTorch's
// schedules do the same (_add_bubbles_to_actions); it leaves I at its place. Idle slots matter only for the
// order in which lower() writes transfers. Pure and thread-safe.

#include "trireme/schedule/program.h"

namespace trireme::schedule {

Program with_slots(const Program& order);

}  // namespace trireme::schedule
