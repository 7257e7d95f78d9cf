#include "tests/support/simulation.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <utility>

#include "tests/support/simulated_disk.h"
#include "trireme/base/text.h"

namespace trireme::test {

/// A node with its name, disk, and the events that wait while it is frozen. The node may be running or not.
class SimulatedNode final : public wire::Surroundings, public wire::Network {
 public:
  SimulatedNode(Simulation& world, std::string name, std::string role, Simulation::MakeNode make)
      : world_(world),
        name_(std::move(name)),
        role_(std::move(role)),
        make_(std::move(make)),
        disk_(Random(world.random_.bits())) {}

  // The interface that nodes use.
  std::int64_t now_ns() const override { return world_.now_ns_; }
  std::uint64_t random() override { return world_.random_.bits(); }
  wire::TimerId start_timer(double after_s) override {
    const wire::TimerId timer = ++last_timer_;
    timers_[timer] = true;
    const std::uint64_t life = life_;
    world_.schedule(world_.now_ns_ + std::max<std::int64_t>(1, static_cast<std::int64_t>(after_s * 1e9)),
                    [this, timer, life] {
                      tell(life, [this, timer] {
                        if (timers_.erase(timer) == 0) return;
                        node_->on_timer(timer);
                      });
                    });
    return timer;
  }
  void stop_timer(wire::TimerId timer) override { timers_.erase(timer); }
  void post(std::function<void()> work) override { world_.post(*this, std::move(work)); }
  wire::Network& network() override { return *this; }
  wire::Disk& disk() override { return disk_; }
  void report(const std::string& line) override { world_.note(name_ + ": " + line); }

  wire::ConnectionId connect(const wire::Address& address) override { return world_.connect(*this, address); }
  void send(wire::ConnectionId connection, wire::Message message) override {
    world_.send(*this, connection, std::move(message));
  }
  std::size_t waiting_bytes(wire::ConnectionId connection) const override {
    const auto found = waiting_bytes_.find(connection);
    return found == waiting_bytes_.end() ? 0 : found->second;
  }
  void pause(wire::ConnectionId connection) override { paused_[connection]; }
  void resume(wire::ConnectionId connection) override {
    const auto found = paused_.find(connection);
    if (found == paused_.end()) return;
    const std::uint64_t life = life_;
    world_.schedule(world_.now_ns_, [this, life, connection] {
      tell(life, [this, connection] {
        const auto held = paused_.extract(connection);  // until now others have queued after these
        if (held.empty()) return;
        for (const auto& action : held.mapped()) {
          const auto again = paused_.find(connection);  // paused by an action before this one
          if (again == paused_.end())
            action();
          else
            again->second.push_back(action);
        }
      });
    });
  }
  void close(wire::ConnectionId connection) override;

  /// Calls `action` on the node of this life, immediately or after it is thawed. Drops it if that life has
  /// ended.
  void tell(std::uint64_t life, std::function<void()> action) {
    if (life != life_ || !node_) return;
    if (is_frozen_)
      frozen_.push_back(std::move(action));
    else
      action();
  }

