#include <algorithm>

#include "trireme/ps/internal/client_work.h"

namespace trireme::ps {
namespace {

/// Number of partitions that are saved at a time. A value that changes during saving is copied, so this
/// bounds memory.
constexpr std::ptrdiff_t kMostSaves = 16;

}  // namespace

void ClientWork::save(const std::string& folder, Saved done) {
  const auto reject = [&](ErrorKind error, const std::string& message) {
    fail([&](const Result& result) { done(result, {}); }, error, message);
  };
  if (has_ended_) return reject(ErrorKind::kDeclaredDead, "this worker does not take part any more");
  if (registered_at_ == 0 || map().version == 0)
    return reject(ErrorKind::kNotNow, "this worker does not take part yet");
  if (is_saving()) return reject(ErrorKind::kNotNow, "this worker is saving already");
  const auto saving = std::make_shared<Saving>();
  saving->call = new_call(
      [saving = std::weak_ptr(saving), done = std::move(done)](const Result& result) {
        const auto saved = saving.lock();
        done(result, saved ? saved->parts : std::vector<SavedPart>{});
      },
      map().partitions.size());
  const bool has_clock = std::ranges::any_of(
      map().tables, [](const auto& table) { return table.second.staleness != kAsynchronous; });
  for (PartitionId id = 0; id < map().partitions.size(); ++id) {
    const auto lane = lanes_.find(id);
    const bool is_used = lane != lanes_.end();
    const Sequence last = is_used ? lane->second.last : 0;
    const RequestId request = ++last_request_;
    OutgoingPull& pull = pulls_[request];
    pull.head = {.request = request,
                 .partition = id,
                 .life = life_,
                 .clock = has_clock && is_used ? clock_ : 0,
                 .after = last,
                 .save_in = folder};
    pull.call = saving->call;
    saving->last[id] = last;
  }
  saving_ = saving;
  go_on();
}

void ClientWork::send_saves() {
  if (!is_saving()) return;
  const auto is_save = [](const auto& pull) { return !pull.second.head.save_in.empty(); };
  std::ptrdiff_t num_sent = std::ranges::count_if(
      pulls_, [&](const auto& pull) { return is_save(pull) && pull.second.sent_ns != 0; });
  for (auto& pull : pulls_) {
    if (num_sent >= kMostSaves) return;
    if (!is_save(pull) || pull.second.sent_ns != 0) continue;
    send(pull.second);
    num_sent += pull.second.sent_ns != 0 ? 1 : 0;
  }
}

void ClientWork::on_saved(const OutgoingPull& pull, const PullReply& reply, const wire::Buffer& body) {
  if (!is_saving() || pull.call != saving_->call) return;
  const PartitionId id = pull.head.partition;
  const auto part = wire::decode<SavedPart>(body.bytes());
  const bool is_right = part && part->partition == id && (part->file.empty() || is_file_name(part->file));
  if (reply.error != ErrorKind::kNone || !is_right) {
    const ServerEntry* server = map().server(map().partitions[id].primary());
    const std::string why(reinterpret_cast<const char*>(body.bytes().data()), body.size());
    return pull.call->fail(
        reply.error == ErrorKind::kNone ? ErrorKind::kMalformed : reply.error,
        text("partition ", id, " of server ", server == nullptr ? "?" : server->name,
             " was not saved: ", reply.error == ErrorKind::kNotSaved ? why : "a wrong answer"));
  }
  // The callback may have the last copy.
  const auto saving = saving_;
  saving->last.erase(id);
  saving->parts.push_back(*part);
  saving->call->set_due_ns(surroundings_->now_ns() + in_ns(options_.timeout_s));
  Result result;
  result.version = part->version;
  result.min_clock = part->clock;
  saving->call->part_done(result);
}

void ClientWork::begin_anew(Done done) {
  begin_calls_.push_back(new_call(std::move(done), 1));
  begin_sent_ns_ = 0;
  go_on();
}

void ClientWork::send_begin_anew() {
  std::erase_if(begin_calls_, [](const auto& call) { return call->is_over(); });
  if (begin_calls_.empty()) return;
  if (std::ranges::none_of(map().partitions, &PartitionEntry::lost)) {
    for (const auto& call : std::exchange(begin_calls_, {})) call->part_done(at_clock());
    return;
  }
  const std::int64_t now = surroundings_->now_ns();
  if (begin_sent_ns_ != 0 && now <= begin_sent_ns_ + in_ns(options_.retry_s)) return;
  begin_sent_ns_ = now;
  membership_.send(message_of(BeginAnew{life_}));
}

void ClientWork::find_begun_anew() {
  for (PartitionId id = 0; id < map().partitions.size(); ++id) {
    const auto lane = lanes_.find(id);
    const Epoch begun = map().partitions[id].begun;
    if (lane == lanes_.end() || lane->second.begun >= begun) continue;
    const std::string message =
        text("partition ", id, " was lost and has begun again: resume from a checkpoint");
    const auto requests = std::exchange(lane->second.requests, {});
    lanes_.erase(lane);
    const auto is_here = [&](const auto& of_part) {
      return map().partition_of(of_part.first.first, of_part.first.second) == id;
    };
    std::erase_if(last_pushes_, is_here);
    std::erase_if(residuals_, is_here);
    std::erase_if(bases_, is_here);
    for (auto& [request, pull] : pulls_) {
      if (pull.head.partition == id) pull.head.after = 0;
    }
    if (saving_) saving_->last.erase(id);
    // This worker's steps still count in the new partition.
    add(id, request_of(RequestOp::kTick), {}, nullptr);
    for (const auto& [sequence, request] : requests) {
      if (request.takes_credit && request.sent_ns != 0) bytes_under_way_ -= request.body.size();
      if (request.call) request.call->fail(ErrorKind::kDataLoss, message);
    }
  }
}

}  // namespace trireme::ps
