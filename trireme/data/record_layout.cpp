#include "trireme/data/internal/record_layout.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/json_whole.h"
#include "trireme/data/internal/image_file.h"

namespace trireme::data {
namespace {
using Json = nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "records are written as they lie in memory");

struct DtypeName {
  std::string_view name;
  at::ScalarType dtype;
};
constexpr std::array<DtypeName, 10> kDtypes = {{{"u8", at::kByte},
                                                {"i8", at::kChar},
                                                {"i16", at::kShort},
                                                {"i32", at::kInt},
                                                {"i64", at::kLong},
                                                {"f16", at::kHalf},
                                                {"bf16", at::kBFloat16},
                                                {"f32", at::kFloat},
                                                {"f64", at::kDouble},
                                                {"bool", at::kBool}}};
/// More dims than any tensor of a sample has.
constexpr std::size_t kMaxDims = 64;

std::string_view name_of(at::ScalarType dtype) {
  for (const DtypeName& row : kDtypes) {
    if (row.dtype == dtype) return row.name;
  }
  throw InvalidArgument(text("records hold no values of type ", dtype, "; give the samples another type"));
}

at::ScalarType dtype_named(const std::string& name) {
  for (const DtypeName& row : kDtypes) {
    if (row.name == name) return row.dtype;
  }
  throw DataError(text("'", name, "' is no type of values"));
}

/// Bytes of the values, at most `most`. Of a shape without values, the other dims are strides, which must not
/// overflow either.
std::size_t bytes_of(const std::vector<std::int64_t>& shape, at::ScalarType dtype, std::size_t most) {
  const bool has_values = std::ranges::find(shape, 0) == shape.end();
  const std::size_t limit = has_values ? most : std::numeric_limits<std::int64_t>::max();
  std::size_t bytes = c10::elementSize(dtype);
  for (const std::int64_t dim : shape) {
    const auto size = static_cast<std::size_t>(dim);
    if (dim < 0 || (size != 0 && bytes > limit / size))
      throw DataError(
          text("a field of shape ", at::IntArrayRef(shape), " does not fit into ", most, " bytes"));
    bytes *= std::max<std::size_t>(size, 1);
  }
  return has_values ? bytes : 0;
}

/// Largest record that the index of a shard can describe.
constexpr std::size_t kMostBytes = std::numeric_limits<std::uint32_t>::max();

/// Visits both parts of a sample, in the order of a record.
template <class Visit>
void each_field(const Example& sample, const Visit& visit) {
  for (const auto& field : sample.input) visit(field, false);
  for (const auto& field : sample.target) visit(field, true);
}

class RecordReader {
 public:
  explicit RecordReader(std::string_view record) : rest_(record) {}
  std::string_view take(std::size_t bytes) {
    if (bytes > rest_.size())
      throw DataError(
          text("it ends within a field: ", bytes, " bytes were expected, ", rest_.size(), " are left"));
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  std::int64_t dim() {
    std::int64_t value = 0;
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }
  std::size_t left() const { return rest_.size(); }

 private:
  std::string_view rest_;
};

/// The values of one field, as stored in the record.
struct Values {
  std::vector<std::int64_t> shape;
  std::string_view bytes;
};

Values take_field(const FieldLayout& field, RecordReader& reader) {
  std::vector<std::int64_t> shape = field.shape;
  for (std::int64_t& dim : shape) {
    if (dim < 0) dim = reader.dim();
  }
  const std::string_view bytes = reader.take(bytes_of(shape, field.dtype, reader.left()));
  return {.shape = std::move(shape), .bytes = bytes};
}

at::Tensor parse_field(const FieldLayout& field, const Values& found, std::int64_t most_pixels) {
  const auto& [shape, values] = found;
  if (field.form == FieldForm::kImage) return decode_image(values, most_pixels);
  at::Tensor tensor = at::empty(shape, field.normalised ? at::kFloat : field.dtype);
  if (field.normalised) {
    BytePixels(*field.normalised)
        .convert({reinterpret_cast<const std::uint8_t*>(values.data()), values.size()},
                 tensor.data_ptr<float>());
  } else if (!values.empty()) {
    std::memcpy(tensor.data_ptr(), values.data(), values.size());
  }
  return tensor;
}

Json to_json(const FieldLayout& field) {
  Json json = {{"part", field.is_target ? "target" : "input"},
               {"name", field.name},
               {"form", field.form == FieldForm::kImage ? "image" : "tensor"},
               {"dtype", name_of(field.dtype)},
               {"shape", field.shape}};
  if (field.normalised)
    json["normalised_with"] = {{"mean", field.normalised->mean}, {"std", field.normalised->std}};
  return json;
}

FieldLayout field_from_json(const Json& json) {
  FieldLayout field{
      .is_target = json.at("part").get<std::string>() == "target",
      .name = json.at("name").get<std::string>(),
      .form = json.at("form").get<std::string>() == "image" ? FieldForm::kImage : FieldForm::kTensor,
      .dtype = dtype_named(json.at("dtype").get<std::string>()),
      .shape = wholes_in<std::int64_t>(json.at("shape"))};
  if (field.shape.size() > kMaxDims) throw DataError(text("a field has ", field.shape.size(), " dims"));
  for (const std::int64_t dim : field.shape) {
    if (dim < -1) throw DataError(text("a field has a dim of ", dim));
  }
  if (json.contains("normalised_with")) {
    const Json& with = json["normalised_with"];
    field.normalised = {.mean = with.at("mean").get<double>(), .std = with.at("std").get<double>()};
    if (field.dtype != at::kByte || !(field.normalised->std > 0) || !std::isfinite(field.normalised->mean))
      throw DataError("a field cannot be normalised as it says");
  }
  if (field.form == FieldForm::kImage &&
      (field.dtype != at::kByte || field.shape != std::vector<std::int64_t>{-1}))
    throw DataError("an encoded image is no tensor of bytes");
  if (field.fixed()) bytes_of(field.shape, field.dtype, kMostBytes);
  return field;
}

}  // namespace

bool FieldLayout::fixed() const {
  return std::none_of(shape.begin(), shape.end(), [](std::int64_t dim) { return dim < 0; });
}

std::size_t FieldLayout::bytes() const { return bytes_of(shape, dtype, kMostBytes); }

bool RecordLayout::fixed() const {
  return std::all_of(fields.begin(), fields.end(), [](const FieldLayout& field) { return field.fixed(); });
}

std::size_t RecordLayout::bytes() const {
  std::size_t sum = 0;
  for (const FieldLayout& field : fields) sum += field.bytes();
  return sum;
}

RecordLayout layout_of(const Example& sample) {
  RecordLayout layout;
  each_field(sample, [&](const batch::Field& field, bool is_target) {
    name_of(field.tensor.scalar_type());
    layout.fields.push_back({.is_target = is_target,
                             .name = field.name,
                             .dtype = field.tensor.scalar_type(),
                             .shape = field.tensor.sizes().vec()});
  });
  require(!layout.fields.empty(), "samples without any field cannot be packed");
  return layout;
}

bool widen(RecordLayout& layout, const Example& sample, std::int64_t index) {
  const auto refuse = [&] {
    throw DataError(
        text("sample ", index, " has the input ", batch::to_text(sample.input), " and the target ",
             batch::to_text(sample.target),
             ", which differs from sample 0 in fields, types or numbers of dims: all samples of a "
             "data set have the same"));
  };
  std::size_t place = 0;
  bool widened = false;
  each_field(sample, [&](const batch::Field& found, bool is_target) {
    if (place == layout.fields.size()) refuse();
    FieldLayout& field = layout.fields[place++];
    if (field.is_target != is_target || field.name != found.name ||
        field.dtype != found.tensor.scalar_type() ||
        field.shape.size() != static_cast<std::size_t>(found.tensor.dim()))
      refuse();
    for (std::size_t dim = 0; dim < field.shape.size(); ++dim) {
      if (field.shape[dim] < 0 || field.shape[dim] == found.tensor.size(static_cast<std::int64_t>(dim)))
        continue;
      field.shape[dim] = -1;
      widened = true;
    }
  });
  if (place != layout.fields.size()) refuse();
  return widened;
}

void append_record(const RecordLayout& layout, const Example& sample, std::string& record) {
  std::size_t place = 0;
  each_field(sample, [&](const batch::Field& found, bool) {
    const FieldLayout& field = layout.fields[place++];
    const at::Tensor values = found.tensor.contiguous();
    for (std::size_t dim = 0; dim < field.shape.size(); ++dim) {
      if (field.shape[dim] >= 0) continue;
      const std::int64_t size = values.size(static_cast<std::int64_t>(dim));
      record.append(reinterpret_cast<const char*>(&size), sizeof(size));
    }
    if (values.nbytes() > 0)
      record.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  });
}

Example empty_example(const RecordLayout& layout, std::optional<std::int64_t> rows) {
  Example example;
  for (const FieldLayout& field : layout.fields) {
    std::vector<std::int64_t> shape;
    if (rows) shape.push_back(*rows);
    shape.insert(shape.end(), field.shape.begin(), field.shape.end());
    (field.is_target ? example.target : example.input)
        .add(field.name, at::empty(shape, field.normalised ? at::kFloat : field.dtype));
  }
  return example;
}

RowWriter::RowWriter(const RecordLayout& layout, const Example& batch) {
  std::size_t inputs = 0, targets = 0;
  for (const FieldLayout& field : layout.fields) {
    const at::Tensor tensor = field.is_target ? batch.target.at(targets++) : batch.input.at(inputs++);
    const std::size_t bytes = field.bytes();
    Part part{.first = static_cast<char*>(tensor.data_ptr()), .in = bytes, .out = bytes, .pixels = {}};
    if (field.normalised) {
      part.out = bytes * sizeof(float);
      part.pixels = BytePixels(*field.normalised);
    }
    parts_.push_back(part);
  }
}

void RowWriter::put(std::string_view record, std::size_t row) const {
  const char* from = record.data();
  for (const Part& part : parts_) {
    char* to = part.first + row * part.out;
    if (part.pixels) {
      part.pixels->convert({reinterpret_cast<const std::uint8_t*>(from), part.in},
                           reinterpret_cast<float*>(to));
    } else if (part.in > 0) {
      std::memcpy(to, from, part.in);
    }
    from += part.in;
  }
}

Example parse_record(const RecordLayout& layout, std::string_view record, const Needed& needed,
                     std::int64_t most_pixels) {
  RecordReader reader(record);
  Example example;
  for (const FieldLayout& field : layout.fields) {
    const Values values = take_field(field, reader);
    if (field.is_target ? needed.targets : needed.inputs)
      (field.is_target ? example.target : example.input)
          .add(field.name, parse_field(field, values, most_pixels));
  }
  if (reader.left() > 0) throw DataError(text("it has ", reader.left(), " more bytes after its last field"));
  return example;
}

Json to_json(const RecordLayout& layout) {
  Json json = Json::array();
  for (const FieldLayout& field : layout.fields) json.push_back(to_json(field));
  return json;
}

RecordLayout layout_from_json(const Json& json) {
  RecordLayout layout;
  for (const Json& field : json) layout.fields.push_back(field_from_json(field));
  if (layout.fields.empty()) throw DataError("its samples have no field");
  std::size_t bytes = 0;
  for (const FieldLayout& field : layout.fields) bytes += field.fixed() ? field.bytes() : 0;
  if (bytes > kMostBytes) throw DataError(text("its samples would have ", bytes, " bytes and more"));
  return layout;
}

std::string describe(const FieldLayout& field) {
  if (field.form == FieldForm::kImage) return "image file";
  std::vector<std::string> dims;
  for (const std::int64_t dim : field.shape) dims.push_back(dim < 0 ? "*" : std::to_string(dim));
  return text(name_of(field.dtype), " (", join(dims), ")", field.normalised ? " -> f32" : "");
}

}  // namespace trireme::data
