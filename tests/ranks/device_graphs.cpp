// A rank that trains on the mock device: rank_device_graphs FILE GRAPH STEPS SETTING...
// GRAPH is train.graph. Rank 0 prints the losses of its steps. Each rank prints the bytes of its weights and
// its number of graph replays.
#include <cstdio>
#include <cstdlib>

#include "tests/support/stand_in_device_graphs.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/comm/context.h"
#include "trireme/train/config/registry.h"
#include "trireme/train/step/trainer.h"

int main(int argc, char** argv) try {
  if (argc < 4) return trireme::kExitUsage;
  trireme::test::register_stand_in_graphs();
  std::vector<std::string> settings(argv + 4, argv + argc);
  settings.push_back(trireme::text("train.graph=", argv[2]));
  settings.push_back(trireme::text("train.device=", trireme::test::kStandInDevice));
  const trireme::train::RunConfig config = trireme::train::load_run_config(argv[1], settings);
  const auto context = trireme::comm::Context::from_environment(config.comm);
  const trireme::data::DataSource data = trireme::train::open_data(config);
  trireme::train::Trainer trainer(config, *context, data);
  const int rank = context->rank();
  for (int step = 0; step < std::atoi(argv[3]); ++step) {
    const auto report = trainer.step();
    if (report && rank == 0) std::printf("loss %a\n", report->loss);
  }
  for (const auto& [name, weight] : trainer.parameters()) {
    const at::Tensor host = weight.detach().cpu().contiguous().view({-1});
    std::printf("rank %d: %s", rank, name.c_str());
    for (std::int64_t i = 0; i < host.numel(); ++i) std::printf(" %a", host[i].item<double>());
    std::printf("\n");
  }
  std::printf("replays of rank %d: %lld\n", rank,
              static_cast<long long>(trireme::test::StandInDeviceGraph::num_replays));
  return trireme::kExitOk;
} catch (const trireme::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return error.exit_code();
}
