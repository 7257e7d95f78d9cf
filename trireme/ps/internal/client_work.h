#pragma once
// Implementation of a ClientNode: pending calls, a lane of numbered requests to each partition, connections
// to servers. See client.h. One thread.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trireme/ps/client_node.h"
#include "trireme/ps/internal/client_calls.h"
#include "trireme/ps/internal/membership.h"
#include "trireme/ps/internal/sequence_window.h"

namespace trireme::ps {

class ClientWork {
 public:
  explicit ClientWork(ClientOptions options)
      : options_(std::move(options)), membership_(options_.coordinator, options_.heartbeat_s) {}

  void start(wire::Surroundings& surroundings);

  const ClusterMap& map() const { return membership_.map(); }
  WorkerClock clock() const { return clock_; }
  WorkerLife life() const { return life_; }
  std::span<const float> residual(TableId table, std::uint64_t chunk) const;
  void forget_residuals(TableId table) {
    std::erase_if(residuals_, [table](const auto& residual) { return residual.first.first == table; });
  }

  // ---- calls

  void wait_until_member(Done done);

  void create_table(const TableSpec& spec, Done done);

  void join(TableId table, Done done);

  void push_chunk(TableId table, std::uint64_t chunk, wire::Buffer values, Done done, PushOptions options);

  void restore_chunk(TableId table, std::uint64_t chunk, wire::Buffer values_and_state,
                     std::uint64_t num_updates, Done done);

  void restore_rows(TableId table, PartitionId partition, wire::Buffer rows, Done done);

  void add_whole(RequestOp op, TableId table, const wire::Buffer& values, Done done, PushOptions options);

  /// A pull of a chunk, and its destination.
  struct ChunkPull {
    Version newer_than = 0;
    bool with_state = false;
    std::span<float> out = {};  ///< empty: the result has them
  };
  void pull_chunk(TableId table, std::uint64_t chunk, const ChunkPull& wanted, Done done,
                  CallOptions options);

  void pull(TableId table, std::span<float> out, Done done, CallOptions options);

  void add_rows(RequestOp op, TableId table, std::span<const std::uint64_t> keys, std::span<const float> rows,
                Done done, PushOptions options);

  void pull_rows(TableId table, std::span<const std::uint64_t> keys, std::span<float> out, Done done,
                 CallOptions options);
  void save(const std::string& folder, Saved done);

  void begin_anew(Done done);

  void tick();

  void barrier(std::uint32_t num_workers, Done done);

  void leave(Done done);

  // ---- events

  void on_timer();

  void on_connected(wire::ConnectionId connection);

  void on_closed(wire::ConnectionId connection, const std::string& reason);

  void on_message(wire::ConnectionId connection, const wire::Message& message);

 private:
  struct Line {
    wire::ConnectionId connection = 0;
    bool is_connected = false;
  };
  struct Creation {
    TableSpec spec;
    std::shared_ptr<Call> call;
    TableId table = 0;  ///< created: it is waited for in the map
    std::int64_t sent_ns = 0;
  };

  /// A checkpoint that is under way.
  struct Saving {
    std::shared_ptr<Call> call;
    std::map<PartitionId, Sequence> last;  ///< of the partitions that are not written yet; more waits
    std::vector<SavedPart> parts;
  };

