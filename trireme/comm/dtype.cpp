#include "trireme/comm/dtype.h"

#include <ATen/core/TensorBody.h>

namespace trireme::comm {

const char* name_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "f32";
    case at::kDouble:
      return "f64";
    case at::kBFloat16:
      return "bf16";
    case at::kHalf:
      return "f16";
    case at::kLong:
      return "i64";
    case at::kInt:
      return "i32";
    case at::kShort:
      return "i16";
    case at::kChar:
      return "i8";
    case at::kByte:
      return "u8";
    case at::kBool:
      return "bool";
    case at::kComplexFloat:
      return "c64";
    case at::ScalarType::Undefined:
      return "";
    default:
      return at::toString(dtype);
  }
}

}  // namespace trireme::comm
