#include "trireme/ps/server.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "trireme/ps/internal/membership.h"
#include "trireme/ps/internal/partition.h"

namespace trireme::ps {

class Server::Hosted final : public PartitionOutbox {
 public:
  explicit Hosted(ServerOptions options)
      : options_(std::move(options)), membership_(options_.coordinator, options_.heartbeat_s) {}

  void start(wire::Surroundings& surroundings) {
    surroundings_ = &surroundings;
    incarnation_ = surroundings.random();
    copied_ns_ = surroundings.now_ns();
    membership_.start(surroundings);
    on_timer();
  }

  void on_timer() {
    refill();
    for (auto& [id, partition] : partitions_) partition.on_tick();
    membership_.on_tick(heartbeat());
    surroundings_->start_timer(options_.tick_s);
  }

  void on_connected(wire::ConnectionId connection, const wire::PeerIdentity& peer) {
    if (membership_.on_connected(connection)) return membership_.on_tick(heartbeat());
    roles_[connection] = peer.role;
    for (auto& [server, line] : lines_) {
      if (line.connection != connection) continue;
      line.is_connected = true;
      for (auto& [id, partition] : partitions_) partition.on_server_connected(server);
    }
  }

  void on_closed(wire::ConnectionId connection) {
    if (membership_.on_closed(connection)) return;
    roles_.erase(connection);
    std::erase_if(lines_, [&](const auto& line) { return line.second.connection == connection; });
    for (auto& [id, partition] : partitions_) partition.on_worker_closed(connection);
  }

  void on_message(wire::ConnectionId connection, const wire::Message& message) {
    if (membership_.is_coordinator(connection)) return on_coordinator(message);
    if (!on_peer(connection, message)) refused("a message that a " + roles_[connection] + " does not send");
  }

  void leave() {
    leaving_ = true;
    membership_.beat_soon();
  }
  bool is_released() const { return membership_.standing().released; }
  const ServerCounts& counts() const { return counts_; }

  ReplicaReport report(PartitionId id) const {
    const auto found = partitions_.find(id);
    if (found == partitions_.end()) return {};
    const Replica& replica = found->second.replica();
    return {.holds_all = replica.holds_all(),
            .is_primary = replica.is_primary(),
            .epoch = replica.epoch(),
            .version = replica.state().version(),
            .digest = replica.state().digest()};
  }

  // What partitions ask for.
  void answer(wire::ConnectionId connection, wire::Message message) override {
    surroundings_->network().send(connection, std::move(message));
  }
  void to_server(ServerId server, wire::Message message) override {
    Line& line = lines_[server];
    if (line.connection == 0) {
      const ServerEntry* entry = map().server(server);
      if (entry == nullptr) return;
      line.connection = surroundings_->network().connect(entry->address);
      line.incarnation = entry->incarnation;
    }
    if (line.is_connected) surroundings_->network().send(line.connection, std::move(message));
  }
  void to_coordinator(wire::Message message) override { membership_.send(std::move(message)); }
  void map_is_old() override { membership_.beat_soon(); }
  const ClusterMap& map() const override { return membership_.map(); }
  std::int64_t now_ns() const override { return surroundings_->now_ns(); }
  std::int64_t lease_until_ns() const override { return membership_.lease_until_ns(); }
  bool may_copy(std::size_t bytes) override {
    if (copy_budget_ <= 0) return false;
    copy_budget_ -= static_cast<double>(bytes);
    counts_.bytes_copied += bytes;
    return true;
  }
  void refused(const std::string& what) override {
    ++counts_.refused;
    surroundings_->report("server " + options_.name + " refused " + what);
  }

 private:
  struct Line {
    wire::ConnectionId connection = 0;
    Incarnation incarnation = 0;
    bool is_connected = false;
  };

  Heartbeat heartbeat() const {
    Heartbeat heartbeat = {.role = Role::kServer,
                           .name = options_.name,
                           .incarnation = incarnation_,
                           .host = options_.host,
                           .address = options_.address,
                           .weight = options_.weight,
                           .leaving = leaving_,
                           .versions = {}};
    for (const auto& [id, partition] : partitions_) {
      if (partition.replica().is_primary()) heartbeat.versions.push_back({id, partition.replica().stable()});
    }
    return heartbeat;
  }

  /// A budget of at most a quarter of a second's copies, so that a pause does not become a burst.
  void refill() {
    const std::int64_t now = now_ns();
    const double seconds = static_cast<double>(now - std::exchange(copied_ns_, now)) * 1e-9;
    copy_budget_ =
        std::min(copy_budget_ + seconds * options_.copy_bytes_per_s, options_.copy_bytes_per_s / 4);
  }

  void on_coordinator(const wire::Message& message) {
    switch (membership_.take(message)) {
      case Membership::Taken::kReply:
        return;
      case Membership::Taken::kMap:
        return on_map();
      case Membership::Taken::kNo:
      case Membership::Taken::kMalformed:
        return refused("a message of the coordinator");
    }
  }

