#pragma once
// A cluster in one thread under virtual time. Nodes (trireme/wire/node.h) communicate over a network that
// delays, cuts, drops and duplicates. Their disks lose or tear unsynced bytes when a node crashes. A seed
// determines everything: the same seed gives the same trace, event by event, and the same trace_hash().
//
// TRIREME_SIM_TRACE=1 prints every event. The guarantees of a transport (in order, exactly once, while a
// connection is open) hold unless a link is configured otherwise.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "trireme/base/random.h"
#include "trireme/wire/node.h"

namespace trireme::test {

struct LinkFaults {
  double min_delay_s = 0.0001, max_delay_s = 0.002;
  double drop = 0, duplicate = 0,
         reorder = 0;  ///< of single messages: no connection does this, but a bug may
};

struct SimulationOptions {
  double connect_timeout_s = 1;      ///< to an address that does not answer
  double broken_s = 8;               ///< a connection over a link that is cut for longer closes on both sides
  double max_post_delay_s = 0.0002;  ///< of work that a node posts to itself, as from another thread
  LinkFaults links;
};

class SimulatedNode;

class Simulation {
 public:
  using MakeNode = std::function<std::unique_ptr<wire::Node>()>;

  explicit Simulation(std::uint64_t seed, SimulationOptions options = {});
  ~Simulation();

  /// Adds a node with the address "inproc:NAME". start() starts it.
  void add(const std::string& name, const std::string& role, MakeNode make);
  void start(const std::string& name);
  /// Ends the node between two events. Its connections close, and unsynced bytes of its disk may be lost or
  /// torn.
  void crash(const std::string& name);
  bool is_running(const std::string& name) const;
  /// As with SIGSTOP and SIGCONT: other nodes see an open connection without messages.
  void freeze(const std::string& name);
  void thaw(const std::string& name);
  bool is_frozen(const std::string& name) const;
  /// No message passes between the two nodes. Sent messages wait.
  void cut(const std::string& a, const std::string& b);
  void heal(const std::string& a, const std::string& b);
  void heal_all();
  void set_faults(const LinkFaults& faults) { options_.links = faults; }

  /// The node itself, which must be running.
  template <class NodeType>
  NodeType& node(const std::string& name) {
    return dynamic_cast<NodeType&>(running(name));
  }

  void at(double after_s, std::function<void()> action);
  /// Runs the next event. Returns whether there was one.
  bool step();
  /// Runs until `done`, for at most `at_most_s` of virtual time. Returns whether it is done.
  bool run_until(const std::function<bool()>& done, double at_most_s);
  void run_for(double seconds);
  double now_s() const { return static_cast<double>(now_ns_) * 1e-9; }

  Random& random() { return random_; }
  std::uint64_t trace_hash() const { return hash_; }
  std::uint64_t num_events() const { return num_events_; }
  /// Number of messages of one kind that were sent so far.
  std::uint64_t num_messages(std::uint16_t kind) const {
    const auto found = num_messages_.find(kind);
    return found == num_messages_.end() ? 0 : found->second;
  }
  std::uint64_t num_bytes(std::uint16_t kind) const {
    const auto found = num_bytes_.find(kind);
    return found == num_bytes_.end() ? 0 : found->second;
  }
  /// The name of a kind, for traces.
  void name_kinds(std::function<std::string(std::uint16_t)> name) { kind_name_ = std::move(name); }
  void note(const std::string& line);

 private:
  friend class SimulatedNode;
  struct Connection;
  struct Event {
    std::int64_t at_ns;
    std::uint64_t number;
    std::function<void()> action;
    bool operator>(const Event& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : number > other.number;
    }
  };

  wire::Node& running(const std::string& name);
  std::int64_t delay_ns();
  bool is_cut(const std::string& a, const std::string& b) const;
  void release_held();
  void schedule(std::int64_t at_ns, std::function<void()> action);
  void trace(const char* what, const std::string& who, const std::string& whom, std::uint64_t number);
  void post(SimulatedNode& node, std::function<void()> work);
  wire::ConnectionId connect(SimulatedNode& from, const wire::Address& address);
  void establish(std::uint64_t link, std::int64_t deadline_ns);
  void send(SimulatedNode& from, wire::ConnectionId id, wire::Message message);
  void deliver(std::uint64_t link, bool to_second, const std::shared_ptr<const wire::Message>& message,
               bool last);
  void close(std::uint64_t link, SimulatedNode* by, wire::CloseCause cause);
  void tell_closed(std::uint64_t link, bool second, wire::CloseCause cause);

  SimulationOptions options_;
  Random random_;
  std::int64_t now_ns_ = 1'000'000'000;
  std::map<std::uint16_t, std::uint64_t> num_messages_, num_bytes_;
  std::uint64_t num_events_ = 0, next_number_ = 0, hash_ = 0;
  bool prints_;
  std::function<std::string(std::uint16_t)> kind_name_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::map<std::string, std::unique_ptr<SimulatedNode>> nodes_;
  std::map<std::pair<std::string, std::string>, std::int64_t> cuts_;
  std::map<std::uint64_t, std::unique_ptr<Connection>> links_;
  std::uint64_t last_link_ = 0;
};

}  // namespace trireme::test
