#include <algorithm>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/ps/internal/client_work.h"
#include "trireme/ps/internal/sequence_window.h"

namespace trireme::ps {
namespace {

constexpr wire::Priority kTickPriority = 0;  // numbers keep the order: ticks need not wait

}  // namespace

void ClientWork::go_on() {
  membership_.on_tick([this] { return heartbeat(); });
  if (has_ended_ || map().version == 0) return;
  create_tables();
  if (registered_at_ == 0) return;
  for (const auto& call : std::exchange(membership_calls_, {})) call->part_done(at_clock());
  send_begin_anew();
  send_saves();
  std::erase_if(unsent_lanes_, [&](PartitionId id) {
    const auto lane = lanes_.find(id);
    return lane == lanes_.end() || send(id, lane->second);
  });
  send_ticks();
  std::erase_if(unsent_pulls_, [&](RequestId id) {
    const auto pull = pulls_.find(id);
    return pull == pulls_.end() || send(pull->second);
  });
  if (leave_call_ && std::all_of(lanes_.begin(), lanes_.end(),
                                 [](const auto& lane) { return lane.second.requests.empty(); })) {
    has_ended_ = true;
    is_leaving_ = true;
    membership_.beat_soon();
    membership_.on_tick([this] { return heartbeat(); });
    std::exchange(leave_call_, nullptr)->part_done(Result{});
  }
}

void ClientWork::look_around() {
  if (has_ended_ || map().version == 0) return;
  find_retries();
  find_lost_calls();
  for (const auto& [id, lane] : lanes_) {
    if (!lane.requests.empty()) unsent_lanes_.insert(id);
  }
  for (const auto& [id, pull] : pulls_) {
    if (pull.sent_ns == 0 && pull.head.save_in.empty()) unsent_pulls_.insert(id);
  }
}

void ClientWork::find_lost_calls() {
  const auto is_lost = [&](PartitionId id) { return map().partitions[id].lost; };
  const bool any =
      std::any_of(lanes_.begin(), lanes_.end(),
                  [&](const auto& lane) { return is_lost(lane.first) && !lane.second.requests.empty(); }) ||
      std::any_of(pulls_.begin(), pulls_.end(),
                  [&](const auto& pull) { return is_lost(pull.second.head.partition); });
  if (any) find_lost();
}

Heartbeat ClientWork::heartbeat() const {
  return {.role = Role::kWorker,
          .name = text("worker ", life_.worker),
          .incarnation = life_.incarnation,
          .host = options_.host,
          .address = {},
          .worker = life_.worker,
          .leaving = is_leaving_,
          .registered_at = registered_at_,
          .barrier_entered = barrier_entered_,
          .barrier_passed = barrier_passed_,
          .barrier_workers = barrier_workers_,
          .versions = {}};
}

void ClientWork::create_tables() {
  const std::int64_t now = surroundings_->now_ns();
  std::vector<std::shared_ptr<Call>> created;
  for (auto creation = creations_.begin(); creation != creations_.end();) {
    Creation& wanted = creation->second;
    if (wanted.table != 0 && map().tables.contains(wanted.table)) {
      created.push_back(wanted.call);
      creation = creations_.erase(creation);
      continue;
    }
    if (wanted.sent_ns == 0 || now > wanted.sent_ns + in_ns(options_.retry_s)) {
      wanted.sent_ns = now;
      membership_.send(message_of(CreateTable{creation->first, wanted.spec}));
    }
    ++creation;
  }
  for (const auto& call : created) call->part_done(at_clock());
}

std::optional<wire::ConnectionId> ClientWork::line_to(PartitionId id) {
  const ServerEntry* server = map().server(map().partitions[id].primary());
  if (server == nullptr) return std::nullopt;
  Line& line = lines_[server->id];
  if (line.connection == 0) line.connection = surroundings_->network().connect(server->address);
  return line.is_connected ? std::optional(line.connection) : std::nullopt;
}

bool ClientWork::send(PartitionId id, Lane& lane) {
  if (lane.requests.empty()) return true;
  const auto connection = line_to(id);
  if (!connection) return false;
  Sequence most = lane.requests.begin()->first + kMostAhead;
  if (is_saving() && saving_->last.contains(id)) most = std::min(most, saving_->last.at(id) + 1);
  for (auto& [sequence, request] : lane.requests) {
    if (sequence >= most) return false;
    if (request.sent_ns != 0) continue;
    if (request.takes_credit) {
      const bool fits =
          bytes_under_way_ == 0 || bytes_under_way_ + request.body.size() <= options_.credit_bytes;
      if (!fits) return false;
      bytes_under_way_ += request.body.size();
    }
    request.sent_ns = surroundings_->now_ns();
    if (request.head.op == RequestOp::kTick) {
      ticks_[*connection].push_back({id, epoch_of(id), sequence, request.head.clock});
      continue;
    }
    Request head = request.head;
    head.epoch = epoch_of(id);
    head.registered_at = registered_at_;
    const wire::Buffer body = body_for(*connection, request, head.keys);
    surroundings_->network().send(*connection, message_of(head, body, request.priority));
  }
  return true;
}

void ClientWork::send_ticks() {
  for (auto& [connection, ticks] : std::exchange(ticks_, {}))
    surroundings_->network().send(
        connection, message_of(Ticks{life_, registered_at_, std::move(ticks)}, {}, kTickPriority));
}

bool ClientWork::send(OutgoingPull& pull) {
  if (pull.sent_ns != 0) return true;
  const auto connection = line_to(pull.head.partition);
  if (!connection) return false;
  pull.sent_ns = surroundings_->now_ns();
  Pull head = pull.head;
  head.epoch = epoch_of(head.partition);
  const wire::Buffer body = body_for(*connection, pull, head.keys);
  surroundings_->network().send(*connection, message_of(head, body, head.priority));
  return true;
}

void ClientWork::unsend(OutgoingRequest& request) {
  if (request.sent_ns != 0 && request.takes_credit) bytes_under_way_ -= request.body.size();
  request.sent_ns = request.again_ns = 0;
}

void ClientWork::find_retries() {
  const std::int64_t now = surroundings_->now_ns();
  const auto is_due = [&](const auto& sent) {
    return sent.sent_ns != 0 &&
           (now > sent.sent_ns + in_ns(options_.retry_s) || (sent.again_ns != 0 && now > sent.again_ns));
  };
  for (auto& [id, lane] : lanes_) {
    // All requests after the first due one are sent again too: their order is that of their numbers.
    const auto due = std::find_if(lane.requests.begin(), lane.requests.end(),
                                  [&](const auto& request) { return is_due(request.second); });
    for (auto request = due; request != lane.requests.end(); ++request) unsend(request->second);
  }
  for (auto& [id, pull] : pulls_) {
    if (is_due(pull)) pull.sent_ns = pull.again_ns = 0;
  }
}

void ClientWork::end_overdue() {
  const std::int64_t now = surroundings_->now_ns();
  std::vector<std::shared_ptr<Call>> overdue;
  std::erase_if(calls_, [&](const std::shared_ptr<Call>& call) {
    if (!call->is_over() && now >= call->due_ns()) overdue.push_back(call);
    return call->is_over() || now >= call->due_ns();
  });
  for (const auto& call : overdue) call->fail(ErrorKind::kTimeout, silence(*call));
  // A push stays: its number is used, and it may have been applied. A pull is forgotten.
  std::erase_if(pulls_, [](const auto& pull) { return pull.second.call->is_over(); });
  std::erase_if(creations_, [](const auto& creation) { return creation.second.call->is_over(); });
}

/// The known reasons for a missing answer.
std::string ClientWork::silence(const Call& call) const {
  const std::string what = text("worker ", life_.worker, ": no answer in ", call.timeout_s(), " s");
  const std::string trouble = trouble_.empty() ? "" : "; the last connection failed: " + trouble_;
  const bool waits_for_all = options_.num_workers > 1 && clock_ > 0 && seen_clock_ == 0;
  const std::string others = text("; steps count when ", options_.num_workers,
                                  " workers have opened the table (ClientOptions::num_workers)");
  if (registered_at_ != 0) return what + trouble + (waits_for_all ? others : "");
  return text(what, " from the coordinator at ", options_.coordinator, trouble,
              "; is `trireme serve-coordinator` running there?");
}

void ClientWork::end(ErrorKind error, const std::string& message) {
  if (std::exchange(has_ended_, true)) return;
  lanes_.clear();
  pulls_.clear();
  creations_.clear();
  membership_calls_.clear();
  barriers_.clear();
  begin_calls_.clear();
  leave_call_ = nullptr;
  for (const auto& call : std::exchange(calls_, {})) call->fail(error, message);
}

}  // namespace trireme::ps
