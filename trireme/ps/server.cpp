#include "trireme/ps/server.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "trireme/base/text.h"
#include "trireme/ps/internal/membership.h"
#include "trireme/ps/internal/owner_pool.h"
#include "trireme/ps/internal/roles.h"

namespace trireme::ps {

class Server::Impl {
 public:
  explicit Impl(ServerOptions options)
      : options_(std::move(options)),
        membership_(options_.coordinator, options_.heartbeat_s),
        owners_(pool_options(options_), facts_,
                [this](OwnerOutput output) { on_output(std::move(output)); }) {}

  void start(wire::Surroundings& surroundings) {
    surroundings_ = &surroundings;
    facts_.now_ns = [&surroundings] { return surroundings.now_ns(); };
    incarnation_ = surroundings.random();
    copied_ns_ = surroundings.now_ns();
    membership_.start(surroundings);
    owners_.start(surroundings);
    on_timer();
  }

  void on_timer() {
    refill();
    owners_.tick();
    membership_.on_tick([this] { return heartbeat(); });
    surroundings_->start_timer(options_.tick_s);
  }

  void on_connected(wire::ConnectionId connection, const wire::PeerIdentity& peer) {
    if (membership_.on_connected(connection)) return membership_.on_tick([this] { return heartbeat(); });
    peers_[connection] = peer;
    for (auto& [server, line] : lines_) {
      if (line.connection != connection) continue;
      line.is_connected = true;
      owners_.notify_connected(server);
    }
  }

  void on_closed(wire::ConnectionId connection) {
    if (membership_.on_closed(connection)) return;
    peers_.erase(connection);
    const ServerId server = server_of(connection);
    lines_.erase(server);
    owners_.notify_closed(connection, server);
  }

  void on_message(wire::ConnectionId connection, wire::Message message) {
    if (membership_.is_coordinator(connection)) return on_coordinator(message);
    if (!on_peer(connection, message))
      rejected("a message that a " + peers_[connection].role + " does not send");
  }

  void leave() {
    leaving_ = true;
    membership_.beat_soon();
  }
  /// A server that never joined the cluster holds nothing.
  bool is_released() const {
    return membership_.last_reply().released || (leaving_ && own_id() == kNoServer);
  }
  ServerHoldings holdings() const {
    ServerHoldings held{.has_tables = !map().tables.empty()};
    for (const PartitionEntry& entry : map().partitions) {
      const bool is_in_chain = std::ranges::find(entry.chain, own_id()) != entry.chain.end();
      held.partitions += is_in_chain || entry.learner == own_id() ? 1 : 0;
      held.alone += is_in_chain && entry.chain.size() == 1 ? 1 : 0;
    }
    return held;
  }
  ServerCounts counts() const {
    return {.rejected = num_rejected_,
            .bytes_copied = facts_.bytes_copied,
            .pauses = owners_.num_pauses(),
            .done_at_once = owners_.num_done_at_once()};
  }
  ReplicaReport report(PartitionId id) const { return owners_.report(id); }

  void ask_status(std::function<void(const ServerStatus&)> done) {
    status_callbacks_.push_back(std::move(done));
    if (status_callbacks_.size() > 1) return;  // a request to the owners is pending
    owners_.ask_status([this](const HeldStatus& held) {
      const ServerStatus status = status_with(held);
      for (const auto& callback : std::exchange(status_callbacks_, {})) callback(status);
    });
  }

 private:
  using SaveKey = std::pair<WorkerLife, RequestId>;
  struct Line {
    wire::ConnectionId connection = 0;
    Incarnation incarnation = 0;
    bool is_connected = false;
  };

  static OwnerPoolOptions pool_options(const ServerOptions& options) {
    return {.num_threads = options.owner_threads,
            .queue = {.most_items = options.most_queued, .most_bytes = options.most_queued_bytes},
            .partition = {.replication = {.retry_s = options.retry_s,
                                          .suspect_s = options.suspect_s,
                                          .confirmed_s = options.confirmed_s}}};
  }

