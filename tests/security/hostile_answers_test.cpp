// Attacks of a hostile HTTP server on a client that keeps its connections open.

#include <gmock/gmock.h>
#include <sys/socket.h>

#include <thread>

#include "trireme/base/text.h"
#include "trireme/http/http_client.h"
#include "trireme/wire/socket.h"

namespace trireme::http {
namespace {

/// Answers consecutive connections with these bytes, whatever the request is, and closes them.
class Answers {
 public:
  explicit Answers(std::vector<std::string> answers)
      : answers_(std::move(answers)), thread_([this] { serve(); }) {}
  ~Answers() { thread_.join(); }
  std::string url() const { return text("http://", listening_.local().text(), "/x"); }

 private:
  void serve() const {
    for (const std::string& answer : answers_) {
      wire::Socket socket;
      while (socket.fd() < 0)
        socket = wire::Socket(::accept4(listening_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
      std::string asked;
      for (char byte = 0; !asked.ends_with("\r\n\r\n") && ::recv(socket.fd(), &byte, 1, 0) == 1;)
        asked += byte;
      ::send(socket.fd(), answer.data(), answer.size(), MSG_NOSIGNAL);
    }
  }

  const std::vector<std::string> answers_;
  const wire::Socket listening_ = wire::listen_at({"127.0.0.1", 0});
  std::thread thread_;  // destroyed first
};

TEST(HostileAnswer, FoldedFirstHeaderExtendsNoEarlierAnswer) {
  const std::string whole =
      "HTTP/1.1 200 OK\r\nConnection: close\r\nX-Last: one\r\nContent-Length: 2\r\n\r\nok";
  const Answers server({whole, "HTTP/1.1 200 OK\r\n folded: more\r\nContent-Length: 2\r\n\r\nok", whole});
  Client client;
  const auto ask = [&] { return client.send({.url = server.url(), .timeout_s = 30}); };
  EXPECT_EQ(ask().body, "ok");
  const Reply folded = ask();
  EXPECT_EQ(folded.status, 0) << "no header is there that it goes on with";
  EXPECT_NE(folded.failure, "");
  EXPECT_EQ(ask().body, "ok");
}

}  // namespace
}  // namespace trireme::http
