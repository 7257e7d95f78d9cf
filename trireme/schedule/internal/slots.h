#pragma once
// Lays an order of computations out as a table in which every action takes one slot: an idle slot goes in
// wherever a forward (or a full backward) would stand before the slot in which its input is made. This is
// what PyTorch's schedules do (_add_bubbles_to_actions); it leaves I where it stands. Idle slots matter only
// for the order in which lower() writes transfers. Pure and thread-safe.

#include "trireme/schedule/program.h"

namespace trireme::schedule {

Program with_slots(const Program& order);

}  // namespace trireme::schedule
