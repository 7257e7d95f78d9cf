// A rank that reduces in a loop, for tests that disturb it:
//   rank_fault_loop TIMEOUT_S SECONDS [throw | sleep | mismatch | pauses | ALL_REDUCE]
// Prints "step 20" after 20 steps. Then rank 1 throws a DataError, sleeps, or reduces another size. With
// "pauses" rank 1 sleeps for five seconds in every hundredth step, and prints that afterwards. ALL_REDUCE is
// the algorithm or network between hosts.

#include <ATen/ops/empty.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/comm/context.h"

namespace {

void commit(std::string_view fault, trireme::comm::Context& context) {
  if (fault == "throw") throw trireme::DataError("the file is damaged");
  if (fault == "sleep") std::this_thread::sleep_for(std::chrono::seconds(60));
  auto another = at::empty({7}, at::kFloat).fill_(1);
  if (fault == "mismatch") context.world().all_reduce(another, trireme::comm::ReduceOp::kAverage);
}

void work(trireme::comm::Context& context, double seconds, std::string_view fault) {
  const auto deadline = trireme::Deadline::after_s(seconds);
  auto tensor = at::empty({1 << 16}, at::kFloat).fill_(1);
  auto go_on = at::empty({1}, at::kFloat);
  for (int step = 0;; ++step) {
    context.status().set_step(static_cast<std::uint64_t>(step));
    context.status().set_action(trireme::text("step ", step, ": reducing"));
    context.world().all_reduce(tensor, trireme::comm::ReduceOp::kAverage);
    go_on.fill_(deadline.expired() ? 0 : 1);  // all ranks have to leave at the same step
    context.world().all_reduce(go_on, trireme::comm::ReduceOp::kMin);
    if (*go_on.data_ptr<float>() == 0) return;
    if (step == 20) {
      std::printf("step 20\n");
      std::fflush(stdout);
      if (context.rank() == 1) commit(fault, context);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (fault == "pauses" && step % 100 == 99 && context.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(5));
      std::printf("pause %d\n", step / 100);
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const double timeout_s = std::atof(argv[1]);
    const std::string_view word = argc > 3 ? argv[3] : "auto";
    const bool is_fault = word == "throw" || word == "sleep" || word == "mismatch" || word == "pauses";
    const bool by_ucx = word == "ucx";
    const auto context = trireme::comm::Context::from_environment(
        {.all_reduce = is_fault || by_ucx ? "auto" : std::string(word),
         .network = by_ucx ? "ucx" : "tcp",
         .timeout_s = timeout_s});
    work(*context, std::atof(argv[2]), word);
    return 0;
  } catch (const trireme::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.exit_code();
  }
}
