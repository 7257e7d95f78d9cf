// Targets to which a data server may redirect this host.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>

#include <cstdlib>

#include "tests/security/own_internet.h"
#include "tests/support/http_server.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/http/http_client.h"
#include "trireme/http/internal/redirection.h"
#include "trireme/wire/socket.h"

namespace trireme::http {
namespace {

using test::HttpAnswer;
using test::HttpQuestion;
using test::HttpServer;
using test::OwnInternet;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string redirection_to(const std::string& url, const std::string& body = "") {
  return text("HTTP/1.1 302 Found\r\nConnection: close\r\nLocation: ", url,
              "\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
}

std::string page(const std::string& body) {
  return text("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
}

/// Sends these bytes for any request.
void always(HttpServer& server, const std::string& bytes) {
  server.twist([bytes](const HttpQuestion&, const std::string&) { return HttpAnswer{bytes}; });
}

std::string port_of(const HttpServer& server) { return Target::parse(server.url("")).port; }

Reply get(const std::string& url, bool private_redirects = false) {
  return Client().send({.url = url,
                        .timeout_s = 30,
                        .most_bytes = 1 << 16,
                        .way = Way::kAsEnvironmentSays,
                        .private_redirects = private_redirects});
}

class Redirection : public testing::Test {
 protected:
  Redirection() {
    for (const char* name :
         {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "NO_PROXY"})
      ::unsetenv(name);
    always(secret_, page("what only this host reaches"));
  }
  HttpServer source_, secret_;
};

TEST_F(Redirection, NamedSourceIsReadAtAnyAddress) {
  EXPECT_EQ(get(secret_.url("x")).body, "what only this host reaches");
  EXPECT_EQ(get("http://localhost:" + port_of(secret_) + "/x").body, "what only this host reaches");
}

TEST_F(Redirection, RejectsPrivateAddressInAnyForm) {
  for (const char* host : {"127.0.0.1",
                           "127.0.0.2",
                           "localhost",
                           "LOCALHOST",
                           "localhost.",
                           "a.localhost",
                           "0.0.0.0",
                           "0",
                           "127.1",
                           "2130706433",
                           "0x7f000001",
                           "0x7f.1",
                           "017700000001",
                           "0177.0.0.1",
                           "10.1.2.3",
                           "167837955",
                           "172.16.0.1",
                           "172.31.255.255",
                           "192.168.0.1",
                           "169.254.169.254",
                           "100.64.0.1",
                           "224.0.0.1",
                           "255.255.255.255",
                           "[::1]",
                           "[::]",
                           "[::ffff:127.0.0.1]",
                           "[::ffff:7f00:1]",
                           "[::127.0.0.1]",
                           "[64:ff9b::7f00:1]",
                           "[64:ff9b:1::1]",
                           "[2002:7f00:1::]",
                           "[fe80::1]",
                           "[fc00::1]",
                           "[fd12::1]",
                           "[fec0::1]",
                           "[ff02::1]",
                           "%31%32%37.0.0.1",
                           "user:word@127.0.0.1"}) {
    always(source_, redirection_to(text("http://", host, ":", port_of(secret_), "/x")));
    const Reply reply = get(source_.url("x"));
    EXPECT_EQ(reply.rejection, Rejection::kPrivate) << host << ": " << reply.failure << reply.body;
    EXPECT_EQ(reply.status, 0) << host;
    EXPECT_THAT(reply.failure, AllOf(HasSubstr("it redirects to http://"), HasSubstr("no public address"),
                                     Not(HasSubstr("word"))));
  }
  EXPECT_EQ(secret_.num_questions(), 0);
}

TEST_F(Redirection, RejectsRedirectionToItselfAtPrivateAddress) {
  source_.twist([](const HttpQuestion& question, const std::string&) {
    return HttpAnswer{question.path == "/x" ? redirection_to("/y") : page("y")};
  });
  EXPECT_EQ(get(source_.url("x")).rejection, Rejection::kPrivate);
  EXPECT_EQ(get(source_.url("x"), true).body, "y");
}

TEST_F(Redirection, FollowsPrivateAddressOnRequest) {
  always(source_, redirection_to(secret_.url("x"), "it is over there"));
  EXPECT_EQ(get(source_.url("x"), true).body, "what only this host reaches");
}

TEST_F(Redirection, RejectsEndlessRedirectionsAfterEight) {
  always(source_, redirection_to("/again"));
  const Reply reply = get(source_.url("x"), true);
  EXPECT_EQ(reply.rejection, Rejection::kRedirection);
  EXPECT_THAT(reply.failure, HasSubstr("after 8 other redirections"));
  EXPECT_EQ(source_.num_questions(), 9);
}

TEST_F(Redirection, ToOtherProtocolsIsRejected) {
  for (const char* url :
       {"file:///etc/passwd", "ftp://192.0.2.1/x", "gopher://192.0.2.1:25/x", "dict://192.0.2.1/x"}) {
    always(source_, redirection_to(url));
    for (const bool private_redirects : {false, true}) {
      const Reply reply = get(source_.url("x"), private_redirects);
      EXPECT_EQ(reply.rejection, Rejection::kRedirection) << url << ": " << reply.failure << reply.body;
      EXPECT_EQ(reply.status, 0) << url;
    }
  }
}

TEST_F(Redirection, RejectsHttpsToHttpButNotReverse) {
  const Target plain = Target::parse("http://data.example/x"),
               secured = Target::parse("HTTPS://data.example/x");
  EXPECT_EQ(objection(secured, plain), "that gives up HTTPS");
  EXPECT_EQ(objection(plain, secured), "");
  EXPECT_EQ(objection(plain, plain), "");
  EXPECT_EQ(objection(secured, secured), "");
}

TEST_F(Redirection, BodiesOfRedirectionsAndHeadersAreBounded) {
  always(source_, redirection_to(secret_.url("x"), std::string(1 << 20, 'x')));
  EXPECT_THAT(get(source_.url("x"), true).failure, HasSubstr("longer than 65536 bytes"));
  std::string headers = "HTTP/1.1 200 OK\r\nConnection: close\r\n";
  for (int i = 0; i < 300; ++i) headers += text("X-", i, ": ", std::string(1000, 'x'), "\r\n");
  always(source_, headers + "Content-Length: 0\r\n\r\n");
  EXPECT_THAT(get(source_.url("x")).failure, HasSubstr("headers are longer than"));
  std::string informed;
  for (int i = 0; i < 300; ++i)
    informed += text("HTTP/1.1 103 Early\r\nX: ", std::string(1000, 'x'), "\r\n\r\n");
  always(source_, informed + page("at last"));
  EXPECT_THAT(get(source_.url("x")).failure, HasSubstr("headers are longer than"));
}

TEST_F(Redirection, UserOfUrlStaysWithSameServer) {
  EXPECT_EQ(with_user_of("http://a:b@host/x", "http://host:80/y"), "http://a:b@host:80/y");
  EXPECT_EQ(with_user_of("http://a:b@host/x", "http://other/y"), "http://other/y");
  EXPECT_EQ(with_user_of("http://a:b@host/x", "http://host:81/y"), "http://host:81/y");
  EXPECT_EQ(with_user_of("http://a:b@host/x", "https://host/y"), "https://host/y");
  EXPECT_EQ(with_user_of("http://a:b@host/x", "http://c:d@host/y"), "http://c:d@host/y");
}

TEST_F(Redirection, PublicAddressesArePublic) {
  for (const char* host :
       {"8.8.8.8",          "1.1.1.1",         "9.255.255.255",    "11.0.0.0",        "100.63.255.255",
        "100.128.0.0",      "126.255.255.255", "128.0.0.1",        "169.253.0.1",     "172.15.0.1",
        "172.32.0.1",       "192.0.1.1",       "192.167.0.1",      "192.169.0.1",     "223.255.255.255",
        "2606:4700::1111",  "::ffff:8.8.8.8",  "64:ff9b::808:808", "2002:808:808::1", "data.example",
        "localhost.example"})
    EXPECT_FALSE(is_private(std::string(host))) << host;
}

/// A server that keeps its connection open. It redirects to another path of the same host and serves that.
class KeepsConnection {
 public:
  explicit KeepsConnection(const std::string& host)
      : listening_(wire::listen_at({"127.0.0.1", 0})), host_(host), thread_([this] { serve(); }) {}
  ~KeepsConnection() { thread_.join(); }
  std::string url(const std::string& path) const {
    return text("http://", host_, ":", listening_.local().port, path);
  }

 private:
  void serve() const {
    wire::Socket socket;
    while (socket.fd() < 0)
      socket = wire::Socket(::accept4(listening_.fd(), nullptr, nullptr, SOCK_NONBLOCK));
    try {
      std::string asked;
      while (true) {
        char byte = 0;
        wire::receive_all(socket, std::as_writable_bytes(std::span(&byte, 1)), Deadline::after_s(30));
        asked += byte;
        if (!asked.ends_with("\r\n\r\n")) continue;
        const std::string answer =
            asked.starts_with("GET /x ")
                ? text("HTTP/1.1 302 Found\r\nLocation: ", url("/y"), "\r\nContent-Length: 0\r\n\r\n")
                : "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret";
        wire::send_all(socket, std::as_bytes(std::span(answer)), Deadline::after_s(30));
        asked.clear();
      }
    } catch (const CommError&) {  // the client has closed the connection
    }
  }

  const wire::Socket listening_;
  const std::string host_;
  std::thread thread_;
};

TEST(RedirectionByName, TheAddressThatIsConnectedToCounts) {
  const OwnInternet internet(text(
      test::kPublicAddress, " public.example both.example\n",
      "127.0.0.1 rebound.example both.example\n::1 rebound6.example\n::ffff:127.0.0.1 mapped.example\n"));
  const bool is_there = internet.run([] {
    HttpServer named, secret, open(test::kPublicAddress);
    always(secret, page("what only this host reaches"));
    always(open, page("what everybody reaches"));
    const auto redirected = [&](const std::string& host, const HttpServer& to,
                                bool private_redirects = false) {
      always(named, redirection_to(text("http://", host, ":", port_of(to), "/x")));
      return get(named.url("x"), private_redirects);
    };
    for (const char* host : {"rebound.example", "rebound6.example", "mapped.example"}) {
      const Reply reply = redirected(host, secret);
      EXPECT_EQ(reply.rejection, Rejection::kPrivate) << host << ": " << reply.failure << reply.body;
      EXPECT_THAT(reply.failure, AllOf(HasSubstr(host), HasSubstr("1, which is no public address")));
    }
    EXPECT_EQ(secret.num_questions(), 0);
    EXPECT_EQ(redirected("rebound.example", secret, true).body, "what only this host reaches");
    EXPECT_EQ(redirected("public.example", open).body, "what everybody reaches");
    EXPECT_EQ(redirected("both.example", open).body, "what everybody reaches") << "at its public address";
    EXPECT_EQ(redirected(test::kPublicAddress, open).body, "what everybody reaches");
    // A host that is named as the source is read. The target of its redirection is checked again, on a kept
    // connection, too.
    const KeepsConnection keeps("rebound.example");
    const Reply kept = get(keeps.url("/x"));
    EXPECT_EQ(kept.rejection, Rejection::kPrivate) << kept.failure << kept.body;
  });
  if (!is_there) GTEST_SKIP() << "this user makes no namespaces";
}

TEST(RedirectionByProxy, ProxyConnectsAndIsNotTheTarget) {
  const OwnInternet internet("127.0.0.1 rebound.example\n");
  const bool is_there = internet.run([] {
    HttpServer proxy, secret;
    always(secret, page("what only this host reaches"));
    std::string leads_to;
    proxy.twist([&](const HttpQuestion& question, const std::string&) {
      return HttpAnswer{question.path == "http://data.example/x" ? redirection_to(leads_to)
                                                                 : page(question.path)};
    });
    ::setenv("http_proxy", proxy.url("").c_str(), 1);
    ::setenv("no_proxy", "elsewhere.example,.rebound.example", 1);
    const auto redirected = [&](const std::string& url) {
      leads_to = url;
      return get("http://data.example/x");
    };
    EXPECT_EQ(redirected("http://mirror.example/y").body, "http://mirror.example/y");
    for (const char* host : {"10.0.0.1", "167772161", "localhost", "[::ffff:10.0.0.1]"})
      EXPECT_EQ(redirected(text("http://", host, "/y")).rejection, Rejection::kPrivate) << host;
    const Reply direct = redirected(text("http://rebound.example:", port_of(secret), "/y"));
    EXPECT_EQ(direct.rejection, Rejection::kPrivate) << direct.failure << direct.body;
    EXPECT_EQ(secret.num_questions(), 0);
    ::unsetenv("http_proxy");
  });
  if (!is_there) GTEST_SKIP() << "this user makes no namespaces";
}

}  // namespace
}  // namespace trireme::http
