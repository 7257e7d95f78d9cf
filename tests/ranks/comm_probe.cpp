// A rank for the tests of comm in real processes: comm_probe BACKEND TIMEOUT_S MODE
//   sum    all-reduces, prints the sum and leaves
//   wait   prints "ready"; rank 1 then stays away while the others all-reduce until they are told why not
#include <ATen/ops/full.h>

#include <chrono>
#include <iostream>
#include <string>
#include <thread>

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

void wait(Context& context) {
  context.world().barrier();
  std::cout << trireme::text("ready ", context.rank(), "\n") << std::flush;
  if (context.rank() == 1) std::this_thread::sleep_for(std::chrono::minutes(2));
  sum(context);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return trireme::kExitUsage;
  try {
    const auto context = Context::from_environment({.backend = argv[1], .timeout_s = std::stod(argv[2])});
    std::string(argv[3]) == "wait" ? wait(*context) : sum(*context);
    return 0;
  } catch (const trireme::Error& error) {
    std::cerr << error.what() << std::endl;
    return error.exit_code();
  }
}
