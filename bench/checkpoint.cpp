// Question: how fast are checkpoints written and read, and how long does a save block training? A state of
// ResNet-50 with Adam's two moments (307 MB), one thread. Prints one line of JSON per measurement:
//   "write", "read": the same bytes in one plain file, synced: the limit of the disk
//   "save", "load": as a run of one rank saves and resumes, with checksums, into existing tensors
//   "hold-up": seconds for which one save blocked training, in the background or not, with the median step;
//   and the time of the whole run compared with a run without saves
// Files are dropped from the page cache before they are read. For comparison, bench/checkpoint.sh runs
// torch.distributed.checkpoint with the same tensors (bench/peers/checkpoint.py).
//
//   bench_checkpoint [--smoke] [--folder DIR] [--passes N] [--work io|hold-up|all]

#include <ATen/Parallel.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trireme/base/clock.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/checkpoint/shared_folder.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/comm/context.h"
#include "trireme/model/model.h"
#include "trireme/train/run/run.h"
#include "trireme/train/step/model_state.h"

namespace {

using namespace trireme;
namespace fs = std::filesystem;

struct Arguments {
  fs::path folder = "bench-checkpoint";
  int passes = 5;
  bool smoke = false;
  std::string work = "all";
};

checkpoint::TrainingCheckpoint state(const std::string& model_name) {
  const auto model = model::make_model({.name = model_name}, {3, 64, 64}, 1000, /*seed=*/1);
  checkpoint::TrainingCheckpoint result{.step = 1, .model = train::state_of(*model), .config = "bench"};
  for (const auto& item : model->named_parameters()) {
    result.optimizer.emplace(item.key() + "/exp_avg", at::full_like(item.value(), 1e-3).detach());
    result.optimizer.emplace(item.key() + "/exp_avg_sq", at::full_like(item.value(), 1e-6).detach());
  }
  return result;
}

std::uint64_t bytes_of(const checkpoint::TrainingCheckpoint& state) {
  std::uint64_t bytes = 0;
  for (const auto* tensors : {&state.model, &state.optimizer}) {
    for (const auto& [name, tensor] : *tensors) bytes += tensor.nbytes();
  }
  return bytes;
}

/// The next read then comes from the disk.
void drop_from_page_cache(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  ::close(descriptor);
}

void measure(const std::string& what, std::uint64_t bytes, const std::function<void()>& work) {
  const double begin_s = now_s();
  work();
  const double s = now_s() - begin_s;
  std::cout << nlohmann::json{{"system", "trireme"},
                              {"what", what},
                              {"s", s},
                              {"gb_per_s", static_cast<double>(bytes) / s / 1e9}}
            << std::endl;
}

void bench_io(const Arguments& arguments) {
  const checkpoint::TrainingCheckpoint state = ::state(arguments.smoke ? "mlp" : "resnet50");
  const std::uint64_t bytes = bytes_of(state);
  const fs::path plain = arguments.folder / "plain";
  std::string content(bytes, 'x');
  const auto context = comm::Context::join({}, {.torch_threads = 1});
  checkpoint::Shards into;
  for (const auto& [name, tensor] : state.model)
    into.push_back(checkpoint::whole_shard(name, at::zeros_like(tensor)));
  for (const auto& [name, tensor] : state.optimizer)
    into.push_back(checkpoint::whole_shard(checkpoint::kOptimizerPrefix + name, at::zeros_like(tensor)));
  for (int pass = 0; pass < arguments.passes; ++pass) {
    measure("write", bytes, [&] { write_file_atomic(plain, content); });
    drop_from_page_cache(plain);
    measure("read", bytes, [&] { content = read_file(plain); });
    fs::path saved;
    measure("save", bytes, [&] { saved = checkpoint::save_checkpoint(arguments.folder, state, /*keep=*/1); });
    for (const auto& file : fs::directory_iterator(saved)) drop_from_page_cache(file.path());
    measure("load", bytes, [&] {
      const std::vector<bool> sees = {true};
      const auto found =
          checkpoint::find_latest_checkpoint(context->world(), arguments.folder, sees, context->log());
      checkpoint::load_shards(context->world(), found->folder, into, sees, "tensor");
    });
  }
}

struct Hold {
  double wall_s = 0, step_s = 0, stalled_s = 0;
};

Hold train_with(const Arguments& arguments, std::int64_t every_steps, bool asynchronous) {
  train::RunConfig config;
  config.run = {.name = "run", .folder = arguments.folder.string(), .seed = 1, .log_every_steps = 1000};
  config.data.name = "synthetic";
  config.model.name = arguments.smoke ? "mlp" : "resnet50";
  config.train.max_steps = arguments.smoke ? 4 : 60;
  config.train.global_batch = arguments.smoke ? 64 : 32;
  config.optimizer.name = "adamw";
  config.eval.every_steps = config.train.max_steps;
  config.checkpoint.every_steps = every_steps;
  config.checkpoint.keep = 1;
  config.checkpoint.asynchronous = asynchronous;
  config.comm.torch_threads = 1;
  const auto context = comm::Context::join({}, {.torch_threads = 1});
  const train::RunResult result = train::run_training(config, *context);
  return {.wall_s = result.wall_s,
          .step_s = result.steps_s / static_cast<double>(result.steps),
          .stalled_s = result.checkpoint_stall_s};
}

void bench_hold_up(const Arguments& arguments) {
  const std::int64_t every = arguments.smoke ? 2 : 20;
  const double saves = arguments.smoke ? 2 : 3;  // including one after the last step
  for (int pass = 0; pass < arguments.passes; ++pass) {
    const Hold without = train_with(arguments, 0, true);
    for (const bool asynchronous : {true, false}) {
      const Hold with = train_with(arguments, every, asynchronous);
      std::cout << nlohmann::json{{"system", "trireme"},
                                  {"what", "hold-up"},
                                  {"asynchronous", asynchronous},
                                  {"step_s", without.step_s},
                                  {"stalled_s", with.stalled_s / saves},
                                  {"share_of_a_step", with.stalled_s / saves / without.step_s},
                                  {"wall_ratio", with.wall_s / without.wall_s}}
                << std::endl;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Checkpoints: speed, and what saving costs training.");
  app.add_option("--folder", arguments.folder, "on the disk to measure; removed at the end");
  app.add_option("--passes", arguments.passes)->check(CLI::PositiveNumber);
  app.add_option("--work", arguments.work)->check(CLI::IsMember({"io", "hold-up", "all"}));
  app.add_flag("--smoke", arguments.smoke, "one pass of a small model");
  CLI11_PARSE(app, argc, argv);
  if (arguments.smoke) arguments.passes = 1;
  at::set_num_threads(1);
  keep_freed_memory();
  make_folder(arguments.folder);
  if (arguments.work != "hold-up") bench_io(arguments);
  if (arguments.work != "io") bench_hold_up(arguments);
  fs::remove_all(arguments.folder);
  return 0;
}
