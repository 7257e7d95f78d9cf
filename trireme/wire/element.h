#pragma once
// Types of elements and reductions on the wire. Moving works for all, reducing for the first six.

#include <cstddef>
#include <cstdint>

namespace trireme::wire {

enum class Element : std::uint8_t { kF32, kF64, kBf16, kF16, kI32, kI64, kI16, kI8, kU8, kBool, kC64, kC128 };
/// How elements of several ranks become one; kAverage divides the sum by their number.
enum class Reduction : std::uint8_t { kSum, kAverage, kMin, kMax, kProduct };

/// "f32", "bf16", ...
const char* name(Element element);
/// "sum", "average", ...
const char* name(Reduction reduction);
std::size_t bytes_of(Element element);
bool reducible(Element element);

}  // namespace trireme::wire
