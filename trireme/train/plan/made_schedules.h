#pragma once
// Orders of make_schedule() that are searched, each made once. A planner asks for the same one for many
// plans. Not thread-safe.

#include <map>
#include <string>
#include <tuple>

#include "trireme/schedule/program.h"

namespace trireme::train {

/// Of a pipeline.
struct ScheduleSize {
  int ranks = 1;
  int chunks = 0;  ///< 0: the schedule's default
  int microbatches = 1;
};

class MadeSchedules {
 public:
  /// make_schedule() of that size, with the defaults of all other options. Throws InvalidArgument as it does.
  schedule::Program make(const std::string& name, const ScheduleSize& size);
  /// make() would search: the schedule is searched, and was not made yet. False: an unknown name, such as a
  /// file's.
  bool has_to_search(const std::string& name, const ScheduleSize& size) const;

 private:
  using Key = std::tuple<std::string, int, int, int>;
  static Key key_of(const std::string& name, const ScheduleSize& size) {
    return {name, size.ranks, size.chunks, size.microbatches};
  }

  std::map<Key, schedule::Program> searched_;
};

}  // namespace trireme::train
