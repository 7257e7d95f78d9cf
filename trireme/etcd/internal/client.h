#pragma once
// The used part of etcd's interface, version 3, over its JSON gateway: reads, transactions, leases. The
// members are tried in turn, beginning with the one that answered last, each for a limited time. A call that
// throws Unreachable may have happened all the same, or may happen yet: writes compare revisions, so that a
// repetition has no effect. One thread.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/http/http_client.h"
#include "trireme/wire/socket.h"

namespace trireme::etcd {

/// No member has answered; it has the asked members and their errors.
class Unreachable : public CommError {
 public:
  using CommError::CommError;
};

/// A member has answered that it will not: a request that is too large, a lease that is gone, no space left.
class Rejected : public DataError {
 public:
  using DataError::DataError;
};

using Revision = std::int64_t;
using LeaseId = std::int64_t;

struct KeyValue {
  std::string key, value;
  Revision created = 0;   ///< the revision that made this key
  Revision modified = 0;  ///< the last one that wrote it
  LeaseId lease = 0;
};

/// Writes that happen when all conditions hold, as one revision.
struct Transaction {
  struct Condition {
    std::string key;
    enum class What : std::uint8_t { kCreated, kModified } what = What::kCreated;
    Revision is = 0;  ///< 0: there is no such key
  };
  struct Write {
    std::string key, value;
    LeaseId lease = 0;
  };
  struct Removal {
    std::string first, end;  ///< keys from one to before the other; only the first where `end` is empty
  };
  std::vector<Condition> when;
  std::vector<Write> writes;
  std::vector<Removal> removals;
};

struct Outcome {
  bool happened = false;
  Revision revision = 0;
  /// Otherwise: the keys of the conditions, as they are.
  std::vector<std::optional<KeyValue>> instead = {};
};

struct Listing {
  std::vector<KeyValue> pairs;  ///< in the order of their keys
  bool more = false;
};

class Client {
 public:
  explicit Client(std::vector<wire::Endpoint> members, double try_s = 1);

  /// The value that a majority has, not an old one.
  std::optional<KeyValue> get(const std::string& key, Revision* at = nullptr);
  /// Keys from `first` to before `end`, as they are, or as they were at a revision.
  Listing list(const std::string& first, const std::string& end, std::int64_t most, Revision at = 0);
  Outcome commit(const Transaction& transaction);
  LeaseId grant(std::int64_t ttl_s);
  /// Whether it was still there. It lives for its whole time again.
  bool keep_alive(LeaseId lease);
  void revoke(LeaseId lease);

 private:
  std::string call(const std::string& path, const std::string& json);

  std::vector<wire::Endpoint> members_;
  std::size_t next_ = 0;  ///< the one to ask first
  double try_s_;
  http::Client http_;
};

/// The end of all keys that begin so, for Removal and list(); ASCII, not empty.
std::string end_of(std::string prefix);

}  // namespace trireme::etcd
