#include "trireme/comm/internal/rendezvous.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(std::max<std::int64_t>(1, static_cast<std::int64_t>(seconds * 1000)));
}

std::string where(const LaunchEnvironment& environment) {
  return text(environment.master_addr, ":", environment.master_port);
}

struct Addresses {
  explicit Addresses(const LaunchEnvironment& environment) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    const int error = getaddrinfo(environment.master_addr.c_str(),
                                  std::to_string(environment.master_port).c_str(), &hints, &first);
    if (error != 0) {
      throw CommError(text("MASTER_ADDR is '", environment.master_addr, "', which is not a known host: ",
                           gai_strerror(error), "; set it to the name or address of the host of rank 0"));
    }
  }
  ~Addresses() { freeaddrinfo(first); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  addrinfo* first = nullptr;
};

// The socket that the store listens on. Bound here and not by c10d, so that it stays on the given address and
// a port that is taken has a message of its own.
int bind_master(const LaunchEnvironment& environment) {
  const Addresses addresses(environment);
  const addrinfo& address = *addresses.first;
  const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw CommError(text("no socket: ", std::strerror(errno)));
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd, address.ai_addr, address.ai_addrlen) == 0 && ::listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  ::close(fd);
  const std::string what =
      error == EADDRINUSE      ? "another program listens there (another training run?): end it, or set "
                                 "MASTER_PORT to a free port for all ranks"
      : error == EADDRNOTAVAIL ? "this host does not have that address: set MASTER_ADDR to an address of the "
                                 "host of rank 0 for all ranks"
                               : "set MASTER_ADDR and MASTER_PORT to an address and port that rank 0 may use";
  throw CommError(text("rank 0 cannot serve the rendezvous at ", where(environment), ": ",
                       std::strerror(error), "; ", what));
}

bool can_connect(const addrinfo& address) {
  const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool connected = ::connect(fd, address.ai_addr, address.ai_addrlen) == 0;
  ::close(fd);
  return connected;
}

// c10d's own client fills the screen with warnings while rank 0 is still starting.
void wait_until_served(const LaunchEnvironment& environment, const Deadline& deadline, double timeout_s) {
  const Addresses addresses(environment);
  while (true) {
    for (const addrinfo* address = addresses.first; address; address = address->ai_next) {
      if (can_connect(*address)) return;
    }
    if (deadline.expired()) {
      throw CommError(text("rank ", environment.rank, " of ", environment.world_size,
                           " found nobody serving the rendezvous at ", where(environment), " within ",
                           human_duration(timeout_s),
                           ": rank 0 did not start, or MASTER_ADDR and MASTER_PORT "
                           "are not those of rank 0"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> connect_store(const LaunchEnvironment& environment, const Deadline& deadline,
                                              double timeout_s) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(environment.master_port);
  options.isServer = environment.rank == 0 && !environment.master_store_is_external;
  options.waitWorkers = false;
  options.useLibUV = false;
  options.timeout = milliseconds(timeout_s);
  if (options.isServer) {
    options.masterListenFd =
        environment.master_listen_fd ? *environment.master_listen_fd : bind_master(environment);
  } else {
    wait_until_served(environment, deadline, timeout_s);
  }
  try {
    return c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options);
  } catch (const std::exception& error) {
    throw CommError(text("rank ", environment.rank, " could not use the rendezvous at ", where(environment),
                         ": ", error.what()));
  }
}

std::vector<Arrival> arrive(c10d::Store& store, const LaunchEnvironment& environment, const Arrival& mine,
                            const Deadline& deadline, double timeout_s) {
  const auto key = [](int rank) { return text("arrival/", rank); };
  store.set(key(environment.rank), text(mine.world_size, "\n", mine.version, "\n", mine.backend, "\n",
                                        mine.host_id, "\n", mine.pid));
  std::vector<Arrival> arrivals;
  std::vector<std::string> missing;
  for (int rank = 0; rank < environment.world_size; ++rank) {
    while (!store.check({key(rank)}) && !deadline.expired()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (!store.check({key(rank)})) {
      missing.push_back(std::to_string(rank));
      continue;
    }
    const auto fields = split(store.get_to_str(key(rank)), '\n');
    arrivals.push_back(
        {std::stoi(fields.at(0)), fields.at(1), fields.at(2), fields.at(3), std::stoi(fields.at(4))});
  }
  if (!missing.empty()) {
    throw CommError(text("ranks ", join(missing), " of ", environment.world_size, " did not arrive within ",
                         human_duration(timeout_s), " at ", where(environment)));
  }
  return arrivals;
}

}  // namespace trireme::comm
