#pragma once
// The partitions that one thread owns. A state machine: it takes events, and handles several at once; its
// outputs go to its creator. A tick visits only partitions with pending work. All calls on one thread at a
// time; it reads the server's state through ServerFacts.

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "trireme/ps/internal/key_lists.h"
#include "trireme/ps/internal/owner_event.h"
#include "trireme/ps/internal/partition.h"
#include "trireme/ps/server.h"

namespace trireme::ps {

/// State of the server that partitions read without waiting: written by its loop, read by all owners.
struct ServerFacts {
  std::function<std::int64_t()> now_ns;
  std::atomic<std::int64_t> lease_until_ns{0};
  std::atomic<std::int64_t> copy_budget_bytes{0};  ///< owners take from it
  std::atomic<std::uint64_t> bytes_copied{0};
};

/// An output of an owner, for the loop to carry out.
struct PendingReply {
  wire::ConnectionId to;
  wire::Message message;
};
struct ServerMessage {
  ServerId to;
  wire::Message message;
};
struct CoordinatorMessage {
  wire::Message message;
};
struct PartitionSave {
  SaveTask task;
};
struct StaleMap {};
struct RejectedMessage {
  std::string what;
};
/// Stable versions of primaries; 0: the partition has ended.
struct StableVersions {
  std::vector<PartitionVersion> versions;
};
using OwnerOutput = std::variant<PendingReply, ServerMessage, CoordinatorMessage, PartitionSave, StaleMap,
                                 RejectedMessage, StableVersions>;

class PartitionOwner final : private PartitionOutbox {
 public:
  PartitionOwner(ServerFacts& facts, const PartitionOptions& options, std::function<void(OwnerOutput)> emit);

  void take(const OwnerEvent& event);
  /// Handles the taken events.
  void go_on();

  ReplicaReport report(PartitionId partition) const;
  /// Without its queue, which it does not have.
  HeldStatus status() const;
  /// How many partitions the next tick visits.
  std::size_t num_ticking() const { return ticking_.size(); }

 private:
  struct OwnedPartition {
    Partition partition;
    Version reported = 0;  ///< last reported stable version
    bool is_touched = false, is_ticking = false;
  };

  /// To another server.
  struct Line {
    bool is_connected = false;
    std::int64_t next_call_ns = 0;  ///< while there is none: a message makes the loop connect
  };

  void handle(const OwnerEvent& event, const MapEvent& map);
  void handle(const OwnerEvent& event, const ConnectedEvent&);
  void handle(const OwnerEvent& event, const ClosedEvent&);
  void handle(const OwnerEvent& event, const TickEvent&);
  void handle(const OwnerEvent&, const CallEvent& call) { call.call(*this); }
  void handle(const OwnerEvent&, const StopEvent&) {}
  void handle(const OwnerEvent& event, const Ticks& ticks);
  template <class Head>
  void handle(const OwnerEvent& event, const Head& head);
  /// The body with the keys of its hash; none, and its sender was notified, where they are unknown.
  std::optional<wire::Buffer> whole_body(const OwnerEvent& event, const Request& head);
  std::optional<wire::Buffer> whole_body(const OwnerEvent& event, const Pull& head);
  template <class Head>
  std::optional<wire::Buffer> whole_body(const OwnerEvent& event, const Head&) {
    return event.body;
  }
  std::optional<wire::Buffer> known_body(const OwnerEvent& event, PartitionId partition, TableId table,
                                         std::uint64_t hash);
  bool keep_early(const OwnerEvent& event);
  /// Those for which it is time, and those for which it is too late.
  void take_early();
  void touch(PartitionId id, OwnedPartition& owned);
  void report_stable(PartitionId id, OwnedPartition& owned, std::vector<PartitionVersion>& versions);

  void answer(wire::ConnectionId to, wire::Message message) override {
    emit_(PendingReply{to, std::move(message)});
  }
  void reply(wire::ConnectionId to, const Reply& reply) override { replies_[to].push_back(reply); }
  void send_replies();
  void to_server(ServerId server, wire::Message message) override;
  void to_coordinator(wire::Message message) override { emit_(CoordinatorMessage{std::move(message)}); }
  void map_is_old() override { emit_(StaleMap{}); }
  const ClusterMap& map() const override { return *members_; }
  std::int64_t now_ns() const override { return facts_.now_ns(); }
  std::int64_t lease_until_ns() const override { return facts_.lease_until_ns.load(); }
  bool may_copy(std::size_t bytes) override;
  void save(SaveTask task) override { emit_(PartitionSave{std::move(task)}); }
  void rejected(const std::string& what) override { emit_(RejectedMessage{what}); }
  PartitionCounts& counts() override { return counts_; }

  ServerFacts& facts_;
  PartitionOptions options_;
  std::function<void(OwnerOutput)> emit_;
  /// A message of an epoch that the map here does not have yet.
  struct Early {
    OwnerEvent::What what;
    wire::ConnectionId connection = 0;
    ServerId server = kNoServer;
    wire::Buffer body;
    std::int64_t since_ns = 0;
  };
  std::deque<Early> early_;
  std::size_t early_bytes_ = 0;
  bool takes_early_ = false;
  std::shared_ptr<const ClusterMap> members_ = std::make_shared<ClusterMap>();
  std::map<PartitionId, OwnedPartition> partitions_;
  std::map<ServerId, Line> lines_;
  std::map<wire::ConnectionId, KeyLists> key_lists_;  ///< that each has sent
  PartitionCounts counts_;
  std::map<wire::ConnectionId, std::vector<Reply>> replies_;  ///< since go_on()
  std::vector<PartitionId> touched_;                          ///< since go_on()
  std::vector<PartitionId> ticking_;                          ///< touched since they were last seen idle
};

}  // namespace trireme::ps
