#include "trireme/checkpoint/internal/dtype.h"

#include <array>

#include "trireme/base/error.h"

namespace trireme::checkpoint {
namespace {

struct DtypeRow {
  std::string_view name;
  at::ScalarType type;
};

constexpr std::array<DtypeRow, 10> kDtypeTable = {{
    {"F64", at::ScalarType::Double},
    {"F32", at::ScalarType::Float},
    {"F16", at::ScalarType::Half},
    {"BF16", at::ScalarType::BFloat16},
    {"I64", at::ScalarType::Long},
    {"I32", at::ScalarType::Int},
    {"I16", at::ScalarType::Short},
    {"I8", at::ScalarType::Char},
    {"U8", at::ScalarType::Byte},
    {"BOOL", at::ScalarType::Bool},
}};

}  // namespace

std::string dtype_name(at::ScalarType type) {
  for (const DtypeRow& row : kDtypeTable) {
    if (row.type == type) return std::string(row.name);
  }
  throw InvalidArgument(text("a tensor of type ", c10::toString(type), " cannot be saved as safetensors"));
}

std::optional<at::ScalarType> dtype_of(std::string_view name) {
  for (const DtypeRow& row : kDtypeTable) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

}  // namespace trireme::checkpoint
