#include "trireme/etcd/store_address.h"

#include <algorithm>
#include <cctype>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::etcd {
namespace {

constexpr std::string_view kScheme = "etcd://";
constexpr const char* kForm = "etcd://HOST:PORT,HOST:PORT/PREFIX";
constexpr const char* kDefaultPrefix = "trireme";

bool may_be_in_prefix(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.' || c == '/';
}

}  // namespace

bool StoreAddress::is_meant_by(const wire::Address& address) { return address.starts_with("etcd"); }

StoreAddress StoreAddress::parse(const wire::Address& address) {
  require(!address.starts_with("etcds:"), "'", address, "': etcd over TLS is not supported; expected ", kForm,
          " with etcd on a network of its own, or behind a TLS proxy on this host");
  require(address.starts_with(kScheme), "'", address, "' is no address of etcd; expected ", kForm);
  const std::string rest = address.substr(kScheme.size());
  const auto slash = rest.find('/');
  const std::string hosts = rest.substr(0, slash);
  const auto user = hosts.rfind('@') + 1;  // 0: no user
  require(user == 0, "'", kScheme, "...@", hosts.substr(user),
          "': users and passwords of etcd are not supported; expected ", kForm);
  StoreAddress result;
  for (const std::string& member : split(hosts, ',')) {
    result.members.push_back(wire::Endpoint::parse(
        member, trireme::text("the member '", member, "' in '", address, "' (", kForm, ")")));
  }
  result.prefix = slash == std::string::npos ? "" : rest.substr(slash + 1);
  while (result.prefix.ends_with('/')) result.prefix.pop_back();
  if (result.prefix.empty()) result.prefix = kDefaultPrefix;
  require(std::ranges::all_of(result.prefix, may_be_in_prefix) && !result.prefix.starts_with('/'), "'",
          result.prefix, "' in '", address,
          "' cannot be the prefix of keys; expected letters, digits, '-', '_', '.' and '/' between them");
  return result;
}

wire::Address StoreAddress::text() const {
  std::vector<std::string> hosts;
  for (const wire::Endpoint& member : members) hosts.push_back(member.text());
  return trireme::text(kScheme, join(hosts, ","), "/", prefix);
}

}  // namespace trireme::etcd
