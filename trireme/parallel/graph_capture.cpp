#include "trireme/parallel/internal/graph_capture.h"

#include <algorithm>

namespace trireme::parallel {

bool are_alike(const Fields& one, const Fields& other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](const auto& left, const auto& right) {
                      return left.name == right.name && left.tensor.sizes() == right.tensor.sizes() &&
                             left.tensor.scalar_type() == right.tensor.scalar_type();
                    });
}

}  // namespace trireme::parallel
