#pragma once
// Values as bytes, little endian: heads of messages, records of logs, arguments of calls. A struct lists its
// fields once, in a static template `fields(self)` that returns std::tie of them. A list that misses a field
// of an aggregate does not compile, unless the struct declares kListsSomeFields. A type of another library
// specialises Field<T>. encode() and decode() follow them. Decoding checks every bound before it allocates: a
// value that is cut short, too long or names an unknown enumerator gives an empty result. Large bytes go next
// to the others, as attachments, and are not copied. Pure functions.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/base/num_fields.h"
#include "trireme/wire/buffer.h"

namespace trireme::wire {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

class FieldWriter;
class FieldReader;

/// Whether Lister::fields() has as many fields as the aggregate `Struct`. Types that are no aggregates are
/// not counted, and neither is a struct that declares kListsSomeFields.
template <class Struct, class Lister = Struct>
consteval bool lists_all_fields() {
  if constexpr (!std::is_aggregate_v<Struct> || requires { Struct::kListsSomeFields; }) {
    return true;
  } else {
    using Listed = decltype(Lister::fields(std::declval<Struct&>()));
    return std::tuple_size_v<Listed> == num_fields<Struct>();
  }
}

/// How a type that cannot list its fields is written and read:
///   static void write(FieldWriter&, const T&);  static void read(FieldReader&, T&);
template <class T>
struct Field;

template <class T>
concept HasField = requires(FieldWriter& writer, FieldReader& reader, const T& written, T& read) {
  Field<T>::write(writer, written);
  Field<T>::read(reader, read);
};

/// Vectors of these are written as in memory.
template <class Element>
inline constexpr bool kIsPlain = std::is_arithmetic_v<Element> || std::is_same_v<Element, std::byte>;

/// Appends values to bytes. Nothing can fail but memory.
class FieldWriter {
 public:
  explicit FieldWriter(std::vector<std::byte>& out) : out_(out) {}

  /// Bytes that go next to the fields; the reader takes them in this order.
  void attach(Buffer bytes) { attachments_.push_back(std::move(bytes)); }
  const std::vector<Buffer>& attachments() const { return attachments_; }

  /// Appends the value: numbers as in memory, a length (u32) before text and lists, a byte before optional
  /// values, structs field by field.
  template <class Number>
  requires std::is_arithmetic_v<Number> || std::is_enum_v<Number>
  void write(const Number& value) { append(&value, sizeof value); }
  void write(const std::string& value) {
    write(static_cast<std::uint32_t>(value.size()));
    append(value.data(), value.size());
  }
  template <class Element>
  void write(const std::vector<Element>& values) {
    write(static_cast<std::uint32_t>(values.size()));
    if constexpr (kIsPlain<Element>) {
      append(values.data(), values.size() * sizeof(Element));
    } else {
      for (const Element& value : values) write(value);
    }
  }
  template <class Key, class Value>
  void write(const std::map<Key, Value>& values) {
    write(static_cast<std::uint32_t>(values.size()));
    for (const auto& [key, value] : values) {
      write(key);
      write(value);
    }
  }
  template <class Value>
  void write(const std::optional<Value>& value) {
    write(value.has_value());
    if (value) write(*value);
  }
  template <class... Values>
  void write(const std::tuple<Values...>& values) {
    std::apply([this](const auto&... each) { (write(each), ...); }, values);
  }
  template <class First, class Second>
  void write(const std::pair<First, Second>& values) {
    write(values.first);
    write(values.second);
  }
  template <class Struct>
  requires requires(const Struct& value) { Struct::fields(value); }
  void write(const Struct& value) {
    static_assert(lists_all_fields<Struct>(), "fields() lists another number of fields than the struct has");
    std::apply([this](const auto&... field) { (write(field), ...); }, Struct::fields(value));
  }
  template <HasField T>
  void write(const T& value) {
    Field<T>::write(*this, value);
  }

 private:
  void append(const void* bytes, std::size_t count) {
    const std::size_t at = out_.size();
    out_.resize(at + count);
    if (count > 0) std::memcpy(out_.data() + at, bytes, count);
  }

