#pragma once
// Compressed gradients of a bucket of shards. Each rank's part of a parameter is a range of its elements,
// which is encoded separately. All ranges for a rank are a message to it. With compression by hosts, the
// gradients of a host are summed first. The rank at the owner's place on its own host sums and encodes each
// range. Messages go between the ranks at one place. One thread.

#include <functional>
#include <string>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/comm/host_groups.h"
#include "trireme/parallel/zero/internal/shard_layout.h"
#include "trireme/parallel/zero/internal/sharding_hook.h"

namespace trireme::parallel {

class ShardCodec {
 public:
  /// `names` are those of the parameters, by number.
  ShardCodec(comm::Group group, ShardBucket bucket, std::vector<std::string> names,
             std::shared_ptr<ShardingHook> hook);

  struct Reduction {
    std::function<void()> wait;       ///< by hosts, sends the sum of the host there
    std::function<at::Tensor()> sum;  ///< of this rank's part, when that has ended; once
  };
  /// Encodes a bucket and sends each rank its part. Parts of ranks, or hosts, are added up in their order. A
  /// parameter that is not finite on one rank is NaN in the sums. The bucket's memory is free after wait().
  /// Collective.
  Reduction start(const at::Tensor& flat);

 private:
  struct Messages;
  void spread_not_finite(const at::Tensor& values) const;
  std::vector<comm::Pending> start_sums(const at::Tensor& values) const;
  void encode(const at::Tensor& values, Messages& messages) const;
  comm::Pending send(Messages& messages);
  at::Tensor sum_of(const Messages& messages) const;

  comm::Group group_;
  const ShardBucket bucket_;
  const std::vector<std::string> names_;
  const std::shared_ptr<ShardingHook> hook_;
  const comm::HostGroups* const hosts_;        ///< null: ranks encode
  comm::Group exchange_;                       ///< ranks that send to each other
  std::vector<std::vector<ShardPiece>> runs_;  ///< of the receivers of messages, in the order of exchange_
};

}  // namespace trireme::parallel
