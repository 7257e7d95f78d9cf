#include "trireme/wire/element.h"

namespace trireme::wire {
namespace {

struct ElementRow {
  const char* name;
  std::size_t bytes;
};

constexpr ElementRow kElements[] = {{"f32", 4}, {"f64", 8},  {"bf16", 2}, {"f16", 2},
                                    {"i32", 4}, {"i64", 8},  {"i16", 2},  {"i8", 1},
                                    {"u8", 1},  {"bool", 1}, {"c64", 8},  {"c128", 16}};
constexpr const char* kReductions[] = {"sum", "average", "min", "max", "product"};

const ElementRow& row(Element element) { return kElements[static_cast<std::size_t>(element)]; }

}  // namespace

const char* name(Element element) { return row(element).name; }
const char* name(Reduction reduction) { return kReductions[static_cast<std::size_t>(reduction)]; }
std::size_t bytes_of(Element element) { return row(element).bytes; }
bool reducible(Element element) { return element <= Element::kI64; }

}  // namespace trireme::wire
