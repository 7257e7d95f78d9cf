#include "trireme/ps/coordinator.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/ps/internal/barriers.h"
#include "trireme/ps/internal/coordinator_log.h"
#include "trireme/ps/internal/failure_detector.h"
#include "trireme/ps/internal/reconfiguration.h"
#include "trireme/ps/internal/roles.h"
#include "trireme/ps/messages.h"
#include "trireme/ps/placement.h"

namespace trireme::ps {
namespace {

constexpr std::size_t kMostTables = 65'536;
constexpr int kMostPings = 8;      // retries of a server that closes each ping; then its silence decides
constexpr double kSlowDisk_s = 1;  // is reported

std::int64_t in_ns(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

}  // namespace

class Coordinator::Impl {
 public:
  explicit Impl(CoordinatorOptions options) : options_(std::move(options)) {
    require(std::has_single_bit(options_.num_partitions), "num_partitions must be a power of two, not ",
            options_.num_partitions);
    require(options_.num_replicas > 0, "num_replicas must be at least 1");
    require(options_.silence_s > options_.lease_s, "silence_s (", options_.silence_s,
            ") must be above lease_s (", options_.lease_s, "): a member trusts its lease that long");
    placement_function(options_.placement);
  }

  void start(wire::Surroundings& surroundings) {
    surroundings_ = &surroundings;
    log_.emplace(surroundings.disk());
    map_ = log_->load();
    if (map_.version == 0) {
      map_.num_replicas = options_.num_replicas;
      map_.partitions.resize(options_.num_partitions);
    }
    draft_ = map_;
    failure_detector_.begin(surroundings.now_ns());
    // Restarts the timer of every member: without a coordinator no heartbeat could arrive.
    for (const auto& [id, server] : map_.servers)
      failure_detector_.on_heartbeat(server.incarnation, surroundings.now_ns());
    // find_silent() gives little time to a worker without a connection, and no worker has one yet.
    const std::int64_t grace = in_ns(options_.silence_s - options_.lease_s / 2);
    for (const auto& [id, worker] : map_.workers)
      failure_detector_.on_heartbeat(worker.life.incarnation, surroundings.now_ns() + grace);
    // Members that ended meanwhile are detected as if their connections closed now.
    for (const auto& [id, server] : map_.servers) ping_server(server.incarnation, 0);
    surroundings_->start_timer(options_.tick_s);
    if (map_.version > 0) commit_soon();  // computes the target placement
  }

  void on_timer(wire::TimerId timer) {
    if (timer == gather_timer_) {
      gather_timer_ = 0;
      return commit();
    }
    find_silent();
    if (has_events_ || wants_commit_) commit_soon();
    surroundings_->start_timer(options_.tick_s);
  }

  void on_connected(wire::ConnectionId connection, const wire::PeerIdentity& peer) {
    peers_[connection] = peer;
    if (const auto ping = pings_.find(connection); ping != pings_.end())
      surroundings_->network().send(connection, message_of(Ping{ping->second.incarnation}, {}, kUrgent));
  }

  void on_closed(wire::ConnectionId connection, wire::CloseCause cause) {
    peers_.erase(connection);
    if (const auto ping = pings_.find(connection); ping != pings_.end()) {
      const Asked asked = ping->second;
      pings_.erase(ping);
      if (cause == wire::CloseCause::kUnreachable || cause == wire::CloseCause::kSilent)
        return set_down(asked.incarnation);
      // An ending process closes its connections first, then its listener. The ping may have come in between.
      if (asked.num_before < kMostPings) ping_server(asked.incarnation, asked.num_before + 1);
      return;
    }
    const auto member = members_.find(connection);
    if (member == members_.end()) return;
    const Incarnation incarnation = member->second;
    members_.erase(member);
    ping_server(incarnation, 0);
  }

