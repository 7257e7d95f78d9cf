#include "trireme/http/internal/redirection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <span>
#include <utility>

#include "trireme/base/text.h"

namespace trireme::http {
namespace {

/// The first `bits` of an IPv4 address.
struct Block {
  std::uint32_t first;
  int bits;
};

constexpr std::array kPrivateBlocks{
    Block{0x00000000, 8},                          // "this network", 0.0.0.0 among them (RFC 1122)
    Block{0x0a000000, 8},                          // private (RFC 1918), as 172.16/12 and 192.168/16
    Block{0x64400000, 10},                         // behind a carrier's NAT (RFC 6598)
    Block{0x7f000000, 8},                          // loopback
    Block{0xa9fe0000, 16},                         // link-local, with the metadata services of clouds
    Block{0xac100000, 12}, Block{0xc0000000, 24},  // 192.0.0.0/24: IETF protocols (RFC 6890)
    Block{0xc0a80000, 16}, Block{0xe0000000, 3},   // multicast, reserved, broadcast
};

bool is_private_v4(std::uint32_t address) {
  return std::ranges::any_of(
      kPrivateBlocks, [&](const Block& block) { return (address ^ block.first) >> (32 - block.bits) == 0; });
}

using V6 = std::array<std::uint8_t, 16>;

std::uint32_t v4_in(const V6& address, std::size_t at) {
  std::uint32_t result = 0;
  for (std::size_t i = at; i < at + 4; ++i) result = result << 8 | address[i];
  return result;
}

bool begins(const V6& address, std::initializer_list<int> with) {
  return std::equal(with.begin(), with.end(), address.begin());
}

bool is_private_v6(const V6& address) {
  constexpr int kFf = 0xff;
  const bool mapped = begins(address, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, kFf, kFf});
  const bool compatible = begins(address, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});  // includes :: and ::1
  const bool nat64 = begins(address, {0, 0x64, kFf, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0});
  if (mapped || compatible || nat64) return is_private_v4(v4_in(address, 12));
  if (begins(address, {0x20, 0x02})) return is_private_v4(v4_in(address, 2));  // 6to4
  const bool of_a_site = (address[0] & 0xfe) == 0xfc || (address[0] == 0xfe && address[1] >= 0x80);
  const bool local_nat64 = begins(address, {0, 0x64, kFf, 0x9b, 0, 1});
  return of_a_site || local_nat64 || address[0] == kFf;
}

std::string in_small_letters(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::string variable(std::initializer_list<std::string> names) {
  for (const std::string& name : names) {
    const char* value = std::getenv(name.c_str());
    if (value != nullptr && *value != '\0') return value;
  }
  return {};
}

/// Whether no_proxy, a list of host and domain names, contains `host`.
bool is_without_proxy(const std::string& host) {
  std::string list = in_small_letters(variable({"no_proxy", "NO_PROXY"}));
  std::ranges::replace(list, ' ', ',');
  return std::ranges::any_of(split(list, ','), [&](std::string_view each) {
    if (each.starts_with('.')) each.remove_prefix(1);
    return !each.empty() && (each == "*" || host == each || host.ends_with("." + std::string(each)));
  });
}

}  // namespace

Target Target::parse(const std::string& url) {
  Target result;
  const std::size_t colon = url.find("://");
  if (colon == std::string::npos) return result;
  result.scheme = in_small_letters(std::string_view(url).substr(0, colon));
  std::string_view rest = std::string_view(url).substr(colon + 3);
  rest = rest.substr(0, rest.find_first_of("/?#\\"));
  const std::size_t at = rest.rfind('@');
  if (at != std::string_view::npos) {
    result.user = rest.substr(0, at + 1);
    rest.remove_prefix(at + 1);
  }
  const std::size_t bracket = rest.starts_with('[') ? rest.find(']') : std::string_view::npos;
  const std::size_t before_port = rest.find(':', bracket == std::string_view::npos ? 0 : bracket);
  std::string_view host = rest.substr(0, before_port);
  if (bracket != std::string_view::npos) host = rest.substr(1, bracket - 1);
  result.host = in_small_letters(host);
  if (before_port != std::string_view::npos) result.port = rest.substr(before_port + 1);
  return result;
}

std::string Target::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return trireme::text(scheme, "://", v6 ? "[" + host + "]" : host, port.empty() ? "" : ":", port);
}

bool Target::same_server(const Target& other) const {
  const auto number = [](const Target& of) {
    return !of.port.empty() ? of.port : std::string(of.scheme == "https" ? "443" : "80");
  };
  return scheme == other.scheme && host == other.host && number(*this) == number(other);
}

bool is_private(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &address, sizeof v4);
    return is_private_v4(ntohl(v4.sin_addr.s_addr));
  }
  if (address.sa_family != AF_INET6) return true;
  sockaddr_in6 v6;
  std::memcpy(&v6, &address, sizeof v6);
  V6 bytes;
  std::memcpy(bytes.data(), &v6.sin6_addr, bytes.size());
  return is_private_v6(bytes);
}

bool is_private(const std::string& host) {
  std::string name = host.substr(0, host.find('%'));
  while (name.ends_with('.')) name.pop_back();
  in_addr v4;
  if (::inet_aton(name.c_str(), &v4) != 0) return is_private_v4(ntohl(v4.s_addr));
  V6 v6;
  if (::inet_pton(AF_INET6, name.c_str(), v6.data()) == 1) return is_private_v6(v6);
  return name.empty() || name == "localhost" || name.ends_with(".localhost");
}

std::string objection(const Target& from, const Target& to) {
  if (to.scheme != "http" && to.scheme != "https") return "only HTTP and HTTPS are followed";
  if (to.host.empty()) return "it names no host";
  if (from.scheme == "https" && to.scheme == "http") return "that gives up HTTPS";
  return {};
}

std::string with_user_of(const std::string& from, const std::string& to) {
  const Target before = Target::parse(from), after = Target::parse(to);
  if (!after.user.empty() || !before.same_server(after)) return to;
  return std::string(to).insert(to.find("://") + 3, before.user);
}

std::string proxy_of(const Target& target) {
  if (is_without_proxy(target.host)) return {};
  const std::string own =
      target.scheme == "https" ? variable({"https_proxy", "HTTPS_PROXY"}) : variable({"http_proxy"});
  return own.empty() ? variable({"all_proxy", "ALL_PROXY"}) : own;
}

}  // namespace trireme::http
