#include "trireme/ps/internal/learner_feed.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace trireme::ps {
namespace {

constexpr std::uint32_t kMostPartsUnderWay = 4;
constexpr Version kNearEnough = 8;  // records behind, at which the learner begins to count for stability
constexpr std::int64_t kSlowLinkNsPerByte = 1000;
constexpr int kMostDoublings = 6;

}  // namespace

Version LearnerFeed::needs_after() const {
  if (phase_ == Phase::kLog) return follower_.received();
  return phase_ == Phase::kSnapshot ? snapshot_version_ : std::numeric_limits<Version>::max();
}

void LearnerFeed::look_how_near(Version last) {
  counts_ = counts_ || follower_.received() + kNearEnough >= last;
}

void LearnerFeed::on_ack(const ReplicateAck& ack, const PartitionState& state, const PartitionLog& log) {
  if (phase_ != Phase::kLog || ack.received > follower_.received()) {
    heard_ns_ = outbox_->now_ns();
    num_again_ = 0;
  }
  if (phase_ == Phase::kAsking) {
    const bool log_is_enough = ack.received + 1 >= log.first() && ack.received <= state.version();
    if (log_is_enough) {
      phase_ = Phase::kLog;
    } else {
      phase_ = Phase::kSnapshot;
      parts_ = state.snapshot();
      snapshot_version_ = state.version();
      num_sent_ = num_received_ = 0;
      part_bytes_.assign(parts_.size(), 0);
      send_parts();
      return;
    }
  }
  if (phase_ != Phase::kLog) return;
  follower_.on_ack(ack);
  follower_.send_new(log, 0);
  look_how_near(log.last());
}

void LearnerFeed::on_snapshot_ack(const SnapshotAck& ack, const PartitionLog& log) {
  if (phase_ != Phase::kSnapshot || ack.version != snapshot_version_) return;
  const std::uint32_t before = num_received_;
  num_received_ = std::max(num_received_, std::min<std::uint32_t>(ack.num_received, num_sent_));
  if (num_received_ > before) {
    heard_ns_ = outbox_->now_ns();
    num_again_ = 0;
  }
  if (num_received_ < parts_.size()) return send_parts();
  phase_ = Phase::kLog;
  parts_.clear();
  follower_.starts_after(snapshot_version_);
  follower_.send_new(log, 0);
  look_how_near(log.last());
}

void LearnerFeed::send_parts() {
  while (num_sent_ < parts_.size() && num_sent_ < num_received_ + kMostPartsUnderWay) {
    const PartitionState::Part& part = parts_[num_sent_];
    std::vector<std::byte> bytes = part.flat();
    if (!outbox_->may_copy(bytes.size())) return;  // send_more() continues
    part_bytes_[num_sent_] = bytes.size();
    SnapshotPart head = part.head;
    head.partition = partition_;
    head.epoch = epoch_;
    outbox_->to_server(learner(), message_of(head, wire::Buffer::of(std::move(bytes)), kBackground));
    ++num_sent_;
  }
}

void LearnerFeed::send_new(const PartitionLog& log) {
  if (phase_ == Phase::kLog) follower_.send_new(log, 0);
}

void LearnerFeed::send_more() {
  if (phase_ == Phase::kSnapshot) send_parts();
}

std::size_t LearnerFeed::bytes_under_way() const {
  if (phase_ != Phase::kSnapshot) return 0;
  return std::accumulate(part_bytes_.begin() + num_received_, part_bytes_.begin() + num_sent_,
                         std::size_t{0});
}

void LearnerFeed::begin_again(const PartitionLog& log) {
  num_again_ = 0;
  send_again(log);
}

void LearnerFeed::look_again(const PartitionLog& log, std::int64_t retry_ns) {
  const std::int64_t once = retry_ns + static_cast<std::int64_t>(bytes_under_way()) * kSlowLinkNsPerByte;
  const std::int64_t patience_ns = phase_ == Phase::kAsking ? retry_ns : once << num_again_;
  if (outbox_->now_ns() < heard_ns_ + patience_ns) return;
  num_again_ = std::min(num_again_ + 1, kMostDoublings);
  send_again(log);
}

void LearnerFeed::send_again(const PartitionLog& log) {
  heard_ns_ = outbox_->now_ns();
  if (phase_ == Phase::kAsking) {
    ask(log);
  } else if (phase_ == Phase::kSnapshot) {
    num_sent_ = num_received_;
    send_parts();
  } else {
    follower_.send_again(log, 0);
  }
}

}  // namespace trireme::ps