  void on_message(wire::ConnectionId connection, const wire::Message& message) {
    if (const auto pong = head_of<Pong>(message)) return on_pong(connection, *pong);
    const wire::PeerIdentity& peer = peers_[connection];
    if (const auto asked = head_of<Status>(message)) {
      const wire::Buffer body = wire::Buffer::of(wire::encode(status()));
      return surroundings_->network().send(connection, message_of(StatusReply{{asked->request}}, body));
    }
    if (peer.role == "observer") return reject(connection, message);
    const auto heartbeat = head_of<Heartbeat>(message);
    if (heartbeat && may_send(peer, *heartbeat) && is_sound(*heartbeat) &&
        may_be(connection, heartbeat->incarnation))
      return on_heartbeat(connection, *heartbeat);
    if (const auto create = head_of<CreateTable>(message); create && peer.role == "worker")
      return on_create(connection, *create);
    if (const auto begin = head_of<BeginAnew>(message); begin && may_send(peer, *begin))
      return begin_anew(*begin);
    if (peer.role != "server") return reject(connection, message);
    if (const auto news = head_of<CaughtUp>(message))
      return on_news(*news, [&](PartitionEvents& events) { events.caught_up = news->server; });
    if (const auto news = head_of<Drained>(message))
      return on_news(*news, [&](PartitionEvents& events) { events.drained = true; });
    if (const auto news = head_of<Suspect>(message))
      return on_news(*news, [&](PartitionEvents& events) { events.suspected = news->server; });
    reject(connection, message);
  }

  const ClusterMap& map() const { return map_; }

  ClusterStatus status() const {
    ClusterStatus status = status_of(map_);
    status.map_changes = num_changes_;
    status.takeovers = num_takeovers_;
    status.rejected_messages = num_rejected_;
    if (options_.channel_counts) status.channels = options_.channel_counts();
    return status;
  }

  bool is_settled() const {
    if (map_.version == 0 || has_events_ || wants_commit_) return false;
    for (PartitionId id = 0; id < map_.partitions.size(); ++id) {
      const PartitionEntry& entry = map_.partitions[id];
      if (id >= wanted_.size() || entry.chain != wanted_[id] || entry.learner != kNoServer || entry.draining)
        return false;
    }
    return true;
  }

 private:
  void reject(wire::ConnectionId connection, const wire::Message& message) {
    ++num_rejected_;
    if (std::has_single_bit(num_rejected_))
      surroundings_->report(text("coordinator: rejected a message that a ", peers_[connection].role,
                                 " does not send (kind ", message.kind, "), the ", num_rejected_,
                                 ". of all"));
    surroundings_->network().close(connection);
    on_closed(connection, wire::CloseCause::kRefused);
  }

  // ---- membership

  /// Whether the connection is not used by another member.
  bool may_be(wire::ConnectionId connection, Incarnation incarnation) const {
    return !members_.contains(connection) || members_.at(connection) == incarnation;
  }

  void on_heartbeat(wire::ConnectionId connection, const Heartbeat& heartbeat) {
    HeartbeatReply reply = {.sent_ns = heartbeat.sent_ns, .lease_s = options_.lease_s};
    const bool is_member =
        heartbeat.role == Role::kServer ? on_server(heartbeat, reply) : on_worker(heartbeat, reply);
    if (is_member) {
      members_[connection] = heartbeat.incarnation;
      surroundings_->network().register_peer(connection);
      failure_detector_.on_heartbeat(heartbeat.incarnation, surroundings_->now_ns());
    } else {
      reply.lease_s = 0;
    }
    surroundings_->network().send(connection, message_of(reply, {}, kUrgent));
    if (heartbeat.map_version < map_.version) send_map(connection, heartbeat.map_version);
  }

  /// Whether it is now a member of the cluster.
  bool on_server(const Heartbeat& heartbeat, HeartbeatReply& reply) {
    for (const PartitionVersion& version : heartbeat.versions) {
      if (version.partition >= map_.partitions.size()) continue;
      Version& last = last_versions_[version.partition];
      last = std::max(last, version.version);
    }
    for (auto& [id, server] : draft_.servers) {
      if (server.name != heartbeat.name) continue;
      if (server.incarnation == heartbeat.incarnation) {
        reply.released = server.state == ServerEntry::State::kGone;
        if (reply.released) return false;
        const auto state = heartbeat.leaving ? ServerEntry::State::kLeaving : ServerEntry::State::kUp;
        if (std::exchange(server.state, state) != state) commit_soon();
        return true;
      }
      if (server.state == ServerEntry::State::kGone) continue;
      if (is_connected(server.incarnation) && server.may_hold()) return false;  // one process per name
      server.state = ServerEntry::State::kGone;
    }
    if (heartbeat.leaving) {
      reply.released = true;
      return false;
    }
    const ServerId id = draft_.next_server++;
    draft_.servers[id] = {.id = id,
                          .name = heartbeat.name,
                          .incarnation = heartbeat.incarnation,
                          .host = heartbeat.host,
                          .address = heartbeat.address,
                          .weight = heartbeat.weight,
                          .state = ServerEntry::State::kUp};
    commit_soon();
    return true;
  }

