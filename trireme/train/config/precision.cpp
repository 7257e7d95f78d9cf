#include "trireme/train/config/precision.h"

#include <ATen/autocast_mode.h>

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/train/config/run_config.h"

namespace trireme::train {
namespace {

constexpr Precision kPrecisions[] = {{"fp32", at::kFloat, false, 0x1p-24},
                                     {"bf16", at::kBFloat16, false, 0x1p-9},
                                     {"fp16", at::kHalf, true, 0x1p-12}};

}  // namespace

std::vector<std::string> precision_names() {
  std::vector<std::string> names;
  for (const Precision& row : kPrecisions) names.emplace_back(row.name);
  return names;
}

const Precision& precision_of(const std::string& name) {
  const auto* row = std::find_if(std::begin(kPrecisions), std::end(kPrecisions),
                                 [&](const Precision& each) { return name == each.name; });
  require(row != std::end(kPrecisions), "unknown precision '", name, "'", suggest(name, precision_names()));
  return *row;
}

PrecisionScope::PrecisionScope(const Precision& precision, c10::DeviceType device)
    : device_(device), autocast_before_(at::autocast::is_autocast_enabled(device)) {
  const bool casts = precision.autocast_to != at::kFloat;
  at::autocast::set_autocast_enabled(device_, casts);
  if (casts) at::autocast::set_autocast_dtype(device_, precision.autocast_to);
  at::autocast::increment_nesting();
}

PrecisionScope::~PrecisionScope() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, autocast_before_);
}

}  // namespace trireme::train
