#include "trireme/ps/internal/follower.h"

#include <algorithm>

namespace trireme::ps {

void Follower::ask(const PartitionLog& log, std::int64_t asked_ns) {
  const Replicate head = {
      .partition = partition_, .epoch = epoch_, .version = log.last(), .asked_ns = asked_ns};
  outbox_->to_server(server_, message_of(head));
}

void Follower::send_new(const PartitionLog& log, std::int64_t asked_ns) {
  if (sent_ <= received_) progress_ns_ = outbox_->now_ns();  // it had acknowledged everything until now
  send_unsent(log, asked_ns);
}

void Follower::send_unsent(const PartitionLog& log, std::int64_t asked_ns) {
  if (!known_ || received_ + 1 < log.first()) return;
  for (sent_ = std::max(sent_, received_); sent_ < log.last();) {
    const LogEntry::Encoded entry = log.at(++sent_).encoded();
    const Replicate head = {.partition = partition_,
                            .epoch = epoch_,
                            .has_record = true,
                            .version = sent_,
                            .asked_ns = asked_ns,
                            .record_bytes = entry.record_bytes};
    outbox_->to_server(server_, message_of(head, entry.body));
  }
}

void Follower::on_ack(const ReplicateAck& ack) {
  // `received` only grows; an older answer may arrive late.
  if (ack.received > received_ || !known_) progress_ns_ = outbox_->now_ns();
  received_ = std::max(received_, ack.received);
  if (!known_ || ack.error == ErrorKind::kNotNow) sent_ = received_;
  known_ = true;
}

void Follower::send_again(const PartitionLog& log, std::int64_t asked_ns) {
  sent_ = received_;
  if (!known_)
    ask(log, asked_ns);
  else
    send_unsent(log, asked_ns);
}

void Follower::starts_after(Version version) {
  known_ = true;
  received_ = sent_ = version;
  progress_ns_ = outbox_->now_ns();
}

}  // namespace trireme::ps
