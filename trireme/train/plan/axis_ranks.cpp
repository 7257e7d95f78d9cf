#include "trireme/train/plan/internal/axis_ranks.h"

#include "trireme/train/config/internal/config_keys.h"

namespace trireme::train {

std::int64_t ranks_along(const AxisRow& row, const RunConfig& config) {
  return std::get<std::int64_t>(find_key(config_key_table(config), row.key).get(config));
}

std::int64_t ranks_of_other_axes(const RunConfig& config, std::string_view key) {
  std::int64_t product = 1;
  for (const AxisRow& row : mesh_axes()) {
    if (!row.is_rest && row.key != key) product *= ranks_along(row, config);
  }
  return product;
}

}  // namespace trireme::train
