#pragma once
// Parameters of layers that other ranks of a pipeline compute. This rank's module has initial values for
// them, which are never trained: a torch::save() or a forward() of the module would silently use them. While
// a pipeline lives, they have no values here, and a use is an error that names the parameter. Pipelines of
// one module may overlap: the values return when the last one ends.

#include <memory>
#include <string>
#include <vector>

#include "trireme/model/layer.h"

namespace trireme::parallel {

class OtherStages {
 public:
  OtherStages() = default;
  OtherStages(const OtherStages&) = delete;
  OtherStages& operator=(const OtherStages&) = delete;

  /// Takes a parameter's values away, until this object and all others that have taken it end. The caller
  /// leaves out parameters that a layer of this rank has too (a tied parameter). Deferred parameters and
  /// those on devices of other vendors are unchanged. Thread-safe.
  void take(const std::string& name, const at::Tensor& parameter);
  /// Frees the memory of taken parameters: no values return at the end.
  void free();

 private:
  class Taken;
  std::vector<std::shared_ptr<Taken>> taken_;
};

}  // namespace trireme::parallel
