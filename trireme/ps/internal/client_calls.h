#pragma once
// Calls of a client that are under way, and their parts. Values and small objects of one thread.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/text.h"
#include "trireme/compress/codec.h"
#include "trireme/ps/client_node.h"
#include "trireme/ps/internal/key_lists.h"

namespace trireme::ps {

/// A pending call: several messages may have to be answered. `done` is called once.
class Call {
 public:
  Call(Done done, std::size_t num_parts, std::int64_t due_ns, double timeout_s)
      : done_(std::move(done)), num_left_(num_parts), due_ns_(due_ns), timeout_s_(timeout_s) {
    result_.min_clock = UINT64_MAX;
  }
  bool is_over() const { return !done_; }
  std::int64_t due_ns() const { return due_ns_; }
  /// After which it was due at first.
  double timeout_s() const { return timeout_s_; }
  void set_due_ns(std::int64_t due_ns) { due_ns_ = due_ns; }

  void part_done(const Result& part) {
    result_.version = std::max(result_.version, part.version);
    result_.min_clock = std::min(result_.min_clock, part.min_clock);
    result_.changed = part.changed;
    result_.values = part.values;
    result_.num_updates = part.num_updates;
    if (--num_left_ == 0) end();
  }
  void fail(ErrorKind error, std::string message) {
    result_.error = error;
    result_.message = std::move(message);
    end();
  }

 private:
  void end() {
    if (const Done done = std::exchange(done_, nullptr)) done(result_);
  }

  Done done_;
  std::size_t num_left_;
  std::int64_t due_ns_;
  double timeout_s_;
  Result result_;
};

/// A numbered request, until it is acknowledged; also when its caller waits no longer.
struct OutgoingRequest {
  Request head;
  wire::Priority priority = 4;
  wire::Buffer body;
  std::shared_ptr<Call> call;  ///< may be none
  std::int64_t sent_ns = 0;    ///< 0: to be sent
  std::int64_t again_ns = 0;   ///< rejected for now: goes again then
  bool takes_credit = false;
  std::uint64_t keys = 0;      ///< hash of those in the body
  bool includes_keys = false;  ///< the other side does not have them
};

/// All that a client asks of one partition, by number.
struct Lane {
  Sequence last = 0;
  std::map<Sequence, OutgoingRequest> requests;
  Epoch begun = 0;           ///< of the partition, when this was
  Version last_version = 0;  ///< acknowledged or seen: the part that would be lost with all replicas
};

struct OutgoingPull {
  Pull head;
  wire::Buffer body;
  std::shared_ptr<Call> call;
  std::span<float> out;  ///< where there is a place for the values
  /// Of a sparse table: which row of the answer belongs where among the rows of `out`.
  std::vector<std::pair<std::uint32_t, std::size_t>> places;
  std::uint32_t row_elements = 0;
  const compress::Codec* codec = nullptr;  ///< of the answer; none: values as they are
  std::size_t num_values = 0;              ///< that an encoded one has
  std::int64_t sent_ns = 0;
  std::int64_t again_ns = 0;
  std::uint64_t keys = 0;      ///< hash of those in the body
  bool includes_keys = false;  ///< the other side does not have them
};

/// Lists of keys that were sent over one connection: half of the other side's cache.
class SentKeys {
 public:
  bool has(std::uint64_t hash) const { return sizes_.contains(hash); }
  void add(std::uint64_t hash, std::size_t num_bytes) {
    if (num_bytes > kMostBytes || !sizes_.try_emplace(hash, num_bytes).second) return;
    order_.push_back(hash);
    num_bytes_ += num_bytes;
    for (; num_bytes_ > kMostBytes || order_.size() > kMostLists; order_.pop_front()) {
      num_bytes_ -= sizes_.at(order_.front());
      sizes_.erase(order_.front());
    }
  }

 private:
  static constexpr std::size_t kMostBytes = KeyLists::kMostBytes / 2, kMostLists = KeyLists::kMostLists / 2;
  std::map<std::uint64_t, std::size_t> sizes_;
  std::deque<std::uint64_t> order_;
  std::size_t num_bytes_ = 0;
};

}  // namespace trireme::ps
