// Contexts outside the main function, and several contexts: contexts MODE BACKEND [TIMEOUT_S]
//   static   one in a static object, which is destroyed after main
//   exit     the same, and the process ends in std::exit()
//   again    three consecutive contexts; ranks pause between them, in alternating order
//   `beside` two at the same time; the first one ends first
//   late     rank 1 is too late for the first, even if rank 0 reports that, and in time for the next
#include <ATen/ops/full.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/base/run_main.h"
#include "trireme/comm/context.h"

namespace {

using trireme::comm::Context;
using trireme::comm::ContextOptions;

std::shared_ptr<Context> kept;

void sum(Context& context) {
  auto tensor = at::full({100000}, context.rank() + 1.0);
  context.world().all_reduce(tensor);
  std::cout << trireme::text("rank ", context.rank(), ": sum ", tensor[99999].item<double>(), "\n")
            << std::flush;
}

void pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

void again(const ContextOptions& options) {
  for (int i = 0; i < 3; ++i) {
    const auto context = Context::from_environment(options);
    sum(*context);
    if (context->rank() == i % 2) pause(0.5);
  }
}

void beside(const ContextOptions& options) {
  auto first = Context::from_environment(options);
  const auto second = Context::from_environment(options);
  sum(*second);
  sum(*first);
  first.reset();
  sum(*second);
}

void late(ContextOptions options) {
  const bool is_late = std::string(std::getenv("RANK")) == "1";
  if (is_late) pause(1.5);
  try {
    options.timeout_s = is_late ? 30 : 1;
    Context::from_environment(options);
    std::cout << "the first was made\n" << std::flush;
  } catch (const trireme::CommError& error) {
    std::cout << error.what() << "\n" << std::flush;
  }
  options.timeout_s = 30;
  sum(*Context::from_environment(options));
}

}  // namespace

int main(int argc, char** argv) {
  return trireme::run_main([&] {
    trireme::require(argc >= 3, "contexts MODE BACKEND [TIMEOUT_S]");
    const std::string mode = argv[1];
    const ContextOptions options{.backend = argv[2], .timeout_s = argc > 3 ? std::stod(argv[3]) : 20};
    if (mode == "again") return again(options);
    if (mode == "beside") return beside(options);
    if (mode == "late") return late(options);
    kept = Context::from_environment(options);
    sum(*kept);
    if (mode == "exit") std::exit(0);
  });
}
