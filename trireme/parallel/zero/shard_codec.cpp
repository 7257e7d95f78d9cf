#include "trireme/parallel/zero/internal/shard_codec.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "trireme/base/random.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/data/internal/compressing_hook.h"
#include "trireme/parallel/data/internal/encoded_slot.h"

namespace trireme::parallel {

/// Of a reduction: to each rank, and from each rank.
struct ShardCodec::Messages {
  std::map<std::size_t, compress::Codec::Options> how;  ///< by parameter: this rank's, in size as all ranks'
  std::size_t bytes = 0;                                ///< of each message
  at::Tensor to, from;

  std::span<std::byte> of(const at::Tensor& messages, int rank) const {
    return bytes_of(messages).subspan(static_cast<std::size_t>(rank) * bytes, bytes);
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
    std::size_t bytes = 0;
    for (const ShardPiece& run : runs)
      bytes += slot_bytes(hook_->codec(), static_cast<std::size_t>(run.numel), messages->how[run.parameter]);
    messages->bytes = std::max(messages->bytes, bytes);
  }
  const auto all = static_cast<std::int64_t>(messages->bytes) * exchange_.size();
  for (at::Tensor* each : {&messages->to, &messages->from}) {
    *each = at::empty({all}, at::kByte);
    count_as(MemoryKind::kCommunication, *each);
  }
  hook_->count(all - static_cast<std::int64_t>(messages->bytes));
  const double scale = hook_->gradient_scale();
  const auto sum = [this, messages, scale, device = flat.device()] {
    at::Tensor part = sum_of(*messages);
    if (scale != 1) part.mul_(scale);
    return part.to(device);
  };
  const at::Tensor values = flat.is_cpu() ? flat : flat.cpu();
  if (scale != 1) values.mul_(1 / scale);
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

/// So that all places of the host see it.
void ShardCodec::spread_not_finite(const at::Tensor& values) const {
  for (const ShardSlot& slot : bucket_.slots) {
    at::Tensor of_parameter = values.narrow(0, slot.begin, slot.numel);
    if (!is_finite(of_parameter)) of_parameter.fill_(std::numeric_limits<float>::quiet_NaN());
  }
}

/// Each rank's part inside this host, where its counterpart here encodes it.
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
  std::map<std::size_t, at::Tensor> values_of;  // by parameter; undefined: it is not finite
  std::map<std::size_t, Random> seeds;
  for (const ShardSlot& slot : bucket_.slots) {
    const at::Tensor values = values_of_bucket.narrow(0, slot.begin, slot.numel);
    seeds.emplace(slot.parameter, messages.how[slot.parameter].seed);
    if (hosts_ != nullptr || is_finite(values)) values_of[slot.parameter] = values;
  }
  for (int to = 0; to < exchange_.size(); ++to) {
    std::map<std::size_t, std::uint64_t> seed_for_rank;
    for (auto& [parameter, random] : seeds) seed_for_rank[parameter] = random.bits();
    std::span<std::byte> message = messages.of(messages.to, to);
    for (const ShardPiece& run : runs_[static_cast<std::size_t>(to)]) {
      compress::Codec::Options how = messages.how[run.parameter];
      how.seed = seed_for_rank[run.parameter];
      const std::size_t bytes = slot_bytes(codec, static_cast<std::size_t>(run.numel), how);
      const std::span<std::byte> slot = message.first(bytes);
      message = message.subspan(bytes);
      const auto whole = values_of.find(run.parameter);
      at::Tensor sent;
      if (whole != values_of.end()) sent = whole->second.narrow(0, run.begin, run.numel);
      if (!sent.defined() || (hosts_ != nullptr && !is_finite(sent))) {
        write_not_finite(slot);  // what is kept stays as it was
        continue;
      }
      const at::Tensor residual = hook_->residual(names_[run.parameter]);
      if (residual.defined()) sent = residual.narrow(0, run.begin, run.numel).add_(sent);
      const std::span<float> values = span_of(sent);
      const std::span<const std::byte> said = write_slot(codec, values, how, slot);
      if (codec.leaves_out()) codec.take_out(said, values);
    }
  }
}

at::Tensor ShardCodec::sum_of(const Messages& messages) const {
  const compress::Codec& codec = hook_->codec();
  at::Tensor part = at::zeros({bucket_.part}, at::kFloat);
  count_as(MemoryKind::kGradients, part);
  std::size_t at = 0;
  for (const ShardPiece& run : runs_[static_cast<std::size_t>(exchange_.rank())]) {
    const std::size_t bytes =
        slot_bytes(codec, static_cast<std::size_t>(run.numel), messages.how.at(run.parameter));
    at::Tensor values = part.narrow(0, run.place, run.numel);
    bool finite = true;
    for (int from = 0; from < exchange_.size(); ++from) {
      const std::span<const std::byte> slot = messages.of(messages.from, from).subspan(at, bytes);
      finite = add_slot(codec, slot, span_of(values), names_[run.parameter]) && finite;
    }
    if (!finite) values.fill_(std::numeric_limits<float>::quiet_NaN());
    at += bytes;
  }
  return part;
}

}  // namespace trireme::parallel