  bool on_worker(const Heartbeat& heartbeat, HeartbeatReply& reply) {
    const WorkerLife life = {heartbeat.worker, heartbeat.incarnation};
    const auto found = draft_.workers.find(life.worker);
    const bool is_known = found != draft_.workers.end() && found->second.life == life;
    if (!is_known) {
      if (heartbeat.leaving || heartbeat.registered_at != 0) {
        reply.released = heartbeat.leaving;
        reply.declared_dead = !heartbeat.leaving;
        return false;
      }
      if (found != draft_.workers.end() && is_connected(found->second.life.incarnation)) return false;
      barriers_.arrive(life.worker);
      draft_.workers[life.worker] = {.life = life, .registered_at = map_.version + 1};
      commit_soon();
      return true;
    }
    if (heartbeat.leaving) {
      draft_.workers.erase(found);
      barriers_.depart(life.worker);
      commit_soon();
      return true;
    }
    barriers_.on_heartbeat(life.worker, heartbeat);
    reply.barrier_open = barriers_.open(map_);
    return true;
  }

  bool is_connected(Incarnation incarnation) const {
    return std::any_of(members_.begin(), members_.end(),
                       [&](const auto& member) { return member.second == incarnation; });
  }

  void on_pong(wire::ConnectionId connection, const Pong& pong) {
    const auto ping = pings_.find(connection);
    if (ping == pings_.end()) return;
    const Incarnation expected = ping->second.incarnation;
    pings_.erase(ping);
    surroundings_->network().close(connection);
    if (pong.incarnation != expected) set_down(expected);
  }

  /// Checks whether the process, whose connection has closed, still runs.
  void ping_server(Incarnation incarnation, int num_before) {
    for (const auto& [id, server] : map_.servers) {
      if (server.incarnation == incarnation && server.may_hold())
        pings_[surroundings_->network().connect(server.address)] = {incarnation, num_before};
    }
  }

  void set_down(Incarnation incarnation) {
    for (auto& [id, server] : draft_.servers) {
      if (server.incarnation != incarnation || !server.may_hold()) continue;
      server.state = ServerEntry::State::kDown;
      surroundings_->report(text("coordinator: server ", server.name, " is down"));
      commit_soon();
    }
  }

  void find_silent() {
    const std::int64_t now = surroundings_->now_ns();
    failure_detector_.discount_absence(now, 2 * in_ns(options_.tick_s));
    const auto silent_for = [&](Incarnation incarnation, double seconds) {
      return failure_detector_.is_silent(incarnation, now, in_ns(seconds));
    };
    for (auto& [id, server] : draft_.servers) {
      if (server.may_hold() && silent_for(server.incarnation, options_.silence_s))
        set_down(server.incarnation);
      if (server.state == ServerEntry::State::kDown && silent_for(server.incarnation, options_.gone_s)) {
        server.state = ServerEntry::State::kGone;
        commit_soon();
      }
    }
    for (auto worker = draft_.workers.begin(); worker != draft_.workers.end();) {
      // The connection shows that a process has ended; a shorter silence is then enough.
      const Incarnation incarnation = worker->second.life.incarnation;
      const double patience_s = is_connected(incarnation) ? options_.silence_s : options_.lease_s / 2;
      if (!silent_for(incarnation, patience_s)) {
        ++worker;
        continue;
      }
      surroundings_->report(text("coordinator: worker ", worker->first, " is given up"));
      barriers_.depart(worker->first);
      worker = draft_.workers.erase(worker);
      commit_soon();
    }
    forget_others();
  }

  /// Forgets former members.
  void forget_others() {
    std::set<Incarnation> known;
    for (const auto& [id, server] : draft_.servers) known.insert(server.incarnation);
    for (const auto& [id, worker] : draft_.workers) known.insert(worker.life.incarnation);
    failure_detector_.keep_only(known);
  }

