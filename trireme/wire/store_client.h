#pragma once
// A connection to a StoreServer. Every call ends by its deadline, with a result or a CommError that names the
// server, even if the server is stopped, unreachable or gone. After a failed call the next one connects
// again. Bytes that were changed or added on the network are such a failure. Thread-safe: calls take turns,
// and the wait for the turn counts.

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/wire/secret.h"
#include "trireme/wire/socket.h"

namespace trireme::wire {

namespace store {
struct Request;
struct Reply;
}  // namespace store

/// The secret that both ends of a connection at the endpoint prove; where it is empty and only this host
/// reaches the endpoint, user_key(). Throws InvalidArgument, with the remedy, where others reach it.
Secret secret_at(const Endpoint& endpoint, const Secret& secret);

/// Until the deadline no process listened.
class NobodyServes : public CommError {
 public:
  using CommError::CommError;
};

/// Which server, the secret that it asks for, and how long a call may take.
struct StoreClientOptions {
  Endpoint endpoint;
  Secret secret = {};
  double timeout_s = 60;  ///< of a call, and of connecting
};

class StoreClient {
 public:
  /// Connects; as long as no process listens, tries again until the timeout. Throws NobodyServes, CommError
  /// (no store, another secret), InvalidArgument (see secret_at()).
  explicit StoreClient(StoreClientOptions options);
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  /// With the secret that is proved.
  const StoreClientOptions& options() const { return options_; }

  /// Sets the value of a key, for any earlier value.
  void set(const std::string& key, const std::string& value, double timeout_s);
  /// The value; empty where the key is not set. Does not wait for one: wait() does.
  std::optional<std::string> get(const std::string& key, double timeout_s);
  /// The sum. A key that is not there counts as 0; values are decimal text.
  std::int64_t add(const std::string& key, std::int64_t number, double timeout_s);
  /// Whether all of them are there.
  bool check(const std::vector<std::string>& keys, double timeout_s);
  /// The same once they are, or after the timeout.
  bool wait(const std::vector<std::string>& keys, double timeout_s);
  /// Sets the value if the old one is `expected` (empty: or if there is none). The value that is there then.
  std::string compare_set(const std::string& key, const std::string& expected, const std::string& value,
                          double timeout_s);
  /// Whether it was there.
  bool remove(const std::string& key, double timeout_s);
  std::int64_t num_keys(double timeout_s);
  /// Closes the connection until the next call, which may be never.
  void disconnect();

 private:
  class Turn;
  struct Connection;

  struct Answer;
  Answer call(const store::Request& request, double timeout_s, double reply_takes_s = 0);
  Answer exchange(std::string message, const Deadline& deadline);
  std::unique_ptr<Connection> introduce(Socket socket, const Deadline& deadline) const;

  const bool has_secret_;
  const StoreClientOptions options_;
  std::mutex mutex_;
  std::condition_variable turn_over_;
  bool in_turn_ = false;  ///< a call is in progress, which alone uses the connection
  std::unique_ptr<Connection> connection_;
};

}  // namespace trireme::wire