  Simulation& world_;
  std::string name_, role_;
  Simulation::MakeNode make_;
  SimulatedDisk disk_;
  std::unique_ptr<wire::Node> node_;
  std::uint64_t life_ = 0;
  bool is_frozen_ = false;
  std::deque<std::function<void()>> frozen_;
  std::map<wire::TimerId, bool> timers_;
  wire::TimerId last_timer_ = 0;
  std::int64_t posted_until_ns_ = 0;  ///< of the last post(); the next one comes later
  wire::ConnectionId last_connection_ = 0;
  std::map<wire::ConnectionId, std::uint64_t> links_;
  std::map<wire::ConnectionId, std::size_t> waiting_bytes_;
  std::map<wire::ConnectionId, std::vector<std::function<void()>>> paused_;
};

/// Connects two lives of nodes. `ends_[0]` has opened the connection.
struct Simulation::Connection {
  struct End {
    SimulatedNode* node = nullptr;
    std::uint64_t life = 0;
    wire::ConnectionId id = 0;
    bool is_open = false;
    std::int64_t arrives_ns = 0;              ///< of the last message to this end; the next one comes later
    std::vector<std::function<void()>> held;  ///< on a link that is cut: arrivals, in order
  };
  End ends[2];
};

Simulation::Simulation(std::uint64_t seed, SimulationOptions options)
    : options_(options), random_(seed), prints_(std::getenv("TRIREME_SIM_TRACE") != nullptr) {}
Simulation::~Simulation() = default;

void Simulation::add(const std::string& name, const std::string& role, MakeNode make) {
  nodes_[name] = std::make_unique<SimulatedNode>(*this, name, role, std::move(make));
}

wire::Node& Simulation::running(const std::string& name) { return *nodes_.at(name)->node_; }
bool Simulation::is_running(const std::string& name) const { return nodes_.at(name)->node_ != nullptr; }
bool Simulation::is_frozen(const std::string& name) const { return nodes_.at(name)->is_frozen_; }

void Simulation::start(const std::string& name) {
  SimulatedNode& node = *nodes_.at(name);
  trace("start", name, "", 0);
  ++node.life_;
  node.is_frozen_ = false;
  node.node_ = node.make_();
  node.node_->on_start(node);
}

void Simulation::crash(const std::string& name) {
  SimulatedNode& node = *nodes_.at(name);
  if (!node.node_) return;
  trace("crash", name, "", 0);
  const auto links = node.links_;
  for (const auto& [id, link] : links) close(link, &node, wire::CloseCause::kByPeer);
  node.node_.reset();
  node.frozen_.clear();
  node.timers_.clear();
  node.links_.clear();
  node.waiting_bytes_.clear();
  node.paused_.clear();
  node.disk_.crash();
}

void Simulation::freeze(const std::string& name) {
  trace("freeze", name, "", 0);
  nodes_.at(name)->is_frozen_ = true;
}

void Simulation::thaw(const std::string& name) {
  SimulatedNode& node = *nodes_.at(name);
  if (!node.is_frozen_) return;
  trace("thaw", name, "", 0);
  node.is_frozen_ = false;
  for (auto& action : std::exchange(node.frozen_, {})) action();
}

void Simulation::cut(const std::string& a, const std::string& b) {
  trace("cut", a, b, 0);
  cuts_[std::minmax(a, b)] = now_ns_;
  const std::int64_t since = now_ns_;
  const std::pair<std::string, std::string> key = std::minmax(a, b);
  schedule(now_ns_ + static_cast<std::int64_t>(options_.broken_s * 1e9), [this, key, since] {
    const auto found = cuts_.find(key);
    if (found == cuts_.end() || found->second != since) return;
    for (const auto& [number, link] : links_) {
      if (link->ends[1].node == nullptr) continue;
      const std::pair<std::string, std::string> names =
          std::minmax(link->ends[0].node->name_, link->ends[1].node->name_);
      if (names != key) continue;
      for (const bool second : {false, true}) tell_closed(number, second, wire::CloseCause::kTooSlow);
    }
  });
}

void Simulation::heal(const std::string& a, const std::string& b) {
  trace("heal", a, b, 0);
  cuts_.erase(std::minmax(a, b));
  release_held();
}

void Simulation::heal_all() {
  trace("heal", "all", "", 0);
  cuts_.clear();
  release_held();
}

void Simulation::release_held() {
  for (const auto& [number, link] : links_) {
    if (link->ends[1].node == nullptr || is_cut(link->ends[0].node->name_, link->ends[1].node->name_))
      continue;
    for (Connection::End& end : link->ends) {
      for (const auto& arrive : std::exchange(end.held, {})) arrive();
    }
  }
}

bool Simulation::is_cut(const std::string& a, const std::string& b) const {
  return cuts_.contains(std::minmax(a, b));
}

void Simulation::at(double after_s, std::function<void()> action) {
  schedule(now_ns_ + static_cast<std::int64_t>(after_s * 1e9), std::move(action));
}

void Simulation::schedule(std::int64_t at_ns, std::function<void()> action) {
  events_.push({at_ns, next_number_++, std::move(action)});
}

bool Simulation::step() {
  if (events_.empty()) return false;
  const Event event = events_.top();
  events_.pop();
  now_ns_ = std::max(now_ns_, event.at_ns);
  ++num_events_;
  event.action();
  return true;
}

bool Simulation::run_until(const std::function<bool()>& done, double at_most_s) {
  const std::int64_t end = now_ns_ + static_cast<std::int64_t>(at_most_s * 1e9);
  while (!done()) {
    if (events_.empty() || events_.top().at_ns > end) return false;
    step();
  }
  return true;
}

void Simulation::run_for(double seconds) {
  const std::int64_t end = now_ns_ + static_cast<std::int64_t>(seconds * 1e9);
  run_until([] { return false; }, seconds);
  now_ns_ = std::max(now_ns_, end);
}

std::int64_t Simulation::delay_ns() {
  const auto least = static_cast<std::uint64_t>(options_.links.min_delay_s * 1e9);
  const auto most = static_cast<std::uint64_t>(options_.links.max_delay_s * 1e9);
  return static_cast<std::int64_t>(least + random_.below(most - least + 1));
}

void Simulation::trace(const char* what, const std::string& who, const std::string& whom,
                       std::uint64_t number) {
  const auto add = [this](std::uint64_t bits) { hash_ = Random(hash_, bits).bits(); };
  add(static_cast<std::uint64_t>(now_ns_));
  add(Random::key_of(what));
  add(Random::key_of(who));
  add(Random::key_of(whom));
  add(number);
  if (prints_ && std::string(what) != "message")
    note(text(what, " ", who, whom.empty() ? "" : " -> ", whom, number == 0 ? "" : text(" #", number)));
}

void Simulation::note(const std::string& line) {
  if (prints_) std::fprintf(stderr, "%12.6f %s\n", now_s(), line.c_str());
}

/// Runs `work` a little later, like work of another thread of the node. Other events may come first.
void Simulation::post(SimulatedNode& node, std::function<void()> work) {
  const auto most = static_cast<std::uint64_t>(options_.max_post_delay_s * 1e9);
  const std::int64_t at = now_ns_ + static_cast<std::int64_t>(random_.below(most + 1));
  node.posted_until_ns_ = std::max(node.posted_until_ns_, at);
  schedule(node.posted_until_ns_,
           [&node, life = node.life_, work = std::move(work)] { node.tell(life, work); });
}

wire::ConnectionId Simulation::connect(SimulatedNode& from, const wire::Address& address) {
  const std::uint64_t number = ++last_link_;
  auto link = std::make_unique<Connection>();
  const auto target = nodes_.find(address.substr(address.find(':') + 1));
  link->ends[0] = {&from, from.life_, ++from.last_connection_, true, 0, {}};
  from.links_[from.last_connection_] = number;
  const wire::ConnectionId id = from.last_connection_;
  if (target != nodes_.end()) link->ends[1].node = target->second.get();
  links_[number] = std::move(link);
  trace("connect", from.name_, address, number);
  const std::int64_t deadline = now_ns_ + static_cast<std::int64_t>(options_.connect_timeout_s * 1e9);
  schedule(now_ns_ + delay_ns(), [this, number, deadline] { establish(number, deadline); });
  return id;
}

void Simulation::establish(std::uint64_t number, std::int64_t deadline_ns) {
  const auto found = links_.find(number);
  if (found == links_.end() || !found->second->ends[0].is_open) return;
  Connection& link = *found->second;
  SimulatedNode* from = link.ends[0].node;
  SimulatedNode* to = link.ends[1].node;
  const bool is_held = to != nullptr && (to->is_frozen_ || is_cut(from->name_, to->name_));
  if (is_held && now_ns_ < deadline_ns) {
    schedule(now_ns_ + 50'000'000, [this, number, deadline_ns] { establish(number, deadline_ns); });
    return;
  }
  if (to == nullptr || !to->node_ || is_held) {
    const bool is_silent = is_held && to->is_frozen_ && !is_cut(from->name_, to->name_);
    return tell_closed(number, false, is_silent ? wire::CloseCause::kSilent : wire::CloseCause::kUnreachable);
  }
  link.ends[1] = {to, to->life_, ++to->last_connection_, true, 0, {}};
  to->links_[to->last_connection_] = number;
  for (const bool second : {false, true}) {
    const Connection::End end = link.ends[second ? 1 : 0];
    const SimulatedNode& other = *link.ends[second ? 0 : 1].node;
    const wire::PeerIdentity peer = {other.role_, other.name_};
    link.ends[second ? 1 : 0].arrives_ns = now_ns_;
    end.node->tell(end.life, [end, peer] { end.node->node_->on_connected(end.id, peer); });
  }
}

void Simulation::send(SimulatedNode& from, wire::ConnectionId id, wire::Message message) {
  const auto found = from.links_.find(id);
  if (found == from.links_.end()) return;
  const std::uint64_t number = found->second;
  Connection& link = *links_.at(number);
  const bool to_second = link.ends[0].node == &from && link.ends[0].id == id;
  Connection::End& end = link.ends[to_second ? 1 : 0];
  if (!end.is_open) return;
  ++num_messages_[message.kind];
  num_bytes_[message.kind] += message.num_bytes();
  const LinkFaults& faults = options_.links;
  from.waiting_bytes_[id] += message.num_bytes();
  const auto shared = std::make_shared<const wire::Message>(std::move(message));
  if (faults.drop > 0 && random_.uniform() < faults.drop) {
    trace("lose", from.name_, end.node->name_, shared->kind);
    from.waiting_bytes_[id] -= shared->num_bytes();
    return;
  }
  const int copies = faults.duplicate > 0 && random_.uniform() < faults.duplicate ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    std::int64_t arrives = now_ns_ + delay_ns();
    const bool overtakes = faults.reorder > 0 && random_.uniform() < faults.reorder;
    if (!overtakes) arrives = end.arrives_ns = std::max(arrives, end.arrives_ns);
    schedule(arrives, [this, number, to_second, shared, last = copy + 1 == copies] {
      deliver(number, to_second, shared, last);
    });
  }
}