  // ---- tables and partitions

  void on_create(wire::ConnectionId connection, const CreateTable& create) {
    TableCreated reply = {.request = create.request, .rejection = {}};
    try {
      check(create.spec);
      TableSpec spec = create.spec;
      spec.optimizer = with_defaults(spec.optimizer);
      if (spec.kind == TableKind::kSparse)
        spec.rows.num_partitions = static_cast<std::uint32_t>(draft_.partitions.size());
      const TableSpec* there = draft_.table(spec.name);
      spec.id = there == nullptr ? static_cast<TableId>(draft_.tables.size() + 1) : there->id;
      require(there == nullptr || wire::encode(*there) == wire::encode(spec), "there is a table ", spec.name,
              " already, with other options; open it with those, or another name");
      reply.table = spec.id;
      require(there != nullptr || draft_.tables.size() < kMostTables, "there are ", kMostTables,
              " tables, which is the most: put more values into each");
      if (there == nullptr) {
        new_tables_.push_back(draft_.tables[spec.id] = spec);
        commit_soon();
      }
    } catch (const InvalidArgument& error) {
      reply.rejection = error.what();
    }
    // A table is announced after it is on disk.
    if (map_.tables.contains(reply.table) || !reply.rejection.empty())
      surroundings_->network().send(connection, message_of(reply));
    else
      created_.emplace_back(connection, reply);
  }

  void begin_anew(const BeginAnew& begin) {
    if (!map_.lives(begin.life)) return;
    for (PartitionId id = 0; id < map_.partitions.size(); ++id) {
      if (!map_.partitions[id].lost) continue;
      events_[id].begins_anew = true;
      has_events_ = true;
      last_versions_.erase(id);
    }
    if (has_events_) commit_soon();
  }

  template <class Note>
  void on_news(const PartitionNews& news, const Note& note) {
    if (news.partition >= map_.partitions.size() || map_.partitions[news.partition].epoch != news.epoch)
      return;
    note(events_[news.partition]);
    has_events_ = true;
    commit_soon();
  }

  // ---- commits, one at a time

  void commit_soon() {
    wants_commit_ = true;
    if (gather_timer_ == 0) gather_timer_ = surroundings_->start_timer(options_.gather_s);
  }

  void commit() {
    wants_commit_ = false;
    const Epoch epoch = map_.version + 1;
    place();
    MapChange change = {
        .from = map_.version, .to = epoch, .servers = {}, .workers = {}, .tables = {}, .partitions = {}};
    change.num_partitions = static_cast<std::uint32_t>(draft_.partitions.size());
    change.num_replicas = draft_.num_replicas;
    for (PartitionId id = 0; id < wanted_.size(); ++id) {
      PartitionEntry next = reconfigured(map_.partitions[id], wanted_[id], draft_, events_[id], epoch);
      if (next == map_.partitions[id]) continue;
      if (next.lost) next.lost_version = std::max(next.lost_version, last_versions_[id]);
      draft_.partitions[id] = next;
      change.partitions[id] = next;
    }
    events_.clear();
    has_events_ = false;
    const MapChange whole = draft_.whole();
    change.next_server = whole.next_server;
    change.servers = whole.servers;
    change.workers = whole.workers;
    change.tables = new_tables_;
    draft_.version = epoch;
    const std::int64_t began_ns = surroundings_->now_ns();
    try {
      log_->append(change, draft_);
    } catch (const DataError& error) {
      // Nothing was announced: the next tick computes the change again.
      surroundings_->report(text("coordinator: the disk does not take the map: ", error.what()));
      draft_.version = map_.version;
      draft_.partitions = map_.partitions;
      return commit_soon();
    }
    const double disk_s = static_cast<double>(surroundings_->now_ns() - began_ns) * 1e-9;
    if (disk_s > kSlowDisk_s)
      surroundings_->report(text("coordinator: the disk took ", human_duration(disk_s),
                                 " for a change of the map, which was announced only then: a server that "
                                 "ends meanwhile is missed that much later"));
    ++num_changes_;
    for (const auto& [id, next] : change.partitions) {
      const ServerId before = map_.partitions[id].primary();
      num_takeovers_ += before != kNoServer && !next.lost && next.primary() != before ? 1 : 0;
    }
    map_ = draft_;
    new_tables_.clear();
    broadcast(change);
    if (release_leaving(draft_)) return commit_soon();
    for (PartitionId id = 0; id < wanted_.size(); ++id) {
      if (reconfigured(map_.partitions[id], wanted_[id], map_, {}, epoch + 1) != map_.partitions[id])
        return commit_soon();
    }
  }

