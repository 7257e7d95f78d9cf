#include "trireme/optim/update_rule.h"

#include <cmath>

#include "trireme/base/error.h"

namespace trireme::optim {
namespace {

void require_range(bool inside, const OptimizerOptions& options, const char* option, const char* range,
                   double value) {
  require(inside, "the ", option, " of ", options.name, " must be ", range, ", not ", value);
}

}  // namespace

void require_fraction(const OptimizerOptions& options, const char* option, double value) {
  require_range(value >= 0 && value < 1, options, option, "in [0, 1)", value);
}

void require_positive(const OptimizerOptions& options, const char* option, double value) {
  require_range(value > 0 && std::isfinite(value), options, option, "a number above 0", value);
}

void require_not_negative(const OptimizerOptions& options, const char* option, double value) {
  require_range(value >= 0 && std::isfinite(value), options, option, "a number of at least 0", value);
}

}  // namespace trireme::optim
