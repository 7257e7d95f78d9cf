#pragma once
// A form of a model: how many ranks hold parts of its layers and of its sequences. A value.

#include <cstdint>

namespace trireme::train {

struct ModelForm {
  std::int64_t tensor = 1, context = 1;  ///< ranks that hold parts of layers, of sequences
  bool sequence = false;                 ///< parallel.sequence
  bool operator==(const ModelForm&) const = default;
};

}  // namespace trireme::train
