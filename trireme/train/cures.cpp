#include "trireme/train/internal/cures.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace trireme::train {

bool is_program_file(const std::string& schedule) { return schedule.ends_with(".csv"); }

Cure replicas_as_there_are_ranks() { return set(&RunConfig::parallel, &ParallelOptions::data, 0); }

Cure synchronous_schedule() {
  return [](RunConfig& config) {
    config.parallel.schedule = "1f1b";
    config.parallel.microbatches = 0;
    config.parallel.vertical_sync = false;
  };
}

Cures other_pipelines(const RunConfig& config, int world_size, std::int64_t least) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t length = least; length <= world_size; ++length) {
    if (world_size % length == 0) lengths.push_back(length);
  }
  const std::int64_t asked = config.parallel.pipeline;
  std::stable_sort(lengths.begin(), lengths.end(), [&](std::int64_t a, std::int64_t b) {
    return std::pair(a > asked, std::abs(a - asked)) < std::pair(b > asked, std::abs(b - asked));
  });
  Cures cures;
  for (const std::int64_t length : lengths) {
    cures.emplace_back([length](RunConfig& changed) {
      changed.parallel.pipeline = length;
      changed.parallel.data = 0;
    });
  }
  return cures;
}

Cures cures_of_a_program(const RunConfig& config, int world_size) {
  Cures cures = {set(&RunConfig::train, &TrainOptions::accumulation, 1),
                 set(&RunConfig::parallel, &ParallelOptions::vertical_sync, false),
                 set(&RunConfig::parallel, &ParallelOptions::microbatches, 0)};
  if (is_program_file(config.parallel.schedule)) {
    cures.push_back(set(&RunConfig::parallel, &ParallelOptions::recompute, true));
    for (Cure& cure : other_pipelines(config, world_size, /*least=*/2)) cures.push_back(std::move(cure));
    return cures;  // nobody writes a program in order to run another one, or none
  }
  cures.push_back(set(&RunConfig::parallel, &ParallelOptions::chunks, 0));
  cures.emplace_back([](RunConfig& changed) {  // up to a multiple of the ranks
    const std::int64_t ranks = changed.parallel.pipeline;
    changed.parallel.microbatches = (changed.parallel.microbatches + ranks - 1) / ranks * ranks;
  });
  cures.push_back(synchronous_schedule());
  return cures;
}

}  // namespace trireme::train
