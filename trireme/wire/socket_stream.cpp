#include "trireme/wire/internal/socket_stream.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace trireme::wire {
namespace {

msghdr message_of(std::span<const iovec> parts) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  return message;
}

}  // namespace

Moved moved(ssize_t result, int& error) {
  if (result > 0) return {.flow = Flow::kMoved, .bytes = static_cast<std::size_t>(result)};
  if (result == 0) return {.flow = Flow::kEnded};
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {.flow = Flow::kNotNow};
  error = errno;
  return {.flow = Flow::kFailed};
}

Moved SocketStream::read(std::span<const iovec> parts) {
  msghdr message = message_of(parts);
  return moved(::recvmsg(socket_.fd(), &message, MSG_DONTWAIT), error_);
}

Moved SocketStream::write(std::span<const iovec> parts) {
  msghdr message = message_of(parts);
  return moved(::sendmsg(socket_.fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL), error_);
}

std::string SocketStream::failure() const { return std::strerror(error_); }

}  // namespace trireme::wire
