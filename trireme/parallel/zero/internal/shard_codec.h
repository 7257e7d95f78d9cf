#pragma once
// Gradients of a bucket of shards in the bytes of a codec: what each rank is to have of a parameter is a run
// of its elements, which is encoded by itself; all runs for a rank are a message to it. One thread.

#include <functional>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/parallel/zero/internal/shard_layout.h"
#include "trireme/parallel/zero/internal/sharding_hook.h"

namespace trireme::parallel {

class ShardCodec {
 public:
  /// `names` are those of the parameters, by number.
  ShardCodec(comm::Group group, ShardBucket bucket, std::vector<std::string> names,
             std::shared_ptr<ShardingHook> hook);

  struct Reduction {
    comm::Pending pending;
    std::function<at::Tensor()> sum;  ///< of this rank's part, when that has ended; once
  };
  /// Encodes a bucket, whose memory is free then, and sends to each rank what is for it. What ranks send is
  /// added up in their order. A parameter that is not finite on one rank is NaN in the sums. Collective.
  Reduction start(const at::Tensor& flat);

 private:
  struct Messages;
  void encode(const at::Tensor& host, Messages& messages) const;
  at::Tensor sum_of(const Messages& messages) const;

  comm::Group group_;
  const ShardBucket bucket_;
  const std::vector<std::string> names_;
  const std::shared_ptr<ShardingHook> hook_;
  std::vector<std::vector<ShardPiece>> runs_;  ///< by rank
};

}  // namespace trireme::parallel
