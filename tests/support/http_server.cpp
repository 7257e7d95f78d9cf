#include "tests/support/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "trireme/base/text.h"

namespace trireme::test {
namespace {

/// Reads up to the empty line. Returns an empty string if the peer has closed the connection.
std::string read_question(int connection) {
  std::string question;
  char byte = 0;
  while (!question.ends_with("\r\n\r\n")) {
    if (::recv(connection, &byte, 1, 0) != 1) return {};
    question += byte;
  }
  return question;
}

std::string header_in(const std::string& question, const std::string& name) {
  const std::size_t found = question.find("\r\n" + name + ": ");
  if (found == std::string::npos) return {};
  const std::size_t begin = found + name.size() + 4;
  return question.substr(begin, question.find("\r\n", begin) - begin);
}

}  // namespace

HttpServer::HttpServer(std::string at)
    : address_(std::move(at)), listens_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  ::setenv("no_proxy", "127.0.0.1", 1);  // in spite of proxies in the environment
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::inet_addr(address_.c_str());
  socklen_t size = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listens_, any, size) != 0 || ::listen(listens_, 64) != 0 ||
      ::getsockname(listens_, any, &size) != 0)
    throw std::runtime_error("no port for a server");
  port_ = ntohs(address.sin_port);
  accepts_ = std::thread([this] { accept_all(); });
}

HttpServer::~HttpServer() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ends_.notify_all();
  ::shutdown(listens_, SHUT_RDWR);
  accepts_.join();
  ::close(listens_);
  for (std::thread& connection : connections_) connection.join();
}

std::string HttpServer::url(const std::string& path) const {
  return text("http://", address_, ":", port_, "/", path);
}

void HttpServer::put(const std::string& path, const HttpFile& file) {
  const std::lock_guard lock(mutex_);
  files_["/" + path] = file;
}

void HttpServer::twist(const Twist& twist) {
  const std::lock_guard lock(mutex_);
  twist_ = twist;
}

int HttpServer::num_questions() const {
  const std::lock_guard lock(mutex_);
  return num_questions_;
}

void HttpServer::accept_all() {
  for (int connection = 0; (connection = ::accept(listens_, nullptr, nullptr)) >= 0;)
    connections_.emplace_back([this, connection] { serve(connection); });
}

/// Serves one request per connection. The connection ends with the response.
void HttpServer::serve(int connection) {
  if (const std::string asked = read_question(connection); !asked.empty()) {
    const std::vector<std::string> words = split(asked, ' ');
    std::unique_lock lock(mutex_);
    const HttpQuestion question{num_questions_++, words[1], header_in(asked, "Range")};
    HttpAnswer answer{answer_to(question)};
    if (twist_) answer = twist_(question, answer.bytes).value_or(answer);
    lock.unlock();
    for (std::size_t sent = 0; sent < answer.bytes.size();) {
      const ssize_t now =
          ::send(connection, answer.bytes.data() + sent, answer.bytes.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) break;
      sent += static_cast<std::size_t>(now);
    }
    lock.lock();
    if (answer.hangs) ends_.wait(lock, [this] { return ending_; });
  }
  ::close(connection);
}

std::string HttpServer::answer_to(const HttpQuestion& question) const {
  const auto found = files_.find(question.path.substr(0, question.path.find('?')));
  if (found == files_.end()) return http_status(404, "there is no such thing");
  const std::string& content = found->second.content;
  std::size_t first = 0, last = 0;
  if (std::sscanf(question.range.c_str(), "bytes=%zu-%zu", &first, &last) != 2) return http_status(400);
  if (first >= content.size())
    return text("HTTP/1.1 416 Range Not Satisfiable\r\nConnection: close\r\nContent-Range: bytes */",
                content.size(), "\r\nContent-Length: 0\r\n\r\n");
  last = std::min(last, content.size() - 1);
  return text("HTTP/1.1 206 Partial Content\r\nConnection: close\r\nETag: ", found->second.etag,
              "\r\nContent-Range: bytes ", first, "-", last, "/", content.size(),
              "\r\nContent-Length: ", last - first + 1, "\r\n\r\n", content.substr(first, last - first + 1));
}

std::string http_status(int status, const std::string& body) {
  return text("HTTP/1.1 ", status, " Status\r\nConnection: close\r\nContent-Length: ", body.size(),
              "\r\n\r\n", body);
}

}  // namespace trireme::test
