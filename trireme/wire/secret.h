#pragma once
// What the ranks and launchers of one job know and nobody else does, and the proof that a peer knows it too:
// HMAC-SHA256 (RFC 2104, FIPS 180-4, by OpenSSL) over numbers that both sides have drawn. A value;
// thread-safe.

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::wire {

class Secret {
 public:
  /// None.
  Secret() = default;
  /// 256 bits from the kernel.
  static Secret random();
  /// Throws InvalidArgument when it is too short to be one; `source` says in the message where it comes from.
  static Secret from_text(std::string_view text, const std::string& source);
  /// What the file holds, without white space at its ends. Throws InvalidArgument when it cannot be read, is
  /// too short, or is not closed as require_owners_file() asks.
  static Secret from_file(const std::filesystem::path& path);

  /// From TRIREME_SECRET, else from the file that TRIREME_SECRET_FILE names, else none; `lookup` gives the
  /// value of a variable, or nothing.
  static Secret from_variables(
      const std::function<std::optional<std::string>(const std::string& name)>& lookup);

  bool empty() const { return text_.empty(); }
  /// For the environment of a child. Never for a log.
  const std::string& reveal() const { return text_; }

 private:
  std::string text_;
};

/// Throws InvalidArgument, with what to do, unless this user owns the file and it is closed to group and
/// others. `what` names it in the message: "the key of the certificate".
void require_owners_file(const std::filesystem::path& path, const std::string& what);

/// What HMAC-SHA256 makes.
using Digest = std::array<std::uint8_t, 32>;
/// A random number that is used once, against proofs that somebody has recorded.
using Nonce = std::array<std::uint8_t, 32>;

/// A number that nobody can guess and that is never used twice.
Nonce random_nonce();
/// Of the parts one after the other, which are read once and not copied.
Digest hmac_sha256(const Secret& secret, std::initializer_list<std::string_view> parts);
/// In a time that does not tell where they differ.
bool equal(const Digest& one, const Digest& other);

}  // namespace trireme::wire
