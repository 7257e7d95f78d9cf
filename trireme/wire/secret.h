#pragma once
// The common secret of the ranks and launchers of one job, and the proof that a peer has it too: HMAC-SHA256
// (RFC 2104, FIPS 180-4, by OpenSSL) over numbers that both sides have drawn. A value; thread-safe. Keys of
// single roles are derived from a secret: a process that has only the key of "worker.3" can prove that it is
// worker 3, and nothing else.

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
  /// Throws InvalidArgument when it is too short to be one, or a damaged key of a role; `source` is its
  /// origin in the message.
  static Secret from_text(std::string_view text, const std::string& source);
  /// The content of the file, without white space at its ends. Throws InvalidArgument when it cannot be read,
  /// is too short, or is not closed as require_owners_file() requires.
  static Secret from_file(const std::filesystem::path& path);

  /// From the variable `name`, else from the file that `name`_FILE names, else none; `lookup` gives the value
  /// of a variable, or nothing.
  static Secret from_variables(
      const std::function<std::optional<std::string>(const std::string& name)>& lookup,
      const std::string& name = "TRIREME_SECRET");

  /// For the servers of a job: TRIREME_PS_SECRET or its file, else the secret of the job.
  static Secret of_servers(const std::function<std::optional<std::string>(const std::string& name)>& lookup);

  /// The key of ROLE.NAME: an HMAC of that under this secret, which cannot be computed back. Of a key of a
  /// role it is the key itself.
  Secret of_role(const std::string& role_and_name) const;
  /// Whether it is a role, a dot and a name, printable.
  static bool is_role(std::string_view word);
  /// The secret that a peer needs for the identity ROLE.NAME: the key of that, and the whole secret where it
  /// has no role or no name.
  Secret of_peer(const std::string& stated) const { return is_role(stated) ? of_role(stated) : *this; }
  /// ROLE.NAME of a key of a role; empty for a whole secret.
  const std::string& role() const { return role_; }

  bool empty() const { return text_.empty(); }
  /// For the environment of a child. Never for a log.
  const std::string& reveal() const { return text_; }

 private:
  std::string text_;
  std::string role_;
};

/// Throws InvalidArgument, with the remedy, unless this user owns the file and it is closed to group and
/// others. `what` names it in the message: "the key of the certificate".
void require_owners_file(const std::filesystem::path& path, const std::string& what);

/// A result of HMAC-SHA256.
using Digest = std::array<std::uint8_t, 32>;
/// A random number that is used once, against replayed proofs.
using Nonce = std::array<std::uint8_t, 32>;

/// An unpredictable number that is never used twice.
Nonce random_nonce();
/// Of the parts one after the other, which are read once and not copied.
Digest hmac_sha256(const Secret& secret, std::initializer_list<std::string_view> parts);
/// In constant time, independent of the place of a difference.
bool equal(const Digest& one, const Digest& other);

}  // namespace trireme::wire
