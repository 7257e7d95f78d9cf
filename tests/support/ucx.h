#pragma once
// UCX in tests, which is optional in a build.

#include <cstdlib>
#include <filesystem>

#include "tests/support/paths.h"

namespace trireme::test {

/// This build has the object that comm.network = "ucx" needs.
inline bool has_ucx() {
  return std::filesystem::exists(std::filesystem::path(build_folder()) / "lib/libtrireme_ucx.so");
}

/// For programs started from here on. UCX finds out that hosts which are namespaces are one machine, and
/// would take its memory; and they have an interface that leads nowhere.
inline void use_ucx_over_network() {
  ::setenv("UCX_TLS", "tcp", /*overwrite=*/1);
  ::setenv("UCX_NET_DEVICES", "cable", /*overwrite=*/1);
}

}  // namespace trireme::test
