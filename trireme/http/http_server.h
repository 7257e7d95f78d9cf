#pragma once
// A small HTTP server for pages, metrics and events of a process: GET only, one request a connection, with a
// token or without. A thread of its own serves. Clients can affect each other, but not the process: few are
// served at a time, a request is short, a client that is not done in time is closed. For metrics read by a
// collector, and a page for one user; not for the open network.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "trireme/wire/secret.h"
#include "trireme/wire/socket.h"

namespace trireme::http {

struct HttpRequest;

/// The reply to a client.
struct Served {
  int status = 200;  ///< 200, 404, 503
  std::string body = {};
  std::string type = "text/plain; charset=utf-8";
  bool events = false;  ///< the connection stays open: `body` is the first event, send_event() the next ones
};

/// Authorization of clients, and limits.
struct ServerOptions {
  std::string name = "trireme-http";  ///< of the thread, at most 15 characters
  /// Given as "Authorization: Bearer TOKEN" or "?token=TOKEN"; an empty one: every client is served.
  wire::Secret token = {};
  std::size_t max_clients = 16;  ///< the oldest makes room
  std::size_t max_readers = 16;  ///< of events; more get 503
  std::size_t max_request_bytes = 4096;
  double patience_s = 2;         ///< for a whole request, and for its answer
  double event_patience_s = 30;  ///< a reader of events that takes nothing for so long is closed
  std::size_t max_pending_bytes = std::size_t{1} << 20;  ///< a reader of events that has more misses some
};

class HttpServer {
 public:
  /// Returns the content of a path, "/metrics"; called by the server's thread.
  using Find = std::function<Served(const std::string& path)>;

  /// Port 0 takes a free one. Throws CommError for an address that is taken.
  HttpServer(const wire::Endpoint& endpoint, ServerOptions options, Find find);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  wire::Endpoint endpoint() const { return listener_.local(); }
  /// One line, to all readers of events; from any thread.
  void send_event(std::string_view line);

 private:
  struct Client;
  struct Clients;

  void serve();
  void answer(Client& client) const;
  bool may_read(const HttpRequest& request) const;
  void accept_one(Clients& clients) const;

  const ServerOptions options_;
  const Find find_;
  wire::Socket listener_;
  std::mutex mutex_;
  std::string events_;  ///< under the mutex: not yet given to the readers
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

}  // namespace trireme::http
