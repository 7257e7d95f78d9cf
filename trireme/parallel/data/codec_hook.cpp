// Gradients in the bytes of a codec (compress/codec.h): every rank sends its own to all, and all add them up
// in the order of the ranks, so that replicas keep the same bits. What a codec leaves out is kept and added
// to the next gradient (error feedback: Karimireddy et al., ICML 2019, algorithm 2). Deep gradient
// compression (Lin et al., ICLR 2018) sends the greatest of what velocities have added up to, and stops the
// velocity of what was sent (momentum correction and factor masking, section 3).

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/compress/codec.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/data/internal/compressing_hook.h"

namespace trireme::parallel {
namespace {

/// In front of what a codec made of a gradient, in its slot of a message.
using Head = std::uint64_t;
constexpr Head kNotFinite = ~Head{0};

class CodecHook final : public CompressingHook {
 public:
  CodecHook(const CompressionOptions& options, const compress::Codec& codec, bool with_velocity)
      : CompressingHook(options), codec_(codec), with_velocity_(with_velocity) {
    require(!with_velocity || (options.momentum >= 0 && options.momentum < 1),
            "the momentum of \"dgc\" must be at least 0 and below 1; found ", options.momentum);
  }

  HookState state() override {
    HookState state;
    for (auto& [name, kept] : kept_) {
      state.common.emplace_back("draws/" + name, kept.draws);
      if (kept.residual.defined()) state.own.emplace_back("residual/" + name, kept.residual);
      if (kept.velocity.defined()) state.own.emplace_back("velocity/" + name, kept.velocity);
    }
    for (auto& [name, velocity] : velocities_) state.common.emplace_back("velocity/" + name, velocity);
    return state;
  }
  std::string describe() const override {
    return with_velocity_ ? text(CompressingHook::describe(), ", momentum ", options().momentum)
                          : CompressingHook::describe();
  }

 private:
  /// Of a parameter, from step to step.
  struct Kept {
    at::Tensor draws;     ///< its steps so far
    at::Tensor residual;  ///< what was left out so far; undefined: the codec leaves nothing out
    at::Tensor velocity;  ///< dgc's
  };

  bool takes(std::int64_t /*rows*/, std::int64_t /*columns*/) const override { return true; }
  void add(const std::string& name, std::int64_t rows, std::int64_t columns) override {
    Kept& kept = kept_[name];
    kept.draws = at::zeros({1}, at::kLong);
    if (codec_.leaves_out()) kept.residual = at::zeros({rows * columns}, at::kFloat);
    if (with_velocity_) kept.velocity = at::zeros({rows * columns}, at::kFloat);
    for (const at::Tensor& each : {kept.residual, kept.velocity}) count_as(MemoryKind::kOptimizer, each);
  }

  void add_uncompressed(const std::string& name, std::int64_t numel) override {
    if (with_velocity_) velocities_[name] = at::zeros({numel}, at::kFloat);
  }
  void finish_uncompressed(const std::string& name, const at::Tensor& values) override {
    if (!with_velocity_ || !is_finite(values)) return;
    at::Tensor(values).copy_(velocities_.at(name).mul_(options().momentum).add_(values));
  }
  std::function<void()> reduce(comm::Group& group, std::vector<CompressedPart> parts,
                               ReduceScale scale) override;
  /// Of a gradient in its next step.
  double fraction_for(const CompressedPart& part) const;
  std::size_t slot_bytes(const CompressedPart& part) const {
    const std::size_t most = codec_.most_bytes(part.span().size(), {.fraction = fraction_for(part)});
    return sizeof(Head) + (most + sizeof(Head) - 1) / sizeof(Head) * sizeof(Head);
  }
  void write(const CompressedPart& part, std::span<std::byte> slot, int rank);
  void add_slot(const CompressedPart& part, std::span<const std::byte> slot) const;

