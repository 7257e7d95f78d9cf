#pragma once
// JSON of third parties: parsed in linear time, with limits of its depth and of its number of values, each
// key of an object once. For any of nlohmann's types of JSON, of which this module includes none. nlohmann's
// own parser is quadratic. For each new key it searches all keys of an ordered_json. After each member that
// its callback has seen, it searches all members of the object. Stateless; thread-safe.

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/printable.h"

namespace trireme {

/// Limits of a JSON text. A value takes up to 100 bytes in memory.
struct JsonLimits {
  std::size_t levels = 8;          ///< of arrays and objects in each other
  std::size_t values = 1'000'000;  ///< keys count as values
};

/// Adds a member at the end of an object that has no such key. Takes constant time of an ordered_json, whose
/// operator[] searches all keys.
template <class Json>
Json& append_member(Json& object, std::string key, Json&& value) {
  auto& members = object.template get_ref<typename Json::object_t&>();
  if constexpr (requires { members.emplace_back(std::move(key), std::move(value)); }) {
    members.emplace_back(std::move(key), std::move(value));
    return members.back().second;
  } else {
    return members.emplace(std::move(key), std::move(value)).first->second;
  }
}

/// Builds a value from the events of nlohmann's parser.
template <class Json>
class JsonBuilder {
 public:
  explicit JsonBuilder(const JsonLimits& limits) : limits_(limits) {}
  /// The whole value, after the last event.
  Json take() { return std::move(root_); }

  /// Events by their names in nlohmann's SAX interface; true: the parser continues. Throw DataError.
  bool null() { return put(Json()); }
  bool boolean(bool value) { return put(Json(value)); }
  bool number_integer(std::int64_t value) { return put(Json(value)); }
  bool number_unsigned(std::uint64_t value) { return put(Json(value)); }
  bool number_float(double value, const std::string&) { return put(Json(value)); }
  bool string(std::string& value) { return put(Json(std::move(value))); }
  bool binary(typename Json::binary_t&) { throw DataError("it is not JSON: it holds binary values"); }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& value) {
    count();
    if (!keys_.back().insert(value).second)
      throw DataError(text("it has the key '", printable(value), "' twice"));
    key_ = std::move(value);
    return true;
  }
  template <class Exception>
  bool parse_error(std::size_t, const std::string&, const Exception& error) {
    throw DataError(text("it is not JSON (", printable(error.what(), 200), ")"));
  }

 private:
  void count() {
    if (++values_ > limits_.values) throw DataError(text("it has more than ", limits_.values, " values"));
  }
  Json& place(Json&& value) {
    count();
    if (open_.empty()) return root_ = std::move(value);
    Json& parent = *open_.back();
    if (parent.is_object()) return append_member(parent, std::move(key_), std::move(value));
    parent.push_back(std::move(value));
    return parent.back();
  }
  bool put(Json&& value) {
    place(std::move(value));
    return true;
  }
  bool open(Json&& container) {
    if (open_.size() == limits_.levels)
      throw DataError(text("it nests more than ", limits_.levels, " levels deep"));
    open_.push_back(&place(std::move(container)));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  const JsonLimits limits_;
  std::size_t values_ = 0;
  Json root_;
  std::vector<Json*>
      open_;  ///< each the last value of the one before it, which gets no other until it is closed
  std::vector<std::set<std::string>> keys_;
  std::string key_;
};

/// `Json` is nlohmann's json or ordered_json. Throws DataError with the reason alone: no JSON, a key twice in
/// an object, beyond the limits.
template <class Json>
Json parse_json(std::string_view content, const JsonLimits& limits = {}) {
  JsonBuilder<Json> builder(limits);
  Json::sax_parse(content, &builder);
  return builder.take();
}

}  // namespace trireme
