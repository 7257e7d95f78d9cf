// The processes of a parameter server: its coordinator, and the servers.

#include <sys/resource.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/channel_arguments.h"
#include "cli/command.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/etcd/find.h"
#include "trireme/etcd/serve.h"
#include "trireme/ps/placement.h"
#include "trireme/ps/serve.h"

namespace trireme::cli {
namespace {

struct ServeArguments {
  std::vector<std::string> listen;
  ChannelArguments channels;
  std::string address_file;
  std::optional<int> metrics_port;
  std::string metrics_address = "127.0.0.1";
};

void declare_serving(CLI::App& app, ServeArguments& serve) {
  app.add_option("--listen", serve.listen, "tcp:HOST:PORT or unix:PATH (default: tcp:127.0.0.1:0)")
      ->type_name("ADDR");
  app.add_option("--address-file", serve.address_file, "Written when it serves: the addresses, one per line")
      ->type_name("F");
  app.add_option("--metrics-port", serve.metrics_port, "Answer GET /metrics, for Prometheus; 0: a free one")
      ->type_name("P");
  app.add_option(
         "--metrics-address", serve.metrics_address,
         "Of this host, for the metrics; every process that reaches it can read them (default: 127.0.0.1)")
      ->type_name("HOST");
  declare_channels(app, serve.channels);
}

/// Each member needs one or more descriptors, and connections of others must not exhaust them.
void raise_descriptor_limit() {
  constexpr rlim_t kEnough = 65'536;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kEnough) return;
  limit.rlim_cur = std::min(kEnough, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// Reports go to standard error, addresses to standard output, for scripts.
ps::ServeOptions serving(const ServeArguments& arguments, const std::string& what, const StopRequest& stop) {
  raise_descriptor_limit();
  ps::ServeOptions serve;
  serve.loop.listen = arguments.listen;
  if (serve.loop.listen.empty()) serve.loop.listen = {"tcp:127.0.0.1:0"};
  serve.loop.security = security_of(arguments.channels);
  serve.loop.report = [](const std::string& line) { std::cerr << "trireme: " << line << std::endl; };
  serve.stop = &stop;
  if (arguments.metrics_port) serve.metrics = {arguments.metrics_address, *arguments.metrics_port};
  serve.on_metrics = [](const wire::Endpoint& endpoint) {
    std::cout << "metrics at http://" << endpoint.text() << "/metrics" << std::endl;
  };
  serve.on_listening = [what, file = arguments.address_file](const std::vector<wire::Address>& addresses) {
    std::string lines;
    for (const wire::Address& address : addresses) lines += address + "\n";
    if (!file.empty()) write_file_atomic(file, lines);
    std::cout << what << " serves at " << join(addresses) << std::endl;
  };
  return serve;
}

struct CoordinatorArguments {
  ServeArguments serve;
  std::string folder;
  std::string store;
  std::string address;
  ps::CoordinatorOptions options;
};

std::function<int()> declare_coordinator(CLI::App& app) {
  auto given = std::make_shared<CoordinatorArguments>();
  ps::CoordinatorOptions& options = given->options;
  app.add_option("--folder", given->folder, "Where it remembers; the same after a restart")->type_name("DIR");
  app.add_option("--coordinator", given->store,
                 "Remember in etcd instead, as one of several: etcd://HOST:PORT,HOST:PORT/PREFIX")
      ->type_name("ADDR");
  app.add_option("--advertise", given->address,
                 "With etcd: where others find it (default: the first --listen)")
      ->type_name("ADDR");
  app.add_option("--partitions", options.num_partitions, "Of a new cluster: a power of two (default: 4096)")
      ->type_name("N");
  app.add_option("--replicas", options.num_replicas, "Of each partition (default: 2)")->type_name("R");
  app.add_option("--servers", options.first_servers,
                 "Partitions are placed when so many are there (default: 1)")
      ->type_name("N");
  app.add_option("--placement", options.placement,
                 "One of " + join(ps::placement_names()) + " (default: the first)")
      ->type_name("NAME");
  app.add_option("--lease", options.lease_s, "Seconds for which a member is trusted (default: 2)")
      ->type_name("S");
  declare_serving(app, given->serve);
  return [given] {
    const StopRequest stop;
    ps::ServeOptions serve = serving(given->serve, "coordinator", stop);
    require(given->folder.empty() != given->store.empty(),
            "serve-coordinator takes either --folder DIR or --coordinator etcd://..., to remember the "
            "cluster in");
    given->options.silence_s = 1.25 * given->options.lease_s;
    if (given->store.empty()) {
      serve.loop.folder = given->folder;
      ps::serve_coordinator(given->options, std::move(serve));
    } else {
      etcd::serve_with_etcd({.store = given->store, .address = given->address, .coordinator = given->options},
                            std::move(serve));
    }
    return kExitOk;
  };
}

struct ParamsArguments {
  ServeArguments serve;
  ps::ServerOptions options;
  double copy_mib_per_s = 200;
  double leave_timeout_s = ps::ServeOptions().leave_timeout_s;
  std::string checkpoints = ".";
  bool no_shared_memory = false;
};

std::function<int()> declare_params(CLI::App& app) {
  auto given = std::make_shared<ParamsArguments>();
  ps::ServerOptions& options = given->options;
  app.add_option("--coordinator", options.coordinator,
                 "Where the coordinator serves, or etcd://HOST:PORT/PREFIX")
      ->type_name("ADDR")
      ->required();
  app.add_option("--name", options.name,
                 "Of this place: a process that is started again under it takes over (default: host:address)")
      ->type_name("NAME");
  app.add_option("--host", options.host, "Copies are put on different ones (default: this host's name)")
      ->type_name("NAME");
  app.add_option("--advertise", options.address, "Where others find it (default: the first --listen)")
      ->type_name("ADDR");
  app.add_option("--weight", options.weight, "Its share of partitions relative to others (default: 1)")
      ->type_name("W");
  app.add_option("--copy-limit", given->copy_mib_per_s, "MiB/s of copies in the background (default: 200)")
      ->type_name("M");
  app.add_option("--leave-timeout", given->leave_timeout_s,
                 "Told to stop: seconds in which it gives nothing away until it ends (default: 30)")
      ->type_name("S");
  app.add_option("--checkpoints", given->checkpoints,
                 "Checkpoints are written below it, wherever workers ask for them (default: this folder)")
      ->type_name("DIR")
      ->envname("TRIREME_PS_CHECKPOINTS");
  declare_serving(app, given->serve);
  app.add_flag("--no-shared-memory", given->no_shared_memory,
               "Between Unix sockets, too, bytes go through the sockets, where a relay sees them");
  return [given] {
    const StopRequest stop;
    ps::ServerOptions server = given->options;
    make_folder(given->checkpoints);
    server.parts = ps::parts_below(given->checkpoints);
    server.copy_bytes_per_s = given->copy_mib_per_s * (1 << 20);
    if (server.host.empty()) server.host = host_name();
    ps::ServeOptions serve = serving(given->serve, "server", stop);
    serve.leave_timeout_s = given->leave_timeout_s;
    if (given->no_shared_memory) serve.loop.shared_memory = wire::SharedMemoryUse::kNever;
    serve.loop.look_up = etcd::look_up_in_etcd();
    ps::serve_params(std::move(server), std::move(serve));
    return kExitOk;
  };
}

}  // namespace

Command serve_coordinator_command() {
  return {.name = "serve-coordinator",
          .summary = "Serve as the coordinator of a parameter server",
          .usage = "--folder DIR|--coordinator etcd://... [OPTIONS]",
          .examples =
              "  trireme serve-coordinator --folder cluster --listen tcp:127.0.0.1:29600 --servers 3\n"
              "  trireme serve-coordinator --folder cluster --listen tcp:10.0.0.1:29600 --secret-file "
              "job.secret\n",
          .declare = declare_coordinator};
}

Command serve_params_command() {
  return {.name = "serve-params",
          .summary = "Serve parameters: hold and update partitions of a parameter server",
          .usage = "--coordinator ADDR [OPTIONS]",
          .examples =
              "  trireme serve-params --coordinator tcp:127.0.0.1:29600\n"
              "  trireme serve-params --coordinator tcp:10.0.0.1:29600 --listen tcp:10.0.0.2:0 "
              "--secret-file job.secret\n",
          .declare = declare_params};
}

}  // namespace trireme::cli