  std::vector<std::byte>& out_;
  std::vector<Buffer> attachments_;
};

/// Enumerators of a message's fields end with kLast, which is the highest that is known.
class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> bytes, std::span<const Buffer> attachments = {})
      : left_(bytes), attachments_(attachments) {}

  bool at_end() const { return valid_ && left_.empty() && attachments_.empty(); }
  bool valid() const { return valid_; }
  /// From here on nothing is valid: a Field found an invalid value.
  void fail() { valid_ = false; }
  /// The next; none, and not valid, where there is no further one.
  Buffer take_attachment() {
    if (attachments_.empty()) valid_ = false;
    if (!valid_) return {};
    Buffer first = attachments_.front();
    attachments_ = attachments_.subspan(1);
    return first;
  }
  std::span<const std::byte> left() const { return left_; }

  /// The inverse of write(). After the first value that is cut short, too long or unknown nothing more is
  /// read, and valid() is false.
  template <class Number>
  requires std::is_arithmetic_v<Number>
  void read(Number& value) {
    if (!has(sizeof value)) return;
    std::memcpy(&value, left_.data(), sizeof value);
    left_ = left_.subspan(sizeof value);
  }
  void read(bool& value) {
    std::uint8_t byte = 0;
    read(byte);
    if (byte > 1) valid_ = false;
    value = byte != 0;
  }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void read(Enum& value) {
    std::underlying_type_t<Enum> number{};
    read(number);
    if (number > static_cast<std::underlying_type_t<Enum>>(Enum::kLast)) valid_ = false;
    if (valid_) value = static_cast<Enum>(number);
  }
  void read(std::string& value) {
    const std::uint32_t count = read_count(1);
    if (!valid_) return;
    value.assign(reinterpret_cast<const char*>(left_.data()), count);
    left_ = left_.subspan(count);
  }
  template <class Element>
  void read(std::vector<Element>& values) {
    const std::uint32_t count = read_count(kIsPlain<Element> ? sizeof(Element) : 1);
    values.clear();
    if constexpr (kIsPlain<Element>) {
      if (!valid_) return;
      values.resize(count);
      if (count > 0) std::memcpy(values.data(), left_.data(), count * sizeof(Element));
      left_ = left_.subspan(count * sizeof(Element));
    } else {
      for (std::uint32_t i = 0; i < count && valid_; ++i) read(values.emplace_back());
    }
  }
  template <class Key, class Value>
  void read(std::map<Key, Value>& values) {
    const std::uint32_t count = read_count(1);
    values.clear();
    for (std::uint32_t i = 0; i < count && valid_; ++i) {
      Key key{};
      read(key);
      // As they are written: in order, each once.
      if (!values.empty() && !(values.rbegin()->first < key)) valid_ = false;
      if (valid_) read(values[key]);
    }
  }
  template <class Value>
  void read(std::optional<Value>& value) {
    bool there = false;
    read(there);
    value.reset();
    if (valid_ && there) read(value.emplace());
  }
  template <class... Values>
  void read(std::tuple<Values...>& values) {
    std::apply([this](auto&... each) { (read(each), ...); }, values);
  }
  template <class First, class Second>
  void read(std::pair<First, Second>& values) {
    read(values.first);
    read(values.second);
  }
  template <class Struct>
  requires requires(Struct& value) { Struct::fields(value); }
  void read(Struct& value) {
    static_assert(lists_all_fields<Struct>(), "fields() lists another number of fields than the struct has");
    std::apply([this](auto&... field) { (read(field), ...); }, Struct::fields(value));
  }
  template <HasField T>
  void read(T& value) {
    Field<T>::read(*this, value);
  }

 private:
  bool has(std::size_t count) {
    if (count > left_.size()) valid_ = false;
    return valid_;
  }
  /// Of elements of at least so many bytes: more than there are bytes for is no count.
  std::uint32_t read_count(std::size_t min_bytes) {
    std::uint32_t count = 0;
    read(count);
    if (!has(count * min_bytes)) return 0;
    return count;
  }

  std::span<const std::byte> left_;
  std::span<const Buffer> attachments_;
  bool valid_ = true;
};

/// A Field<Struct> derives from it where Struct is of another library and Lister::fields(self) lists all of
/// it.
template <class Struct, class Lister>
struct ListedField {
  /// All fields, in the order of the list.
  static void write(FieldWriter& writer, const Struct& value) {
    static_assert(lists_all_fields<Struct, Lister>(),
                  "fields() lists another number of fields than the struct has");
    std::apply([&](const auto&... each) { (writer.write(each), ...); }, Lister::fields(value));
  }
  /// As write() wrote them.
  static void read(FieldReader& reader, Struct& value) {
    std::apply([&](auto&... each) { (reader.read(each), ...); }, Lister::fields(value));
  }
};

/// The fields of one value, one after the other.
template <class Struct>
std::vector<std::byte> encode(const Struct& value) {
  std::vector<std::byte> bytes;
  FieldWriter(bytes).write(value);
  return bytes;
}

/// Empty unless `bytes` are one such value, whole and nothing else.
template <class Struct>
std::optional<Struct> decode(std::span<const std::byte> bytes) {
  FieldReader reader(bytes);
  std::optional<Struct> value(std::in_place);
  reader.read(*value);
  if (!reader.at_end()) value.reset();
  return value;
}

}  // namespace trireme::wire
