#pragma once
// A node as long as a term holds: it has etcd's disk in place of the loop's, and before every event it is
// checked whether this process still leads. When it does not, the node gets no more events. One thread.

#include <functional>

#include "trireme/etcd/internal/disk.h"
#include "trireme/wire/node.h"

namespace trireme::etcd {

class LeadingNode final : public wire::Node, private wire::Surroundings {
 public:
  /// `look` is called at every timer of the node, and when the term does not hold.
  LeadingNode(wire::Node& node, Disk& disk, std::shared_ptr<const Term> term, std::function<void()> look)
      : node_(node), disk_(disk), term_(std::move(term)), look_(std::move(look)) {}

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
    look_();
  }

 private:
  bool leads() {
    if (term_->holds()) return true;
    look_();
    return false;
  }

  std::int64_t now_ns() const override { return outer_->now_ns(); }
  void post(std::function<void()> work) override { outer_->post(std::move(work)); }
  std::uint64_t random() override { return outer_->random(); }
  wire::TimerId start_timer(double after_s) override { return outer_->start_timer(after_s); }
  void stop_timer(wire::TimerId timer) override { outer_->stop_timer(timer); }
  wire::Network& network() override { return outer_->network(); }
  wire::Disk& disk() override { return disk_; }
  void report(const std::string& line) override { outer_->report(line); }

  wire::Node& node_;
  Disk& disk_;
  const std::shared_ptr<const Term> term_;
  const std::function<void()> look_;
  wire::Surroundings* outer_ = nullptr;
};

}  // namespace trireme::etcd
