// Answers of an HTTP server to the client of remote data and of etcd. The input's parts, between bytes 0x1f,
// are the answers to consecutive connections. The server is on loopback and is the proxy for every host here,
// so that no redirection leaves it. An input takes 3 to 27 connections. http_answer fuzzes the same reader
// without connections.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>

#include "tests/fuzz/reading.h"
#include "trireme/http/http_client.h"

using namespace trireme;

namespace {

/// Closed connections stay in TIME_WAIT on their port for a minute. A new connection that reuses one waits
/// for a second.
constexpr int kInputsOfAPort = 2000;
constexpr std::size_t kMaxAnswered = 32;

class Answering {
 public:
  /// Exists until the process ends.
  static Answering& server() {
    static Answering& server = *new Answering;
    return server;
  }

  std::string url() const { return text("http://127.0.0.1:", port_, "/"); }
  void set(std::vector<std::string_view> answers) {
    if (++inputs_ % kInputsOfAPort == 0) move();
    const std::lock_guard lock(mutex_);
    answers_.assign(answers.begin(), answers.end());
    next_ = 0;
  }

 private:
  Answering() {
    for (const char* name : {"no_proxy", "NO_PROXY", "HTTPS_PROXY", "ALL_PROXY"}) ::unsetenv(name);
    move();
    std::thread([this] {
      while (true) serve(::accept(listens_, nullptr, nullptr));
    }).detach();
  }

  /// Moves to another port. The previous socket stays open until the thread has left it.
  void move() {
    const int next = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(next, any, size) != 0 || ::listen(next, 64) != 0 || ::getsockname(next, any, &size) != 0)
      std::abort();
    port_ = ntohs(address.sin_port);
    for (const char* name : {"http_proxy", "https_proxy", "all_proxy"}) ::setenv(name, url().c_str(), 1);
    const int before = listens_.exchange(next);
    if (left_ >= 0) ::close(left_);
    left_ = before;
    if (before >= 0) ::shutdown(before, SHUT_RDWR);
  }

  void serve(int connection) {
    if (connection < 0) return;
    const timeval patience{.tv_sec = 5, .tv_usec = 0};
    ::setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    std::string asked;
    std::array<char, 4096> buffer;
    while (asked.find("\r\n\r\n") == std::string::npos) {
      const ssize_t got = ::recv(connection, buffer.data(), buffer.size(), 0);
      if (got <= 0) break;
      asked.append(buffer.data(), static_cast<std::size_t>(got));
    }
    const std::string answer = next_answer();
    [[maybe_unused]] const auto sent = ::send(connection, answer.data(), answer.size(), MSG_NOSIGNAL);
    ::shutdown(connection, SHUT_WR);
    // Unread request bytes at a close would cut off the answer, and a client may keep its end open. So the
    // connection is closed some connections later.
    answered_.push_back(connection);
    if (answered_.size() <= kMaxAnswered) return;
    ::close(answered_.front());
    answered_.pop_front();
  }

  std::string next_answer() {
    const std::lock_guard lock(mutex_);
    return answers_.empty() ? std::string() : answers_[next_++ % answers_.size()];
  }

  std::atomic<int> listens_ = -1;
  std::deque<int> answered_;  ///< used by the thread only
  int left_ = -1, port_ = 0, inputs_ = 0;
  std::mutex mutex_;
  std::vector<std::string> answers_;
  std::size_t next_ = 0;
};

void check(const http::Request& request) {
  static http::Client client;  // static, because it reads the certificates of the system once
  const http::Reply reply = client.send(request);
  const bool is_whole = reply.status != 0;
  const bool in_small_letters = std::ranges::none_of(reply.headers, [](const auto& header) {
    return std::ranges::any_of(header.first, [](char c) { return c >= 'A' && c <= 'Z'; });
  });
  if (is_whole != reply.failure.empty() || reply.body.size() > request.most_bytes || !in_small_letters)
    __builtin_trap();
}

}  // namespace

extern "C" int fuzz_http(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_in(data, size);
  Answering& server = Answering::server();
  const std::string json = "{}";
  for (const bool private_redirects : {false, true}) {
    server.set(fuzz::parts_of(input, 12));
    check({.url = "http://data.example/x",
           .range = "0-99",
           .timeout_s = 5,
           .most_bytes = 4096,
           .way = http::Way::kAsEnvironmentSays,
           .private_redirects = private_redirects});
  }
  server.set(fuzz::parts_of(input, 12));
  check({.url = server.url(), .json = &json, .timeout_s = 5, .most_bytes = 4096});
  return 0;
}
