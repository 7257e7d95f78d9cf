#pragma once
// Placeholder of a parameter while it is not gathered: a tensor without elements, with which nothing can be
// computed. A use (a layer that uses a parameter of another stage) is an error that names the parameter,
// before any operator checks sizes. On devices of other vendors, for which libtorch has no such tensor, it is
// an empty tensor.

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::parallel {

/// Of the type and on the device of `like`.
at::Tensor released_parameter(const std::string& name, const at::Tensor& like);

/// Placeholder of the gradient of a parameter whose gradient is reduced into shards: an optimizer of the
/// module's own parameters gets an error that names the parameter, instead of training nothing. Undefined on
/// devices of other vendors.
at::Tensor reduced_gradient(const std::string& name, const at::Tensor& like);

/// Placeholder of a parameter whose layer another rank of a pipeline computes. Undefined on devices of other
/// vendors.
at::Tensor parameter_of_other_stage(const std::string& name, const at::Tensor& like);

/// The sizes of the placeholder's values; none for every other tensor.
std::optional<std::vector<std::int64_t>> sizes_on_other_stage(const at::Tensor& parameter);

/// While it lives, this thread may give such parameters other data.
class ReleasedParameterAccess {
 public:
  ReleasedParameterAccess();

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace trireme::parallel
