#include "trireme/optim/offload_options.h"

#include <algorithm>
#include <array>

#include "trireme/base/error.h"

namespace trireme::optim {
namespace {

struct PlaceRow {
  const char* name;
  OffloadPlace place;
};

constexpr std::array kPlaces = {PlaceRow{"none", OffloadPlace::kNone}, PlaceRow{"host", OffloadPlace::kHost},
                                PlaceRow{"files", OffloadPlace::kFiles}};

}  // namespace

OffloadPlace offload_place_of(const std::string& name) {
  const auto* row =
      std::find_if(kPlaces.begin(), kPlaces.end(), [&](const PlaceRow& each) { return name == each.name; });
  require(row != kPlaces.end(), "unknown place '", name, "'", suggest(name, offload_place_names()));
  return row->place;
}

std::vector<std::string> offload_place_names() {
  std::vector<std::string> names;
  for (const PlaceRow& row : kPlaces) names.emplace_back(row.name);
  return names;
}

}  // namespace trireme::optim