void Simulation::deliver(std::uint64_t number, bool to_second,
                         const std::shared_ptr<const wire::Message>& message, bool last) {
  const auto found = links_.find(number);
  if (found == links_.end()) return;
  Connection::End& held_by = found->second->ends[to_second ? 1 : 0];
  if (!held_by.is_open) return;
  if (is_cut(found->second->ends[0].node->name_, found->second->ends[1].node->name_)) {
    held_by.held.emplace_back(
        [this, number, to_second, message, last] { deliver(number, to_second, message, last); });
    return;
  }
  const auto [node, life, id] = std::tuple(held_by.node, held_by.life, held_by.id);
  const Connection::End& source = found->second->ends[to_second ? 0 : 1];
  if (last && source.is_open) source.node->waiting_bytes_[source.id] -= message->num_bytes();
  const auto act = [this, node = node, id = id, message, from = source.node] {
    if (!node->links_.contains(id)) return;
    const std::string_view head(reinterpret_cast<const char*>(message->head.data()), message->head.size());
    hash_ = Random(hash_, Random::key_of(head), message->body.size(), message->kind).bits();
    if (prints_ && kind_name_)
      note(text(from->name_, " -> ", node->name_, " ", kind_name_(message->kind), " ", message->body.size(),
                " B"));
    trace("message", from->name_, node->name_, 0);
    node->node_->on_message(id, *message);
  };
  node->tell(life, [node = node, id = id, act] {
    const auto paused = node->paused_.find(id);
    if (paused == node->paused_.end()) return act();
    paused->second.emplace_back(act);
  });
}

