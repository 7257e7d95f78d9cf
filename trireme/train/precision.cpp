#include "trireme/train/precision.h"

#include <ATen/autocast_mode.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/train/run_config.h"

namespace trireme::train {
namespace {

struct PrecisionRow {
  const char* name;
  at::ScalarType autocast_to;  ///< f32: none
  bool scales_loss;
};

constexpr PrecisionRow kPrecisions[] = {
    {"fp32", at::kFloat, false}, {"bf16", at::kBFloat16, false}, {"fp16", at::kHalf, true}};

const PrecisionRow& find_precision(const std::string& name) {
  const auto* row = std::find_if(std::begin(kPrecisions), std::end(kPrecisions),
                                 [&](const PrecisionRow& r) { return name == r.name; });
  require(row != std::end(kPrecisions), "unknown precision '", name, "'", suggest(name, precision_names()));
  return *row;
}

}  // namespace

std::vector<std::string> precision_names() {
  std::vector<std::string> names;
  for (const PrecisionRow& row : kPrecisions) names.emplace_back(row.name);
  return names;
}

bool scales_loss(const std::string& precision) { return find_precision(precision).scales_loss; }

PrecisionScope::PrecisionScope(const std::string& precision)
    : autocast_before_(at::autocast::is_autocast_enabled(at::kCPU)) {
  const PrecisionRow& row = find_precision(precision);
  at::autocast::set_autocast_enabled(at::kCPU, row.autocast_to != at::kFloat);
  if (row.autocast_to != at::kFloat) at::autocast::set_autocast_dtype(at::kCPU, row.autocast_to);
  at::autocast::increment_nesting();
}

PrecisionScope::~PrecisionScope() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, autocast_before_);
}

}  // namespace trireme::train
