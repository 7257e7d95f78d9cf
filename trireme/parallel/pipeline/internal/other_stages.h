#pragma once
// Parameters of layers that other ranks of a pipeline compute. This rank's module has values for them, those
// that it was made with, which never learn: a torch::save() or a forward() of the module would use them
// without a message. While a pipeline lives, they have no values here, and who uses them gets an error that
// names the parameter. Pipelines of one module may overlap: the values return when the last one ends.

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
  /// leaves out what a layer of this rank has too (a tied parameter). Deferred parameters and those on
  /// devices of other makers stay as they are. Thread-safe.
  void take(const std::string& name, const at::Tensor& parameter);
  /// Gives the memory of what was taken back to the system: no values return at the end.
  void free();

 private:
  class Taken;
  std::vector<std::shared_ptr<Taken>> taken_;
};

}  // namespace trireme::parallel
