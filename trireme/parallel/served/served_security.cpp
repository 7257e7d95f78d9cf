#include "trireme/parallel/served/served_security.h"

#include <algorithm>
#include <array>

#include "trireme/base/error.h"
#include "trireme/wire/socket.h"

namespace trireme::parallel {
namespace {

/// Addresses that need no authentication.
bool is_of_this_host(const wire::Address& address) {
  if (address.starts_with("unix:") || address.starts_with("inproc:")) return true;
  if (!address.starts_with("tcp:")) return false;
  try {
    return wire::is_loopback(wire::Endpoint::parse(address.substr(4), "ps.coordinator"));
  } catch (const CommError&) {
    return false;  // the connection reports the unknown name
  }
}

}  // namespace

wire::Security security_of_servers(
    const wire::Address& coordinator, const wire::Secret& of_job,
    const std::function<std::optional<std::string>(const std::string& name)>& variable) {
  const std::array<const char*, 3> names = {"TRIREME_PS_TLS_AUTHORITY", "TRIREME_PS_TLS_CERTIFICATE",
                                            "TRIREME_PS_TLS_KEY"};
  std::array<std::string, 3> files;
  std::transform(names.begin(), names.end(), files.begin(),
                 [&](const char* name) { return variable(name).value_or(""); });
  const auto num_tls =
      std::count_if(files.begin(), files.end(), [](const auto& each) { return !each.empty(); });
  const auto is_given = [&](const char* name) { return !variable(name).value_or("").empty(); };
  const bool has_secret = is_given("TRIREME_PS_SECRET") || is_given("TRIREME_PS_SECRET_FILE");
  for (std::size_t i = 0; i < names.size(); ++i)
    require(num_tls == 0 || !files[i].empty(), names[i], " is not set, and of ", names[0], ", ", names[1],
            " and ", names[2], " some are: certificates take all three");
  require(
      num_tls == 0 || !has_secret, names[0],
      " and TRIREME_PS_SECRET or TRIREME_PS_SECRET_FILE are set: servers have one proof; unset the other");
  if (num_tls > 0)
    return wire::Security::with_tls({.authority = files[0], .certificate = files[1], .key = files[2]});
  const bool encrypted = wire::is_encrypted(variable);
  if (has_secret)
    return wire::Security::with_secret(wire::Secret::from_variables(variable, "TRIREME_PS_SECRET"),
                                       encrypted);
  if (of_job.empty() || is_of_this_host(coordinator)) return {};
  return wire::Security::with_secret(of_job, encrypted);
}

}  // namespace trireme::parallel
