#include "trireme/http/http_server.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <list>
#include <utility>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/text.h"
#include "trireme/http/internal/http_request.h"

namespace trireme::http {
namespace {

constexpr int kLook_ms = 100;  // interval of checks for late clients, for events and for the end

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    default:
      return "Service Unavailable";
  }
}

/// Pages of other sites cannot use the answer, and caches do not store it.
constexpr const char* kGuards =
    "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
    "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'\r\n";

std::string event_of(std::string_view line) { return text("data: ", line, "\n\n"); }

std::string response(const Served& served) {
  const std::string head =
      text("HTTP/1.0 ", served.status, " ", reason_of(served.status),
           "\r\nContent-Type: ", served.events ? "text/event-stream" : served.type, "\r\n", kGuards);
  if (served.events)
    return head + "Connection: close\r\n\r\n" + (served.body.empty() ? "" : event_of(served.body));
  return text(head, "Content-Length: ", served.body.size(), "\r\nConnection: close\r\n\r\n", served.body);
}

bool would_block(ssize_t count) { return count < 0 && (errno == EAGAIN || errno == EINTR); }

}  // namespace

struct HttpServer::Client {
  Client(wire::Socket its_socket, double patience_s)
      : socket(std::move(its_socket)), deadline(Deadline::after_s(patience_s)) {}

  /// Reads the available bytes. True: the request is complete, or too long.
  bool read_some(std::size_t most) {
    std::array<char, 1024> bytes;
    const ssize_t count = ::recv(socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0) request.append(bytes.data(), static_cast<std::size_t>(count));
    if (count == 0 || (count < 0 && !would_block(count))) is_done = true;
    return is_whole(request) || request.size() > most;
  }

  void write_some() {
    const ssize_t count = ::send(socket.fd(), pending.data(), pending.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && !would_block(count)) is_done = true;
    if (count > 0) pending.erase(0, static_cast<std::size_t>(count));
    moved = count > 0;
    if (pending.empty() && !reads_events) {
      ::shutdown(socket.fd(), SHUT_WR);
      is_done = true;
    }
  }

  /// Detects that the peer has closed. A reader of events sends nothing else.
  void notice_end() {
    std::array<char, 256> bytes;
    const ssize_t count = ::recv(socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count == 0 || (count < 0 && !would_block(count))) is_done = true;
  }

  wire::Socket socket;
  Deadline deadline;
  std::string request, pending;
  bool is_answered = false, reads_events = false, is_done = false, moved = false;
};

struct HttpServer::Clients {
  std::list<Client> all;

  std::size_t num_readers() const {
    return static_cast<std::size_t>(
        std::count_if(all.begin(), all.end(), [](const Client& client) { return client.reads_events; }));
  }
  void drop_oldest_request() {
    const auto oldest =
        std::find_if(all.begin(), all.end(), [](const Client& client) { return !client.reads_events; });
    if (oldest != all.end()) all.erase(oldest);
  }
};

HttpServer::HttpServer(const wire::Endpoint& endpoint, ServerOptions options, Find find)
    : options_(std::move(options)),
      find_(std::move(find)),
      listener_(wire::listen_at(endpoint)),
      thread_([this] { serve(); }) {
  pthread_setname_np(thread_.native_handle(), options_.name.c_str());
}

HttpServer::~HttpServer() {
  ends_ = true;
  thread_.join();
}

void HttpServer::send_event(std::string_view line) {
  const std::lock_guard lock(mutex_);
  events_ = event_of(line);  // a newer state replaces one that was not sent yet
}

bool HttpServer::may_read(const HttpRequest& request) const {
  if (options_.token.empty()) return true;
  const auto proof = [this](std::string_view token) {
    return wire::hmac_sha256(options_.token, {"http token", token});
  };
  const wire::Digest expected = proof(options_.token.reveal());
  return wire::equal(proof(request.header_token), expected) ||
         wire::equal(proof(request.query_token), expected);
}

void HttpServer::answer(Client& client) const {
  const HttpRequest request = parse_request(client.request);
  Served served{.status = 431};
  if (client.request.size() > options_.max_request_bytes) {
    served.body = text("the request is longer than ", options_.max_request_bytes, " bytes\n");
  } else if (request.method != "GET") {
    served = {.status = 405, .body = "only GET\n"};
  } else if (!may_read(request)) {
    served = {.status = 401,
              .body =
                  "a token is missing or wrong: use the URL that was printed when this server started, "
                  "or the header 'Authorization: Bearer TOKEN'\n"};
  } else {
    served = find_(request.path);
  }
  client.reads_events = served.events;
  client.pending = response(served);
  client.is_answered = true;
  client.deadline = Deadline::after_s(served.events ? options_.event_patience_s : options_.patience_s);
}

void HttpServer::accept_one(Clients& clients) const {
  const int fd = ::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    ::poll(nullptr, 0, kLook_ms);  // out of descriptors: an immediate retry would fail, too
    return;
  }
  if (clients.all.size() - clients.num_readers() >= options_.max_clients) clients.drop_oldest_request();
  clients.all.emplace_back(wire::Socket(fd), options_.patience_s);
}

void HttpServer::serve() {
  Clients clients;
  while (!ends_) {
    std::vector<pollfd> waits = {{listener_.fd(), POLLIN, 0}};
    for (const Client& client : clients.all) {
      const int writes = client.pending.empty() ? 0 : POLLOUT;
      const int reads = !client.is_answered || client.reads_events ? POLLIN : 0;
      waits.push_back({client.socket.fd(), static_cast<short>(reads | writes), 0});
    }
    ::poll(waits.data(), waits.size(), kLook_ms);
    std::string events;
    {
      const std::lock_guard lock(mutex_);
      events = std::exchange(events_, {});
    }
    std::size_t place = 1, num_readers = clients.num_readers();
    for (Client& client : clients.all) {
      const short ready = waits[place++].revents;
      if (ready != 0 && !client.is_answered && client.read_some(options_.max_request_bytes)) {
        answer(client);
        if (client.reads_events && ++num_readers > options_.max_readers) {
          client.reads_events = false;
          client.pending = response({.status = 503, .body = "too many readers of events: close a page\n"});
        }
      } else if ((ready & (POLLIN | POLLHUP | POLLERR)) != 0 && client.reads_events) {
        client.notice_end();
      }
      if (client.reads_events && client.pending.size() + events.size() <= options_.max_pending_bytes)
        client.pending += events;
      client.moved = false;
      if (!client.pending.empty()) client.write_some();
      const bool is_up_to_date = client.reads_events && (client.moved || client.pending.empty());
      if (is_up_to_date) client.deadline = Deadline::after_s(options_.event_patience_s);
    }
    std::erase_if(clients.all,
                  [](const Client& client) { return client.is_done || client.deadline.expired(); });
    if (waits[0].revents != 0) accept_one(clients);
  }
}

}  // namespace trireme::http
