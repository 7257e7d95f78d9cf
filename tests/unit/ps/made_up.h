#pragma once
// Random message values: every field is random within its type. It uses the list of fields of encode() and
// decode(), so that new fields are included.

#include <bit>
#include <cstddef>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/ps/messages.h"

namespace trireme::ps {

class MakesUp {
 public:
  explicit MakesUp(std::uint64_t seed) : random_(seed) {}
  Random& random() { return random_; }

  template <class Struct>
  Struct one() {
    Struct value;
    fill(value);
    return value;
  }
  /// Half of the bytes are small, as in lengths, kinds and flags.
  std::vector<std::byte> bytes(std::size_t most) {
    std::vector<std::byte> result(random_.below(most + 1));
    for (std::byte& byte : result)
      byte = static_cast<std::byte>(random_.below(random_.below(2) == 0 ? 4 : 256));
    return result;
  }
  /// The same with some bytes changed, removed or added.
  std::vector<std::byte> mutated(std::vector<std::byte> bytes) {
    for (std::uint64_t i = 1 + random_.below(3); i > 0 && !bytes.empty(); --i)
      bytes[random_.below(bytes.size())] = static_cast<std::byte>(random_.below(256));
    if (random_.below(4) == 0) bytes.resize(random_.below(bytes.size() + 9));
    return bytes;
  }

 private:
  template <class Number>
  requires std::is_arithmetic_v<Number>
  void fill(Number& value) {
    // Meaningless numbers and numbers that may identify something, infinities and NaN among them.
    if constexpr (std::is_same_v<Number, bool>)
      value = random_.below(2) == 0;
    else if constexpr (std::is_same_v<Number, double>)
      value = random_.below(2) == 0 ? 1 : std::bit_cast<double>(random_.bits());
    else if constexpr (std::is_same_v<Number, float>)
      value = random_.below(2) == 0 ? 1 : std::bit_cast<float>(static_cast<std::uint32_t>(random_.bits()));
    else
      value = static_cast<Number>(random_.below(2) == 0 ? random_.below(8) : random_.bits());
  }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void fill(Enum& value) {
    value = static_cast<Enum>(random_.below(static_cast<std::uint64_t>(Enum::kLast) + 1));
  }
  void fill(std::string& value) {
    value.resize(random_.below(20));
    for (char& letter : value) letter = static_cast<char>(random_.below(256));
  }
  template <class Element>
  void fill(std::vector<Element>& values) {
    values.resize(random_.below(4));
    for (Element& value : values) fill(value);
  }
  template <class Key, class Value>
  void fill(std::map<Key, Value>& values) {
    for (std::uint64_t i = random_.below(4); i > 0; --i) {
      Key key{};
      fill(key);
      fill(values[key]);
    }
  }
  template <class Struct>
  requires requires(Struct& value) { Struct::fields(value); }
  void fill(Struct& value) {
    std::apply([this](auto&... field) { (fill(field), ...); }, Struct::fields(value));
  }

  Random random_;
};

/// Calls `visit.template operator()<Head>()` for all heads.
template <class Visit>
void for_each_head(const Visit& visit) {
  const auto each = [&]<class... Heads>() { (visit.template operator()<Heads>(), ...); };
  each.template operator()<Heartbeat, HeartbeatReply, CreateTable, TableCreated, Ping, Pong, CaughtUp,
                           Drained, Suspect, Request, Reply, Pull, PullReply, Replicate, ReplicateAck,
                           SnapshotPart, SnapshotAck, Status, StatusReply, BeginAnew, Ticks, Replies>();
}

}  // namespace trireme::ps
