#include "trireme/etcd/serve.h"

#include "trireme/base/error.h"
#include "trireme/etcd/internal/disk.h"
#include "trireme/etcd/internal/election.h"
#include "trireme/etcd/internal/keys.h"
#include "trireme/etcd/internal/leading_node.h"
#include "trireme/etcd/store_address.h"

namespace trireme::etcd {
namespace {

/// Who does not lead has nothing to say: members that come look up again who does.
class WaitingNode final : public wire::Node {
 public:
  void on_start(wire::Surroundings& surroundings) override { surroundings_ = &surroundings; }
  void on_connected(wire::ConnectionId connection, const wire::PeerIdentity&) override {
    surroundings_->network().close(connection);
  }
  void on_message(wire::ConnectionId, wire::Message) override {}
  void on_closed(wire::ConnectionId, wire::CloseCause, const std::string&) override {}
  void on_timer(wire::TimerId) override {}

 private:
  wire::Surroundings* surroundings_ = nullptr;
};

bool is_everywhere(const wire::Address& address) {
  return address.starts_with("tcp:0.0.0.0:") || address.starts_with("tcp:[::]:");
}

class Candidate {
 public:
  Candidate(const CandidateOptions& options, std::stop_token stop)
      : options_(options),
        store_(StoreAddress::parse(options.store)),
        stop_(std::move(stop)),
        loop_(as_coordinator(options.loop)),
        address_(options.address.empty() && !loop_.addresses().empty() ? loop_.addresses().front()
                                                                       : options.address) {
    require(!loop_.addresses().empty(), "a coordinator has to listen somewhere: give its loop an address");
    require(!is_everywhere(address_), "members cannot connect to '", address_,
            "': say under which address this host is found");
    const ps::Coordinator throws_for_options_that_cannot_work(options.coordinator);
  }

  void serve() {
    Election election(
        {.members = store_.members,
         .key = leader_key(store_.prefix),
         .address = address_,
         .lease_s = options_.lease_s,
         .changed = [this] { loop_.stop(); },
         .trouble = [this](const std::string& line) { loop_.post([this, line] { report(line); }); }});
    const std::stop_callback ends(stop_, [this] { loop_.stop(); });
    report(text("is a candidate in ", store_.text(), " at ", address_));
    while (!stop_.stop_requested()) {
      const auto term = election.term();
      if (!term || !term->holds() || term == given_up_) {
        WaitingNode waiting;
        loop_.run(waiting);
      } else if (!lead(term)) {
        given_up_ = term;
        election.resign();
      }
    }
  }

 private:
  static wire::NodeLoopOptions as_coordinator(wire::NodeLoopOptions options) {
    options.self.role = "coordinator";
    return options;
  }

  /// Until the loop is stopped: by the end of the term, of the service, or of another term before. Whether
  /// etcd answered.
  bool lead(const std::shared_ptr<Term>& term) {
    report(text("leads as ", address_));
    Disk disk(Client(store_.members), store_.prefix, term);
    ps::Coordinator coordinator(options_.coordinator);
    LeadingNode node(coordinator, disk, term, [this] { loop_.stop(); });
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
    if (options_.loop.report) options_.loop.report("coordinator: " + line);
  }

  const CandidateOptions& options_;
  const StoreAddress store_;
  const std::stop_token stop_;
  wire::NodeLoop loop_;
  const wire::Address address_;
  std::shared_ptr<Term> given_up_;
};

}  // namespace

void serve_with_etcd(CandidateOptions options, std::stop_token stop) {
  Candidate(options, std::move(stop)).serve();
}

}  // namespace trireme::etcd
