#include "tests/support/ports.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>

namespace trireme::test {

TakenPort::TakenPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (fd_ < 0 || ::bind(fd_, generic, length) != 0 || ::listen(fd_, 1) != 0 ||
      ::getsockname(fd_, generic, &length) != 0) {
    throw std::runtime_error("no free port");
  }
  number_ = ntohs(address.sin_port);
}

TakenPort::~TakenPort() { ::close(fd_); }

int free_port() { return TakenPort().number(); }

}  // namespace trireme::test
