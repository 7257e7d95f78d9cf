#pragma once
// How the two ends of a channel make sure of each other. Values.

#include <filesystem>
#include <string>

#include "trireme/wire/secret.h"

namespace trireme::wire {

/// PEM files of one participant. The certificate's first subject alternative name (DNS) is ROLE.NAME:
/// "worker.3"; both ends check that the other's comes from the cluster's authority, and nobody else's.
struct TlsFiles {
  std::filesystem::path authority;    ///< certificate of the cluster's authority
  std::filesystem::path certificate;  ///< of this participant, with what lies between it and the authority
  std::filesystem::path key;          ///< of this user alone (0600)
};

struct Security {
  enum class Kind : std::uint8_t {
    kLocal,   ///< processes of this user on this host: the kernel says so, or both ends know user_key()
    kNone,    ///< no proof, anywhere: for a network that nobody else can send into
    kSecret,  ///< both ends prove that they know it; what follows is neither encrypted nor signed
    kTls,     ///< TLS 1.3 with certificates of both ends, over TCP; on a host the kernel vouches for the user
  };
  Kind kind = Kind::kLocal;
  Secret secret = {};
  TlsFiles tls = {};

  /// One of each kind but kLocal, which is the default.
  static Security none() { return {.kind = Kind::kNone}; }
  static Security with_secret(Secret secret) { return {.kind = Kind::kSecret, .secret = std::move(secret)}; }
  static Security with_tls(TlsFiles files) { return {.kind = Kind::kTls, .tls = std::move(files)}; }
};

}  // namespace trireme::wire
