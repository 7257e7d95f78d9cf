#pragma once
// A node over real sockets, with its loop and the thread that runs it. It ends with the object.

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "trireme/wire/node_loop.h"

namespace trireme::ps {

inline constexpr std::chrono::seconds kMaxWait{
    120};  // ends a test that would hang; no wait is meant to take it

template <class NodeType>
class Served {
 public:
  template <class... Args>
  explicit Served(wire::NodeLoopOptions options, Args&&... args)
      : loop_(std::move(options)), node_(std::forward<Args>(args)...), thread_([this] {
          try {
            loop_.run(node_);
          } catch (const std::exception& error) {
            thrown_.set_value(error.what());
          }
        }) {}
  ~Served() { stop(); }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  void stop() {
    if (!thread_.joinable()) return;
    loop_.stop();
    thread_.join();
  }
  /// The node itself, only for functions that any thread may call.
  NodeType& node() { return node_; }
  wire::NodeLoop& loop() { return loop_; }
  /// The result of `action(node)`, which runs on the node's thread.
  template <class Action>
  auto on_its_thread(const Action& action) {
    auto task = std::make_shared<std::packaged_task<decltype(action(node_))()>>(
        [this, action] { return action(node_); });
    auto result = task->get_future();
    loop_.post([task] { (*task)(); });
    EXPECT_EQ(result.wait_for(kMaxWait), std::future_status::ready);
    return result.get();
  }
  /// The exception that ended its loop.
  std::string thrown() {
    auto told = thrown_.get_future();
    return told.wait_for(kMaxWait) == std::future_status::ready ? told.get() : "nothing was thrown";
  }

 private:
  wire::NodeLoop loop_;
  NodeType node_;
  std::promise<std::string> thrown_;
  std::thread thread_;
};

inline wire::NodeLoopOptions serving(const std::string& role, const std::string& name,
                                     const wire::Address& address = {}) {
  wire::NodeLoopOptions options;
  if (!address.empty()) options.listen = {address};
  options.self = {.role = role, .name = name};
  return options;
}

}  // namespace trireme::ps
