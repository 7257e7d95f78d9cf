#pragma once
// The files of `trireme train` in a run's folder, and the distance of two runs. Values. Needs no torch.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::test {

struct TrainedRun {
  std::string status;
  int world_size = 0;
  std::int64_t steps = 0;
  double train_loss = 0;
  std::string weights_xxh3;
  std::vector<std::int64_t> logged_steps;  ///< of metrics.jsonl, in order
  std::vector<double> losses;              ///< of those steps
  std::vector<float> weights;              ///< all of model.safetensors, in the order of the file
};

/// Throws DataError if a file is missing, and std::exception if it cannot be parsed.
TrainedRun read_run(const std::filesystem::path& folder);

struct Distance {
  double loss = 0;    ///< largest relative difference of a step's loss, or of the last epoch's mean
  double weight = 0;  ///< largest absolute difference of a weight
  double norm = 0;    ///< 2-norm of the differences of all weights, relative to that of the expected weights
};

/// Throws std::runtime_error if the runs differ in their steps or their number of weights.
Distance distance(const TrainedRun& found, const TrainedRun& expected);

}  // namespace trireme::test
