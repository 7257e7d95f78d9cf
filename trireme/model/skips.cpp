#include "trireme/model/skips.h"

#include <algorithm>
#include <optional>

#include "trireme/base/error.h"

namespace trireme::model {
namespace {

struct Skip {
  std::string name;
  std::size_t giver = 0, last_taker = 0;
};

std::optional<std::size_t> index_of(const SkipNames& names, const std::string& name) {
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end()) return std::nullopt;
  return static_cast<std::size_t>(at - names.begin());
}

/// Why layer `taker` cannot take what none before it gives.
[[noreturn]] void refuse_take(const std::vector<Layer>& layers, std::size_t taker, const std::string& skip) {
  const std::string what = text("layer '", layers[taker].name, "' takes skip '", skip, "'");
  for (std::size_t i = taker; i < layers.size(); ++i) {
    if (!index_of(layers[i].gives, skip)) continue;
    throw InvalidArgument(text(
        what, " before it is given: ",
        i == taker ? "the same layer gives it" : text("layer '", layers[i].name, "' behind it gives it")));
  }
  throw InvalidArgument(text(what, ", which no layer gives: add it to the `gives` of an earlier layer"));
}

std::vector<Skip> find_skips(const std::vector<Layer>& layers) {
  std::vector<Skip> skips;
  const auto find = [&](const std::string& name) {
    return std::find_if(skips.begin(), skips.end(), [&](const Skip& skip) { return skip.name == name; });
  };
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Layer& layer = layers[i];
    require(layer.forward_all || (layer.takes.empty() && layer.gives.empty()), "layer '", layer.name,
            "' has skips, but maps one tensor to one: set its forward_all");
    for (const std::string& name : layer.takes) {
      const auto skip = find(name);
      if (skip == skips.end()) refuse_take(layers, i, name);
      skip->last_taker = i;
    }
    for (const std::string& name : layer.gives) {
      const auto known = find(name);
      require(known == skips.end(), "layer '", layer.name, "' gives skip '", name, "', which layer '",
              known == skips.end() ? "" : layers[known->giver].name,
              "' has given: each needs a name of its own");
      skips.push_back({.name = name, .giver = i});
    }
  }
  return skips;
}

Tensors forward_of(const Layer& layer, const Tensors& inputs) {
  if (layer.forward_all) return layer.forward_all(inputs);
  require(inputs.size() == 1, "layer '", layer.name, "' maps one tensor to one, and gets ", inputs.size(),
          " from the layer before it: set its forward_all");
  return {layer.forward(inputs[0])};
}

}  // namespace

std::vector<SkipNames> carried_skips(const std::vector<Layer>& layers) {
  std::vector<SkipNames> carried(layers.size() + 1);
  for (const Skip& skip : find_skips(layers)) {
    require(skip.last_taker > 0, "layer '", layers[skip.giver].name, "' gives skip '", skip.name,
            "', which no layer takes: add it to the `takes` of a later layer, or leave it out");
    for (std::size_t i = skip.giver + 1; i <= skip.last_taker; ++i) carried[i].push_back(skip.name);
  }
  return carried;
}

Tensors run_layer(const Layer& layer, Tensors values, const SkipNames& carried, const SkipNames& carried_on) {
  if (!layer.forward_all && carried.empty() && values.size() == 1) {
    values[0] = layer.forward(values[0]);
    return values;
  }
  const std::size_t num_own = values.size() - carried.size();
  const auto skip_at = [&](std::size_t index) { return values[num_own + index]; };
  Tensors inputs(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(num_own));
  for (const std::string& name : layer.takes) inputs.push_back(skip_at(index_of(carried, name).value()));
  Tensors results = forward_of(layer, inputs);
  require(results.size() > layer.gives.size(), "layer '", layer.name, "' returns ", results.size(),
          " tensors, needed are at least ", layer.gives.size() + 1, ": one for the next layer and ",
          layer.gives.size(), " skips behind it");
  for (const at::Tensor& result : results)
    require(result.defined(), "layer '", layer.name, "' returns an undefined tensor");
  const std::size_t num_results = results.size() - layer.gives.size();
  Tensors next(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(num_results));
  for (const std::string& name : carried_on) {
    const std::optional<std::size_t> given = index_of(layer.gives, name);
    next.push_back(given ? results[num_results + *given] : skip_at(index_of(carried, name).value()));
  }
  return next;
}

}  // namespace trireme::model
