#include "trireme/train/plan/made_schedules.h"

#include <algorithm>

#include "trireme/schedule/schedule_table.h"

namespace trireme::train {

schedule::Program MadeSchedules::make(const std::string& name, const ScheduleSize& size) {
  const auto found = searched_.find(key_of(name, size));
  if (found != searched_.end()) return found->second;
  schedule::Program program = schedule::make_schedule(
      name, {.num_ranks = size.ranks, .num_chunks = size.chunks, .num_microbatches = size.microbatches});
  if (schedule::find_schedule(name).is_searched) searched_.emplace(key_of(name, size), program);
  return program;
}

bool MadeSchedules::has_to_search(const std::string& name, const ScheduleSize& size) const {
  const auto row = std::ranges::find(schedule::schedules(), name, &schedule::ScheduleRow::name);
  return row != schedule::schedules().end() && row->is_searched && !searched_.contains(key_of(name, size));
}

}  // namespace trireme::train
