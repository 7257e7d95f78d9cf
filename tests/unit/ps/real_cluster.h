#pragma once
// A parameter server over real sockets in this process, with a NodeLoop on a thread of its own for each node.

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "trireme/ps/serve.h"

namespace trireme::ps {

class RealCluster {
 public:
  /// `loop`: options of all loops, except addresses and identities.
  explicit RealCluster(int num_servers, CoordinatorOptions options = {}, wire::NodeLoopOptions loop = {})
      : loop_(std::move(loop)) {
    if (options.num_partitions == CoordinatorOptions{}.num_partitions) options.num_partitions = 16;
    options.first_servers = static_cast<std::uint32_t>(num_servers);
    address_ = add("coordinator", "0", [options] { return std::make_unique<Coordinator>(options); });
    for (int i = 0; i < num_servers; ++i) add_server(i);
  }
  ~RealCluster() {
    for (auto& each : served_) {
      if (each) each->loop.stop();
    }
    for (auto& each : served_) {
      if (each) each->thread.join();
    }
  }

  const wire::Address& address() const { return address_; }

  void add_server(int i) {
    const std::string name = "server" + std::to_string(i);
    auto& served = *served_.emplace_back(std::make_unique<Served>(options_of("server", name)));
    served.node =
        std::make_unique<Server>(ServerOptions{.name = name,
                                               .host = "host-" + name,
                                               .address = served.loop.addresses().front(),
                                               .coordinator = address_,
                                               .owner_threads = 2,
                                               .parts = parts_below(std::filesystem::temp_directory_path())});
    begin(served);
  }
  Server& server(int i) { return dynamic_cast<Server&>(*served_[static_cast<std::size_t>(i) + 1]->node); }
  /// Counts of the loops of the coordinator and all servers.
  std::vector<wire::ChannelCounts> channel_counts() const {
    std::vector<wire::ChannelCounts> counts;
    for (const auto& each : served_) counts.push_back(each->loop.counts());
    return counts;
  }
  /// Ends the server like the end of its process: no partition is handed over.
  void end_server(int i) {
    const std::size_t number = static_cast<std::size_t>(i) + 1;
    served_[number]->loop.stop();
    served_[number]->thread.join();
    served_[number].reset();
  }

 private:
  struct Served {
    explicit Served(wire::NodeLoopOptions options) : loop(std::move(options)) {}
    wire::NodeLoop loop;
    std::unique_ptr<wire::Node> node;
    std::thread thread;
  };

  wire::NodeLoopOptions options_of(const std::string& role, const std::string& name) {
    wire::NodeLoopOptions options = loop_;
    options.listen = {"tcp:127.0.0.1:0"};
    options.self = {.role = role, .name = name};
    options.folder = (folder_ / (role + name)).string();
    return options;
  }
  wire::Address add(const std::string& role, const std::string& name,
                    const std::function<std::unique_ptr<wire::Node>()>& make) {
    auto& served = *served_.emplace_back(std::make_unique<Served>(options_of(role, name)));
    served.node = make();
    begin(served);
    return served.loop.addresses().front();
  }
  static void begin(Served& served) {
    served.thread = std::thread([&served] { served.loop.run(*served.node); });
  }

  test::TemporaryFolder folder_;
  const wire::NodeLoopOptions loop_;
  wire::Address address_;
  std::vector<std::unique_ptr<Served>> served_;
};

}  // namespace trireme::ps
