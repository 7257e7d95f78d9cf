#include "cli/topology/measure.h"

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <ostream>
#include <sstream>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/base/random.h"
#include "trireme/comm/launch_environment.h"
#include "trireme/topology/probe.h"
#include "trireme/wire/store_server.h"

namespace trireme::cli {
namespace {

using comm::LaunchEnvironment;
using comm::StoreHost;

constexpr double kToMeet_s = 60;

/// The store of these ranks. Rank 0 serves it here, if no launcher does.
class WorldOfRanks {
 public:
  explicit WorldOfRanks(const LaunchEnvironment& environment) {
    require(environment.store_host != StoreHost::kRankZeroAtPort,
            "trireme topology cannot meet in the store of torchrun: start it with trireme launch, mpirun or "
            "srun");
    const bool rank_serves = environment.store_host == StoreHost::kRankZero;
    wire::Endpoint endpoint{environment.one_host && rank_serves ? "127.0.0.1" : environment.master_addr,
                            environment.master_port};
    if (rank_serves && environment.rank == 0) {
      wire::secret_at(endpoint, environment.secret);  // throws if a secret is required
      server_.emplace(wire::listen_at(endpoint), wire::StoreServerOptions{.secret = environment.secret});
    }
    store_.emplace(
        wire::StoreClientOptions{.endpoint = endpoint, .secret = environment.secret, .timeout_s = kToMeet_s});
    address_ = wire::local_address_towards(endpoint);
    if (address_.empty()) throw CommError(text("this host has no way to ", endpoint.text()));
  }
  ~WorldOfRanks() {
    store_.reset();
    if (server_) server_->wait_until_left(kToMeet_s);
  }
  WorldOfRanks(const WorldOfRanks&) = delete;
  WorldOfRanks& operator=(const WorldOfRanks&) = delete;

  wire::StoreClient& store() { return *store_; }
  /// Address of this host, as other hosts reach it.
  const std::string& address() const { return address_; }

 private:
  std::optional<wire::StoreServer> server_;
  std::optional<wire::StoreClient> store_;
  std::string address_;
};

/// The best rate of several sums of 4 MiB of floats.
double measure_sums() {
  std::vector<float> sum(1 << 20, 1), more(1 << 20, 2);
  double best_s = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double began_s = now_s();
    for (std::size_t at = 0; at < sum.size(); ++at) sum[at] += more[at];
    best_s = std::min(best_s, now_s() - began_s);
    more[0] = sum[sum.size() / 2];  // uses the sums, so that they are not optimized away
  }
  return static_cast<double>(sum.size() * sizeof(float)) / best_s;
}

/// Describes a rank's host, so that equal worlds have equal texts.
std::string presence_of_host() { return text(host_name(), "\n", host_id()); }

/// The file for these hosts and ranks in this order.
std::filesystem::path cached_file(const std::string& folder, const std::vector<std::string>& presences) {
  const std::uint64_t hash = Random::key_of(join(presences, "\n\n"));
  std::ostringstream name;
  name << "topology-" << std::hex << std::setw(16) << std::setfill('0') << hash << ".json";
  return std::filesystem::path(folder) / name.str();
}

std::optional<TopologyReport> read_cached(const std::filesystem::path& file, int ranks, std::ostream& log) {
  if (!std::filesystem::exists(file)) return std::nullopt;
  try {
    TopologyReport report = read_topology(file);
    if (report.table.num_ranks() == ranks) return report;
    log << "warning: " << file.string() << " is of another number of ranks: measuring again\n";
  } catch (const DataError& error) {
    log << "warning: " << error.what() << ": measuring again\n";
  }
  return std::nullopt;
}

TopologyReport alone() {
  TopologyReport report{.table = {.host_of = {0}, .links = {{{}}}}, .hosts = {host_hardware()}};
  report.sum_bytes_per_s = measure_sums();
  return report;
}

}  // namespace

std::optional<TopologyReport> measure_topology(const MeasureOptions& options, std::ostream& log) {
  const LaunchEnvironment environment = comm::read_launch_environment();
  if (environment.world_size == 1) return alone();
  WorldOfRanks world(environment);
  topology::Meeting meeting(world.store(), {.rank = environment.rank,
                                            .size = environment.world_size,
                                            .prefix = text("topology/", environment.restart_count),
                                            .timeout_s = std::max(kToMeet_s, 2 * options.timeout_s)});
  const bool main = environment.rank == 0;
  const auto presences = meeting.gather(presence_of_host(), "arrive");
  std::filesystem::path file;
  std::optional<TopologyReport> cached;
  if (main && !options.cache.empty()) {
    file = cached_file(options.cache, presences);
    cached = read_cached(file, environment.world_size, log);
  }
  const auto found = meeting.gather(cached ? "cached" : "", "look for earlier results");
  if (!found[0].empty()) return cached;

  const auto hosts = topology::number_hosts(presences);
  const bool first_of_host =
      std::ranges::find(hosts, hosts[static_cast<std::size_t>(environment.rank)]) - hosts.begin() ==
      environment.rank;
  // Only one rank per host, as hwloc and the sums of several would compete for cores.
  TopologyReport mine = first_of_host ? alone() : TopologyReport{};
  const auto described = meeting.gather(first_of_host ? to_json(mine) : "", "describe its host");
  const double began_s = now_s();
  mine.table = topology::probe_links(meeting, {.address = world.address(),
                                               .secret = environment.secret,
                                               .host_id = presence_of_host(),
                                               .timeout_s = options.timeout_s});
  mine.probe_s = now_s() - began_s;
  if (!main) return std::nullopt;
  mine.hosts.clear();
  for (std::size_t rank = 0; rank < described.size(); ++rank) {
    if (!described[rank].empty())
      mine.hosts.push_back(parse_topology(described[rank], text("what rank ", rank, " says")).hosts.at(0));
  }
  if (!file.empty()) {
    make_folder(options.cache);
    write_file_atomic(file, to_json(mine));
  }
  return mine;
}

}  // namespace trireme::cli
