#pragma once
// A small cluster of the parameter server over real sockets. Candidates are processes, which can be killed
// and frozen. Servers and a worker are threads of the test. Candidates are forked, so they must be created
// first.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <future>
#include <thread>

#include "tests/support/etcd_cluster.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/etcd/find.h"
#include "trireme/etcd/serve.h"
#include "trireme/ps/client_node.h"
#include "trireme/ps/server.h"

namespace trireme::etcd {

inline constexpr double kWait_s = 60;  // ends a test that would hang; no wait is meant to take it

inline CandidateOptions candidate_options(const std::string& store, double lease_s) {
  return {.store = store,
          .address = {},
          .coordinator = {.num_partitions = 8, .num_replicas = 2, .first_servers = 2},
          .lease_s = lease_s};
}

inline ps::ServeOptions at_a_free_port(const StopRequest* stop = nullptr) {
  ps::ServeOptions serve;
  serve.loop.listen = {"tcp:127.0.0.1:0"};
  serve.loop.report = [](const std::string& line) {
    std::fprintf(stderr, "%d: %s\n", ::getpid(), line.c_str());
  };
  serve.stop = stop;
  return serve;
}

/// A candidate that is never asked to stop.
class CandidateProcess {
 public:
  CandidateProcess(const std::string& store, double lease_s) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      serve_with_etcd(candidate_options(store, lease_s), at_a_free_port());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "a candidate: %s\n", error.what());
    }
    ::_exit(1);
  }
  ~CandidateProcess() { kill(); }
  CandidateProcess(const CandidateProcess&) = delete;
  CandidateProcess& operator=(const CandidateProcess&) = delete;

  void signal(int number) const { ::kill(pid_, number); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  pid_t pid_;
};

/// A node on its own thread.
template <class NodeType>
class Member {
 public:
  template <class Options>
  explicit Member(Options options) : loop_(loop_options()) {
    if constexpr (requires { options.address; }) options.address = loop_.addresses().front();
    node_ = std::make_unique<NodeType>(std::move(options));
    thread_ = std::thread([this] { loop_.run(*node_); });
  }
  ~Member() {
    loop_.stop();
    thread_.join();
  }

  /// Runs `begin(node, done)` on the node's thread. Returns the argument of done, or nothing at the deadline.
  template <class Told, class Begin>
  std::optional<Told> ask(const Begin& begin) {
    auto told = std::make_shared<std::promise<Told>>();
    auto result = told->get_future();
    loop_.post([this, begin, told] { begin(*node_, [told](const Told& what) { told->set_value(what); }); });
    if (result.wait_for(Seconds(kWait_s)) != std::future_status::ready) return std::nullopt;
    return result.get();
  }

 private:
  static wire::NodeLoopOptions loop_options() {
    wire::NodeLoopOptions options;
    options.listen = {"tcp:127.0.0.1:0"};
    options.look_up = look_up_in_etcd();
    options.self.role = std::is_same_v<NodeType, ps::Server> ? "server" : "worker";
    return options;
  }
  wire::NodeLoop loop_;
  std::unique_ptr<NodeType> node_;
  std::thread thread_;
};

/// Two servers and a worker with a table of sums of ones.
class Members {
 public:
  static constexpr std::size_t kElements = 64;

  explicit Members(const std::string& store) : store_(store) {
    for (const std::string name : {"a", "b"}) add_server(name);
    worker_ = std::make_unique<Member<ps::ClientNode>>(
        ps::ClientOptions{.worker = 0, .host = "w", .coordinator = store});
    create("sums");
  }

  void add_server(const std::string& name) {
    servers_.push_back(std::make_unique<Member<ps::Server>>(
        ps::ServerOptions{.name = name, .host = name, .address = {}, .coordinator = store_}));
  }

  /// Needs a coordinator that can write.
  ps::Result create(const std::string& name) {
    return asked([name](ps::ClientNode& node, ps::Done done) {
      ps::TableSpec spec;
      spec.name = name;
      spec.num_elements = kElements;
      spec.chunk_elements = 8;
      spec.staleness = ps::kAsynchronous;
      node.create_table(spec, std::move(done));
    });
  }
  ps::Result push_ones() {
    ++num_pushes_;
    return asked([](ps::ClientNode& node, ps::Done done) {
      auto ones = std::make_shared<const std::vector<float>>(kElements, 1.0F);
      const wire::Buffer values(ones, std::as_bytes(std::span(*ones)));
      node.push(node.map().table("sums")->id, values, std::move(done));
    });
  }
  /// Every element must be the number of pushes.
  void expect_exact_sums() {
    auto values = std::make_shared<std::vector<float>>(kElements);
    const ps::Result pulled = asked([values](ps::ClientNode& node, ps::Done done) {
      node.pull(node.map().table("sums")->id, *values, std::move(done));
    });
    EXPECT_EQ(pulled.error, ps::ErrorKind::kNone) << pulled.message;
    EXPECT_EQ(*values, std::vector<float>(kElements, static_cast<float>(num_pushes_)));
  }
  ps::ClusterMap map() {
    return worker_->ask<ps::ClusterMap>([](ps::ClientNode& node, const auto& done) { done(node.map()); })
        .value();
  }

 private:
  template <class Begin>
  ps::Result asked(const Begin& begin) {
    return worker_->ask<ps::Result>(begin).value_or(
        ps::Result{.error = ps::ErrorKind::kTimeout, .message = "nothing was ever answered", .values = {}});
  }

  const std::string store_;
  std::vector<std::unique_ptr<Member<ps::Server>>> servers_;
  std::unique_ptr<Member<ps::ClientNode>> worker_;
  int num_pushes_ = 0;
};

/// Waits until the condition is true. False at the deadline.
inline bool comes_true(const std::function<bool()>& condition) {
  const auto deadline = Deadline::after_s(kWait_s);
  while (!deadline.expired()) {
    if (condition()) return true;
    std::this_thread::sleep_for(Seconds(0.02));
  }
  return false;
}

/// Empty if there is no leader.
inline std::string leader_in(const std::string& store) {
  try {
    return find_coordinator(store);
  } catch (const CommError&) {
    return "";
  }
}

}  // namespace trireme::etcd
