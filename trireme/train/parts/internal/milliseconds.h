#pragma once
// Times in the reasons of decisions.

#include <cmath>
#include <string>

#include "trireme/base/text.h"

namespace trireme::train {

/// "12.3 ms".
inline std::string in_ms(double seconds) { return text(std::round(seconds * 1e4) / 10, " ms"); }

}  // namespace trireme::train
