#include "trireme/wire/store_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/wire/internal/complaints.h"
#include "trireme/wire/internal/store_table.h"
#include "trireme/wire/store_client.h"

namespace trireme::wire {
namespace {

// Interval at which late connections are closed and accepting resumes. Without either, the loop has no timer.
constexpr int kSweep_ms = 50;
// Limit of connections without a valid proof. Above it, the oldest of them is closed.
constexpr std::size_t kMaxStrangers = 512;
constexpr std::size_t kReadBytes = 64 << 10;

/// Maximum number of open descriptors of the process.
std::size_t max_descriptors() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 1024;
}

/// Keepalive probes detect hosts that have lost power.
void keep_alive(int fd) {
  const int on = 1, idle_s = 60, every_s = 20, times = 3;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

/// All connections, on the server's thread.
class StoreServer::Loop {
 public:
  Loop(StoreServer& server, Socket listening, StoreServerOptions options)
      : server_(server),
        options_(std::move(options)),
        listening_(std::move(listening)),
        complaints_(text("the store at ", server_.endpoint_.text(), ": "), options_.complaints_every_s) {
    epoll_ = Socket(::epoll_create1(EPOLL_CLOEXEC));
    if (epoll_.fd() < 0) throw InternalError(text("no epoll descriptor: ", std::strerror(errno)));
    watch(EPOLL_CTL_ADD, server_.stop_.fd(), EPOLLIN);
    watch(EPOLL_CTL_ADD, listening_.fd(), EPOLLIN);
  }

  void run() {
    std::array<epoll_event, 64> events;
    while (true) {
      const bool timed = num_timed_ > 0 || table_.somebody_waits() || !accepting_;
      const int count =
          ::epoll_wait(epoll_.fd(), events.data(), static_cast<int>(events.size()), wait_ms(timed));
      for (int i = 0; i < count; ++i) {
        const int fd = events[static_cast<std::size_t>(i)].data.fd;
        if (fd == server_.stop_.fd()) return tell(complaints_.take_rest());
        if (fd == listening_.fd()) {
          accept_all();
        } else {
          serve_or_close(fd);
        }
      }
      send_replies();
      if (timed) sweep();
      tell(complaints_.take_count(now_s()));
    }
  }

 private:
  struct Connection {
    Socket socket;
    std::string peer;
    Nonce nonce{};
    std::optional<store::Session> session = {};  ///< set after the proof of the secret
    bool waits = false;                          ///< for the reply to a kWait
    std::string in = {};
    std::string out = {};
    std::size_t sent = 0;                   ///< bytes of `out`
    std::optional<Deadline> deadline = {};  ///< of the pending proof, request or reply
    bool proved() const { return session.has_value(); }
  };

  int wait_ms(bool timed) const {
    if (timed) return kSweep_ms;
    const auto due_s = complaints_.due_s();
    return due_s ? static_cast<int>(std::ceil(std::clamp((*due_s - now_s()) * 1000, 0.0, 1e9))) : -1;
  }

  void watch(int how, int fd, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    ::epoll_ctl(epoll_.fd(), how, fd, &event);
  }

  void accept_all() {
    while (true) {
      Socket socket(::accept4(listening_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      const int error = errno;
      if (socket.fd() < 0) {
        if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) rest_from_accepting();
        if (error == EINTR || error == ECONNABORTED) continue;
        return;
      }
      const int fd = socket.fd();
      keep_alive(fd);
      if (!make_room()) continue;
      Connection connection{.socket = std::move(socket), .peer = {}, .nonce = random_nonce()};
      connection.peer = connection.socket.peer().text();
      connection.out = store::encode_hello(connection.nonce);
      watch(EPOLL_CTL_ADD, fd, EPOLLIN);
      ++num_strangers_;
      Connection& kept = connections_.insert_or_assign(fd, std::move(connection)).first->second;
      start_clock(kept);
      flush(kept);
    }
  }

  void rest_from_accepting() {
    accepting_ = false;
    watch(EPOLL_CTL_MOD, listening_.fd(), 0);
    if (num_strangers_ > 0) drop_oldest_stranger();
  }

  /// Drops an unauthenticated connection if needed. Returns whether one more may be accepted.
  bool make_room() {
    const bool is_full = connections_.size() >= max_connections_;
    if (num_strangers_ >= max_strangers_ || (is_full && num_strangers_ > 0)) drop_oldest_stranger();
    return connections_.size() < max_connections_;
  }

  void drop_oldest_stranger() {
    const Connection* oldest = nullptr;
    for (const auto& [fd, each] : connections_) {
      if (!each.proved() && (oldest == nullptr || each.deadline->at() < oldest->deadline->at()))
        oldest = &each;
    }
    if (oldest != nullptr) close(oldest->socket.fd());
  }

  void start_clock(Connection& connection) {
    if (!connection.deadline) ++num_timed_;
    connection.deadline = Deadline::after_s(options_.patience_s);
  }

  void stop_clock(Connection& connection) {
    if (connection.deadline) --num_timed_;
    connection.deadline.reset();
  }

  void close(int fd) {
    const auto found = connections_.find(fd);
    if (found == connections_.end()) return;
    stop_clock(found->second);
    table_.forget(fd);
    if (found->second.proved()) {
      server_.count_clients(--num_clients_);
    } else {
      --num_strangers_;
    }
    connections_.erase(found);
  }

  void refuse(const Connection& connection, const std::string& why) {
    const std::string& peer = connection.peer;
    tell(complaints_.add(
        text("the store at ", server_.endpoint_.text(), " has closed the connection of ", peer, ": ", why),
        peer, now_s()));
    close(connection.socket.fd());
  }

  void tell(const std::optional<std::string>& line) const {
    if (line) options_.complain(*line);
  }

  /// Lack of memory for a request ends only its connection.
  void serve_or_close(int fd) {
    try {
      serve(fd);
    } catch (const std::exception& error) {
      const auto found = connections_.find(fd);
      if (found != connections_.end()) refuse(found->second, error.what());
    }
  }

  void serve(int fd) {
    const auto found = connections_.find(fd);
    if (found == connections_.end()) return;  // an earlier event closed it
    Connection& connection = found->second;
    if (!connection.out.empty()) {
      flush(connection);
      return;
    }
    switch (read(connection)) {
      case Read::kOpen:
        return understand(connection);
      case Read::kClosed:
        return close(fd);
    }
  }

  enum class Read { kOpen, kClosed };
  Read read(Connection& connection) {
    std::array<char, kReadBytes> buffer;
    // Before authentication, reads no more than the bytes of the proof.
    const std::size_t most = connection.proved() ? buffer.size() : store::kAnswerBytes - connection.in.size();
    const ssize_t got = ::recv(connection.socket.fd(), buffer.data(), most, 0);
    if (got > 0) connection.in.append(buffer.data(), static_cast<std::size_t>(got));
    const bool open = got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
    return open ? Read::kOpen : Read::kClosed;
  }

  void understand(Connection& connection) {
    if (!connection.proved()) {
      if (connection.in.size() == store::kAnswerBytes) check_proof(connection);
      return;
    }
    if (connection.waits && !connection.in.empty()) {
      refuse(connection, "it has sent a request before it had the reply to the last");
      return;
    }
    if (connection.in.size() < store::kLengthBytes) return update_clock(connection);
    const std::size_t length = store::decode_length(connection.in);
    if (length > store::kMaxFrameBytes) {
      refuse(connection, text("it has announced a request of ", human_bytes(length), "; at most ",
                              human_bytes(store::kMaxFrameBytes), " are possible"));
      return;
    }
    const std::size_t whole = store::kLengthBytes + length + store::kProofBytes;
    connection.in.reserve(whole);  // safe: the peer has proved the secret
    if (connection.in.size() < whole) return update_clock(connection);
    // Moved out together with its memory: large frames are rare.
    const std::string frame = std::exchange(connection.in, {});
    const auto payload = connection.session->open(frame);
    if (!payload) {
      refuse(
          connection,
          "what has come is not the next request of the one that has shown that it knows the job's secret: "
          "something on the way has changed, repeated or inserted it");
      return;
    }
    const auto request = store::decode_request(*payload);
    if (!request) {
      refuse(connection, "what it has sent is no request");
      return;
    }
    apply(connection, *request);
  }

  void update_clock(Connection& connection) {
    if (connection.in.empty()) {
      stop_clock(connection);
    } else if (!connection.deadline) {
      start_clock(connection);
    }
  }

  void check_proof(Connection& connection) {
    const auto answer = store::decode_answer(connection.in);
    connection.in.clear();
    if (!answer) {
      refuse(connection, "it does not speak as a rank of this version does");
      return;
    }
    const auto proof_of = [&](store::Side side) {
      return store::proof(options_.secret, side, connection.nonce, answer->nonce);
    };
    if (!equal(answer->proof, proof_of(store::Side::kClient))) {
      const std::string verdict = store::encode_verdict(nullptr);
      ::send(connection.socket.fd(), verdict.data(), verdict.size(), MSG_NOSIGNAL);
      refuse(connection, "it has another secret than this job, or none");
      return;
    }
    connection.session.emplace(options_.secret, store::Side::kServer, connection.nonce, answer->nonce);
    --num_strangers_;
    server_.count_clients(++num_clients_);
    const Digest own = proof_of(store::Side::kServer);
    send(connection, store::encode_verdict(&own));
  }

  void apply(Connection& connection, const store::Request& request) {
    if (const auto reply = table_.apply(connection.socket.fd(), request)) {
      send(connection, connection.session->seal(store::encode(*reply)));
    } else {
      connection.waits = true;
      stop_clock(connection);
    }
  }

  void send_replies() {
    for (const auto& [fd, reply] : table_.take_replies()) {
      const auto found = connections_.find(fd);
      if (found == connections_.end()) continue;
      found->second.waits = false;
      send(found->second, found->second.session->seal(store::encode(reply)));
    }
  }

  void send(Connection& connection, std::string bytes) {
    connection.out = std::move(bytes);
    connection.sent = 0;
    start_clock(connection);
    flush(connection);
  }

  void flush(Connection& connection) {
    const int fd = connection.socket.fd();
    const std::string_view left = std::string_view(connection.out).substr(connection.sent);
    const ssize_t sent = ::send(fd, left.data(), left.size(), MSG_NOSIGNAL);
    if (sent > 0) connection.sent += static_cast<std::size_t>(sent);
    if (connection.sent == connection.out.size()) connection.out = std::string();
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return close(fd);
    // While the peer does not take a reply, no further request is read.
    watch(EPOLL_CTL_MOD, fd, connection.out.empty() ? EPOLLIN : EPOLLOUT);
    if (connection.out.empty() && connection.proved()) stop_clock(connection);
  }

  void sweep() {
    std::vector<int> late;
    for (const auto& [fd, each] : connections_) {
      if (each.deadline && each.deadline->expired()) late.push_back(fd);
    }
    for (const int fd : late) {
      const Connection& connection = connections_.at(fd);
      refuse(connection, !connection.out.empty() ? "it does not take what it is sent"
                         : connection.proved()   ? "it has not sent the rest of a request"
                                                 : "it has not shown that it knows the job's secret");
    }
    if (accepting_) return;
    accepting_ = true;
    watch(EPOLL_CTL_MOD, listening_.fd(), EPOLLIN);
  }

  StoreServer& server_;
  const StoreServerOptions options_;
  Socket listening_;
  Socket epoll_;
  bool accepting_ = true;
  std::unordered_map<int, Connection> connections_;  ///< by descriptor
  store::StoreTable table_;
  int num_timed_ = 0;  ///< connections with a deadline
  const std::size_t max_strangers_ = std::clamp<std::size_t>(max_descriptors() / 4, 1, kMaxStrangers);
  const std::size_t max_connections_ = max_descriptors() - max_descriptors() / 16;
  std::size_t num_strangers_ = 0;
  int num_clients_ = 0;
  Complaints complaints_;
};

StoreServer::StoreServer(Socket listening, StoreServerOptions options)
    : endpoint_(listening.local()), stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  options.secret = secret_at(endpoint_, options.secret);
  if (stop_.fd() < 0) throw InternalError(text("no event descriptor: ", std::strerror(errno)));
  loop_ = std::make_unique<Loop>(*this, std::move(listening), std::move(options));
  thread_ = std::thread([this] { loop_->run(); });
  pthread_setname_np(thread_.native_handle(), "trireme-store");
}

StoreServer::~StoreServer() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_.fd(), &one, sizeof one);
  thread_.join();
}

int StoreServer::num_clients() const {
  const std::lock_guard lock(mutex_);
  return num_clients_;
}

bool StoreServer::wait_until_left(double timeout_s) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, Deadline::after_s(timeout_s).at(), [&] { return num_clients_ == 0; });
}

void StoreServer::count_clients(int count) {
  {
    const std::lock_guard lock(mutex_);
    num_clients_ = count;
  }
  changed_.notify_all();
}

}  // namespace trireme::wire
