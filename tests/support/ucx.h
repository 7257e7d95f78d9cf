#pragma once
// Support for UCX in tests. UCX is optional in a build.

#include <cstdlib>
#include <filesystem>

#include "tests/support/paths.h"

namespace trireme::test {

/// Whether this build has the library that comm.network = "ucx" needs.
inline bool has_ucx() {
  return std::filesystem::exists(std::filesystem::path(build_folder()) / "lib/libtrireme_ucx.so");
}

/// Applies to programs that are started from now on. UCX would detect that hosts in namespaces are one
/// machine, and use its memory. They also have an interface that leads nowhere.
inline void use_ucx_over_network() {
  ::setenv("UCX_TLS", "tcp", /*overwrite=*/1);
  ::setenv("UCX_NET_DEVICES", "cable", /*overwrite=*/1);
}

}  // namespace trireme::test
