// A rank program for the tests of comm in real processes: comm_probe BACKEND TIMEOUT_S MODE [AWAY]
//   sum    all-reduces, prints the sum and leaves
//   wait   prints "ready"; rank AWAY then takes no part; the others all-reduce until they get an error
//   leave  rank 0 leaves; rank 1 prints "rank 0 leaves" when it sees that, and stays
#include <ATen/ops/full.h>

#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trireme/base/error.h"
#include "trireme/comm/context.h"

namespace {

using trireme::comm::Context;

void sum(Context& context) {
  auto tensor = at::full({100000}, context.rank() + 1.0);
  context.world().all_reduce(tensor);
  std::cout << trireme::text("rank ", context.rank(), " of ", context.world_size(), " over ",
                             context.world().backend_name(), ": sum ", tensor[99999].item<double>(), "\n")
            << std::flush;
}

void wait(Context& context, int away) {
  context.world().barrier();
  std::cout << trireme::text("ready ", context.rank(), "\n") << std::flush;
  if (context.rank() == away) std::this_thread::sleep_for(std::chrono::minutes(2));
  sum(context);
}

void leave(Context& context) {
  sum(context);
  if (context.rank() == 0) return;
  context.store().wait({"left/0"});
  std::cout << "rank 0 leaves\n" << std::flush;
  std::this_thread::sleep_for(std::chrono::minutes(2));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return trireme::kExitUsage;
  try {
    const auto context = Context::from_environment({.backend = argv[1], .timeout_s = std::stod(argv[2])});
    const std::string mode = argv[3];
    if (mode == "wait") {
      wait(*context, argc > 4 ? std::stoi(argv[4]) : 1);
    } else if (mode == "leave") {
      leave(*context);
    } else {
      sum(*context);
    }
    return 0;
  } catch (const trireme::Error& error) {
    std::cerr << error.what() << std::endl;
    return error.exit_code();
  }
}
