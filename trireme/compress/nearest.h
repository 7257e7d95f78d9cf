#pragma once
// Codecs that round to nearest, for values that are sent once and used as they arrive: weights (ZeRO++: Wang
// et al., arXiv 2306.10209, section 3.1). Stochastic rounding is unbiased in sums, but it would add noise to
// each single value.

#include <string>
#include <string_view>
#include <vector>

#include "trireme/compress/codec.h"

namespace trireme::compress {

/// None for "none". "int8" has the bytes of codec("int8"), each value within half of a step, and draws
/// nothing. Throws InvalidArgument with the known names.
const Codec* nearest_codec(std::string_view name);
/// With "none".
std::vector<std::string> nearest_codec_names();

}  // namespace trireme::compress