  std::shared_ptr<Call> new_call(Done done, std::size_t num_parts, const CallOptions& options = {});
  static std::int64_t in_ns(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

  Result at_clock() const;

  void fail(const Done& done, ErrorKind error, const std::string& message);

  /// The table; where there is none, or the node has ended, `done` has been called.
  const TableSpec* find(TableId table, const Done& done);
  /// One of this kind.
  const TableSpec* find(TableId table, TableKind kind, const Done& done);

  std::set<PartitionId> partitions_of(const TableSpec& spec) const;

  // ---- requests

  OutgoingRequest& add(PartitionId id, Request request, wire::Buffer body, std::shared_ptr<Call> call);

  static Request request_of(RequestOp op, TableId table = 0, std::uint64_t chunk = 0);

  /// Place of values, by which a later pull includes them: a chunk, or a partition of a sparse table.
  struct Place {
    PartitionId partition = 0;
    std::uint64_t part = 0;
  };
  Place place_of(const TableSpec& spec, std::uint64_t chunk) const {
    return {map().partition_of(spec.id, chunk), chunk};
  }
  void add_values(const Place& place, const Request& request, const TableSpec& spec, wire::Buffer values,
                  wire::Priority priority, std::shared_ptr<Call> call);

  /// The encoded values of a push. The residual of a codec is added to the next push.
  wire::Buffer encoded(const TableSpec& spec, const Place& place, wire::Buffer values);
  std::uint64_t seed_of_push(const TableSpec& spec, const Place& place) const;
  /// A gradient, and after it the values that this worker has last pulled, if any.
  wire::Buffer with_base(const TableSpec& spec, std::uint64_t chunk, const wire::Buffer& gradient) const;
  void keep_base(const OutgoingPull& pull, const PullReply& reply, const wire::Buffer& values);
  /// The decoded values of a pull; none where it is something else.
  static std::optional<wire::Buffer> decoded(const OutgoingPull& pull, const PullReply& reply,
                                             const wire::Buffer& body);

  OutgoingPull& add_pull(const Place& place, const TableSpec& spec, std::shared_ptr<Call> call,
                         const CallOptions& options);

  /// Whether the answer has the size that was asked for; its values are where they belong then.
  static bool write(const OutgoingPull& pull, const PullReply& reply, const wire::Buffer& body);
  static bool write_rows(const OutgoingPull& pull, const wire::Buffer& body);

  void tick_all();

  void on_reply(const Reply& reply);

  bool is_for_later(ErrorKind error);

  // ---- checkpoints

  bool is_saving() const { return saving_ && !saving_->call->is_over(); }

  void send_saves();

  void on_saved(const OutgoingPull& pull, const PullReply& reply, const wire::Buffer& body);

  /// Partitions that were lost and are there again have no state of this worker.
  void find_begun_anew();

  void send_begin_anew();

  void on_pulled(const PullReply& reply, const wire::Buffer& body);

  // ---- the coordinator

  void on_coordinator(const wire::Message& message);

  Epoch epoch_of(PartitionId id) const;

  void find_lost();

  // ---- sending

  /// Does all work that is possible now.
  void go_on();

  /// A call to a partition that was lost before it was made.
  void find_lost_calls();

  Heartbeat heartbeat() const;

  void create_tables();

  /// The connection to the partition's primary, when there is one.
  std::optional<wire::ConnectionId> line_to(PartitionId id);

  /// Whether nothing is left to be sent. Ticks are gathered, for send_ticks().
  bool send(PartitionId id, Lane& lane);

  /// Sends the gathered ticks: one message to each primary.
  void send_ticks();

  bool send(OutgoingPull& pull);

  /// The body as this connection needs it: without keys that it has seen. `hash` is the head's.
  template <class Outgoing>
  wire::Buffer body_for(wire::ConnectionId connection, const Outgoing& outgoing, std::uint64_t& hash) {
    if (outgoing.keys == 0) return outgoing.body;
    SentKeys& sent = sent_keys_[connection];
    if (sent.has(outgoing.keys) && !outgoing.includes_keys) {
      hash = outgoing.keys;
      return without_keys(outgoing.body.bytes());
    }
    sent.add(outgoing.keys, key_bytes_of(outgoing.body.bytes()));
    return outgoing.body;
  }

  /// Finds repetitions that are due, lost partitions and forgotten state. It visits everything, so it does
  /// not run for every message.
  void look_around();

  /// Numbers that are further ahead of the first unanswered one wait: the other side remembers so many.
  static constexpr Sequence kMostAhead = SequenceWindow::kReach / 2;

  /// Pushes that wait for a clock must not keep its tick from being sent: whether so many more, by partition,
  /// leave room for it. Else `done` has been called, and nothing of the call is taken.
  bool leaves_room(const TableSpec& spec, RequestOp op, const std::map<PartitionId, std::size_t>& more,
                   const Done& done);
  static bool waits_for_clock(const TableSpec& spec, RequestOp op) {
    return op == RequestOp::kPush && spec.apply_at == ApplyAt::kClock;
  }

  void unsend(OutgoingRequest& request);

  template <class Concerns>
  void send_again(const Concerns& concerns) {
    for (auto& [id, lane] : lanes_) {
      if (!concerns(id)) continue;
      for (auto& [sequence, request] : lane.requests) unsend(request);
      unsent_lanes_.insert(id);
    }
    for (auto& [id, pull] : pulls_) {
      if (!concerns(pull.head.partition)) continue;
      pull.sent_ns = 0;
      if (pull.head.save_in.empty()) unsent_pulls_.insert(id);
    }
  }

  /// Requests that were rejected for now, or have not been answered for very long.
  void find_retries();

  // ---- ends

  void end_overdue();

  std::string silence(const Call& call) const;

  void end(ErrorKind error, const std::string& message);

  static constexpr const char* kDeclaredDeadText =
      "the cluster has given this worker up; what it pushed and was not told of may be applied or not: begin "
      "again "
      "as a new one";

  ClientOptions options_;
  wire::Surroundings* surroundings_ = nullptr;
  WorkerLife life_;
  Membership membership_;
  MapVersion registered_at_ = 0;
  WorkerClock clock_ = 0;
  WorkerClock seen_clock_ = 0;  ///< the highest that all workers of a partition have ended
  bool has_ended_ = false, is_leaving_ = false;
  RequestId last_request_ = 0;
  std::size_t bytes_under_way_ = 0;

  std::vector<std::shared_ptr<Call>> calls_;
  std::map<PartitionId, Lane> lanes_;
  std::map<RequestId, OutgoingPull> pulls_;
  std::map<std::pair<TableId, std::uint64_t>, Sequence> last_pushes_;
  std::map<std::pair<TableId, std::uint64_t>, std::vector<float>> residuals_;  ///< by table and chunk
  /// Last pulled values, by table and chunk: pushes to tables with delay compensation refer to them.
  std::map<std::pair<TableId, std::uint64_t>, wire::Buffer> bases_;
  std::map<RequestId, Creation> creations_;
  std::shared_ptr<Call> leave_call_;
  std::shared_ptr<Saving> saving_;
  std::vector<std::shared_ptr<Call>> begin_calls_;
  std::int64_t begin_sent_ns_ = 0;
  std::deque<std::shared_ptr<Call>> barriers_;
  std::uint64_t barrier_entered_ = 0, barrier_passed_ = 0;
  std::uint32_t barrier_workers_ = 0;
  std::map<ServerId, Line> lines_;
  std::map<wire::ConnectionId, SentKeys> sent_keys_;
  std::map<wire::ConnectionId, std::vector<Ticks::Tick>> ticks_;  ///< gathered
  std::set<PartitionId> unsent_lanes_;                            ///< that may have something to be sent
  std::set<RequestId> unsent_pulls_;
  std::vector<std::shared_ptr<Call>> membership_calls_;
  std::string trouble_;  ///< why the last connection that failed did; empty when one was made since
};

}  // namespace trireme::ps