  const ClusterMap& map() const { return membership_.map(); }

  // Outputs of owners.
  void on_output(OwnerOutput output) {
    std::visit([this](auto& each) { on(each); }, output);
  }
  void on(PendingReply& output) { surroundings_->network().send(output.to, std::move(output.message)); }
  void on(ServerMessage& output) {
    Line& line = lines_[output.to];
    if (line.connection == 0) {
      const ServerEntry* entry = map().server(output.to);
      if (entry == nullptr) return;
      line.connection = surroundings_->network().connect(entry->address);
      line.incarnation = entry->incarnation;
    }
    if (line.is_connected) surroundings_->network().send(line.connection, std::move(output.message));
  }
  void on(CoordinatorMessage& output) { membership_.send(std::move(output.message)); }
  void on(PartitionSave& output) {
    const SaveKey key = {output.task.life, output.task.reply.request};
    const bool is_new = saving_.insert_or_assign(key, output.task.connection).second;
    if (!is_new) return;  // a repeated request: it is answered when the part is written
    if (!parts_) parts_ = options_.parts();
    const auto finish = [this, key, self = std::weak_ptr(alive_),
                         reply = output.task.reply](SaveOutcome outcome) {
      surroundings_->post([this, key, self, reply, outcome = std::move(outcome)]() mutable {
        if (!self.expired()) on_saved(key, reply, outcome);
      });
    };
    parts_->save(std::move(output.task.part), finish);
  }
  void on(StaleMap&) { membership_.beat_soon(); }
  void on(RejectedMessage& output) { rejected(output.what); }
  void on(StableVersions& output) {
    for (const PartitionVersion& stable : output.versions) {
      if (stable.version == 0)
        stable_.erase(stable.partition);
      else
        stable_[stable.partition] = stable.version;
    }
  }

  ServerStatus status_with(const HeldStatus& held) const {
    return {.name = options_.name,
            .map_version = map().version,
            .held = held,
            .rejected_messages = num_rejected_,
            .bytes_copied = facts_.bytes_copied,
            .pauses = owners_.num_pauses(),
            .channels = options_.channel_counts ? options_.channel_counts() : NamedCounts{}};
  }

  bool on_status(wire::ConnectionId connection, const wire::Message& message) {
    constexpr std::size_t kMostAskers = 64;
    const auto asked = head_of<Status>(message);
    if (!asked || status_callbacks_.size() >= kMostAskers) return false;
    ask_status([this, connection, request = asked->request](const ServerStatus& status) {
      surroundings_->network().send(
          connection, message_of(StatusReply{{request}}, wire::Buffer::of(wire::encode(status))));
    });
    return true;
  }

  void on_saved(const SaveKey& key, PullReply reply, const SaveOutcome& outcome) {
    const auto found = saving_.find(key);
    const wire::ConnectionId connection = found->second;
    saving_.erase(found);
    reply.error = outcome.error;
    wire::Buffer body;
    if (outcome.error == ErrorKind::kNone) {
      body = wire::Buffer::of(wire::encode(outcome.part));
    } else {
      const auto why = std::as_bytes(std::span(outcome.why));
      body = wire::Buffer::of({why.begin(), why.end()});
    }
    surroundings_->network().send(connection, message_of(reply, std::move(body)));
  }

  void rejected(const std::string& what) {
    ++num_rejected_;
    // The log grows with the logarithm of the number of rejected messages.
    if (std::has_single_bit(num_rejected_))
      surroundings_->report(
          text("server ", options_.name, " rejected ", what, ", the ", num_rejected_, ". of all"));
  }

