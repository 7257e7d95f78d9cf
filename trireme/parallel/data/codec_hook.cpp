// Gradient compression with a codec (compress/codec.h). Every rank sends its encoded gradient to all, and all
// add them up in rank order, so that replicas keep the same bits. With a codec that encodes sums, each rank
// instead sums a piece and encodes the sum, if that takes fewer bytes (encoded_sum.h). The part that a codec
// drops is kept and added to the next gradient (error feedback: Karimireddy et al., ICML 2019, algorithm 2).
// Falls back to a dense all-reduce if the messages exceed twice the dense size. Deep gradient compression
// (Lin et al., ICLR 2018) sends the largest values of the accumulated velocities. It resets the velocity of
// sent values (momentum correction and factor masking, section 3).

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/compress/codec.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/data/internal/compressing_hook.h"
#include "trireme/parallel/data/internal/encoded_slot.h"
#include "trireme/parallel/data/internal/encoded_sum.h"

namespace trireme::parallel {
namespace {

class CodecHook final : public CompressingHook {
 public:
  CodecHook(const CompressionOptions& options, const compress::Codec& codec, bool with_velocity)
      : CompressingHook(options), codec_(codec), with_velocity_(with_velocity) {
    require(options.name != "dgc" || (options.momentum >= 0 && options.momentum < 1),
            "the momentum of \"dgc\" must be at least 0 and below 1; found ", options.momentum);
  }

  HookState state() override {
    HookState state;
    for (auto& [name, kept] : kept_) {
      state.common.emplace_back("draws/" + name, kept.draws);
      if (kept.residual.defined()) state.own.emplace_back("residual/" + name, kept.residual);
      if (kept.velocity.defined()) state.own.emplace_back("velocity/" + name, kept.velocity);
      if (kept.sums_residual.defined())
        state.pieces.push_back({.name = "sums_residual/" + name,
                                .tensor = kept.sums_residual,
                                .begin = kept.piece.begin,
                                .numel = kept.residual.numel()});
    }
    for (auto& [name, velocity] : velocities_) state.common.emplace_back("velocity/" + name, velocity);
    return state;
  }
  std::string describe() const override {
    return with_velocity_ ? text(CompressingHook::describe(), ", momentum ", options().momentum)
                          : CompressingHook::describe();
  }

 private:
  /// State of a parameter that is kept between steps.
  struct Kept {
    at::Tensor draws;     ///< number of its steps so far
    at::Tensor residual;  ///< error feedback; undefined: the codec drops nothing
    at::Tensor velocity;  ///< of dgc
    bool by_pieces = false;
    PieceOfRank piece = {};    ///< of the sum: this rank encodes it
    at::Tensor sums_residual;  ///< error feedback of that piece
  };

  bool takes(std::int64_t /*rows*/, std::int64_t /*columns*/) const override { return true; }
  void add(const comm::Group& group, const Taken& parameter) override {
    Kept& kept = kept_[parameter.name];
    const std::int64_t numel = parameter.rows * parameter.columns;
    kept.draws = at::zeros({1}, at::kLong);
    if (codec_.leaves_out()) kept.residual = at::zeros({numel}, parameter.like);
    if (with_velocity_) kept.velocity = at::zeros({numel}, parameter.like);
    kept.by_pieces = codec_.encodes_sums() && is_less_by_pieces(codec_, numel, group.size());
    if (kept.by_pieces) kept.piece = piece_of_rank(numel, group.rank(), group.size());
    if (kept.by_pieces && codec_.leaves_out())
      kept.sums_residual = at::zeros({kept.piece.numel}, parameter.like);
    for (const at::Tensor& each : {kept.residual, kept.velocity, kept.sums_residual})
      count_as(MemoryKind::kOptimizer, each);
  }

  std::vector<Residual> residuals_of(const std::string& name) override {
    const Kept& kept = kept_.at(name);
    std::vector<Residual> residuals;
    if (kept.residual.defined()) residuals.push_back({.values = kept.residual});
    if (kept.sums_residual.defined())
      residuals.push_back({.values = kept.sums_residual, .begin = kept.piece.begin});
    return residuals;
  }
  void add_uncompressed(const std::string& name, const at::Tensor& parameter) override {
    if (with_velocity_)
      velocities_[name] =
          at::zeros({parameter.numel()}, at::TensorOptions(at::kFloat).device(parameter.device()));
  }
  void finish_uncompressed(const std::string& name, const at::Tensor& values) override {
    if (!with_velocity_) return;
    const at::Tensor& velocity = velocities_.at(name);
    const Flag finite = Flag::is_finite(values);
    finite.change(velocity, [&](at::Tensor changed) { changed.mul_(options().momentum).add_(values); });
    finite.change(values, [&](at::Tensor changed) { changed.copy_(velocity); });
  }
  std::function<void()> reduce(comm::Group& group, std::vector<CompressedPart> parts,
                               ReduceScale scale) override;
  /// The outgoing values of a gradient in one step.
  struct Outgoing {
    CompressedPart part;
    at::Tensor sent;  ///< the values to encode; dropped ones stay there
    compress::Codec::Options how;
    std::int64_t bytes = 0;  ///< of its slot: the same on all ranks

