// Reduces and gathers shards, several at once, and checks them:
//   rank_shards BACKEND ROUNDS [NUMEL [STEP]]
// NUMEL is the size of one rank's part. STEP "reduce_scatter" or "gather" runs only that operation. Prints
// "rank R is under way" after 10 rounds, and at the end "rank R over BACKEND: shards are right".
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "trireme/base/error.h"
#include "trireme/comm/context.h"

namespace {

using trireme::comm::Context;
using trireme::comm::Pending;

constexpr int kUnderWay = 3;

/// The input of each rank: small integers, whose sums are exact in any order.
at::Tensor numbers(int rank, std::int64_t numel) {
  return at::arange(numel, at::kFloat).remainder(97).add(rank);
}

struct Shards {
  at::Tensor given, part, whole;

  Shards(const Context& context, std::int64_t numel)
      : given(numbers(context.rank(), context.world_size() * numel)),
        part(at::zeros({numel})),
        whole(at::zeros({context.world_size() * numel})) {}
};

void check(bool right, const Context& context, const char* what) {
  if (!right) throw trireme::InternalError(trireme::text("rank ", context.rank(), ": wrong ", what));
}

void round(Context& context, std::vector<Shards>& all, const std::string& step) {
  trireme::comm::Group& world = context.world();
  const std::int64_t size = context.world_size(), numel = all[0].part.numel();
  const at::Tensor sums = numbers(0, size * numel).mul(size).add(size * (size - 1) / 2);
  const at::Tensor my_sum = sums.narrow(0, context.rank() * numel, numel);
  std::vector<Pending> pending;
  if (step != "gather") {
    for (Shards& each : all) pending.push_back(world.reduce_scatter_async(each.part, each.given));
    for (Pending& each : pending) each.wait();
    for (const Shards& each : all) check(each.part.equal(my_sum), context, "part of the sums");
  }
  if (step == "reduce_scatter") return;
  pending.clear();
  for (Shards& each : all) pending.push_back(world.all_gather_async(each.whole, my_sum));
  for (Pending& each : pending) each.wait();
  for (const Shards& each : all) check(each.whole.equal(sums), context, "sums of all");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3 || argc > 5) return trireme::kExitUsage;
  // With gloo, no all-reduce is measured when groups are created. So only shards cross the cable.
  const auto context = Context::from_environment({.backend = argv[1], .all_reduce = "gloo", .timeout_s = 30});
  const std::int64_t numel = argc > 3 ? std::atoll(argv[3]) : 20000;
  std::vector<Shards> all;
  for (int i = 0; i < kUnderWay; ++i) all.emplace_back(*context, numel);
  for (int i = 0; i < std::atoi(argv[2]); ++i) {
    round(*context, all, argc > 4 ? argv[4] : "");
    if (i != 10) continue;
    std::printf("rank %d is under way\n", context->rank());
    std::fflush(stdout);
  }
  std::printf("rank %d over %s: shards are right\n", context->rank(),
              context->world().backend_name().c_str());
  return 0;
} catch (const trireme::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return error.exit_code();
}
