#include "trireme/parallel/data/internal/compressing_hook.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/rounding.h"
#include "trireme/parallel/counted_memory.h"
#include "trireme/parallel/data/internal/encoded_sum.h"

namespace trireme::parallel {
namespace {

/// Size of the dim with the largest stride.
std::int64_t outermost_size(const at::Tensor& tensor) {
  std::int64_t outermost = 0;
  for (std::int64_t dim = 1; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) > tensor.stride(outermost)) outermost = dim;
  }
  return tensor.size(outermost);
}

/// Position of a gradient in its bucket.
struct Place {
  std::int64_t offset;
  std::int64_t numel;

  at::Tensor in(const at::Tensor& flat) const { return flat.narrow(0, offset, numel); }
};

Place place_of(const at::Tensor& view, const GradientBucket& bucket) {
  return {view.storage_offset() - bucket.flat.storage_offset(), view.numel()};
}

/// Consecutive values that are sent uncompressed.
class Uncompressed {
 public:
  void add(const Place& place) {
    places_.push_back(place);
    numel_ += place.numel;
  }
  std::int64_t numel() const { return numel_; }
  const std::vector<Place>& places() const { return places_; }
  void pack(const at::Tensor& flat, at::Tensor& packed) const {
    each(packed, [&](const Place& place, at::Tensor part) { part.copy_(place.in(flat)); });
  }
  void unpack(at::Tensor& packed, const at::Tensor& flat) const {
    each(packed, [&](const Place& place, const at::Tensor& part) { place.in(flat).copy_(part); });
  }

 private:
  template <class Use>
  void each(at::Tensor& packed, const Use& use) const {
    std::int64_t at = 0;
    for (const Place& place : places_) {
      use(place, packed.narrow(0, at, place.numel));
      at += place.numel;
    }
  }
  std::vector<Place> places_;
  std::int64_t numel_ = 0;
};

}  // namespace

void require_f32(const std::string& compression, const optim::NamedTensors& parameters) {
  for (const auto& [name, parameter] : parameters)
    require(parameter.scalar_type() == at::kFloat, "gradient compression \"", compression,
            "\" is for gradients of f32; '", name, "' is ", at::toString(parameter.scalar_type()),
            ": choose \"bf16\" or \"none\", or keep the parameters in f32");
}

void require_gradient_scale(double scale) {
  require(scale > 0 && std::isfinite(scale), "gradients are scaled by a number above 0; found ", scale);
}

std::string kept_already(const std::string& compression, const std::string& parameter) {
  return text("gradient compression \"", compression, "\" keeps something of '", parameter,
              "' already: a hook belongs to one model; make another one with make_comm_hook()");
}

CompressingHook::CompressingHook(const CompressionOptions& options) : options_(options) {
  require(options.fraction > 0 && options.fraction <= 0.5,
          "the fraction of a gradient that is sent must be above 0 and at most 0.5; found ",
          options.fraction);
  require(options.warmup_steps >= 0, "the warm-up of a compression must not be negative; found ",
          options.warmup_steps, " steps");
  require(options.rank >= 1 && options.rank <= 1024, "the rank of a compression must be 1 to 1024; found ",
          options.rank);
}

std::string CompressingHook::describe() const {
  return text(options_.name, ", fraction ", options_.fraction, ", warm-up ", options_.warmup_steps, ", rank ",
              options_.rank, ", least size ", options_.min_numel, ", seed ", options_.seed);
}

bool CompressingHook::is_taken(const at::Tensor& gradient) const {
  if (gradient.dim() < 2 || gradient.numel() < options_.min_numel) return false;
  const std::int64_t rows = outermost_size(gradient);
  return takes(rows, gradient.numel() / rows);
}

void CompressingHook::prepare(const comm::Group& group, const optim::NamedTensors& parameters) {
  require_f32(options_.name, parameters);
  for (const auto& [name, parameter] : parameters) {
    require(prepared_.insert(name).second, kept_already(options_.name, name));
    if (!is_taken(parameter)) {
      add_uncompressed(name, parameter);
      continue;
    }
    const std::int64_t rows = outermost_size(parameter);
    add(group, {.name = name,
                .rows = rows,
                .columns = parameter.numel() / rows,
                .like = at::TensorOptions(at::kFloat).device(parameter.device())});
  }
}

void CompressingHook::set_gradient_scale(double scale) {
  require_gradient_scale(scale);
  gradient_scale_ = scale;
}

