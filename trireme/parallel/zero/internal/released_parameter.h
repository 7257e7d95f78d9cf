#pragma once
// What stands in the place of a parameter while it is not gathered: a tensor without elements, with which
// nothing can be computed. Who tries (a layer that uses a parameter of another stage) gets an error that
// names the parameter, before any operator has looked at sizes. On devices of other makers, which libtorch
// gives no room for that, it is an empty tensor.

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::parallel {

/// Of the type and on the device of `like`.
at::Tensor released_parameter(const std::string& name, const at::Tensor& like);

/// What stands in the place of the gradient of a parameter whose gradient is reduced into shards: an
/// optimizer of the module's own parameters gets an error that names the parameter, where it would learn
/// nothing. Undefined on devices of other makers.
at::Tensor reduced_gradient(const std::string& name, const at::Tensor& like);

/// What stands in the place of a parameter whose layer another rank of a pipeline computes. Undefined on
/// devices of other makers.
at::Tensor parameter_of_other_stage(const std::string& name, const at::Tensor& like);

/// The sizes of the values that it stands for; none for every other tensor.
std::optional<std::vector<std::int64_t>> sizes_on_other_stage(const at::Tensor& parameter);

/// While it lives, this thread may give such parameters other data.
class ReleasedParameterAccess {
 public:
  ReleasedParameterAccess();

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace trireme::parallel
