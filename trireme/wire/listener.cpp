#include "trireme/wire/internal/listener.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "trireme/base/error.h"

namespace trireme::wire {
namespace {

namespace fs = std::filesystem;

/// Creates the folder, or requires that other users have no access to it.
void require_private_folder(const fs::path& folder, const Address& address) {
  if (::mkdir(folder.c_str(), 0700) == 0) return;
  const int error = errno;
  struct stat found {};
  require(::stat(folder.c_str(), &found) == 0 && S_ISDIR(found.st_mode), "cannot make the folder of ",
          address, ": ", std::strerror(error));
  require(found.st_uid == ::geteuid() && (found.st_mode & 077) == 0, "the folder of ", address,
          " is open to other users: chmod 700 ", folder.string());
}

/// Whether the file is a socket without a listening process.
bool is_left_over(const SocketAddress& address, const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0 || !S_ISSOCK(found.st_mode)) return false;
  const Socket probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return ::connect(probe.fd(), address.get(), address.length) != 0 && errno == ECONNREFUSED;
}

}  // namespace

void require_proof(const SocketAddress& address, const Address& whole, Security::Kind security) {
  require(security != Security::Kind::kLocal || address.is_local(), "other hosts reach ", whole,
          ", and they would not be authenticated: give a secret or TLS certificates, or say that the "
          "network is trusted (Security::none())");
}

Listener::Listener(const Address& address, Security::Kind security) {
  const auto parsed = ChannelAddress::parse(address);
  kind_ = parsed.kind;
  const auto found = resolve(parsed);
  for (const auto& each : found) require_proof(each, address, security);
  const bool has_file = kind_ == TransportKind::kUnix && !is_without_file(parsed.path);
  if (has_file) {
    const fs::path folder = fs::path(parsed.path).parent_path();
    require_private_folder(folder.empty() ? fs::path(".") : folder, address);
    if (is_left_over(found.front(), parsed.path)) ::unlink(parsed.path.c_str());
  }
  socket_ = Socket(::socket(found.front().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  ::setsockopt(socket_.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (socket_.fd() < 0 || ::bind(socket_.fd(), found.front().get(), found.front().length) != 0 ||
      ::listen(socket_.fd(), SOMAXCONN) != 0) {
    const int error = errno;
    throw CommError(text("cannot listen at ", address, ": ", std::strerror(error),
                         error == EADDRINUSE ? "; another program listens there: end it, or choose another"
                                             : "; choose another address"));
  }
  address_ = kind_ == TransportKind::kTcp ? near_end(fd()) : parsed.text();
  if (has_file) path_ = parsed.path;
}

Listener::~Listener() {
  if (fd() >= 0 && !path_.empty()) ::unlink(path_.c_str());
}

Listener::Accepted Listener::accept(Socket& socket) {
  while (true) {
    socket = Socket(::accept4(fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.fd() >= 0) return Accepted::kOne;
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return Accepted::kNoDescriptors;
    }
    if (errno != EINTR && errno != ECONNABORTED) return Accepted::kNone;
  }
}

}  // namespace trireme::wire
