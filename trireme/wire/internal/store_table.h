#pragma once
// Keys and values of a store, and its waiting clients. The caller numbers clients. Not thread-safe.

#include <string>
#include <unordered_map>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/wire/internal/store_protocol.h"

namespace trireme::wire::store {

class StoreTable {
 public:
  /// The reply, a view of the table and of the request until the next call; empty for a wait that has to be
  /// waited for, whose reply comes from take_replies().
  std::optional<Reply> apply(int client, const Request& request);
  /// Replies to waits that are over, by client.
  std::vector<std::pair<int, Reply>> take_replies();
  /// The client is gone: it waits for nothing.
  void forget(int client);
  bool somebody_waits() const { return !waits_.empty(); }

 private:
  struct Wait {
    std::vector<std::string> keys;
    Deadline deadline;
  };
  Reply add(const std::string& key, std::int64_t number);
  Reply compare_set(const Request& request);
  void put(const std::string& key, std::string_view value);
  /// The first of the keys that is not there; null when all are.
  const std::string* first_missing(const std::vector<std::string>& keys) const;
  void go_on_waiting(int client);

  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<int, Wait> waits_;
  std::unordered_multimap<std::string, int> waiting_for_;  ///< each waiting client, by one missing key
  std::vector<std::pair<int, Reply>> replies_;
};

}  // namespace trireme::wire::store
