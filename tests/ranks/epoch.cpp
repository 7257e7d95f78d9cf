// A rank that reads data without training: epoch DATA_FOLDER OUT_FOLDER PAUSE_S
// Writes the samples of packed data that it got in each step of the first epoch to OUT/STEP.WORLD.RANK. Rank
// 0 then writes the number of steps that all ranks have finished to OUT/done. A restart with any number of
// ranks resumes after these steps.
#include <chrono>
#include <filesystem>
#include <iostream>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/comm/context.h"
#include "trireme/data/dataset.h"

namespace {

using namespace trireme;

void read_epoch(comm::Context& context, const std::string& data, const std::filesystem::path& out,
                double pause_s) {
  const data::DataSource source = data::open_data({.name = "packed", .path = data});
  const auto stream = source.train->open({.global_batch = 24,
                                          .rank = context.rank(),
                                          .world_size = context.world_size(),
                                          .workers = 2,
                                          .seed = 4,
                                          .open_shards = 2});
  const std::filesystem::path done = out / "done";
  const std::int64_t first = std::filesystem::exists(done) ? std::stoll(read_file(done)) : 0;
  const std::int64_t end = data::BatchLayout(source.train->size(), 24).first_step_of(1);
  stream->seek(static_cast<std::uint64_t>(first));
  for (std::int64_t step = first; step < end; ++step) {
    std::string seen;
    for (const data::Example& part : stream->next().microbatches) {
      const auto* numbers = part.target->const_data_ptr<std::int64_t>();
      for (std::int64_t i = 0; i < part.rows(); ++i) seen += text(numbers[i], "\n");
    }
    write_file_atomic(out / text(step, ".", context.world_size(), ".", context.rank()), seen);
    context.world().barrier();
    if (context.is_main()) write_file_atomic(done, text(step + 1));
    std::this_thread::sleep_for(std::chrono::duration<double>(pause_s));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return trireme::kExitUsage;
  try {
    read_epoch(*comm::Context::from_environment({}), argv[1], argv[2], std::stod(argv[3]));
    return 0;
  } catch (const trireme::Error& error) {
    std::cerr << error.what() << std::endl;
    return error.exit_code();
  }
}
