#pragma once
// The first values of libtorch's own modules: the distributions that their reset_parameters() draws from, as
// libtorch 2.11 to 2.15 have them (torch/csrc/api/src/nn/modules). Stateless.

#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace trireme::model {

/// How a parameter is drawn.
struct FirstValues {
  enum class Form { kConstant, kUniform, kNormal };
  Form form = Form::kConstant;
  double scale = 0;                           ///< the constant, the bound, or the standard deviation
  std::optional<std::int64_t> zero_row = {};  ///< padding_idx of an embedding
};

/// By the names of named_parameters(), for the parameters of libtorch's modules among `module` and its
/// children whose values are not those of Linear and Conv. A module that sets values of its children
/// overrules them.
std::map<std::string, FirstValues> torch_values(const torch::nn::Module& module);

}  // namespace trireme::model
