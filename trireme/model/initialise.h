#pragma once
// Initial values of parameters as a pure function of (seed, parameter name): every rank, and every partition
// of a model, makes the same ones without talking. The distributions are those of PyTorch's layers: of Linear
// and Conv Kaiming uniform with a = sqrt(5) (He et al., arXiv 1502.01852), which is +-1/sqrt(fan_in) for
// weights and biases. The numbers come from our own generator (trireme/base/random.h). Stateless.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "trireme/model/layer.h"
#include "trireme/model/parameter_box.h"

namespace trireme::model {

/// While it lives, the functions below leave other parameters than those of these layers as they are: for a
/// model that gets its memory layer by layer. Scopes nest; per thread.
class FirstValuesOf {
 public:
  explicit FirstValuesOf(const std::vector<Layer>& layers);
  ~FirstValuesOf();
  FirstValuesOf(const FirstValuesOf&) = delete;
  FirstValuesOf& operator=(const FirstValuesOf&) = delete;
  /// Whether it is a parameter of those layers.
  bool contains(const at::Tensor& parameter) const;
  /// Whether this thread is in such a scope.
  static bool is_open();

 private:
  std::unordered_set<const c10::TensorImpl*> parameters_;
  const FirstValuesOf* const before_;
};

/// Fills an f32 or f64 tensor, unless it has no memory yet (deferred.h), with numbers uniform in +-bound that
/// depend on (seed, name, element) only.
void fill_uniform(at::Tensor tensor, double bound, std::uint64_t seed, const std::string& name);

/// Fills such a tensor with normally distributed numbers of mean 0 that depend on (seed, name,
/// element) only (Box and Muller, 1958).
void fill_normal(at::Tensor tensor, double standard_deviation, std::uint64_t seed, const std::string& name);

/// Fills a tensor with one number: norms, biases.
void fill_constant(at::Tensor tensor, double value);

/// The same for a part of a parameter: it gets the numbers that the whole one has there.
void fill_uniform(const ParameterBox& box, double bound, std::uint64_t seed);
void fill_normal(const ParameterBox& box, double standard_deviation, std::uint64_t seed);
void fill_constant(const ParameterBox& box, double value);

/// Fills every parameter of the module and its children, or the part that the module holds. Distributions are
/// the initial ones of libtorch's modules: norms with 1 and 0, embeddings normally, recurrent and attention
/// layers uniformly. A "weight" and "bias" of any other module are filled as those of Linear (fan_in:
/// elements per output). Throws InvalidArgument for another parameter.
void initialise(torch::nn::Module& module, std::uint64_t seed);

}  // namespace trireme::model
