#pragma once
// A node as long as a term holds: it has etcd's disk in place of the loop's, and before every event it is
// asked whether this process still leads. When it does not, the node is told of nothing any more. One thread.

#include <functional>

#include "trireme/etcd/internal/disk.h"
#include "trireme/wire/node.h"

namespace trireme::etcd {

class LeadingNode final : public wire::Node, private wire::Surroundings {
 public:
  /// `ended` is called once, when an event comes and the term does not hold.
  LeadingNode(wire::Node& node, Disk& disk, std::shared_ptr<Term> term, std::function<void()> ended)
      : node_(node), disk_(disk), term_(std::move(term)), ended_(std::move(ended)) {}

  void on_start(wire::Surroundings& surroundings) override {
    outer_ = &surroundings;
    if (leads()) node_.on_start(*this);
  }
  void on_connected(wire::ConnectionId connection, const wire::PeerIdentity& peer) override {
    if (leads()) node_.on_connected(connection, peer);
  }
  void on_message(wire::ConnectionId connection, wire::Message message) override {
    if (leads()) node_.on_message(connection, std::move(message));
  }
  void on_closed(wire::ConnectionId connection, wire::CloseCause cause, const std::string& reason) override {
    if (leads()) node_.on_closed(connection, cause, reason);
  }
  void on_timer(wire::TimerId timer) override {
    if (leads()) node_.on_timer(timer);
  }

 private:
  bool leads() {
    if (term_->holds()) return true;
    if (auto tell = std::exchange(ended_, nullptr)) tell();
    return false;
  }

  std::int64_t now_ns() const override { return outer_->now_ns(); }
  std::uint64_t random() override { return outer_->random(); }
  wire::TimerId start_timer(double after_s) override { return outer_->start_timer(after_s); }
  void stop_timer(wire::TimerId timer) override { outer_->stop_timer(timer); }
  wire::Network& network() override { return outer_->network(); }
  wire::Disk& disk() override { return disk_; }
  void report(const std::string& line) override { outer_->report(line); }

  wire::Node& node_;
  Disk& disk_;
  const std::shared_ptr<Term> term_;
  std::function<void()> ended_;
  wire::Surroundings* outer_ = nullptr;
};

}  // namespace trireme::etcd
