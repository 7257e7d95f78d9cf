// All-reduces between hosts during their setup. Ranks are threads, and host ids simulate hosts.

#include "trireme/comm/internal/cross_all_reduce.h"

#include <gmock/gmock.h>

#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// Fails like gloo after the loss of the peer process, with an exception type of its own.
class LostPeer : public c10d::Backend {
 public:
  using Backend::Backend;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    throw std::runtime_error("Read error: Connection reset by peer");
  }
};

TEST(CrossAllReduce, PeerLostDuringMeasurementIsCommError) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto secret = wire::Secret::random();
  const auto join = [&](int rank) {
    const BackendRequest request{.store = store,
                                 .rank = rank,
                                 .size = 2,
                                 .group_name = "world",
                                 .world_ranks = {0, 1},
                                 .host_ids = {"a", "b"},
                                 .interface_addr = "127.0.0.1",
                                 .secret = secret,
                                 .timeout_s = 20};
    LostPeer gloo(rank, 2);
    EXPECT_THAT([&] { CrossAllReduce::make(request, request, gloo); },
                ThrowsMessage<CommError>(HasSubstr("group world: all-reduces between hosts: ")));
  };
  std::thread other(join, 1);
  join(0);
  other.join();
}

}  // namespace
}  // namespace trireme::comm
