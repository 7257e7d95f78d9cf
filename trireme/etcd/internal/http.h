#pragma once
// POST over HTTP, and nothing else of it: one request at a time, over a connection that is kept. Proxies of
// the environment are not asked, redirections not followed. One thread.

#include <memory>
#include <string>

#include "trireme/wire/socket.h"

namespace trireme::etcd {

struct HttpReply {
  int status = 0;       ///< 0: there was no answer,
  std::string failure;  ///< because of this
  std::string body = {};
};

class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) noexcept;

  /// Ends by `timeout_s`, whatever the other end does.
  HttpReply post(const wire::Endpoint& endpoint, const std::string& path, const std::string& json,
                 double timeout_s);

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace trireme::etcd