  Heartbeat heartbeat() const {
    Heartbeat heartbeat = {.role = Role::kServer,
                           .name = options_.name,
                           .incarnation = incarnation_,
                           .host = options_.host,
                           .address = options_.address,
                           .weight = options_.weight,
                           .leaving = leaving_,
                           .versions = {}};
    for (const auto& [id, version] : stable_) heartbeat.versions.push_back({id, version});
    return heartbeat;
  }

  /// Limits the budget to a quarter of a second's copies, so that a pause is not followed by a burst.
  void refill() {
    const std::int64_t now = surroundings_->now_ns();
    const double seconds = static_cast<double>(now - std::exchange(copied_ns_, now)) * 1e-9;
    const auto most = static_cast<std::int64_t>(options_.copy_bytes_per_s / 4);
    const auto more = static_cast<std::int64_t>(seconds * options_.copy_bytes_per_s);
    // Owners only subtract from it meanwhile.
    facts_.copy_budget_bytes += std::min(more, most - facts_.copy_budget_bytes);
  }

  void on_coordinator(const wire::Message& message) {
    const auto workers = map().workers;
    switch (membership_.take(message)) {
      case Membership::Taken::kReply:
        facts_.lease_until_ns = membership_.lease_until_ns();
        return;
      case Membership::Taken::kMap:
        return on_map(workers);
      case Membership::Taken::kNo:
      case Membership::Taken::kMalformed:
        return rejected("a message of the coordinator");
    }
  }

  void on_map(const std::map<WorkerId, WorkerEntry>& workers_before) {
    ClusterMap members = {.version = map().version,
                          .num_replicas = map().num_replicas,
                          .next_server = map().next_server,
                          .servers = map().servers,
                          .workers = map().workers,
                          .tables = map().tables,
                          .partitions = {}};
    const ServerId self = own_id();
    MapEvent event = {
        .members = std::make_shared<const ClusterMap>(std::move(members)), .self = self, .partitions = {}};
    event.has_lost_workers = std::ranges::any_of(
        workers_before, [&](const auto& worker) { return !map().lives(worker.second.life); });
    if (std::exchange(self_, self) != self) {
      for (PartitionId id = 0; id < map().partitions.size(); ++id)
        event.partitions.emplace_back(id, map().partitions[id]);
    } else {
      const auto& changed = membership_.last_change().partitions;
      event.partitions.assign(changed.begin(), changed.end());
    }
    owners_.notify_map(event);
  }

  /// Read from the map, which may come before the reply to the first heartbeat.
  ServerId own_id() const {
    for (const auto& [id, server] : map().servers) {
      if (server.name == options_.name && server.incarnation == incarnation_) return id;
    }
    return kNoServer;
  }

  /// The server at the other end of a connection that this server opened.
  ServerId server_of(wire::ConnectionId connection) const {
    for (const auto& [server, line] : lines_) {
      if (line.connection == connection) return server;
    }
    return kNoServer;
  }

  /// The first valid message of a server or of a live worker registers its connection as a member's.
  template <class Head>
  void register_by(wire::ConnectionId connection, const Head& head) {
    if constexpr (requires { head.life; }) {
      if (!map().lives(head.life)) return;
    }
    surroundings_->network().register_peer(connection);
  }

  /// Passes a message with this head to the partition's owner.
  template <class Head>
  bool pass(wire::ConnectionId connection, wire::Message& message) {
    auto head = head_of<Head>(message);
    if (head && !may_send(peers_[connection], *head)) return false;
    if (head) register_by(connection, *head);
    if (!head || head->partition >= map().partitions.size()) return head && map().partitions.empty();
    const PartitionId partition = head->partition;
    auto event = std::make_unique<OwnerEvent>(std::move(*head));
    event->connection = connection;
    event->server = server_of(connection);
    event->body = std::move(message.body);
    owners_.give(partition, std::move(event));
    return true;
  }

