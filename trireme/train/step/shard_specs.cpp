#include "trireme/train/step/shard_specs.h"

#include <algorithm>
#include <optional>

#include "trireme/base/text.h"
#include "trireme/model/parameter_box.h"

namespace trireme::train {
namespace {

/// The place of a tensor in its whole parameter.
struct Held {
  const CutParameter* cut = nullptr;       ///< null: layers are not split
  const parallel::Piece* piece = nullptr;  ///< null: all of the part, or of the parameter
};

at::IntArrayRef sizes_of(const Held& held) {
  return held.piece != nullptr ? held.piece->sizes : held.cut->sizes;
}

std::optional<Held> find_parameter(const std::string& name, const ShardSpecs& held) {
  const auto cut = held.cut.find(name);
  const auto piece = held.pieces.find(name);
  if (cut == held.cut.end() && piece == held.pieces.end()) return std::nullopt;
  return Held{.cut = cut == held.cut.end() ? nullptr : &cut->second,
              .piece = piece == held.pieces.end() ? nullptr : &piece->second};
}

std::optional<Held> find_held(const std::string& name, const at::Tensor& tensor, const ShardSpecs& parts) {
  std::optional<Held> found = find_parameter(name, parts);
  for (auto slash = name.find('/'); !found && slash != std::string::npos; slash = name.find('/', slash + 1))
    found = find_parameter(name.substr(slash + 1), parts);
  return found && tensor.sizes() == sizes_of(*found) ? found : std::nullopt;
}

/// The boxes of a tensor that layers compute with, and the tensors of their values.
struct Part {
  checkpoint::Box box;
  at::Tensor tensor;
};
std::vector<Part> parts_of(const at::Tensor& tensor, const Held& held) {
  if (held.piece == nullptr) return {{checkpoint::whole_box(tensor.sizes()), tensor}};
  std::vector<Part> parts;
  const at::Tensor run = tensor.view({-1});
  std::int64_t begin = 0;
  const std::int64_t first = held.piece->begin;
  for (checkpoint::Box& box :
       checkpoint::boxes_of_flat_range(held.piece->global_sizes, first, first + run.numel())) {
    const std::int64_t count = box.numel();
    at::Tensor values = run.narrow(0, begin, count).view(box.sizes);
    parts.push_back({std::move(box), std::move(values)});
    begin += count;
  }
  return parts;
}

void add_boxes(checkpoint::Shards& shards, const std::string& name, const at::Tensor& tensor,
               const Held& held) {
  for (const Part& part : parts_of(tensor, held)) {
    if (held.cut == nullptr) {
      shards.push_back({.name = name,
                        .global_sizes = held.piece->global_sizes,
                        .offsets = part.box.offsets,
                        .tensor = part.tensor});
      continue;
    }
    for (const CutParameter::Part& cut : held.cut->parts) {
      const checkpoint::Box there{.offsets = cut.places, .sizes = cut.box.sizes};
      const auto common = checkpoint::overlap(part.box, there);
      if (!common) continue;
      std::vector<std::int64_t> offsets = common->offsets;
      for (std::size_t dim = 0; dim < offsets.size(); ++dim)
        offsets[dim] += cut.box.offsets[dim] - cut.places[dim];
      shards.push_back({.name = name,
                        .global_sizes = held.cut->global_sizes,
                        .offsets = std::move(offsets),
                        .tensor = checkpoint::view_of(part.tensor, part.box, *common)});
    }
  }
}

}  // namespace

std::string ShardSpecs::label_of(const std::string& parameter) const {
  std::string label = parameter;
  const auto held = cut.find(parameter);
  if (held != cut.end()) {
    for (const CutParameter::Part& part : held->second.parts) label += checkpoint::describe(part.box);
  }
  const auto piece = pieces.find(parameter);
  return piece == pieces.end() ? label : text(label, '@', piece->second.begin);
}

std::map<std::string, CutParameter> cut_parameters(const model::Model& model) {
  std::map<std::string, CutParameter> cut;
  for (const model::ParameterBox& box : model::parameter_boxes(model)) {
    if (!box.is_part) continue;
    CutParameter& parameter = cut[box.name];
    parameter.global_sizes = box.global_sizes;
    parameter.sizes.resize(box.sizes.size(), 0);  // not the tensor's sizes, as it may have no memory now
    for (std::size_t dim = 0; dim < box.sizes.size(); ++dim)
      parameter.sizes[dim] = std::max(parameter.sizes[dim], box.places[dim] + box.sizes[dim]);
    parameter.parts.push_back({.box = {.offsets = box.offsets, .sizes = box.sizes}, .places = box.places});
  }
  return cut;
}

checkpoint::Shards shards_of(const checkpoint::TensorMap& tensors, const ShardSpecs& held) {
  checkpoint::Shards shards;
  for (const auto& [name, tensor] : tensors) {
    const std::optional<Held> found = find_held(name, tensor, held);
    if (found) {
      add_boxes(shards, name, tensor, *found);
    } else {
      shards.push_back(checkpoint::whole_shard(name, tensor));
    }
  }
  return shards;
}

}  // namespace trireme::train