  void broadcast(const MapChange& change) {
    const wire::Buffer body = wire::Buffer::of(wire::encode(change));
    for (const auto& [connection, incarnation] : members_)
      surroundings_->network().send(connection, map_message(body));
    for (const auto& [connection, reply] : std::exchange(created_, {}))
      surroundings_->network().send(connection, message_of(reply));
  }

  static wire::Message map_message(wire::Buffer body) {
    return {static_cast<std::uint16_t>(MessageKind::kMapChange), kUrgent, {}, std::move(body)};
  }

  void send_map(wire::ConnectionId connection, MapVersion) {
    surroundings_->network().send(connection, map_message(wire::Buffer::of(wire::encode(map_.whole()))));
  }

  /// Computes the target placement, on servers that do not leave.
  void place() {
    std::vector<Candidate> candidates;
    std::vector<ServerId> ids;
    for (const auto& [id, server] : draft_.servers) {
      if (server.state != ServerEntry::State::kUp) continue;
      candidates.push_back({.id = id, .name = server.name, .host = server.host, .weight = server.weight});
      ids.push_back(id);
    }
    const bool is_first = map_.partitions.empty() || map_.partitions.front().epoch == 0;
    if (is_first && candidates.size() < options_.first_servers) return;
    if (std::exchange(placed_, ids) == ids && !wanted_.empty()) return;
    const auto num_partitions = static_cast<std::uint32_t>(draft_.partitions.size());
    wanted_ = placement_function(options_.placement)(candidates, {num_partitions, draft_.num_replicas},
                                                     what_partitions_have(map_));
  }

  CoordinatorOptions options_;
  wire::Surroundings* surroundings_ = nullptr;
  std::optional<CoordinatorLog> log_;
  ClusterMap map_;    ///< the state on disk, which may be announced
  ClusterMap draft_;  ///< the next state
  std::vector<TableSpec> new_tables_;
  std::vector<std::pair<wire::ConnectionId, TableCreated>> created_;  ///< replies that wait for the disk
  std::map<PartitionId, PartitionEvents> events_;
  bool has_events_ = false, wants_commit_ = false;
  wire::TimerId gather_timer_ = 0;
  Placement wanted_;
  std::vector<ServerId> placed_;

  std::map<wire::ConnectionId, wire::PeerIdentity> peers_;  ///< authenticated
  std::map<wire::ConnectionId, Incarnation> members_;
  struct Asked {
    Incarnation incarnation = 0;
    int num_before = 0;  ///< earlier pings that ended without an answer
  };
  std::map<wire::ConnectionId, Asked> pings_;
  FailureDetector failure_detector_;
  std::map<PartitionId, Version> last_versions_;
  Barriers barriers_;
  std::uint64_t num_changes_ = 0, num_takeovers_ = 0, num_rejected_ = 0;
};

Coordinator::Coordinator(CoordinatorOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Coordinator::~Coordinator() = default;

const ClusterMap& Coordinator::map() const { return impl_->map(); }
bool Coordinator::is_settled() const { return impl_->is_settled(); }
ClusterStatus Coordinator::status() const { return impl_->status(); }

void Coordinator::on_start(wire::Surroundings& surroundings) { impl_->start(surroundings); }
void Coordinator::on_connected(wire::ConnectionId connection, const wire::PeerIdentity& peer) {
  impl_->on_connected(connection, peer);
}
void Coordinator::on_message(wire::ConnectionId connection, wire::Message message) {
  impl_->on_message(connection, message);
}
void Coordinator::on_closed(wire::ConnectionId connection, wire::CloseCause cause, const std::string&) {
  impl_->on_closed(connection, cause);
}
void Coordinator::on_timer(wire::TimerId timer) { impl_->on_timer(timer); }

}  // namespace trireme::ps
