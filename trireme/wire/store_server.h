#pragma once
// The rendezvous store of a job, with keys and values: one thread serves it until the object's end. A client
// proves first that it has the job's secret; before that, the server reads 72 bytes and no more. Every
// request and every reply after that is authenticated as well. A connection that sends anything but whole
// requests, is slow over one, or takes no reply is closed, without effect on others. No connection can block
// the thread. Thread-safe.

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "trireme/wire/secret.h"
#include "trireme/wire/socket.h"

namespace trireme::wire {

/// Security of the server, and timeouts for clients.
struct StoreServerOptions {
  Secret secret = {};
  /// Called on the server's thread with rejected clients and reasons: the first ten at once, then their
  /// number in complaints_every_s, and the rest at its end.
  std::function<void(const std::string&)> complain = [](const std::string&) {};
  double patience_s = 10;  ///< for a proof, for the rest of a request, for a reply to be taken
  double complaints_every_s = 60;
};

class StoreServer {
 public:
  /// `listening` is a socket of listen_at(). Throws InvalidArgument when other hosts reach it and there is no
  /// secret.
  StoreServer(Socket listening, StoreServerOptions options);
  /// Closes all connections.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  const Endpoint& endpoint() const { return endpoint_; }
  int num_clients() const;
  /// Until no client is connected; false when some still are after the timeout. A process that ends, however
  /// it does, is not connected any more.
  bool wait_until_left(double timeout_s);

 private:
  class Loop;
  void count_clients(int count);

  Endpoint endpoint_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int num_clients_ = 0;
  Socket stop_;  ///< an eventfd
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

}  // namespace trireme::wire
