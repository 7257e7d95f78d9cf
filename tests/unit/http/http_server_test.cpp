#include "trireme/http/http_server.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <list>
#include <vector>

#include "trireme/base/clock.h"

namespace trireme::http {
namespace {

constexpr const char* kToken = "a-token-of-the-tests";

class HttpServerTest : public testing::Test {
 protected:
  explicit HttpServerTest(ServerOptions options = {.token = wire::Secret::from_text(kToken, "the test")})
      : server({"127.0.0.1", 0}, std::move(options), [](const std::string& path) -> Served {
          if (path == "/page") return {.body = "<p>", .type = "text/html"};
          if (path == "/large") return {.body = std::string(std::size_t{64} << 20, 'x')};
          if (path == "/events") return {.body = "first", .events = true};
          return {.status = 404, .body = "nothing\n"};
        }) {}

  wire::Socket connect() {
    auto socket = wire::try_connect(server.endpoint(), Deadline::after_s(60));
    EXPECT_TRUE(socket.has_value());
    return std::move(*socket);
  }
  static void send(const wire::Socket& socket, const std::string& words) {
    wire::send_all(socket, std::as_bytes(std::span(words)), Deadline::after_s(60));
  }
  /// Reads until the server closes the connection, or until `last` has arrived.
  static std::string receive(const wire::Socket& socket, const std::string& last = "") {
    std::string answer;
    for (char bytes[1000];;) {
      pollfd wait = {socket.fd(), POLLIN, 0};
      if (::poll(&wait, 1, 60'000) != 1) return answer + "[nothing more in a minute]";
      const ssize_t count = ::recv(socket.fd(), bytes, sizeof bytes, 0);
      if (count <= 0) return answer;
      answer.append(bytes, static_cast<std::size_t>(count));
      if (!last.empty() && answer.ends_with(last)) return answer;
    }
  }
  std::string ask(const std::string& request) {
    const wire::Socket socket = connect();
    send(socket, request);
    return receive(socket);
  }
  static std::string get(const std::string& target) {
    return "GET " + target + " HTTP/1.1\r\nHost: here\r\n\r\n";
  }
  static std::string with_token(const std::string& path) { return path + "?token=" + kToken; }

  HttpServer server;
};

TEST_F(HttpServerTest, AcceptsTokenInUrlOrHeader) {
  const std::string answer = ask(get(with_token("/page")));
  EXPECT_TRUE(answer.starts_with("HTTP/1.0 200 OK\r\n")) << answer;
  EXPECT_NE(answer.find("Content-Type: text/html\r\n"), std::string::npos) << answer;
  EXPECT_NE(answer.find("Content-Security-Policy: default-src 'none'"), std::string::npos) << answer;
  EXPECT_TRUE(answer.ends_with("\r\n\r\n<p>")) << answer;
  EXPECT_TRUE(ask(get("/page?x=1&token=" + std::string(kToken) + "&y=2")).starts_with("HTTP/1.0 200 "));
  EXPECT_TRUE(
      ask("GET /page HTTP/1.1\r\nHost: here\r\nauthorization:  Bearer " + std::string(kToken) + "\r\n\r\n")
          .starts_with("HTTP/1.0 200 "));
  EXPECT_TRUE(ask(get(with_token("/other"))).starts_with("HTTP/1.0 404 "));
}

TEST_F(HttpServerTest, RejectsWrongTokenWithoutDisclosure) {
  const std::string token = kToken;
  for (const std::string& request :
       {get("/page"), get("/other"), get("/page?token="), get("/page?token=" + token + "x"),
        get("/page?token=" + token.substr(1)), get("/page?tokens=" + token), get("/" + token),
        "GET /page HTTP/1.1\r\nAuthorization: Basic " + token + "\r\n\r\n",
        "GET /page HTTP/1.1\r\nX-Authorization: Bearer " + token + "\r\n\r\n"}) {
    const std::string answer = ask(request);
    EXPECT_TRUE(answer.starts_with("HTTP/1.0 401 Unauthorized\r\n")) << request << answer;
    EXPECT_EQ(answer.find("<p>"), std::string::npos) << request;
  }
}

TEST_F(HttpServerTest, TakesARequestInPieces) {
  const wire::Socket socket = connect();
  for (const char byte : get(with_token("/page"))) send(socket, std::string(1, byte));
  EXPECT_TRUE(receive(socket).starts_with("HTTP/1.0 200 "));
}

TEST_F(HttpServerTest, RejectsMalformedRequests) {
  EXPECT_TRUE(ask("POST " + with_token("/page") + " HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 405 "));
  EXPECT_TRUE(ask("\n\n").starts_with("HTTP/1.0 405 "));
  EXPECT_TRUE(ask("GET\n\n").starts_with("HTTP/1.0 401 "));
  EXPECT_TRUE(ask(std::string(4097, 'x')).starts_with("HTTP/1.0 431 "));
}

TEST_F(HttpServerTest, ServesOthersBesideClientsThatSendNothing) {
  std::vector<wire::Socket> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(connect());
  EXPECT_TRUE(ask(get(with_token("/page"))).starts_with("HTTP/1.0 200 "));
  EXPECT_EQ(receive(silent.front()), "") << "it is the oldest, and is closed";
  EXPECT_EQ(receive(silent.back()), "") << "it is late, and is closed";
}

TEST_F(HttpServerTest, ServesOthersDespiteIdleClient) {
  const wire::Socket slow = connect();
  send(slow, get(with_token("/large")));
  EXPECT_TRUE(ask(get(with_token("/page"))).starts_with("HTTP/1.0 200 "));
  const std::string part = receive(slow);
  EXPECT_TRUE(ask(get(with_token("/page"))).starts_with("HTTP/1.0 200 "));
  EXPECT_TRUE(part.starts_with("HTTP/1.0 200 "));
}

TEST_F(HttpServerTest, SendsEventsToAllReaders) {
  std::list<wire::Socket> readers;
  for (int i = 0; i < 3; ++i) {
    readers.push_back(connect());
    send(readers.back(), get(with_token("/events")));
    const std::string head = receive(readers.back(), "data: first\n\n");
    EXPECT_NE(head.find("Content-Type: text/event-stream\r\n"), std::string::npos) << head;
  }
  server.send_event("{\"a\":1}");
  for (const wire::Socket& reader : readers) EXPECT_EQ(receive(reader, "\n\n"), "data: {\"a\":1}\n\n");
  readers.pop_front();  // the others continue
  server.send_event("{\"a\":2}");
  for (const wire::Socket& reader : readers) EXPECT_EQ(receive(reader, "\n\n"), "data: {\"a\":2}\n\n");
}

class FewClients : public HttpServerTest {
 protected:
  FewClients() : HttpServerTest({.max_clients = 2, .patience_s = 3600}) {}
};

TEST_F(FewClients, TheOldestMakesRoom) {
  const wire::Socket first = connect(), second = connect(), third = connect();
  EXPECT_EQ(receive(first), "");
  send(third, get("/page"));
  EXPECT_TRUE(receive(third).starts_with("HTTP/1.0 200 "));
}

class FewReaders : public HttpServerTest {
 protected:
  FewReaders() : HttpServerTest({.max_readers = 2, .max_pending_bytes = 100}) {}
};

TEST_F(FewReaders, HaveALimit) {
  std::vector<wire::Socket> readers;
  for (int i = 0; i < 2; ++i) {
    readers.push_back(connect());
    send(readers.back(), get("/events"));
    EXPECT_TRUE(receive(readers.back(), "first\n\n").starts_with("HTTP/1.0 200 "));
  }
  EXPECT_TRUE(ask(get("/events")).starts_with("HTTP/1.0 503 "));
  EXPECT_TRUE(ask(get("/page")).starts_with("HTTP/1.0 200 ")) << "requests have places of their own";
}

TEST_F(FewReaders, MissEventsInsteadOfTakingMemory) {
  const wire::Socket reader = connect();
  send(reader, get("/events"));
  receive(reader, "first\n\n");
  server.send_event(std::string(200, 'x'));  // more bytes than may be pending
  EXPECT_TRUE(ask(get("/page")).starts_with("HTTP/1.0 200 ")) << "the event was taken and left out";
  server.send_event("next");
  EXPECT_EQ(receive(reader, "\n\n"), "data: next\n\n");
}

}  // namespace
}  // namespace trireme::http
