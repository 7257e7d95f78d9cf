#include "trireme/comm/internal/rendezvous.h"

#include <arpa/inet.h>
#include <c10/util/Logging.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

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

/// The launcher has bound the port for us; listening is ours to do.
int listen_on(int fd, const LaunchEnvironment& environment) {
  if (::listen(fd, SOMAXCONN) == 0) return fd;
  throw CommError(text("rank 0 cannot serve the rendezvous at ", where(environment),
                       " on the socket that the ", "launcher handed down: ", std::strerror(errno),
                       "; start the program through trireme launch, or unset TRIREME_MASTER_FD"));
}

/// A blocking connect to a host that is cut off would wait for minutes.
bool can_connect(const addrinfo& address, const Deadline& deadline) {
  const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  bool connected = ::connect(fd, address.ai_addr, address.ai_addrlen) == 0;
  if (!connected && errno == EINPROGRESS) {
    pollfd answer{.fd = fd, .events = POLLOUT, .revents = 0};
    const int ready =
        ::poll(&answer, 1, static_cast<int>(whole_milliseconds(deadline.remaining_s()).count()));
    int error = 0;
    socklen_t length = sizeof error;
    connected = ready == 1 && ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
  }
  ::close(fd);
  return connected;
}

// c10d's own client fills the screen with warnings while rank 0 is still starting.
void wait_until_served(const LaunchEnvironment& environment, const Deadline& deadline, double timeout_s) {
  const Addresses addresses(environment);
  while (true) {
    for (const addrinfo* address = addresses.first; address; address = address->ai_next) {
      if (can_connect(*address, deadline)) return;
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

// c10d's client waits for answers without limit. This bounds the waits of the connections to the master that
// this process has made and not bounded yet.
void bound_waits(const LaunchEnvironment& environment, double timeout_s) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    const int port = peer.ss_family == AF_INET    ? ntohs(reinterpret_cast<sockaddr_in*>(&peer)->sin_port)
                     : peer.ss_family == AF_INET6 ? ntohs(reinterpret_cast<sockaddr_in6*>(&peer)->sin6_port)
                                                  : -1;
    timeval limit{};
    length = sizeof limit;
    if (port != environment.master_port || ::getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, &length) != 0 ||
        limit.tv_sec || limit.tv_usec) {
      continue;
    }
    const std::int64_t limit_ms = whole_milliseconds(timeout_s).count();
    limit.tv_sec = static_cast<time_t>(limit_ms / 1000);
    limit.tv_usec = static_cast<suseconds_t>(limit_ms % 1000 * 1000);
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  }
}

std::string encode(const Arrival& arrival) {
  return text(arrival.world_size, "\n", arrival.version, "\n", arrival.backend, "\n", arrival.host_id, "\n",
              arrival.pid);
}

Arrival decode(const std::string& encoded) {
  const auto fields = split(encoded, '\n');
  return {.world_size = std::stoi(fields.at(0)),
          .version = fields.at(1),
          .backend = fields.at(2),
          .host_id = fields.at(3),
          .pid = std::stoi(fields.at(4))};
}

std::string arrival_key(int rank) { return text("arrival/", rank); }

constexpr const char* kFailureKey = "rendezvous_failure";
constexpr auto kPollPeriod = std::chrono::milliseconds(2);

/// What `mine` and `theirs` disagree about; empty when they agree.
std::string disagreement(int rank, const Arrival& mine, int other, const Arrival& theirs) {
  const auto differ = [&](const char* what, const auto& my_value, const auto& their_value) {
    return text("ranks disagree about the world: rank ", rank, " (pid ", mine.pid, ") has ", what, " ",
                my_value, ", rank ", other, " (pid ", theirs.pid, ") has ", what, " ", their_value,
                ": start all ranks of a world in the same way");
  };
  if (mine.version != theirs.version) return differ("protocol version", mine.version, theirs.version);
  if (mine.world_size != theirs.world_size) return differ("WORLD_SIZE", mine.world_size, theirs.world_size);
  if (mine.backend != theirs.backend) return differ("backend", mine.backend, theirs.backend);
  return {};
}

