#include <sstream>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "trireme/base/error.h"
#include "trireme/comm/internal/backend_table.h"

namespace trireme::comm {
namespace {

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

// Gloo's own abort() does nothing. Closing the connections makes what is pending fail on the other ranks.
class GlooBackend : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  void abort() override {
    for (auto& context : contexts_) context->closeConnections();
  }
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const BackendRequest& request) {
  auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(request.timeout_s));
  options->threads = 2;
  options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(request.interface_addr)};
  options->group_name = request.group_name;
  try {
    return c10::make_intrusive<GlooBackend>(request.store, request.rank, request.size, options);
  } catch (const std::exception& error) {
    throw CommError(text("rank ", request.world_ranks[request.rank], " could not connect group '",
                         request.group_name, "' with gloo at ", request.interface_addr, " within ",
                         request.timeout_s, " s: ", error.what()));
  }
}

}  // namespace trireme::comm
