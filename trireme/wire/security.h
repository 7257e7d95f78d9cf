#pragma once
// How the two ends of a channel make sure of each other. Values.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "trireme/wire/secret.h"

namespace trireme::wire {

/// PEM files of one participant. The certificate's first subject alternative name (DNS) is ROLE.NAME:
/// "worker.3". Both ends check that the other's is issued by the cluster's authority only.
struct TlsFiles {
  std::filesystem::path authority;    ///< certificate of the cluster's authority
  std::filesystem::path certificate;  ///< of this participant, with intermediate certificates up to the
                                      ///< authority
  std::filesystem::path key;          ///< of this user alone (0600)
};

struct Security {
  enum class Kind : std::uint8_t {
    kLocal,   ///< processes of this user on this host: by the kernel, or because both ends have user_key()
    kNone,    ///< no proof, anywhere: for a network without untrusted senders
    kSecret,  ///< both ends prove that they have it, or its key of their role (Secret::of_role())
    kTls,     ///< TLS 1.3 with certificates of both ends, over TCP; on a host the kernel vouches for the user
  };
  Kind kind = Kind::kLocal;
  Secret secret = {};
  TlsFiles tls = {};
  /// With kSecret, over TCP: all bytes go through TLS 1.3 under the secret. Else they are neither encrypted
  /// nor signed after the proofs, so an attacker who can change packets can change messages.
  bool encrypted = false;

  /// One of each kind but kLocal, which is the default.
  static Security none() { return {.kind = Kind::kNone}; }
  static Security with_secret(Secret secret, bool encrypted = false) {
    return {.kind = Kind::kSecret, .secret = std::move(secret), .encrypted = encrypted};
  }
  static Security with_tls(TlsFiles files) { return {.kind = Kind::kTls, .tls = std::move(files)}; }
};

/// Whether TRIREME_ENCRYPT requires encryption of channels with a secret: "1", or "0" or nothing. `lookup`
/// gives the value of a variable, or nothing. Throws InvalidArgument for another value.
bool is_encrypted(const std::function<std::optional<std::string>(const std::string& name)>& lookup);

}  // namespace trireme::wire
