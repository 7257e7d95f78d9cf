#include "trireme/ps/internal/replica.h"

#include <algorithm>
#include <utility>

namespace trireme::ps {
namespace {

std::int64_t nanoseconds(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

}  // namespace

void Replica::adopt(const PartitionEntry& entry, ServerId self) {
  if (entry.epoch <= epoch_) return;
  const auto place = std::find(entry.chain.begin(), entry.chain.end(), self);
  const bool in_chain = place != entry.chain.end();
  const bool is_learner = !in_chain && entry.learner == self;
  // A learner that was dropped and added again has missed records that are not kept for it.
  const bool keeps = (in_chain && (role_ == Role::kReplica || (role_ == Role::kLearner && !installing_))) ||
                     (is_learner && role_ == Role::kLearner && learner_since_ == entry.learner_since);
  if (!keeps || entry.begun > epoch_) forget();
  // All records that it got as a learner were on all replicas before, even if it is not the last one any
  // more.
  if (in_chain && role_ == Role::kLearner) stable_ = std::max(stable_, state_.version());
  epoch_ = entry.epoch;
  role_ = in_chain ? Role::kReplica : is_learner ? Role::kLearner : Role::kNone;
  is_first_ = in_chain && place == entry.chain.begin();
  learner_since_ = is_learner ? entry.learner_since : 0;
  next_.reset();
  feed_.reset();
  upstream_ = 0;
  upstream_asked_ns_ = 0;
  suspected_ns_ = outbox_.now_ns();
  asking_since_ns_ = 0;
  if (!in_chain) return;
  if (const auto after = place + 1; after != entry.chain.end()) {
    next_.emplace(*after, partition_, epoch_, outbox_);
    next_->ask(log_, outbox_.now_ns());
  } else if (entry.learner != kNoServer) {
    feed_.emplace(entry.learner, partition_, epoch_, outbox_);
    feed_->ask(log_);
  }
  settle();
}

void Replica::forget() {
  state_ = PartitionState{};
  log_.restart(0);
  stable_ = 0;
  confirmed_ns_ = 0;
  installing_ = false;
  num_parts_ = 0;
}

bool Replica::is_confirmed() const {
  const std::int64_t now = outbox_.now_ns();
  if (!next_) return now < outbox_.lease_until_ns();
  return confirmed_ns_ != 0 && now < confirmed_ns_ + nanoseconds(options_.confirmed_s);
}

void Replica::confirm() {
  if (!next_ || asking_since_ns_ != 0) return;
  asking_since_ns_ = outbox_.now_ns();
  next_->ask(log_, asking_since_ns_);
}

Version Replica::version_of(const WorkerLife& life, Sequence sequence) const {
  for (Version version = stable_ + 1; version <= log_.last(); ++version) {
    for (const LoggedRequest& request : log_.at(version).record.requests) {
      if (request.life == life && request.sequence == sequence) return version;
    }
  }
  return 0;
}

void Replica::append(LogEntry entry) {
  upstream_asked_ns_ = outbox_.now_ns();
  take(std::move(entry));
}

void Replica::take(LogEntry entry) {
  state_.apply(entry.record, entry.values());
  log_.append(std::move(entry));
  if (next_) next_->send_new(log_, upstream_asked_ns_);
  if (feed_) feed_->send_new(log_);
  settle();
}

/// The last replica of the chain decides which version is stable: its own, limited by a learner that is about
/// to be the last.
void Replica::settle() {
  if (role_ == Role::kReplica && !next_) {
    const bool is_alone = is_first_;
    const Version everywhere =
        feed_ && feed_->counts() ? std::min(state_.version(), feed_->received()) : state_.version();
    if (!is_alone || outbox_.now_ns() < outbox_.lease_until_ns()) stable_ = std::max(stable_, everywhere);
  }
  trim();
}

void Replica::look_at_learner() {
  const Version before = stable_;
  settle();
  if (stable_ > before) acknowledge_upstream();
  if (feed_->counts() && feed_->received() >= stable_) notify_coordinator<CaughtUp>(feed_->learner());
}

void Replica::trim() {
  Version until = stable_;
  // A replica that has just become the next one may lack records that were stable without it.
  if (next_) until = next_->known() ? std::min(until, next_->received()) : log_.first() - 1;
  if (feed_) until = std::min(until, feed_->needs_after());
  if (role_ == Role::kLearner) until = state_.version();
  log_.trim(until);
}

void Replica::on_replicate(wire::ConnectionId from, const Replicate& head, const wire::Buffer& body) {
  if (head.epoch != epoch_ || role_ == Role::kNone || (is_first_ && role_ == Role::kReplica)) {
    if (head.epoch > epoch_) outbox_.map_is_old();
    return answer(from, ErrorKind::kWrongEpoch);
  }
  upstream_ = from;
  upstream_asked_ns_ = std::max(upstream_asked_ns_, head.asked_ns);
  if (!head.has_record) {
    if (!next_) return answer(from, ErrorKind::kNone);
    // A request for confirmation goes down the whole chain; this replica reports its own version at once.
    if (head.asked_ns != 0) next_->ask(log_, head.asked_ns);
    const std::int64_t asked = std::exchange(upstream_asked_ns_, 0);
    answer(from, ErrorKind::kNone);
    upstream_asked_ns_ = asked;
    return;
  }
  if (installing_) return;
  if (head.version <= state_.version()) return answer(from, ErrorKind::kNone);
  if (head.version > state_.version() + 1) return answer(from, ErrorKind::kNotNow);
  auto entry = LogEntry::read(head.record_bytes, body);
  if (!entry || !state_.fits(entry->record, entry->values())) {
    outbox_.rejected("a log record that does not fit");
    return;
  }
  take(std::move(*entry));
  if (!next_) acknowledge_upstream();
}

void Replica::answer(wire::ConnectionId to, ErrorKind error) const {
  const Version received = installing_ ? 0 : state_.version();
  const ReplicateAck ack = {.partition = partition_,
                            .epoch = epoch_,
                            .error = error,
                            .received = received,
                            .stable = role_ == Role::kReplica ? stable_ : 0,
                            .asked_ns = upstream_asked_ns_};
  outbox_.answer(to, message_of(ack));
}

void Replica::acknowledge_upstream() const {
  if (upstream_ != 0) answer(upstream_, ErrorKind::kNone);
}

void Replica::on_ack(ServerId from, const ReplicateAck& ack) {
  if (ack.error == ErrorKind::kWrongEpoch || ack.epoch != epoch_) {
    if (ack.epoch > epoch_) outbox_.map_is_old();
    return;
  }
  if (next_ && next_->server() == from) {
    if (ack.received > state_.version() || ack.received + 1 < log_.first()) {
      // It has records that this replica lacks, or lacks records that are not kept: it must start again.
      notify_coordinator<Suspect>(from);
      return;
    }
    next_->on_ack(ack);
    next_->send_new(log_, upstream_asked_ns_);
    stable_ = std::max(stable_, std::min(ack.stable, ack.received));
    if (is_first_) {
      confirmed_ns_ = std::max(confirmed_ns_, ack.asked_ns);
      if (confirmed_ns_ >= asking_since_ns_) asking_since_ns_ = 0;
    } else if (upstream_ != 0) {
      const std::int64_t asked = std::exchange(upstream_asked_ns_, ack.asked_ns);
      acknowledge_upstream();
      upstream_asked_ns_ = asked;
    }
  } else if (feed_ && feed_->learner() == from) {
    feed_->on_ack(ack, state_, log_);
    look_at_learner();
  }
  trim();
}

void Replica::on_snapshot_part(wire::ConnectionId from, const SnapshotPart& head, const wire::Buffer& body) {
  if (head.epoch != epoch_ || role_ != Role::kLearner) {
    if (head.epoch > epoch_) outbox_.map_is_old();
    return;
  }
  if (!installing_ && state_.version() >= head.version) {  // complete already: the answer was lost
    outbox_.answer(from, message_of(SnapshotAck{partition_, epoch_, head.version, head.num_parts}));
    return;
  }
  if (head.number == 0 && (!installing_ || head.version != state_.version())) {
    forget();
    installing_ = true;
  }
  if (!installing_ || (head.number > 0 && head.version != state_.version())) return;
  if (head.number == num_parts_) {
    if (head.number >= head.num_parts || !state_.install(head, body)) {
      outbox_.rejected("a part of a snapshot that does not fit");
      forget();
      return;
    }
    ++num_parts_;
  }
  const SnapshotAck ack = {
      .partition = partition_, .epoch = epoch_, .version = head.version, .num_received = num_parts_};
  if (num_parts_ == head.num_parts) {
    installing_ = false;
    num_parts_ = 0;
    log_.restart(state_.version());
  }
  outbox_.answer(from, message_of(ack));
}

void Replica::on_snapshot_ack(ServerId from, const SnapshotAck& ack) {
  if (ack.epoch != epoch_ || !feed_ || feed_->learner() != from) return;
  feed_->on_snapshot_ack(ack, log_);
  look_at_learner();
}

void Replica::on_connected(ServerId server) {
  if (next_ && next_->server() == server) next_->send_again(log_, upstream_asked_ns_);
  if (feed_ && feed_->learner() == server) feed_->begin_again(log_);
}

void Replica::on_tick() {
  const std::int64_t now = outbox_.now_ns();
  if (feed_) feed_->send_more();
  if (now >= retried_ns_ + nanoseconds(options_.retry_s)) {
    retried_ns_ = now;
    const bool is_pending = next_ && (!next_->known() || next_->received() < log_.last());
    if (is_pending && now >= next_->progress_ns() + nanoseconds(options_.retry_s))
      next_->send_again(log_, upstream_asked_ns_);
    // The next replica has everything, but the acknowledgement from the end of the chain was lost.
    if (next_ && !is_pending && stable_ < state_.version()) next_->ask(log_, upstream_asked_ns_);
    if (asking_since_ns_ != 0) next_->ask(log_, now);
    const std::int64_t since = is_pending ? next_->progress_ns() : asking_since_ns_;
    if (since != 0 && now >= std::max(since, suspected_ns_) + nanoseconds(options_.suspect_s)) {
      suspected_ns_ = now;
      notify_coordinator<Suspect>(next_->server());
    }
    if (feed_) {
      feed_->look_again(log_, nanoseconds(options_.retry_s));
      look_at_learner();
      const bool holds_up = feed_->counts() && feed_->received() < state_.version();
      const std::int64_t pending_since = std::max(feed_->progress_ns(), suspected_ns_);
      if (holds_up && now >= pending_since + nanoseconds(options_.suspect_s)) {
        suspected_ns_ = now;
        notify_coordinator<Suspect>(feed_->learner());
      }
    }
  }
  settle();
}

bool Replica::is_idle() const {
  if (role_ != Role::kReplica) return true;
  const bool next_has_all = !next_ || (next_->known() && next_->received() >= log_.last());
  return !feed_ && next_has_all && asking_since_ns_ == 0 && stable_ == state_.version();
}

template <class News>
void Replica::notify_coordinator(ServerId server) const {
  outbox_.to_coordinator(message_of(News{{partition_, epoch_, server}}));
}

}  // namespace trireme::ps
