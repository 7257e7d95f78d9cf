#include "trireme/checkpoint/internal/dtype.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/base/text.h"
#include "trireme/comm/dtype.h"

namespace trireme::checkpoint {
namespace {

/// The types of the format.
constexpr std::array<at::ScalarType, 11> kTypes = {
    at::ScalarType::Double, at::ScalarType::Float, at::ScalarType::Half,        at::ScalarType::BFloat16,
    at::ScalarType::Long,   at::ScalarType::Int,   at::ScalarType::Short,       at::ScalarType::Char,
    at::ScalarType::Byte,   at::ScalarType::Bool,  at::ScalarType::ComplexFloat};

/// The format's names are Trireme's in capitals.
std::string in_capitals(at::ScalarType type) {
  std::string name = comm::name_of(type);
  for (char& letter : name) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return name;
}

}  // namespace

std::string dtype_name(at::ScalarType type, const std::string& tensor) {
  if (std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end()) {
    std::vector<std::string> known;
    for (const at::ScalarType each : kTypes) known.emplace_back(comm::name_of(each));
    throw InvalidArgument(
        text("tensor '", printable(tensor), "' of type ", c10::toString(type),
             " cannot be saved as safetensors; expected one of ", join(known),
             ": convert it, or register at::view_as_real(tensor) in place of a complex one"));
  }
  return in_capitals(type);
}

std::optional<at::ScalarType> dtype_of(std::string_view name) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                   [&](at::ScalarType type) { return in_capitals(type) == name; });
  if (found == kTypes.end()) return std::nullopt;
  return *found;
}

}  // namespace trireme::checkpoint
