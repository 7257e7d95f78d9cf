#include "tests/support/relay.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <stdexcept>

namespace trireme::test {
namespace {

/// The next bytes. Empty at the end.
std::string read_some(int fd) {
  std::array<char, 4096> buffer;
  const ssize_t got = ::read(fd, buffer.data(), buffer.size());
  return {buffer.data(), static_cast<std::size_t>(got > 0 ? got : 0)};
}

/// Whether the message has its header and all bytes of its content length.
bool is_whole(const std::string& message) {
  constexpr const char* kLength = "Content-Length: ";
  const auto end = message.find("\r\n\r\n");
  const auto length = message.find(kLength);
  if (end == std::string::npos || length == std::string::npos) return false;
  return message.size() - end - 4 >= std::stoul(message.substr(length + std::string(kLength).size()));
}

std::string read_message(int fd) {
  std::string result;
  while (!is_whole(result)) {
    const std::string more = read_some(fd);
    if (more.empty()) break;
    result += more;
  }
  return result;
}

}  // namespace

Relay::Relay(int to_port, int num_answered, Passes passes)
    : to_port_(to_port),
      num_answered_(num_answered),
      passes_(passes),
      listens_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listens_, generic, length) != 0 || ::listen(listens_, 1) != 0 ||
      ::getsockname(listens_, generic, &length) != 0)
    throw std::runtime_error("no free port");
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { take(); });
}

Relay::~Relay() {
  ::shutdown(listens_, SHUT_RDWR);  // ends a pending accept()
  if (thread_.joinable()) thread_.join();
  ::close(listens_);
}

void Relay::take() {
  const int from = ::accept(listens_, nullptr, nullptr);
  if (from < 0) return;
  ::shutdown(listens_, SHUT_RDWR);  // only one connection is accepted; the next is rejected
  for (int i = 0; i < num_answered_; ++i) {
    const std::string answer = answer_to(read_message(from));
    [[maybe_unused]] const auto sent = ::send(from, answer.data(), answer.size(), MSG_NOSIGNAL);
  }
  request_ = read_message(from);
  if (passes_ == Passes::kAtOnce) answer_to(request_);
  while (!read_some(from).empty()) {  // until the client closes the connection
  }
  ::close(from);
}

std::string Relay::pass() {
  thread_.join();
  return answer_to(request_);
}

std::string Relay::answer_to(const std::string& request) const {
  const int to = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(to_port_));
  std::string answer;
  if (::connect(to, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::send(to, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()))
    answer = read_message(to);
  ::close(to);
  return answer;
}

}  // namespace trireme::test