std::function<void()> CompressingHook::start(comm::Group& group, GradientBucket& bucket, ReduceScale scale) {
  const at::Tensor flat = bucket.flat;
  Uncompressed uncompressed;
  std::vector<std::string> names;  // of the uncompressed gradients, without the flag
  std::vector<CompressedPart> parts;
  std::vector<at::Tensor> scaled;
  for (const auto& [name, gradient] : bucket.gradients) {
    const Place place = place_of(gradient, bucket);
    if (gradient_scale_ != 1) scaled.push_back(place.in(flat).mul_(1 / gradient_scale_));
    if (!is_taken(gradient) || !is_due(name)) {
      uncompressed.add(place);
      names.push_back(name);
      continue;
    }
    const at::Tensor values = place.in(flat);
    parts.push_back({.name = name,
                     .values = values,
                     .rows = outermost_size(gradient),
                     .finite = Flag::is_finite(values)});
  }
  if (bucket.flag.defined()) uncompressed.add(place_of(bucket.flag, bucket));
  at::Tensor packed;
  comm::Pending plain;
  if (uncompressed.numel() > 0) {
    packed = room(group, text("uncompressed ", bucket.gradients.front().first), uncompressed.numel(),
                  flat.options());
    uncompressed.pack(flat, packed);
    count(all_reduce_bytes(group, packed));
    plain = group.all_reduce_async(
        packed, scale == ReduceScale::kMean ? comm::ReduceOp::kAverage : comm::ReduceOp::kSum);
  }
  std::function<void()> rest = parts.empty() ? [] {} : reduce(group, std::move(parts), scale);
  return [this, flat, uncompressed = std::move(uncompressed), names = std::move(names), packed,
          plain = std::move(plain), rest = std::move(rest), scaled = std::move(scaled),
          scale_of_them = gradient_scale_]() mutable {
    plain.wait();
    uncompressed.unpack(packed, flat);
    for (std::size_t i = 0; i < names.size(); ++i)
      finish_uncompressed(names[i], uncompressed.places()[i].in(flat));
    rest();
    for (at::Tensor& each : scaled) each.mul_(scale_of_them);
  };
}

/// Residuals are of gradients divided by their scale.
void CompressingHook::release(GradientBucket& bucket, double factor) {
  for (const auto& [name, gradient] : bucket.gradients) {
    if (!is_taken(gradient)) continue;
    const at::Tensor values = place_of(gradient, bucket).in(bucket.flat);
    const Flag finite = Flag::is_finite(values);
    for (const Residual& residual : residuals_of(name)) {
      const at::Tensor part = values.narrow(0, residual.begin, residual.values.numel());
      finite.change(part, [&](at::Tensor sum) { sum.add_(residual.values, factor * gradient_scale_); });
      finite.change(residual.values, [](at::Tensor kept) { kept.zero_(); });
    }
  }
}

at::Tensor CompressingHook::room(const comm::Group& group, const std::string& use, std::int64_t numel,
                                 const at::TensorOptions& options) {
  at::Tensor& found = rooms_[use];
  if (!found.defined() || found.numel() != numel) {
    found = group.allocate(numel, options);
    count_as(MemoryKind::kCommunication, found);
  }
  return found;
}

at::Tensor CompressingHook::room_for(const comm::Group& group, const std::string& use, std::int64_t bytes,
                                     c10::Device device) {
  // Rounds up to one of eight sizes between two powers of two.
  const auto floor = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(bytes)));
  const at::TensorOptions options = at::TensorOptions(at::kByte).device(device);
  return room(group, use, round_up(bytes, std::max<std::int64_t>(64, floor / 8)), options)
      .narrow(0, 0, bytes);
}

std::function<std::vector<Summand>()> CompressingHook::start_sums(comm::Group& group,
                                                                  const compress::Codec& codec,
                                                                  std::vector<Summand> summands) {
  const std::int64_t per_piece = bytes_per_piece(summands, codec, group.size());
  const at::TensorOptions bytes = summands.front().values.options().dtype(at::kByte);
  const auto room_for = [&](const char* use, std::int64_t pieces) {
    return room(group, text(use, " ", summands.front().name), pieces * per_piece, bytes);
  };
  const SumRooms rooms{.to_pieces = room_for("to pieces", group.size()),
                       .from_ranks = room_for("from ranks", group.size()),
                       .of_piece = room_for("of piece", 1),
                       .of_pieces = room_for("of pieces", group.size())};
  count(2 * (group.size() - 1) * per_piece);
  return start_encoded_sum(group, codec, std::move(summands), rooms);
}

std::int64_t all_reduce_bytes(const comm::Group& group, const at::Tensor& tensor) {
  return 2 * (group.size() - 1) * static_cast<std::int64_t>(tensor.nbytes()) / group.size();
}

std::int64_t all_gather_bytes(const comm::Group& group, const at::Tensor& mine) {
  return (group.size() - 1) * static_cast<std::int64_t>(mine.nbytes());
}

}  // namespace trireme::parallel