// The first rank that sees a fault says so to all; rank 0 keeps the store up until they have had time to
// look.
[[noreturn]] void fail_rendezvous(c10d::Store& store, const LaunchEnvironment& environment,
                                  const std::string& cause) {
  store.set(kFailureKey, cause);
  if (environment.rank == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
  throw CommError(cause);
}

std::string who_is_missing(c10d::Store& store, const LaunchEnvironment& environment, double timeout_s) {
  std::vector<std::string> missing;
  std::vector<std::string> arrived;
  for (int rank = 0; rank < environment.world_size; ++rank) {
    if (store.check({arrival_key(rank)})) {
      arrived.push_back(text(rank, " (pid ", decode(store.get_to_str(arrival_key(rank))).pid, ")"));
    } else {
      missing.push_back(std::to_string(rank));
    }
  }
  return text(missing.size() == 1 ? "rank " : "ranks ", trireme::join(missing), " of ",
              environment.world_size, " did not arrive within ", human_duration(timeout_s), " at ",
              where(environment), "; arrived: ", trireme::join(arrived),
              ". See why the missing did not start, or raise the timeout");
}

std::string local_address(const addrinfo& towards) {
  const int fd = ::socket(towards.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return {};
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  char name[NI_MAXHOST] = "";
  // Connecting a datagram socket sends nothing: it makes the kernel choose the route.
  if (::connect(fd, towards.ai_addr, towards.ai_addrlen) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0) {
    ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, name, sizeof name, nullptr, 0, NI_NUMERICHOST);
  }
  ::close(fd);
  return name;
}

// c10d logs warnings about connections that end, which our errors say better.
void quieten_c10d() {
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = 2;
}

}  // namespace

c10::intrusive_ptr<c10d::Store> StoreConnector::connect(double timeout_s) {
  const bool serve = environment_.rank == 0 && !environment_.master_store_is_external && !serves_;
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(environment_.master_port);
  options.isServer = serve;
  options.waitWorkers = false;
  options.useLibUV = false;
  options.timeout = whole_milliseconds(timeout_s);
  quieten_c10d();
  if (serve) {
    options.masterListenFd = environment_.master_listen_fd
                                 ? listen_on(*environment_.master_listen_fd, environment_)
                                 : bind_master(environment_);
    serves_ = true;
  } else {
    wait_until_served(environment_, Deadline::after_s(timeout_s), timeout_s);
  }
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(environment_.master_addr, options);
    bound_waits(environment_, timeout_s);
    return store;
  } catch (const std::exception& error) {
    throw CommError(text("rank ", environment_.rank, " could not use the rendezvous at ", where(environment_),
                         ": ", error.what()));
  }
}

std::vector<Arrival> arrive(c10d::Store& store, const LaunchEnvironment& environment, const Arrival& mine,
                            double timeout_s) {
  const auto deadline = Deadline::after_s(timeout_s);
  if (store.add(text("num_arrivals/", environment.rank), 1) > 1) {
    const bool known = store.check({arrival_key(environment.rank)});
    const std::string first =
        known ? text(" (pid ", decode(store.get_to_str(arrival_key(environment.rank))).pid, ")") : "";
    throw CommError(text("two processes say that they are rank ", environment.rank, " of ",
                         environment.world_size, ": one", first, " and this one (pid ", mine.pid,
                         "): give each its own RANK, and each run its own MASTER_PORT"));
  }
  store.set(arrival_key(environment.rank), encode(mine));
  std::vector<Arrival> arrivals;
  for (int rank = 0; rank < environment.world_size; ++rank) {
    while (!store.check({arrival_key(rank)})) {
      if (store.check({kFailureKey})) throw CommError(store.get_to_str(kFailureKey));
      if (deadline.expired())
        fail_rendezvous(store, environment, who_is_missing(store, environment, timeout_s));
      std::this_thread::sleep_for(kPollPeriod);
    }
    const Arrival theirs = decode(store.get_to_str(arrival_key(rank)));
    const std::string differs = disagreement(environment.rank, mine, rank, theirs);
    if (!differs.empty()) fail_rendezvous(store, environment, differs);
    arrivals.push_back(theirs);
  }
  return arrivals;
}

void leave_world(c10d::Store& store, const LaunchEnvironment& environment,
                 const std::vector<int>& to_wait_for, double timeout_s) {
  const auto key = [](int rank) { return text("left/", rank); };
  store.set(key(environment.rank), "1");
  if (environment.rank != 0 || environment.master_store_is_external) return;
  const auto deadline = Deadline::after_s(timeout_s);
  for (const int rank : to_wait_for) {
    while (!store.check({key(rank)})) {
      if (deadline.expired()) {
        throw CommError(text("rank ", rank, " did not leave within ", human_duration(timeout_s)));
      }
      std::this_thread::sleep_for(kPollPeriod);
    }
  }
}

std::string interface_towards(const LaunchEnvironment& environment) {
  if (environment.world_size == 1) return environment.master_addr;
  const Addresses addresses(environment);
  for (const addrinfo* address = addresses.first; address; address = address->ai_next) {
    std::string local = local_address(*address);
    if (!local.empty()) return local;
  }
  throw CommError(
      text("this host has no way to ", where(environment), ": check MASTER_ADDR and the network"));
}

}  // namespace trireme::comm
