#include "trireme/base/mesh_axes.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme {
namespace {

/// Axes with more frequent exchanges come later, so that neighbouring ranks exchange most.
const std::vector<AxisRow>& rows() {
  static const std::vector<AxisRow> all = {
      {.name = "pp",
       .key = "parallel.pipeline",
       .shared = {Shared::kStages},
       .is_always_there = true,
       .who = "stages: other layers, the same samples",
       .exchange = "activations between stages, once per micro-batch"},
      {.name = "dp",
       .key = "parallel.data",
       .shared = {Shared::kSamples},
       .is_rest = true,
       .is_always_there = true,
       .who = "replicas: the same weights, other samples",
       .exchange = "gradients, once per step; with `zero` also shards of weights"},
      {.name = "ep",
       .key = "parallel.expert",
       .shared = {Shared::kSamples, Shared::kExperts},
       .who = "replicas with other experts: the same other weights, other samples",
       .exchange = "tokens to experts and back, in each layer with experts; gradients, with `dp`"},
      {.name = "cp",
       .key = "parallel.context",
       .shared = {Shared::kSequences},
       .who = "shards of the same sequences: the same weights",
       .exchange = "keys and values, in each attention; gradients, with `dp`"},
      {.name = "tp",
       .key = "parallel.tensor",
       .shared = {Shared::kLayers},
       .who = "shards of the same layers, the same samples",
       .exchange = "activations, four times per layer and micro-batch"},
  };
  return all;
}

bool shares_any(const AxisRow& row, std::initializer_list<Shared> any) {
  return std::ranges::any_of(any, [&](Shared what) { return row.shares(what); });
}

template <class Wanted>
MeshShape::Fold names_where(const Wanted& wanted) {
  MeshShape::Fold names;
  for (const AxisRow& row : rows()) {
    if (wanted(row)) names.emplace_back(row.name);
  }
  return names;
}

/// Sizes by axis.
std::map<std::string, int> sizes_in(std::string_view words) {
  const MeshShape::Fold known = names_where([](const AxisRow&) { return true; });
  std::map<std::string, int> sizes;
  for (const std::string& word : split(std::string(words), ',')) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    int size = 0;
    const std::string number = equals == std::string::npos ? "" : word.substr(equals + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), size);
    require(error == std::errc() && end == number.data() + number.size() && size >= 1, "mesh '", words,
            "': '", word, "' is no AXIS=SIZE with a size of at least 1, such as dp=2");
    require(std::ranges::find(known, name) != known.end(), "mesh '", words, "': there is no axis '", name,
            "'", suggest(name, known));
    require(sizes.emplace(name, size).second, "mesh '", words, "': the axis '", name, "' is there twice");
  }
  return sizes;
}

}  // namespace

bool AxisRow::shares(Shared what) const { return std::ranges::find(shared, what) != shared.end(); }

std::span<const AxisRow> mesh_axes() { return rows(); }

MeshShape::Fold axes_that_share(std::initializer_list<Shared> any) {
  return names_where([&](const AxisRow& row) { return shares_any(row, any); });
}

MeshShape::Fold axes_that_share_none(std::initializer_list<Shared> any) {
  return names_where([&](const AxisRow& row) { return !shares_any(row, any); });
}

MeshShape parse_mesh(std::string_view words, int num_ranks) {
  const std::map<std::string, int> sizes = sizes_in(words);
  int named = 1;
  for (const auto& [name, size] : sizes) {
    require(size <= num_ranks / named, "mesh '", words, "' needs more than the ", num_ranks,
            num_ranks == 1 ? " rank" : " ranks", " that there are");
    named *= size;
  }
  std::vector<MeshAxis> axes;
  bool takes_rest = false;
  for (const AxisRow& row : rows()) {
    const auto found = sizes.find(row.name);
    const bool is_rest = row.is_rest && found == sizes.end();
    takes_rest = takes_rest || is_rest;
    const int size = found != sizes.end() ? found->second : is_rest ? num_ranks / named : 1;
    if (size > 1 || found != sizes.end()) axes.push_back({row.name, size});
  }
  require(takes_rest ? num_ranks % named == 0 : num_ranks == named, "mesh '", words, "' is of ", named,
          named == 1 ? " rank" : " ranks", takes_rest ? " or a multiple of it" : "", ", and there are ",
          num_ranks, ": the product of the sizes has to be the number of ranks");
  return MeshShape(std::move(axes));
}

}  // namespace trireme
