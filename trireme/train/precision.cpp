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
  bool autocast;
};

constexpr PrecisionRow kPrecisions[] = {{"fp32", false}, {"bf16", true}};

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

PrecisionScope::PrecisionScope(const std::string& precision)
    : autocast_before_(at::autocast::is_autocast_enabled(at::kCPU)) {
  const PrecisionRow& row = find_precision(precision);
  at::autocast::set_autocast_enabled(at::kCPU, row.autocast);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::increment_nesting();
}

PrecisionScope::~PrecisionScope() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, autocast_before_);
}

}  // namespace trireme::train
