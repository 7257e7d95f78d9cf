#pragma once
// Runs of the same 12 steps, each in its own folder, over ranks that are threads.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/support/temporary_folder.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"
#include "trireme/train/run/run.h"

namespace trireme::train {

class SmallRuns : public testing::Test {
 protected:
  RunConfig config(const std::string& name) const {
    RunConfig config;
    config.run = {.name = name, .folder = folder_.path().string(), .seed = 5, .log_every_steps = 1};
    config.data.name = "synthetic";
    config.model.hidden = {8};
    config.train = {.epochs = 2, .max_steps = 12, .global_batch = 512, .clip_norm = 1};
    config.optimizer = {.name = "adamw", .lr = 0.01, .weight_decay = 0};
    config.checkpoint = {.every_steps = 6, .keep = 2};
    return config;
  }

  RunResult run(int ranks, const RunConfig& config, RunStart start = RunStart::kFresh,
                const StopRequest* stop = nullptr) const {
    RunResult result;
    comm::run_ranks_as_threads(ranks, [&](comm::Context& context) {
      const RunResult mine = run_training(
          config, context,
          {.start = start, .stop = stop, .model = model_, .data = data_, .callbacks = callbacks_});
      if (context.is_main()) result = mine;
    });
    return result;
  }

  std::string file(const std::string& run, const std::string& name) const {
    return read_file(folder_.path() / run / name);
  }

  static std::size_t num_lines(const std::string& content, const std::string& with) {
    std::size_t count = 0;
    for (const std::string& line : split(content, '\n')) count += line.find(with) != std::string::npos;
    return count;
  }

  test::TemporaryFolder folder_;
  RunCallbacks callbacks_;
  std::optional<data::DataSource> data_;  ///< replaces that of the configuration
  std::shared_ptr<model::Model> model_;   ///< replaces that of the configuration, for a single rank
};

}  // namespace trireme::train
