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
    : group_(std::move(group)), bucket_(std::move(bucket)), names_(std::move(names)), hook_(std::move(hook)) {
  for (int rank = 0; rank < group_.size(); ++rank) runs_.push_back(pieces_of_rank({bucket_}, rank));
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
  const auto all = static_cast<std::int64_t>(messages->bytes) * group_.size();
  for (at::Tensor* each : {&messages->to, &messages->from}) {
    *each = at::empty({all}, at::kByte);
    count_as(MemoryKind::kCommunication, *each);
  }
  encode(flat.is_cpu() ? flat : flat.cpu(), *messages);
  hook_->count(all - static_cast<std::int64_t>(messages->bytes));
  return {.pending = group_.all_to_all_async(messages->from, messages->to),
          .sum = [this, messages, device = flat.device()] { return sum_of(*messages).to(device); }};
}

void ShardCodec::encode(const at::Tensor& host, Messages& messages) const {
  const compress::Codec& codec = hook_->codec();
  std::map<std::size_t, at::Tensor> sent;  // by parameter; undefined: it is not finite
  std::map<std::size_t, Random> seeds;
  for (const ShardSlot& slot : bucket_.slots) {
    const at::Tensor values = host.narrow(0, slot.begin, slot.numel);
    const at::Tensor residual = hook_->residual(names_[slot.parameter]);
    seeds.emplace(slot.parameter, messages.how[slot.parameter].seed);
    if (!is_finite(values)) continue;  // what is kept stays as it was
    sent[slot.parameter] = residual.defined() ? at::Tensor(residual).add_(values) : values;
  }
  for (int rank = 0; rank < group_.size(); ++rank) {
    std::map<std::size_t, std::uint64_t> seed_for_rank;
    for (auto& [parameter, random] : seeds) seed_for_rank[parameter] = random.bits();
    std::span<std::byte> message = messages.of(messages.to, rank);
    for (const ShardPiece& run : runs_[static_cast<std::size_t>(rank)]) {
      compress::Codec::Options how = messages.how[run.parameter];
      how.seed = seed_for_rank[run.parameter];
      const std::size_t bytes = slot_bytes(codec, static_cast<std::size_t>(run.numel), how);
      const std::span<std::byte> slot = message.first(bytes);
      message = message.subspan(bytes);
      const auto whole = sent.find(run.parameter);
      if (whole == sent.end()) {
        write_not_finite(slot);
        continue;
      }
      const std::span<float> values = span_of(whole->second.narrow(0, run.begin, run.numel));
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
  for (const ShardPiece& run : runs_[static_cast<std::size_t>(group_.rank())]) {
    const std::size_t bytes =
        slot_bytes(codec, static_cast<std::size_t>(run.numel), messages.how.at(run.parameter));
    at::Tensor values = part.narrow(0, run.place, run.numel);
    bool finite = true;
    for (int rank = 0; rank < group_.size(); ++rank) {
      const std::span<const std::byte> slot = messages.of(messages.from, rank).subspan(at, bytes);
      finite = add_slot(codec, slot, span_of(values), names_[run.parameter]) && finite;
    }
    if (!finite) values.fill_(std::numeric_limits<float>::quiet_NaN());
    at += bytes;
  }
  return part;
}

}  // namespace trireme::parallel
