#pragma once
// HTTP and HTTPS over libcurl, which is loaded when the first client is made: it brings some twenty
// libraries, which other programs need not load, install or bundle. One request at a time, over a connection
// that is kept. One thread at a time.

#include <cstddef>
#include <map>
#include <memory>
#include <string>

namespace trireme::http {

enum class Way {
  kDirect,  ///< no proxy, and no redirection is followed
  /// Proxies of the environment, and eight redirections of a GET at most: to HTTP and HTTPS, never from HTTPS
  /// to HTTP, and to public addresses, unless Request::private_redirects. The connected address is checked,
  /// for any name; where a proxy connects, an address in digits and "localhost" are.
  kAsEnvironmentSays,
};

/// A request: a GET, or a POST of JSON.
struct Request {
  std::string url;
  const std::string* json = nullptr;               ///< is posted; null: the request is a GET
  std::string range = {};                          ///< "0-99": these bytes of it
  double timeout_s = 30;                           ///< it ends by then, for any behaviour of the other end
  std::size_t most_bytes = std::size_t{64} << 20;  ///< a longer answer, or 256 KiB of headers, is a failure
  Way way = Way::kDirect;
  bool private_redirects = false;  ///< they may lead to loopback, a link, and private networks
};

/// Of a redirection that was not followed: asking again does not help.
enum class Rejection {
  kNone,
  kPrivate,      ///< for its address
  kRedirection,  ///< for its target, or because there were too many
};

/// A reply, or the reason of its absence.
struct Reply {
  int status = 0;       ///< 0: there was no whole answer,
  std::string failure;  ///< because of this
  Rejection rejection = Rejection::kNone;
  int answered = 0;  ///< the status of an answer that began, whole or not
  std::string body = {};
  std::map<std::string, std::string> headers = {};  ///< names in small letters
};

/// A connection for one request after the other; it stays open between requests to the same host.
class Client {
 public:
  /// Throws InvalidArgument where there is no libcurl.
  Client();
  ~Client();
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  /// Returns when the answer is whole, or at the latest after timeout_s. Failures of the network and of the
  /// other end are in the reply, not exceptions.
  Reply send(const Request& request);

 private:
  struct Handle;
  struct Hop;
  class Transfer;
  Reply ask(const Request& request, const Hop& hop, double timeout_s, std::string& next);

  std::unique_ptr<Handle> handle_;
};

}  // namespace trireme::http
