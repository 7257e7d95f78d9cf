#pragma once
// A cluster of the parameter server in a Simulation: "coordinator", "server0", ..., "worker0", ....

#include <functional>
#include <memory>
#include <string>

#include "tests/support/simulation.h"
#include "trireme/ps/client_node.h"
#include "trireme/ps/coordinator.h"
#include "trireme/ps/messages.h"
#include "trireme/ps/server.h"

namespace trireme::ps {

struct ClusterOptions {
  std::uint32_t num_partitions = 8, num_replicas = 2;
  int num_servers = 3, num_workers = 2;
  std::uint32_t expected_workers = 0;  ///< ClientOptions::num_workers of each
  double copy_bytes_per_s = 200e6;
  std::function<std::unique_ptr<PartSink>()> parts = parts_below(std::filesystem::temp_directory_path());
};

class Cluster {
 public:
  explicit Cluster(std::uint64_t seed, ClusterOptions options = {}) : simulation(seed), options_(options) {
    simulation.name_kinds(
        [](std::uint16_t kind) { return std::string(name_of(static_cast<MessageKind>(kind))); });
    simulation.add("coordinator", "coordinator", [options] {
      return std::make_unique<Coordinator>(
          CoordinatorOptions{.num_partitions = options.num_partitions,
                             .num_replicas = options.num_replicas,
                             .first_servers = static_cast<std::uint32_t>(options.num_servers)});
    });
    simulation.start("coordinator");
    for (int i = 0; i < options.num_servers; ++i) add_server(i);
    for (int i = 0; i < options.num_workers; ++i) add_worker(i);
  }

  static std::string server_name(int i) { return "server" + std::to_string(i); }
  static std::string worker_name(int i) { return "worker" + std::to_string(i); }

  void add_server(int i) {
    const std::string name = server_name(i);
    simulation.add(name, "server", [name, options = options_] {
      return std::make_unique<Server>(ServerOptions{.name = name,
                                                    .host = "host-" + name,
                                                    .address = "inproc:" + name,
                                                    .coordinator = "inproc:coordinator",
                                                    .copy_bytes_per_s = options.copy_bytes_per_s,
                                                    .parts = options.parts});
    });
    simulation.start(name);
  }
  void add_worker(int i) {
    const std::string name = worker_name(i);
    simulation.add(name, "worker", [i, name, expected = options_.expected_workers] {
      return std::make_unique<ClientNode>(ClientOptions{.worker = static_cast<WorkerId>(i),
                                                        .host = "host-" + name,
                                                        .coordinator = "inproc:coordinator",
                                                        .num_workers = expected,
                                                        .timeout_s = 60});
    });
    simulation.start(name);
  }

  Server& server(int i) { return simulation.node<Server>(server_name(i)); }
  ClientNode& worker(int i) { return simulation.node<ClientNode>(worker_name(i)); }
  Coordinator& coordinator() { return simulation.node<Coordinator>("coordinator"); }

  bool settles(double at_most_s) {
    return simulation.run_until(
        [&] { return simulation.is_running("coordinator") && coordinator().is_settled(); }, at_most_s);
  }

  /// Waits for the result. Without one, an expectation fails.
  template <class Begin>
  Result wait(const Begin& begin) {
    auto result = std::make_shared<std::optional<Result>>();
    begin([result](const Result& told) { *result = told; });
    simulation.run_until([&] { return result->has_value(); }, 120);
    return result->value_or(
        Result{.error = ErrorKind::kTimeout, .message = "nothing was ever answered", .values = {}});
  }

  TableId create(int worker_id, const TableSpec& spec) {
    const Result created = wait([&](Done done) { worker(worker_id).create_table(spec, std::move(done)); });
    if (created.error != ErrorKind::kNone) return 0;
    return worker(worker_id).map().table(spec.name)->id;
  }

  const ClusterOptions& options() const { return options_; }

  test::Simulation simulation;

 private:
  ClusterOptions options_;
};

/// f32 values as the body of a push.
inline wire::Buffer floats(std::vector<float> values) {
  auto kept = std::make_shared<const std::vector<float>>(std::move(values));
  return wire::Buffer(kept, std::as_bytes(std::span(*kept)));
}

}  // namespace trireme::ps
