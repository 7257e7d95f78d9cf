// Question: how much memory does a rank need to write or read its part of a checkpoint? The part that it
// reads was written by other ranks with another sharding. The state is matrices of 64 MiB. They are sharded
// by rows, by columns, or each is whole on one rank. Every rank prints one line of JSON: bytes of its shards,
// and the increase of its peak resident memory while it saved or loaded. All loaded values are compared.
//
//   trireme launch -n 4 --no-prefix -- bench_checkpoint_shards --work save --cut rows
//   trireme launch -n 3 --no-prefix -- bench_checkpoint_shards --work load --cut columns
//
// Both take --mib N, the size of the state, and --folder DIR.

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/checkpoint/shared_folder.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/comm/context.h"

namespace {

using namespace trireme;
using checkpoint::Box;
using checkpoint::Shard;
using checkpoint::Shards;

constexpr std::int64_t kSide = 4096;
constexpr std::int64_t kRowsAtOnce = 64;

struct Arguments {
  std::filesystem::path folder = "bench-checkpoint-shards";
  std::string work = "save";
  std::string cut = "rows";
  std::int64_t mib = 1024;
  bool smoke = false;
};

Box box_of(const std::string& cut, std::int64_t side, int rank, int num_ranks) {
  Box box = checkpoint::whole_box({side, side});
  if (cut == "names") return box;
  const std::size_t dim = cut == "rows" ? 0 : 1;
  box.offsets[dim] = side * rank / num_ranks;
  box.sizes[dim] = side * (rank + 1) / num_ranks - box.offsets[dim];
  return box;
}

/// The values of some rows of a shard.
at::Tensor numbers_of(std::int64_t tensor, const Shard& shard, std::int64_t first_row,
                      std::int64_t num_rows) {
  const Box box = shard.box();
  const at::Tensor row = at::arange(num_rows, at::kLong) + (box.offsets[0] + first_row);
  const at::Tensor column = at::arange(box.sizes[1], at::kLong) + box.offsets[1];
  return (row.unsqueeze(1) * 31 + column * 7 + tensor).remainder(8191).to(at::kFloat);
}

template <class Visit>
void for_rows(const Shards& shards, const Visit& visit) {
  for (const Shard& shard : shards) {
    const std::int64_t tensor = std::stoll(shard.name.substr(shard.name.find('.') + 1));
    for (std::int64_t row = 0; row < shard.tensor.size(0); row += kRowsAtOnce) {
      const std::int64_t count = std::min(kRowsAtOnce, shard.tensor.size(0) - row);
      visit(shard.tensor.narrow(0, row, count), numbers_of(tensor, shard, row, count));
    }
  }
}

Shards shards_of(const Arguments& arguments, int rank, int num_ranks) {
  const std::int64_t side = arguments.smoke ? 64 : kSide;
  const std::int64_t count = arguments.smoke ? 6 : arguments.mib * 1024 * 1024 / (kSide * kSide * 4);
  Shards shards;
  for (std::int64_t tensor = 0; tensor < count; ++tensor) {
    if (arguments.cut == "names" && tensor % num_ranks != rank) continue;
    const Box box = box_of(arguments.cut, side, rank, num_ranks);
    shards.push_back({.name = text("layer.", tensor),
                      .global_sizes = {side, side},
                      .offsets = box.offsets,
                      .tensor = at::full(box.sizes, -1, at::kFloat)});
  }
  return shards;
}

void save(const Arguments& arguments, comm::Context& context, const Shards& mine) {
  const std::vector<bool> all_see(static_cast<std::size_t>(context.world_size()), true);
  checkpoint::SaveShares shares(context.world(), mine, all_see);
  const auto part = shares.next_part(mine, {.step = 1, .config = "bench"});
  if (part) checkpoint::write_part(arguments.folder, *part);
  context.world().barrier();
  if (context.is_main()) checkpoint::finish_checkpoint(arguments.folder, *part, 1, [] { return false; });
  context.world().barrier();
}

void load(const Arguments& arguments, comm::Context& context, const Shards& mine) {
  const std::vector<bool> all_see(static_cast<std::size_t>(context.world_size()), true);
  const auto found =
      checkpoint::find_latest_checkpoint(context.world(), arguments.folder, all_see, context.log());
  require(found.has_value(), "no checkpoint in ", arguments.folder.string());
  checkpoint::load_shards(context.world(), found->folder, mine, all_see, "tensor");
}

void run(const Arguments& arguments) {
  const auto context = comm::Context::from_environment({.torch_threads = 1});
  const Shards mine = shards_of(arguments, context->rank(), context->world_size());
  std::uint64_t own_bytes = 0;
  for (const Shard& shard : mine) own_bytes += shard.tensor.nbytes();
  if (arguments.work == "save")
    for_rows(mine, [](at::Tensor rows, const at::Tensor& numbers) { rows.copy_(numbers); });
  context->world().barrier();
  const std::uint64_t before_bytes = peak_rss_bytes();
  const double begin_s = now_s();
  (arguments.work == "save" ? save : load)(arguments, *context, mine);
  const double s = now_s() - begin_s;
  const std::uint64_t peak_bytes = peak_rss_bytes();
  for_rows(mine, [](const at::Tensor& rows, const at::Tensor& numbers) {
    if (!rows.equal(numbers)) throw InternalError("what was loaded is not what was saved");
  });
  std::cout << nlohmann::json{{"what", arguments.work},
                              {"cut", arguments.cut},
                              {"ranks", context->world_size()},
                              {"rank", context->rank()},
                              {"own_mib", own_bytes >> 20},
                              {"peak_rss_mib", peak_bytes >> 20},
                              {"beyond_own_mib", static_cast<double>(peak_bytes - before_bytes) / (1 << 20)},
                              {"s", s}}
                       .dump() +
                   "\n"
            << std::flush;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Memory of ranks that write and read a checkpoint together.");
  app.add_option("--folder", arguments.folder, "on the disk to use; stays");
  app.add_option("--work", arguments.work)->check(CLI::IsMember({"save", "load"}));
  app.add_option("--cut", arguments.cut)->check(CLI::IsMember({"rows", "columns", "names"}));
  app.add_option("--mib", arguments.mib, "of the whole state")->check(CLI::PositiveNumber);
  app.add_flag("--smoke", arguments.smoke, "small matrices");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  try {
    run(arguments);
  } catch (const Error& error) {
    std::cerr << "bench_checkpoint_shards: " << error.what() << "\n";
    return error.exit_code();
  }
  return 0;
}
