#include "trireme/train/config/internal/removed_settings.h"

#include <algorithm>
#include <array>

namespace trireme::train {
namespace {

constexpr std::array kKeys = {
    RemovedKey{
        .name = "parallel.compression_threshold",
        .without_effect = 0,
        .instead = "leave it out; parallel.compression_fraction says how much \"top-k\" and \"dgc\" send"},
    RemovedKey{.name = "lr.progress_steps",
               .without_effect = 0,
               .instead = "leave it out, and set train.max_steps to the steps of the run: it counted steps "
                          "of AdaScale"},
};

constexpr std::array kValues = {
    RemovedValue{
        .key = "parallel.compression",
        .value = "threshold",
        .instead =
            "use \"power-sgd\" with a small parallel.compression_rank, which loses less, or \"top-k\""},
    RemovedValue{
        .key = "parallel.compression",
        .value = "ternary",
        .instead =
            "use \"power-sgd\", which loses less in as many bytes, or \"qsgd\", which keeps nothing either"},
    RemovedValue{
        .key = "parallel.compression",
        .value = "random-k",
        .instead = "use \"top-k\", which sends the same share of each gradient, the greatest values of it"},
    RemovedValue{.key = "lr.scale_with_batch",
                 .value = "adascale",
                 .instead = "use \"linear\" with sgd and lars, \"sqrt\" with adam and its kin"},
};

}  // namespace

std::span<const RemovedKey> removed_keys() { return kKeys; }
std::span<const RemovedValue> removed_values() { return kValues; }

const RemovedKey* find_removed_key(std::string_view name) {
  const auto row = std::ranges::find(kKeys, name, &RemovedKey::name);
  return row == kKeys.end() ? nullptr : &*row;
}

const RemovedValue* find_removed_value(std::string_view key, std::string_view value) {
  const auto row = std::ranges::find_if(
      kValues, [&](const RemovedValue& each) { return each.key == key && each.value == value; });
  return row == kValues.end() ? nullptr : &*row;
}

}  // namespace trireme::train
