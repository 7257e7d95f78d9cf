// Trains a small model with dropout under run.exact and prints loss and norm of every step as hex floats:
//   rank_exact_steps STEPS PIPELINE ZERO MICROBATCHES
// MICROBATCHES are those of a replica. Launches on any number of ranks with the same micro-batches print the
// same lines.
#include <cstdio>
#include <cstdlib>

#include "tests/unit/train/tied_model.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"

int main(int argc, char** argv) try {
  if (argc != 5) return trireme::kExitUsage;
  const int steps = std::atoi(argv[1]);
  trireme::train::RunConfig config;
  config.run.exact = true;
  config.train = {.max_steps = steps, .global_batch = 24, .clip_norm = 0.1};
  config.optimizer = {.name = "adamw", .lr = 0.01, .weight_decay = 0};
  config.parallel = {.pipeline = std::atoi(argv[2]), .zero = std::atoi(argv[3])};
  (config.parallel.pipeline > 1 ? config.parallel.microbatches : config.train.accumulation) =
      std::atoi(argv[4]);
  config.train.epochs = steps;
  config.comm.timeout_s = 60;
  const auto context = trireme::comm::Context::from_environment(config.comm);
  const trireme::data::DataSource data = trireme::test::sequences();
  trireme::train::Trainer trainer(config, *context, data, std::make_shared<trireme::test::Tied>(0.25));
  for (int step = 0; step < steps; ++step) {
    trainer.step();
    if (context->is_main()) std::puts(trireme::test::bits_of(*trainer.last_report()).c_str());
  }
  return trireme::kExitOk;
} catch (const trireme::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return error.exit_code();
}
