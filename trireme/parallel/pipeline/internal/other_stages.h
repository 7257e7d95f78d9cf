#pragma once
// Parameters of layers that other ranks of a pipeline compute. This rank's module has values for them, those
// that it was made with, which never learn: a torch::save() or a forward() of the module would use them
// without a message. While a pipeline lives, they have no values here, and who uses them gets an error that
// names the parameter.

#include <string>
#include <vector>

#include "trireme/model/layer.h"

namespace trireme::parallel {

class OtherStages {
 public:
  OtherStages() = default;
  OtherStages(const OtherStages&) = delete;
  OtherStages& operator=(const OtherStages&) = delete;
  /// Gives the parameters the values that they had, unless free() was called.
  ~OtherStages();

  /// Takes a parameter's values away, until this object ends. The caller leaves out what a layer of this rank
  /// has too (a tied parameter). Deferred parameters, those on devices of other makers, and those that another
  /// pipeline has taken stay as they are.
  void take(const std::string& name, const at::Tensor& parameter);
  /// Gives the memory of what was taken back to the system: no values return at the end.
  void free() { taken_.clear(); }

 private:
  struct Taken {
    at::Tensor parameter, values;
  };
  std::vector<Taken> taken_;
};

}  // namespace trireme::parallel