  bool pass_ticks(wire::ConnectionId connection, const wire::Message& message) {
    const auto ticks = head_of<Ticks>(message);
    if (!ticks || !message.body.empty() || !may_send(peers_[connection], *ticks)) return false;
    register_by(connection, *ticks);
    if (map().partitions.empty()) return true;
    const auto is_there = [&](const Ticks::Tick& tick) { return tick.partition < map().partitions.size(); };
    if (!std::ranges::all_of(ticks->ticks, is_there)) return false;
    owners_.give(*ticks, connection);
    return true;
  }

  /// Processes a message; false if a peer of this role may not send it.
  bool on_peer(wire::ConnectionId connection, wire::Message& message) {
    const std::string& role = peers_[connection].role;
    const bool is_server = role == "server", is_worker = role == "worker";
    if (message.kind == static_cast<std::uint16_t>(MessageKind::kStatus))
      return on_status(connection, message);
    switch (static_cast<MessageKind>(message.kind)) {
      case MessageKind::kPing:
        if (role != "coordinator" || !head_of<Ping>(message)) return false;
        surroundings_->network().send(connection, message_of(Pong{{incarnation_}}, {}, kUrgent));
        return true;
      case MessageKind::kRequest:
        return is_worker && pass<Request>(connection, message);
      case MessageKind::kTicks:
        return is_worker && pass_ticks(connection, message);
      case MessageKind::kPull:
        return is_worker && pass<Pull>(connection, message);
      case MessageKind::kReplicate:
        return is_server && pass<Replicate>(connection, message);
      case MessageKind::kReplicateAck:
        return server_of(connection) != kNoServer && pass<ReplicateAck>(connection, message);
      case MessageKind::kSnapshotPart:
        return is_server && pass<SnapshotPart>(connection, message);
      case MessageKind::kSnapshotAck:
        return server_of(connection) != kNoServer && pass<SnapshotAck>(connection, message);
      default:
        return false;
    }
  }

  ServerOptions options_;
  wire::Surroundings* surroundings_ = nullptr;
  Incarnation incarnation_ = 0;
  ServerId self_ = kNoServer;
  Membership membership_;
  bool leaving_ = false;
  std::uint64_t num_rejected_ = 0;
  std::int64_t copied_ns_ = 0;
  std::map<ServerId, Line> lines_;                          ///< to the next server of some chain
  std::map<wire::ConnectionId, wire::PeerIdentity> peers_;  ///< authenticated
  std::map<PartitionId, Version> stable_;  ///< of partitions with this server as primary: for heartbeats
  std::vector<std::function<void(const ServerStatus&)>> status_callbacks_;
  std::map<SaveKey, wire::ConnectionId> saving_;          ///< parts being written; connections to notify
  std::shared_ptr<int> alive_ = std::make_shared<int>();  ///< callbacks may outlive this object
  ServerFacts facts_;
  OwnerPool owners_;  ///< ends early: its threads read the facts
  std::unique_ptr<PartSink> parts_;
};

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Server::~Server() = default;

void Server::leave() { impl_->leave(); }
bool Server::is_released() const { return impl_->is_released(); }
ServerHoldings Server::holdings() const { return impl_->holdings(); }
ServerCounts Server::counts() const { return impl_->counts(); }
void Server::ask_status(std::function<void(const ServerStatus&)> done) { impl_->ask_status(std::move(done)); }
ReplicaReport Server::report(PartitionId partition) const { return impl_->report(partition); }

void Server::on_start(wire::Surroundings& surroundings) { impl_->start(surroundings); }
void Server::on_connected(wire::ConnectionId connection, const wire::PeerIdentity& peer) {
  impl_->on_connected(connection, peer);
}
void Server::on_message(wire::ConnectionId connection, wire::Message message) {
  impl_->on_message(connection, std::move(message));
}
void Server::on_closed(wire::ConnectionId connection, wire::CloseCause, const std::string&) {
  impl_->on_closed(connection);
}
void Server::on_timer(wire::TimerId) { impl_->on_timer(); }

}  // namespace trireme::ps