    bool is_less_dense(int num_ranks) const {
      return num_ranks * bytes > 2 * static_cast<std::int64_t>(part.values.nbytes());
    }
  };
  Outgoing encode_local(const CompressedPart& part, int rank);
  void encode(const Outgoing& each, const at::Tensor& slot);
  std::function<void()> send(comm::Group& group, const std::vector<CompressedPart>& parts, ReduceScale scale);
  std::function<void()> gather(comm::Group& group, std::vector<Outgoing> all, ReduceScale scale);
  std::function<void()> reduce_densely(comm::Group& group, const std::vector<Outgoing>& all,
                                       ReduceScale scale);
  std::function<void()> sum(comm::Group& group, const std::vector<CompressedPart>& parts, ReduceScale scale);
  Random random_for(const CompressedPart& part, int rank) const;
  /// The fraction of values that the gradient's next step sends.
  double fraction_for(const CompressedPart& part) const;

  const compress::Codec& codec_;
  const bool with_velocity_;
  std::map<std::string, Kept> kept_;
  std::map<std::string, at::Tensor> velocities_;  ///< of dgc, of uncompressed gradients: equal on all ranks
};

/// Lin et al., section 3.3: a few steps of increasing sparsity, while the network changes fast.
double CodecHook::fraction_for(const CompressedPart& part) const {
  constexpr std::int64_t kLevels = 4;
  const std::int64_t step = *kept_.at(part.name).draws.const_data_ptr<std::int64_t>();
  if (step >= options().warmup_steps) return options().fraction;
  const std::int64_t level = step * kLevels / options().warmup_steps;
  return std::max(options().fraction, std::pow(0.25, static_cast<double>(1 + level)));
}

Random CodecHook::random_for(const CompressedPart& part, int rank) const {
  const std::int64_t step = *kept_.at(part.name).draws.const_data_ptr<std::int64_t>();
  return Random(options().seed, Random::key_of(part.name), step, rank);
}

CodecHook::Outgoing CodecHook::encode_local(const CompressedPart& part, int rank) {
  Kept& kept = kept_.at(part.name);
  Outgoing each{.part = part,
                .sent = part.values,
                .how = {.fraction = fraction_for(part), .seed = random_for(part, rank).bits()}};
  ++*kept.draws.data_ptr<std::int64_t>();
  if (part.finite.is_known(false)) return each;
  if (with_velocity_) {
    part.finite.change(kept.velocity,
                       [&](at::Tensor changed) { changed.mul_(options().momentum).add_(part.values); });
    each.sent = kept.velocity;
  }
  if (kept.residual.defined()) {
    part.finite.change(kept.residual, [&](at::Tensor changed) { changed.add_(each.sent); });
    each.sent = kept.residual;
  }
  return each;
}

void CodecHook::encode(const Outgoing& each, const at::Tensor& slot) {
  const Kept& kept = kept_.at(each.part.name);
  write_slot(codec_, each.sent, each.how, each.part.finite, slot);
  if (kept.residual.defined()) take_out(codec_, slot, each.part.finite, kept.residual);
  if (with_velocity_) take_out(codec_, slot, each.part.finite, kept.velocity);
}

std::function<void()> CodecHook::reduce(comm::Group& group, std::vector<CompressedPart> parts,
                                        ReduceScale scale) {
  const auto first_by_pieces = std::stable_partition(
      parts.begin(), parts.end(), [&](const auto& part) { return !kept_.at(part.name).by_pieces; });
  const std::vector<CompressedPart> by_pieces(first_by_pieces, parts.end());
  parts.erase(first_by_pieces, parts.end());
  const std::function<void()> nothing = [] {};
  const auto gathered = parts.empty() ? nothing : send(group, parts, scale);
  const auto summed = by_pieces.empty() ? nothing : sum(group, by_pieces, scale);
  return [gathered, summed] {
    gathered();
    summed();
  };
}

std::function<void()> CodecHook::sum(comm::Group& group, const std::vector<CompressedPart>& parts,
                                     ReduceScale scale) {
  std::vector<Summand> summands;
  for (const CompressedPart& part : parts) {
    Kept& kept = kept_.at(part.name);
    summands.push_back({.name = part.name,
                        .values = part.values,
                        .finite = part.finite,
                        .how = {.seed = random_for(part, group.rank()).bits()},
                        .residual = kept.residual,
                        .sums_residual = kept.sums_residual});
    ++*kept.draws.data_ptr<std::int64_t>();
  }
  return [wait = start_sums(group, codec_, std::move(summands)), scale, num_ranks = group.size()] {
    for (const Summand& summand : wait()) {
      if (scale == ReduceScale::kMean) at::Tensor(summand.values).div_(num_ranks);
    }
  };
}

std::function<void()> CodecHook::send(comm::Group& group, const std::vector<CompressedPart>& parts,
                                      ReduceScale scale) {
  std::vector<Outgoing> all;
  for (const CompressedPart& part : parts) all.push_back(encode_local(part, group.rank()));
  for (Outgoing& each : all) each.bytes = slot_bytes(codec_, each.part.values.numel(), each.how);
  const auto first_dense = std::stable_partition(
      all.begin(), all.end(), [&](const Outgoing& each) { return !each.is_less_dense(group.size()); });
  const std::vector<Outgoing> dense(first_dense, all.end());
  all.erase(first_dense, all.end());
  const std::function<void()> nothing = [] {};
  const auto gathered = all.empty() ? nothing : gather(group, std::move(all), scale);
  const auto reduced = dense.empty() ? nothing : reduce_densely(group, dense, scale);
  return [gathered, reduced] {
    gathered();
    reduced();
  };
}

std::function<void()> CodecHook::gather(comm::Group& group, std::vector<Outgoing> all, ReduceScale scale) {
  std::int64_t size = 0;
  for (const Outgoing& each : all) size += each.bytes;
  const std::string& of = all.front().part.name;
  const c10::Device device = all.front().part.values.device();
  const at::Tensor message = room_for(group, "message " + of, size, device);
  at::Tensor messages = room_for(group, "messages " + of, size * group.size(), device);
  std::int64_t at = 0;
  for (const Outgoing& each : all) {
    encode(each, message.narrow(0, at, each.bytes));
    at += each.bytes;
  }
  count(all_gather_bytes(group, message));
  return [this, all = std::move(all), message, messages, size, scale, num_ranks = group.size(),
          pending = group.all_gather_async(messages, message)]() mutable {
    pending.wait();
    std::int64_t place = 0;
    for (const Outgoing& each : all) {
      at::Tensor values = each.part.values;
      values.zero_();
      Flag finite = true;
      for (int rank = 0; rank < num_ranks; ++rank) {
        const at::Tensor slot = messages.narrow(0, rank * size + place, each.bytes);
        finite = add_slot(codec_, slot, values, each.part.name) && finite;
      }
      finite.show_in(values);
      if (scale == ReduceScale::kMean) values.div_(num_ranks);
      place += each.bytes;
    }
  };
}

/// Decodes each rank's message in place and all-reduces the result.
std::function<void()> CodecHook::reduce_densely(comm::Group& group, const std::vector<Outgoing>& all,
                                                ReduceScale scale) {
  const auto op = scale == ReduceScale::kMean ? comm::ReduceOp::kAverage : comm::ReduceOp::kSum;
  std::vector<comm::Pending> sums;
  for (const Outgoing& each : all) {
    at::Tensor values = each.part.values;
    const at::Tensor slot = at::empty({each.bytes}, values.options().dtype(at::kByte));
    encode(each, slot);
    read_slot(codec_, slot, values, each.part.name).show_in(values);
    count(all_reduce_bytes(group, values));
    sums.push_back(group.all_reduce_async(values, op));
  }
  return [sums = std::move(sums)]() mutable {
    for (comm::Pending& sum : sums) sum.wait();
  };
}

}  // namespace

std::shared_ptr<CommHook> make_codec_hook(const CompressionOptions& options) {
  // Without momentum a velocity equals the gradient: only error feedback remains.
  const bool is_dgc = options.name == "dgc";
  return std::make_shared<CodecHook>(options, *compress::codec(is_dgc ? "top-k" : options.name),
                                     is_dgc && options.momentum > 0);
}

}  // namespace trireme::parallel
