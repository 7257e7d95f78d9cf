#include "trireme/data/internal/sample_fields.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "trireme/base/bounded_json.h"
#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/data/internal/image_file.h"
#include "trireme/data/internal/npy.h"
#include "trireme/data/internal/tar_index.h"

namespace trireme::data {
namespace {
using nlohmann::json;

at::Tensor class_field(std::string_view content) {
  const auto found = class_in(content);
  if (!found) throw DataError("it holds no class: expected a whole number from 0 on, in digits");
  return at::scalar_tensor(*found, at::kLong);
}

at::Tensor text_field(std::string_view content) {
  at::Tensor values = at::empty({static_cast<std::int64_t>(content.size())}, at::kLong);
  std::ranges::transform(content, values.data_ptr<std::int64_t>(),
                         [](char byte) { return static_cast<unsigned char>(byte); });
  return values;
}

/// Collects numbers in their order. Throws if the lists do not form a tensor.
void collect(const json& value, std::size_t dim, std::vector<std::int64_t>& shape,
             std::vector<json>& numbers) {
  const auto ragged = [] {
    throw DataError("its lists of numbers make no tensor: they differ in length or depth");
  };
  if (value.is_array()) {
    const auto size = static_cast<std::int64_t>(value.size());
    if (dim == shape.size() && numbers.empty()) shape.push_back(size);
    if (dim >= shape.size() || shape[dim] != size) ragged();
    for (const json& item : value) collect(item, dim + 1, shape, numbers);
    return;
  }
  if (!value.is_number() && !value.is_boolean())
    throw DataError(text("it holds a ", value.type_name(), ", and a field is a number or lists of numbers"));
  if (dim != shape.size()) ragged();
  numbers.push_back(value);
}

at::Tensor json_field(std::string_view content) {
  constexpr JsonLimits kLimits{.levels = 16, .values = 4'000'000};
  const auto value = parse_json<json>(content, kLimits);
  std::vector<std::int64_t> shape;
  std::vector<json> numbers;
  collect(value, 0, shape, numbers);
  const bool whole = std::ranges::none_of(numbers, [](const json& n) { return n.is_number_float(); });
  at::Tensor values = at::empty(shape, whole && !numbers.empty() ? at::kLong : at::kFloat);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (values.scalar_type() == at::kLong) {
      values.data_ptr<std::int64_t>()[i] = numbers[i].get<std::int64_t>();
    } else {
      values.data_ptr<float>()[i] = numbers[i].get<float>();
    }
  }
  return values;
}

struct FieldKind {
  std::string_view name;
  at::Tensor (*decode)(std::string_view);  ///< null: an image
};

constexpr std::array<FieldKind, 9> kFieldKinds = {{
    {"bmp", nullptr},
    {"cls", class_field},
    {"jpeg", nullptr},
    {"jpg", nullptr},
    {"json", json_field},
    {"npy", parse_npy},
    {"png", nullptr},
    {"txt", text_field},
    {"webp", nullptr},
}};

const FieldKind& kind_of(std::string_view field) {
  const std::size_t dot = field.rfind('.');
  const std::string_view last = dot == std::string_view::npos ? field : field.substr(dot + 1);
  const auto* kind = std::ranges::find(kFieldKinds, last, &FieldKind::name);
  if (kind != kFieldKinds.end()) return *kind;
  std::vector<std::string> known;
  for (const FieldKind& row : kFieldKinds) known.emplace_back(row.name);
  throw InvalidArgument(
      text("what a field '", printable(field), "' holds is not known", suggest(last, known)));
}

}  // namespace

at::Tensor decode_field(std::string_view field, std::string_view content, std::int64_t most_pixels) {
  const FieldKind& kind = kind_of(field);
  return kind.decode == nullptr ? decode_image(content, most_pixels) : kind.decode(content);
}

void check_field_name(std::string_view field) { kind_of(field); }

bool is_image_field(std::string_view field) {
  for (const std::string_view extension : image_extensions()) {
    if (field == extension.substr(1) || field.ends_with(extension)) return true;
  }
  return false;
}

bool is_class_field(std::string_view field) { return field == "cls"; }

}  // namespace trireme::data