  void on_map() {
    const ServerId self = own_id();
    for (PartitionId id = 0; id < map().partitions.size(); ++id) {
      const PartitionEntry& entry = map().partitions[id];
      const bool has_role =
          self != kNoServer &&
          (entry.learner == self || std::count(entry.chain.begin(), entry.chain.end(), self) > 0);
      if (!has_role && !partitions_.contains(id)) continue;
      partitions_.try_emplace(id, id, *this, partition_options()).first->second.on_map(entry, self);
      if (!has_role) partitions_.erase(id);
    }
  }

  PartitionOptions partition_options() const {
    return {.replication = {.retry_s = options_.retry_s,
                            .suspect_s = options_.suspect_s,
                            .confirmed_s = options_.confirmed_s}};
  }

  /// From the map itself, which may come before the answer to the first heartbeat.
  ServerId own_id() const {
    for (const auto& [id, server] : map().servers) {
      if (server.name == options_.name && server.incarnation == incarnation_) return id;
    }
    return kNoServer;
  }

  /// Which server is at the other end of a connection that was made from here.
  ServerId server_of(wire::ConnectionId connection) const {
    for (const auto& [server, line] : lines_) {
      if (line.connection == connection) return server;
    }
    return kNoServer;
  }

  template <class Head, class Handle>
  bool pass(const wire::Message& message, const Handle& handle) {
    const auto head = head_of<Head>(message);
    if (!head || head->partition >= map().partitions.size()) return head && map().partitions.empty();
    const auto found = partitions_.find(head->partition);
    // A server without the partition answers like one with an old epoch.
    Partition none(head->partition, *this, partition_options());
    handle(found == partitions_.end() ? none : found->second, *head);
    return true;
  }

  /// Whether the message is one that such a peer may send.
  bool on_peer(wire::ConnectionId connection, const wire::Message& message) {
    const bool is_server = roles_[connection] == "server";
    const ServerId server = server_of(connection);
    switch (static_cast<MessageKind>(message.kind)) {
      case MessageKind::kPing: {
        if (!head_of<Ping>(message)) return false;
        answer(connection, message_of(Pong{{incarnation_}}, {}, kUrgent));
        return true;
      }
      case MessageKind::kRequest:
        return pass<Request>(message, [&](Partition& partition, const Request& head) {
          partition.on_request(connection, head, message.body);
        });
      case MessageKind::kPull:
        return pass<Pull>(message, [&](Partition& partition, const Pull& head) {
          partition.on_pull(connection, head, message.body);
        });
      case MessageKind::kReplicate:
        return is_server && pass<Replicate>(message, [&](Partition& partition, const Replicate& head) {
                 partition.on_replicate(connection, head, message.body);
               });
      case MessageKind::kReplicateAck:
        return server != kNoServer &&
               pass<ReplicateAck>(message, [&](Partition& partition, const ReplicateAck& head) {
                 partition.on_replicate_ack(server, head);
               });
      case MessageKind::kSnapshotPart:
        return is_server && pass<SnapshotPart>(message, [&](Partition& partition, const SnapshotPart& head) {
                 partition.on_snapshot_part(connection, head, message.body);
               });
      case MessageKind::kSnapshotAck:
        return server != kNoServer &&
               pass<SnapshotAck>(message, [&](Partition& partition, const SnapshotAck& head) {
                 partition.on_snapshot_ack(server, head);
               });
      default:
        return false;
    }
  }

  ServerOptions options_;
  wire::Surroundings* surroundings_ = nullptr;
  Incarnation incarnation_ = 0;
  Membership membership_;
  bool leaving_ = false;
  ServerCounts counts_;
  double copy_budget_ = 0;
  std::int64_t copied_ns_ = 0;
  std::map<ServerId, Line> lines_;  ///< to those that follow in some chain
  std::map<wire::ConnectionId, std::string> roles_;
  std::map<PartitionId, Partition> partitions_;
};

Server::Server(ServerOptions options) : hosted_(std::make_unique<Hosted>(std::move(options))) {}
Server::~Server() = default;

void Server::leave() { hosted_->leave(); }
bool Server::is_released() const { return hosted_->is_released(); }
const ServerCounts& Server::counts() const { return hosted_->counts(); }
Server::ReplicaReport Server::report(PartitionId partition) const { return hosted_->report(partition); }

void Server::on_start(wire::Surroundings& surroundings) { hosted_->start(surroundings); }
void Server::on_connected(wire::ConnectionId connection, const wire::PeerIdentity& peer) {
  hosted_->on_connected(connection, peer);
}
void Server::on_message(wire::ConnectionId connection, wire::Message message) {
  hosted_->on_message(connection, message);
}
void Server::on_closed(wire::ConnectionId connection, wire::CloseCause, const std::string&) {
  hosted_->on_closed(connection);
}
void Server::on_timer(wire::TimerId) { hosted_->on_timer(); }

}  // namespace trireme::ps
