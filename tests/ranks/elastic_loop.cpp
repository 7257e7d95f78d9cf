// A user-defined loop in an elastic job: elastic_loop WHAT. WHAT happens in the first world: "kill": rank 1
// kills itself; "lose": every rank loses each world; "grow": the ranks loop until other hosts join.

#include <ATen/ops/full.h>
#include <signal.h>

#include <cstdio>
#include <string>

#include "trireme/base/error.h"
#include "trireme/base/run_main.h"
#include "trireme/comm/elastic.h"

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  return trireme::run_main([&] {
    int num_worlds = 0;
    trireme::comm::run_elastic({.context = {.timeout_s = 30}}, [&](trireme::comm::Context& context) {
      ++num_worlds;
      if (what == "lose") throw trireme::CommError("this world is lost");
      if (what == "kill" && context.environment().restart_count == 0 && context.rank() == 1) ::raise(SIGKILL);
      if (context.is_main()) {
        std::printf("generation %d begins\n", context.environment().restart_count);
        std::fflush(stdout);
      }
      while (what == "grow" && context.environment().restart_count == 0) {
        at::Tensor asked = at::full({1}, trireme::comm::next_world_is_asked(context) ? 1.0 : 0.0);
        context.world().all_reduce(asked);
        if (asked.item<double>() > 0) throw trireme::comm::WorldChange();
      }
      at::Tensor sum = at::full({1}, context.rank() + 1.0);
      context.world().all_reduce(sum);
      std::printf("generation %d: rank %d of %d, world %d of this process, sum %g\n",
                  context.environment().restart_count, context.rank(), context.world_size(), num_worlds,
                  sum.item<double>());
    });
  });
}
