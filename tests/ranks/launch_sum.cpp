// A rank that adds the numbers of all ranks and prints the sum.

#include <ATen/ops/empty.h>

#include <cstdio>

#include "trireme/base/error.h"
#include "trireme/comm/context.h"

int main() {
  try {
    const auto context = trireme::comm::Context::from_environment({.timeout_s = 30});
    auto tensor = at::empty({1}, at::kFloat).fill_(context->rank() + 1);
    context->world().all_reduce(tensor);
    std::printf("rank %d of %d: sum %g\n", context->rank(), context->world_size(), *tensor.data_ptr<float>());
    return 0;
  } catch (const trireme::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return error.exit_code();
  }
}
