#pragma once
// Possible fixes of a plan that is rejected (plan_error.h): changes of single keys, other pipelines, other
// programs.

#include <cstdint>

#include "trireme/train/plan/internal/plan_error.h"

namespace trireme::train {

/// The field that is set to `value`.
template <class Table, class Field, class Value>
Fix set(Table RunConfig::*table, Field Table::*field, Value value) {
  return [=](RunConfig& config) { config.*table.*field = value; };
}

/// Whether parallel.schedule is a file with a program, and no name.
bool is_program_file(const std::string& schedule);

Fix replicas_as_there_are_ranks();

Fix synchronous_schedule();

/// No sites that use local SGD.
Fix replicas_together();

/// "parallel.pipeline = 2: ", before the fault.
std::string pipeline_in_words(const RunConfig& config);

/// Pipelines of other lengths that the ranks can make up, from the nearest on; shorter ones come first, as a
/// model that can be cut so often can be cut less often. None is shorter than `least`.
Fixes other_pipelines(const RunConfig& config, int world_size, std::int64_t least = 1);

/// Fewer or more ranks along the axis of that key (base/mesh_axes.h) that divide the ranks, from the nearest
/// on. Fewer come first, as a valid cut allows fewer parts. None where it is 1.
Fixes other_ranks_along(const std::string& key, const RunConfig& config, int world_size);

/// Other groups that so many copies of the weights can be cut into, from the largest on; one group last.
Fixes other_shard_ranks(int copies);

/// In rising order, with 1 and the number.
std::vector<std::int64_t> divisors_of(std::int64_t number);
/// "1, 2, 3 or 6".
std::string divisors_in_words(std::int64_t number);

/// For a program that cannot run.
Fixes fixes_of_a_program(const RunConfig& config, int world_size);

}  // namespace trireme::train
