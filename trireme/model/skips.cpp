#include "trireme/model/skips.h"

#include <algorithm>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/foreign_error.h"

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

/// Throws the reason why `taker` cannot take a skip that no earlier layer gives.
[[noreturn]] void reject_take(const std::vector<Layer>& layers, std::size_t taker, const std::string& skip) {
  const std::string what = text("layer '", layers[taker].name, "' takes skip '", skip, "'");
  for (std::size_t i = taker; i < layers.size(); ++i) {
    if (!index_of(layers[i].gives, skip)) continue;
    throw InvalidArgument(text(
        what, " before it is given: ",
        i == taker ? "the same layer gives it" : text("layer '", layers[i].name, "' after it gives it")));
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
    for (const std::string& name : layer.takes) {
      const auto skip = find(name);
      if (skip == skips.end()) reject_take(layers, i, name);
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

/// Adds the layer's name to an InvalidArgument. Errors of libtorch keep their type, which outputs_on_shapes()
/// catches.
Fields forward_of(const Layer& layer, const Fields& inputs) {
  try {
    return layer.forward(inputs);
  } catch (const PlacedError&) {
    throw;
  } catch (const InvalidArgument& error) {
    throw PlacedError(text("layer '", layer.name, "'"), error.what());
  }
}

Fields checked(const Layer& layer, Fields results) {
  require(results.size() > layer.gives.size(), "layer '", layer.name, "' returns ", results.size(),
          " tensors, needed are at least ", layer.gives.size() + 1, ": one for the next layer and ",
          layer.gives.size(), " skips after it");
  for (const auto& [name, tensor] : results)
    require(tensor.defined(), "layer '", layer.name, "' returns an undefined tensor");
  return results;
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

Fields run_layer(const Layer& layer, const Fields& values, const SkipNames& carried,
                 const SkipNames& carried_on) {
  if (carried.empty() && layer.gives.empty()) return checked(layer, forward_of(layer, values));
  const std::size_t num_own = values.size() - carried.size();
  const auto skip_at = [&](std::size_t index) { return values.at(num_own + index); };
  Fields inputs = values.first(num_own);
  for (const std::string& name : layer.takes) inputs.add(name, skip_at(index_of(carried, name).value()));
  const Fields results = checked(layer, forward_of(layer, inputs));
  const std::size_t num_results = results.size() - layer.gives.size();
  Fields next = results.first(num_results);
  for (const std::string& name : carried_on) {
    const std::optional<std::size_t> given = index_of(layer.gives, name);
    next.add({}, given ? results.at(num_results + *given) : skip_at(index_of(carried, name).value()));
  }
  return next;
}

std::function<Fields(const Fields&)> forward_of_chain(std::vector<Layer> layers) {
  std::vector<SkipNames> carried = carried_skips(layers);
  return [layers = std::move(layers), carried = std::move(carried)](const Fields& inputs) {
    Fields values = inputs;
    for (std::size_t i = 0; i < layers.size(); ++i)
      values = run_layer(layers[i], values, carried[i], carried[i + 1]);
    return values;
  };
}

}  // namespace trireme::model
