#pragma once
// One participant of a test: a NodeLoop on its own thread, a node that records events and runs the test's
// actions, and waits with a deadline.

#include <gmock/gmock.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "tests/support/temporary_folder.h"
#include "tests/unit/wire/message_bytes.h"
#include "trireme/base/clock.h"
#include "trireme/base/text.h"
#include "trireme/wire/node_loop.h"

namespace trireme::wire {

inline constexpr double kPartyWait_s = 60;  // ends a test that would hang; no wait is meant to take it

struct Closing {
  ConnectionId connection;
  CloseCause cause;
  std::string reason;
};

class Party final : private Node {
 public:
  using OnMessage = std::function<void(Network&, ConnectionId, Message)>;

  /// `on_message` runs on the loop's thread. Without it, messages are recorded.
  explicit Party(NodeLoopOptions options, OnMessage on_message = {})
      : on_message_(std::move(on_message)), loop_(reporting(std::move(options))), thread_([this] {
          try {
            loop_.run(*this);
          } catch (const std::exception& error) {
            note([&] { thrown_ = error.what(); });
          }
        }) {}
  ~Party() override { stop(); }

  NodeLoop& loop() { return loop_; }
  const Address& address() const { return loop_.addresses().front(); }
  void stop() {
    if (!thread_.joinable()) return;
    loop_.stop();
    thread_.join();
  }
  /// Runs the action on the loop's thread, between two callbacks.
  void act(std::function<void(Network&)> action) {
    loop_.post([this, action = std::move(action)] { action(surroundings_->network()); });
  }
  /// The same, and waits for its end. For short actions.
  void act_now(const std::function<void(Network&)>& action) {
    bool done = false;
    act([&](Network& network) {
      action(network);
      note([&] { done = true; });
    });
    EXPECT_TRUE(wait([&] { return done; }));
  }
  ConnectionId connect(const Address& address) {
    ConnectionId result = 0;
    act_now([&](Network& network) { result = network.connect(address); });
    return result;
  }
  /// connect(), and waits until the connection is open or has failed. Returns 0 if it failed.
  ConnectionId meet(const Address& address) {
    const ConnectionId id = connect(address);
    wait([&] { return peers_.contains(id) || closing_of(id) != nullptr; });
    const std::lock_guard lock(mutex_);
    return peers_.contains(id) ? id : 0;
  }
  void send(ConnectionId connection, Message message) {
    act([connection, message](Network& network) { network.send(connection, message); });
  }

  bool wait(const std::function<bool()>& ready) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, Seconds(kPartyWait_s), ready);
  }
  /// Waits for the next message over any connection.
  Message next_message() {
    if (!wait([&] { return !messages_.empty(); })) {
      ADD_FAILURE() << "no message came";
      return {};
    }
    const std::lock_guard lock(mutex_);
    Message result = std::move(messages_.front().second);
    messages_.pop_front();
    return result;
  }
  std::size_t num_messages() {
    const std::lock_guard lock(mutex_);
    return num_messages_;
  }
  bool wait_for_messages(std::size_t count) {
    return wait([&] { return num_messages_ >= count; });
  }
  bool wait_for_peers(std::size_t count) {
    return wait([&] { return peers_.size() >= count; });
  }
  /// The first connection that was closed, but not by this end.
  Closing next_closing() {
    if (!wait([&] { return !closings_.empty(); })) {
      ADD_FAILURE() << "nothing was closed";
      return {};
    }
    const std::lock_guard lock(mutex_);
    Closing result = closings_.front();
    closings_.pop_front();
    return result;
  }
  std::map<ConnectionId, PeerIdentity> peers() {
    const std::lock_guard lock(mutex_);
    return peers_;
  }
  std::string thrown() {
    wait([&] { return !thrown_.empty(); });
    const std::lock_guard lock(mutex_);
    return thrown_;
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  std::uint64_t counted(const std::string& what) { return loop_.counts()[what]; }
  /// Waits until the count is reached, since the other end may be notified earlier.
  bool comes_to_count(const std::string& what, std::uint64_t least) {
    for (const auto deadline = Deadline::after_s(20); counted(what) < least;) {
      if (deadline.expired()) return false;
      std::this_thread::sleep_for(Seconds(0.005));
    }
    return true;
  }
  Surroundings& surroundings() { return *surroundings_; }

 private:
  NodeLoopOptions reporting(NodeLoopOptions options) {
    options.report = [this](const std::string& line) { note([&] { lines_.push_back(line); }); };
    return options;
  }
  template <class Change>
  void note(const Change& change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }
  const Closing* closing_of(ConnectionId id) const {
    const auto found = std::ranges::find(closings_, id, &Closing::connection);
    return found == closings_.end() ? nullptr : &*found;
  }

  void on_start(Surroundings& surroundings) override { surroundings_ = &surroundings; }
  void on_connected(ConnectionId connection, const PeerIdentity& peer) override {
    note([&] { peers_[connection] = peer; });
  }
  void on_message(ConnectionId connection, Message message) override {
    if (on_message_) on_message_(surroundings_->network(), connection, message);
    note([&] {
      ++num_messages_;
      if (!on_message_) messages_.emplace_back(connection, std::move(message));
    });
  }
  void on_closed(ConnectionId connection, CloseCause cause, const std::string& reason) override {
    note([&] {
      peers_.erase(connection);
      closings_.push_back({connection, cause, reason});
    });
  }
  void on_timer(TimerId) override {}

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<ConnectionId, PeerIdentity> peers_;
  std::deque<std::pair<ConnectionId, Message>> messages_;
  std::size_t num_messages_ = 0;
  std::deque<Closing> closings_;
  std::vector<std::string> lines_;
  std::string thrown_;
  const OnMessage on_message_;
  Surroundings* surroundings_ = nullptr;
  NodeLoop loop_;
  std::thread thread_;
};

}  // namespace trireme::wire