void SimulatedNode::close(wire::ConnectionId connection) {
  const auto found = links_.find(connection);
  if (found != links_.end()) world_.close(found->second, this, wire::CloseCause::kByPeer);
}

/// The closing end closes at once. The other end closes after the messages in flight, and not while the link
/// is cut.
void Simulation::close(std::uint64_t number, SimulatedNode* by, wire::CloseCause cause) {
  const auto found = links_.find(number);
  if (found == links_.end()) return;
  Connection& link = *found->second;
  const bool by_second = link.ends[1].node == by && link.ends[1].is_open &&
                         by->links_.contains(link.ends[1].id) && by->links_.at(link.ends[1].id) == number;
  Connection::End& own = link.ends[by_second ? 1 : 0];
  own.is_open = false;
  by->links_.erase(own.id);
  by->paused_.erase(own.id);
  Connection::End& other = link.ends[by_second ? 0 : 1];
  if (!other.is_open) return;
  const std::int64_t arrives = std::max(now_ns_ + delay_ns(), other.arrives_ns);
  schedule(arrives, [this, number, second = !by_second, cause] { tell_closed(number, second, cause); });
}

void Simulation::tell_closed(std::uint64_t number, bool second, wire::CloseCause cause) {
  const auto found = links_.find(number);
  if (found == links_.end()) return;
  Connection::End& end = found->second->ends[second ? 1 : 0];
  const Connection::End& other = found->second->ends[second ? 0 : 1];
  if (!end.is_open) return;
  if (cause == wire::CloseCause::kByPeer && other.node != nullptr &&
      is_cut(end.node->name_, other.node->name_)) {
    schedule(now_ns_ + 20'000'000, [this, number, second, cause] { tell_closed(number, second, cause); });
    return;
  }
  const Connection::End told = end;
  end.is_open = false;
  trace("closed", told.node->name_, other.node == nullptr ? "nobody" : other.node->name_, number);
  told.node->tell(told.life, [told, cause] {
    if (told.node->links_.erase(told.id) == 0) return;
    told.node->paused_.erase(told.id);
    told.node->node_->on_closed(told.id, cause, "closed in the simulation");
  });
}

}  // namespace trireme::test
