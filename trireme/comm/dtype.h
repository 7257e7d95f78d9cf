#pragma once
// Names of element types in messages and records. Stateless; thread-safe.

#include <c10/core/ScalarType.h>

namespace trireme::comm {

/// "f32" of a float tensor; empty for an undefined type.
const char* name_of(at::ScalarType dtype);

}  // namespace trireme::comm