  const compress::Codec& codec_;
  const bool with_velocity_;
  std::map<std::string, Kept> kept_;
  std::map<std::string, at::Tensor> velocities_;  ///< dgc's, of what goes uncompressed: the same on all ranks
};

/// Lin et al., section 3.3: a few steps of growing sparsity, where the network changes fast.
double CodecHook::fraction_for(const CompressedPart& part) const {
  constexpr std::int64_t kLevels = 4;
  const std::int64_t step = *kept_.at(part.name).draws.const_data_ptr<std::int64_t>();
  if (step >= options().warmup_steps) return options().fraction;
  const auto level = static_cast<double>(step * kLevels / options().warmup_steps);
  return std::max(options().fraction, std::pow(0.25, 1 + level));
}

void CodecHook::write(const CompressedPart& part, std::span<std::byte> slot, int rank) {
  Head head = kNotFinite;
  if (part.finite) {
    Kept& kept = kept_.at(part.name);
    Random random(options().seed, Random::key_of(part.name), *kept.draws.const_data_ptr<std::int64_t>(),
                  rank);
    const compress::Codec::Options how = {.fraction = fraction_for(part), .seed = random.bits()};
    at::Tensor sent = part.values;
    if (with_velocity_) sent = kept.velocity.mul_(options().momentum).add_(part.values);
    if (kept.residual.defined()) sent = kept.residual.add_(sent);
    const std::span<std::byte> room = slot.subspan(sizeof head);
    head = codec_.encode(span_of(sent), how, room);
    const std::span<const std::byte> said = room.first(head);
    if (kept.residual.defined()) codec_.take_out(said, span_of(kept.residual));
    if (with_velocity_) codec_.take_out(said, span_of(kept.velocity));
  }
  std::memcpy(slot.data(), &head, sizeof head);
}

void CodecHook::add_slot(const CompressedPart& part, std::span<const std::byte> slot) const {
  Head head = 0;
  std::memcpy(&head, slot.data(), sizeof head);
  if (head == kNotFinite) {
    at::Tensor(part.values).fill_(std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const bool is_inside = head <= slot.size() - sizeof head;
  if (!is_inside || !codec_.fits(slot.subspan(sizeof head, head), part.span().size()))
    throw CommError(text("a rank sent ", head, " bytes for the gradient of '", part.name,
                         "' that no compression \"", options().name,
                         "\" made: all ranks need the same version of the program"));
  codec_.add(slot.subspan(sizeof head, head), part.span());
}

std::function<void()> CodecHook::reduce(comm::Group& group, std::vector<CompressedPart> parts,
                                        ReduceScale scale) {
  std::size_t size = 0;
  for (const CompressedPart& part : parts) size += slot_bytes(part);
  const auto numel = static_cast<std::int64_t>(size);
  const std::string& of = parts.front().name;
  const at::Tensor message = room(group, "message " + of, numel, at::kByte);
  at::Tensor all = room(group, "messages " + of, numel * group.size(), at::kByte);
  const auto bytes_of = [](const at::Tensor& tensor) {
    return std::as_writable_bytes(std::span(tensor.data_ptr<std::uint8_t>(), tensor.nbytes()));
  };
  std::size_t at = 0;
  std::vector<std::size_t> slots;
  for (const CompressedPart& part : parts) {
    slots.push_back(slot_bytes(part));
    write(part, bytes_of(message).subspan(at, slots.back()), group.rank());
    ++*kept_.at(part.name).draws.data_ptr<std::int64_t>();
    at += slots.back();
  }
  count(all_gather_bytes(group, message));
  return [this, parts = std::move(parts), slots = std::move(slots), message, all, size, scale,
          num_ranks = group.size(), bytes_of, pending = group.all_gather_async(all, message)]() mutable {
    pending.wait();
    std::size_t place = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      at::Tensor(parts[i].values).zero_();
      for (int rank = 0; rank < num_ranks; ++rank)
        add_slot(parts[i], bytes_of(all).subspan(static_cast<std::size_t>(rank) * size + place, slots[i]));
      if (scale == ReduceScale::kMean) at::Tensor(parts[i].values).div_(num_ranks);
      place += slots[i];
    }
  };
}

}  // namespace

std::shared_ptr<CommHook> make_codec_hook(const CompressionOptions& options) {
  const bool is_dgc = options.name == "dgc";
  return std::make_shared<CodecHook>(options, *compress::codec(is_dgc ? "top-k" : options.name), is_dgc);
}

}  // namespace trireme::parallel
