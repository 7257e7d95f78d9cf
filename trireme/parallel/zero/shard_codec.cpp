#include "trireme/parallel/zero/internal/shard_codec.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "trireme/base/random.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/data/internal/compressing_hook.h"
#include "trireme/parallel/data/internal/encoded_slot.h"

namespace trireme::parallel {

/// The messages of a reduction: to each rank, and from each rank.
struct ShardCodec::Messages {
  std::map<std::size_t, compress::Codec::Options> how;  ///< by parameter: this rank's options; their size is
                                                        ///< that of all ranks
  std::int64_t bytes = 0;                               ///< of each message
  at::Tensor to, from;

  at::Tensor of(const at::Tensor& messages, int rank) const {
    return messages.narrow(0, rank * bytes, bytes);
  }
};

ShardCodec::ShardCodec(comm::Group group, ShardBucket bucket, std::vector<std::string> names,
                       std::shared_ptr<ShardingHook> hook)
    : group_(std::move(group)),
      bucket_(std::move(bucket)),
      names_(std::move(names)),
      hook_(std::move(hook)),
      hosts_(hook_->hosts_of(group_)),
      exchange_(hosts_ != nullptr ? *hosts_->between : group_) {
  if (hosts_ == nullptr) {
    for (int rank = 0; rank < group_.size(); ++rank) runs_.push_back(pieces_of_rank({bucket_}, rank));
    return;
  }
  const int mine = hosts_->inside ? hosts_->inside->rank() : 0;
  for (const std::vector<int>& ranks : hosts_->ranks) {
    for (int place = 0; place < static_cast<int>(ranks.size()); ++place) {
      std::vector<ShardPiece> runs = pieces_of_rank({bucket_}, ranks[static_cast<std::size_t>(place)]);
      for (const ShardPiece& run : runs)
        hook_->add_run(names_[run.parameter], {.place = place, .begin = run.begin, .numel = run.numel});
      if (place == mine) runs_.push_back(std::move(runs));
    }
  }
}

ShardCodec::Reduction ShardCodec::start(const at::Tensor& flat) {
  const auto messages = std::make_shared<Messages>();
  for (const ShardSlot& slot : bucket_.slots)
    messages->how[slot.parameter] = hook_->next(names_[slot.parameter], group_.rank());
  for (const std::vector<ShardPiece>& runs : runs_) {
    std::int64_t bytes = 0;
    for (const ShardPiece& run : runs)
      bytes += slot_bytes(hook_->codec(), run.numel, messages->how[run.parameter]);
    messages->bytes = std::max(messages->bytes, bytes);
  }
  const std::int64_t all = messages->bytes * exchange_.size();
  for (at::Tensor* each : {&messages->to, &messages->from}) {
    *each = at::empty({all}, flat.options().dtype(at::kByte));
    count_as(MemoryKind::kCommunication, *each);
  }
  hook_->count(all - messages->bytes);
  const double scale = hook_->gradient_scale();
  const auto sum = [this, messages, scale] {
    at::Tensor part = sum_of(*messages);
    if (scale != 1) part.mul_(scale);
    return part;
  };
  const at::Tensor& values = flat;
  if (scale != 1) at::Tensor(values).mul_(1 / scale);
  if (hosts_ == nullptr) {
    encode(values, *messages);
    return {.wait = [pending = send(*messages)]() mutable { pending.wait(); }, .sum = sum};
  }
  spread_not_finite(values);
  const auto send_sums = [this, values, messages, sums = start_sums(values)]() mutable {
    for (comm::Pending& each : sums) each.wait();
    encode(values, *messages);
    send(*messages).wait();
  };
  return {.wait = send_sums, .sum = sum};
}

comm::Pending ShardCodec::send(Messages& messages) {
  return exchange_.all_to_all_async(messages.from, messages.to);
}

/// Shows non-finite values to all ranks of the host.
void ShardCodec::spread_not_finite(const at::Tensor& values) const {
  for (const ShardSlot& slot : bucket_.slots) {
    const at::Tensor of_parameter = values.narrow(0, slot.begin, slot.numel);
    Flag::is_finite(of_parameter).show_in(of_parameter);
  }
}

/// Sums each rank's part inside this host, on the rank that encodes it.
std::vector<comm::Pending> ShardCodec::start_sums(const at::Tensor& values) const {
  std::vector<comm::Pending> sums;
  if (!hosts_->inside) return sums;
  comm::Group inside = *hosts_->inside;
  for (const std::vector<int>& ranks : hosts_->ranks) {
    for (int place = 0; place < static_cast<int>(ranks.size()); ++place) {
      at::Tensor part = values.narrow(0, ranks[static_cast<std::size_t>(place)] * bucket_.part, bucket_.part);
      if (bucket_.part > 0) sums.push_back(inside.reduce_async(part, place));
    }
  }
  return sums;
}

void ShardCodec::encode(const at::Tensor& values_of_bucket, Messages& messages) const {
  const compress::Codec& codec = hook_->codec();
  struct Whole {
    at::Tensor values;
    Flag finite;  ///< with hosts, each run is checked separately
  };
  std::map<std::size_t, Whole> values_of;  // by parameter
  std::map<std::size_t, Random> seeds;
  for (const ShardSlot& slot : bucket_.slots) {
    const at::Tensor values = values_of_bucket.narrow(0, slot.begin, slot.numel);
    seeds.emplace(slot.parameter, messages.how[slot.parameter].seed);
    values_of[slot.parameter] = {values, hosts_ != nullptr ? Flag(true) : Flag::is_finite(values)};
  }
  for (int to = 0; to < exchange_.size(); ++to) {
    std::map<std::size_t, std::uint64_t> seed_for_rank;
    for (auto& [parameter, random] : seeds) seed_for_rank[parameter] = random.bits();
    const at::Tensor message = messages.of(messages.to, to);
    std::int64_t at = 0;
    for (const ShardPiece& run : runs_[static_cast<std::size_t>(to)]) {
      compress::Codec::Options how = messages.how[run.parameter];
      how.seed = seed_for_rank[run.parameter];
      const at::Tensor slot = message.narrow(0, at, slot_bytes(codec, run.numel, how));
      at += slot.numel();
      const Whole& whole = values_of.at(run.parameter);
      at::Tensor sent = whole.values.narrow(0, run.begin, run.numel);
      const Flag finite = hosts_ != nullptr ? Flag::is_finite(sent) : whole.finite;
      const at::Tensor residual = hook_->residual(names_[run.parameter]);
      if (residual.defined()) {
        const at::Tensor kept = residual.narrow(0, run.begin, run.numel);
        finite.change(kept, [&](at::Tensor changed) { changed.add_(sent); });
        sent = kept;
      }
      write_slot(codec, sent, how, finite, slot);
      if (residual.defined()) take_out(codec, slot, finite, sent);
    }
  }
}

at::Tensor ShardCodec::sum_of(const Messages& messages) const {
  const compress::Codec& codec = hook_->codec();
  at::Tensor part = at::zeros({bucket_.part}, messages.from.options().dtype(at::kFloat));
  count_as(MemoryKind::kGradients, part);
  std::int64_t at = 0;
  for (const ShardPiece& run : runs_[static_cast<std::size_t>(exchange_.rank())]) {
    const std::int64_t bytes = slot_bytes(codec, run.numel, messages.how.at(run.parameter));
    const at::Tensor values = part.narrow(0, run.place, run.numel);
    Flag finite = true;
    for (int from = 0; from < exchange_.size(); ++from) {
      const at::Tensor slot = messages.of(messages.from, from).narrow(0, at, bytes);
      finite = add_slot(codec, slot, values, names_[run.parameter]) && finite;
    }
    finite.show_in(values);
    at += bytes;
  }
  return part;
}

}  // namespace trireme::parallel
