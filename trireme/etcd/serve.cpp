#include "trireme/etcd/serve.h"

#include "trireme/base/error.h"
#include "trireme/etcd/internal/disk.h"
#include "trireme/etcd/internal/election.h"
#include "trireme/etcd/internal/keys.h"
#include "trireme/etcd/internal/leading_node.h"
#include "trireme/etcd/store_address.h"
#include "trireme/ps/metrics.h"
#include "trireme/ps/served_metrics.h"

namespace trireme::etcd {
namespace {

constexpr double kLook_s = 0.1;

/// A candidate that does not lead. It closes connections, so that members look up the leader again.
class WaitingNode final : public wire::Node {
 public:
  /// `look` is called periodically.
  explicit WaitingNode(std::function<void()> look) : look_(std::move(look)) {}

  void on_start(wire::Surroundings& surroundings) override {
    surroundings_ = &surroundings;
    surroundings_->start_timer(kLook_s);
  }
  void on_connected(wire::ConnectionId connection, const wire::PeerIdentity&) override {
    surroundings_->network().close(connection);
  }
  void on_message(wire::ConnectionId, wire::Message) override {}
  void on_closed(wire::ConnectionId, wire::CloseCause, const std::string&) override {}
  void on_timer(wire::TimerId) override {
    surroundings_->start_timer(kLook_s);
    look_();
  }

 private:
  const std::function<void()> look_;
  wire::Surroundings* surroundings_ = nullptr;
};

class Candidate {
 public:
  Candidate(const CandidateOptions& options, ps::ServeOptions serve)
      : options_(options),
        store_(StoreAddress::parse(options.store)),
        serve_(as_coordinator(std::move(serve))),
        loop_(serve_.loop),
        metrics_(serve_) {
    const ps::Coordinator throws_for_options_that_cannot_work(options.coordinator);
    require(!loop_.addresses().empty(), "a coordinator has to listen somewhere: give its loop an address");
    address_ = options.address.empty() ? loop_.addresses().front() : options.address;
    require(!ps::is_everywhere(address_), "this coordinator listens at ", address_,
            ", which says nothing to others: tell them an address of this host");
  }

  void serve() {
    Election election(
        {.members = store_.members,
         .key = leader_key(store_.prefix),
         .address = address_,
         .lease_s = options_.lease_s,
         .changed = [this] { loop_.stop(); },
         .trouble = [this](const std::string& line) { loop_.post([this, line] { report(line); }); }});
    if (serve_.on_listening) serve_.on_listening(loop_.addresses());
    std::shared_ptr<Term> given_up;
    while (!is_asked_to_stop(serve_)) {
      const auto term = election.term();
      if (!term || !term->holds() || term == given_up) {
        metrics_.change();
        WaitingNode waiting([this] {
          if (is_asked_to_stop(serve_)) loop_.stop();
          metrics_.look([](const auto& publish) { publish(ps::metrics_text_of_one_who_waits()); });
        });
        loop_.run(waiting);
      } else if (!lead(term)) {
        given_up = term;
        election.resign();
      }
    }
  }

 private:
  static ps::ServeOptions as_coordinator(ps::ServeOptions serve) {
    serve.loop.self = {.role = "coordinator", .name = "0"};
    serve.loop.node_registers = true;
    return serve;
  }

  /// Runs until the loop is stopped: by the end of the term or of the service, or by a change before this
  /// began. Returns whether etcd answered.
  bool lead(const std::shared_ptr<Term>& term) {
    report(text("leads in ", store_.text(), " as ", address_));
    Disk disk(Client(store_.members), store_.prefix, term);
    ps::CoordinatorOptions counted = options_.coordinator;
    counted.channel_counts = [this] { return loop_.counts(); };
    ps::Coordinator coordinator(counted);
    metrics_.change();
    LeadingNode node(coordinator, disk, term, [&] {
      if (!term->holds() || is_asked_to_stop(serve_)) return loop_.stop();
      metrics_.look([&](const auto& publish) { publish(metrics_text(coordinator.status())); });
    });
    try {
      loop_.run(node);
    } catch (const NotNow& error) {
      report(text("cannot lead: ", error.what()));
      return false;
    }
    if (!term->holds()) report("leads no more");
    return true;
  }

  void report(const std::string& line) const {
    if (serve_.loop.report) serve_.loop.report("coordinator: " + line);
  }

  const CandidateOptions& options_;
  const StoreAddress store_;
  const ps::ServeOptions serve_;
  wire::NodeLoop loop_;
  ps::ServedMetrics metrics_;
  wire::Address address_;
};

}  // namespace

void serve_with_etcd(const CandidateOptions& options, ps::ServeOptions serve) {
  Candidate(options, std::move(serve)).serve();
}

}  // namespace trireme::etcd
