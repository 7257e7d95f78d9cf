#include "trireme/data/internal/npy.h"

#include <ATen/ops/empty.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/printable.h"

namespace trireme::data {
namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
/// NumPy's limit.
constexpr std::size_t kMaxNpyDims = 64;

/// The text after 'KEY': in the header, a Python dict.
std::string_view behind_key(std::string_view dict, std::string_view key) {
  const std::size_t found = dict.find(text('\'', key, "':"));
  if (found == std::string_view::npos)
    throw DataError(text("its header has no '", key, "': ", printable(dict)));
  return trim(dict.substr(found + key.size() + 3));
}

std::vector<std::int64_t> parse_shape(std::string_view tuple) {
  const std::size_t end = tuple.find(')');
  std::vector<std::int64_t> shape;
  if (!tuple.starts_with('(') || end == std::string_view::npos) throw DataError("its header has no shape");
  for (const std::string& part : split(tuple.substr(1, end - 1), ',')) {
    const std::string_view digits = trim(part);
    if (digits.empty()) continue;
    std::int64_t size = 0;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
    if (error != std::errc() || stop != digits.data() + digits.size() || size < 0)
      throw DataError(text("its shape has '", printable(digits), "' in it"));
    shape.push_back(size);
    if (shape.size() > kMaxNpyDims) throw DataError(text("its shape has more than ", kMaxNpyDims, " dims"));
  }
  return shape;
}

void parse_type(std::string_view described, NpyHeader& header) {
  const std::size_t end = described.size() < 2 ? std::string_view::npos : described.find('\'', 1);
  const std::string_view type =
      described.starts_with('\'') && end != std::string_view::npos ? described.substr(1, end - 1) : described;
  constexpr std::array<std::string_view, 10> kKnown = {"f2", "f4", "f8", "i1", "i2",
                                                       "i4", "i8", "u1", "b1", "u2"};
  if (type.size() != 3 || std::ranges::find(kKnown, type.substr(1)) == kKnown.end()) {
    throw DataError(
        text("it holds values of type ", printable(type, 40),
             "; taken are floats of 2, 4 and 8 bytes, signed whole numbers, u1, u2 and b1: convert it by "
             "astype"));
  }
  header.big_endian = type[0] == '>';
  header.kind = type[1];
  header.item_bytes = type[2] - '0';
}

/// No ATen conversion, as in dataset.cpp: ATen may start a team of threads in every worker.
template <class From, class To>
void convert_items(std::string_view bytes, bool swap, To* to) {
  for (std::size_t i = 0; i * sizeof(From) < bytes.size(); ++i) {
    std::array<char, sizeof(From)> item;
    std::memcpy(item.data(), bytes.data() + i * sizeof(From), sizeof(From));
    if (swap) std::ranges::reverse(item);
    to[i] = static_cast<To>(std::bit_cast<From>(item));
  }
}

struct ItemRow {
  std::string_view type;
  void (*convert)(std::string_view bytes, bool swap, const at::Tensor& to);
};

template <class From, class To>
void convert_into(std::string_view bytes, bool swap, const at::Tensor& to) {
  convert_items<From>(bytes, swap, to.data_ptr<To>());
}

/// c10::Half has constructors: std::bit_cast cannot produce it.
void convert_halves(std::string_view bytes, bool swap, const at::Tensor& to) {
  std::vector<std::uint16_t> bits(bytes.size() / 2);
  convert_items<std::uint16_t>(bytes, swap, bits.data());
  std::ranges::transform(bits, to.data_ptr<float>(), [](std::uint16_t half) {
    return static_cast<float>(c10::Half(half, c10::Half::from_bits()));
  });
}

constexpr std::array<ItemRow, 10> kItems = {{
    {"f2", convert_halves},
    {"f4", convert_into<float, float>},
    {"f8", convert_into<double, float>},
    {"i1", convert_into<std::int8_t, std::int64_t>},
    {"i2", convert_into<std::int16_t, std::int64_t>},
    {"i4", convert_into<std::int32_t, std::int64_t>},
    {"i8", convert_into<std::int64_t, std::int64_t>},
    {"u1", convert_into<std::uint8_t, std::int64_t>},
    {"u2", convert_into<std::uint16_t, std::int64_t>},
    {"b1", convert_into<std::uint8_t, bool>},
}};

}  // namespace

std::int64_t NpyHeader::items() const {
  std::int64_t items = 1;  // product of the sizes other than 0, which are strides even in an empty array
  for (const std::int64_t size : shape) {
    if (size != 0 && __builtin_mul_overflow(items, size, &items))
      throw DataError("its shape is beyond all sizes");
  }
  return std::ranges::find(shape, 0) == shape.end() ? items : 0;
}

at::ScalarType NpyHeader::type() const {
  return kind == 'f' ? at::kFloat : kind == 'b' ? at::kBool : at::kLong;
}

NpyHeader parse_npy_header(std::string_view beginning, std::int64_t file_bytes) {
  if (!beginning.starts_with(kNpyMagic) || beginning.size() < 12)
    throw DataError("it does not begin as numpy.save's files do");
  const auto byte = [&](std::size_t at) {
    return static_cast<std::size_t>(static_cast<unsigned char>(beginning[at]));
  };
  const std::size_t version = byte(6), begin = version == 1 ? 10 : 12;
  const std::size_t size = byte(8) | byte(9) << 8 | (version == 1 ? 0 : byte(10) << 16 | byte(11) << 24);
  if (version < 1 || version > 3)
    throw DataError(text("its format has version ", version, "; read are 1 to 3"));
  if (size > beginning.size() - begin) throw DataError(text("its header of ", size, " bytes is cut short"));
  const std::string_view dict = beginning.substr(begin, size);
  NpyHeader header;
  header.header_bytes = static_cast<std::int64_t>(begin + size);
  parse_type(behind_key(dict, "descr"), header);
  header.fortran_order = behind_key(dict, "fortran_order").starts_with("True");
  header.shape = parse_shape(behind_key(dict, "shape"));
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(header.items(), header.item_bytes, &bytes) ||
      bytes != file_bytes - header.header_bytes) {
    throw DataError(text("its shape of ", header.items(), " items of ", header.item_bytes,
                         " bytes does not fit the ", file_bytes - header.header_bytes,
                         " bytes after the header"));
  }
  return header;
}

at::Tensor npy_values(const NpyHeader& header, const std::vector<std::int64_t>& shape,
                      std::string_view bytes) {
  at::Tensor values = at::empty(shape, header.type());
  const std::string type = {header.kind, static_cast<char>('0' + header.item_bytes)};
  const auto* row = std::ranges::find(kItems, std::string_view(type), &ItemRow::type);
  row->convert(bytes, header.big_endian, values);
  return values;
}

at::Tensor parse_npy(std::string_view content) {
  const NpyHeader header = parse_npy_header(content, static_cast<std::int64_t>(content.size()));
  const std::string_view bytes = content.substr(static_cast<std::size_t>(header.header_bytes));
  if (!header.fortran_order || header.shape.size() < 2) return npy_values(header, header.shape, bytes);
  const std::vector<std::int64_t> reversed(header.shape.rbegin(), header.shape.rend());
  std::vector<std::int64_t> dims;
  for (auto dim = static_cast<std::int64_t>(reversed.size()); dim > 0; --dim) dims.push_back(dim - 1);
  return npy_values(header, reversed, bytes).permute(dims).contiguous();
}

}  // namespace trireme::data
