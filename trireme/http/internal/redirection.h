#pragma once
// Allowed targets of a redirection. A server of the internet must not make this host send requests to servers
// that only this host and its neighbours reach. It must not disable the protection of HTTPS either. Pure
// functions, but for proxy_of().

#include <string>

struct sockaddr;

namespace trireme::http {

/// The relevant parts of an address that a redirection leads to, in small letters.
struct Target {
  std::string scheme;  ///< "https"
  std::string host;    ///< without brackets
  std::string port;    ///< empty: that of the scheme
  std::string user;    ///< with its secret part, and '@'; empty: none

  /// Of a URL in libcurl's form. Missing parts are empty.
  static Target parse(const std::string& url);
  /// For messages: "https://host:port", without secret parts.
  std::string text() const;
  bool same_server(const Target& other) const;
};

/// Whether an address is loopback, of a link, private (RFC 1918, 4193, 6598), unspecified, multicast or
/// reserved. IPv4 inside of IPv6 (mapped, compatible, NAT64, 6to4) is checked as IPv4. Addresses that are
/// neither count as private.
bool is_private(const sockaddr& address);
/// The same of an address in digits, in every form that inet_aton(3) takes, and of "localhost". False for
/// other names.
bool is_private(const std::string& host);

/// The reason why a redirection from one to the other is not allowed, for any addresses; empty: it is.
std::string objection(const Target& from, const Target& to);

/// `to`, with the user of `from` where it is of the same server and has none of its own.
std::string with_user_of(const std::string& from, const std::string& to);

/// The proxy that the environment has for it: http_proxy, https_proxy, all_proxy, no_proxy; empty: none.
std::string proxy_of(const Target& target);

}  // namespace trireme::http
