#include "bench/ps/cluster.h"

#include <array>

#include "trireme/base/error.h"
#include "trireme/ps/coordinator.h"
#include "trireme/ps/server.h"

namespace trireme::bench {
namespace {

using enum wire::SharedMemoryUse;
using Kind = wire::Security::Kind;

constexpr Way kWays[] = {{"tcp", true, kNever, Kind::kLocal},
                         {"unix", false, kNever, Kind::kLocal},
                         {"shm", false, kWherePossible, Kind::kLocal},
                         {"tls", true, kNever, Kind::kTls},
                         {"psk", true, kNever, Kind::kSecret}};

std::filesystem::path new_folder(const std::filesystem::path& parent) {
  static int last = 0;
  const auto folder = parent / text("cluster", ++last);
  std::filesystem::create_directory(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  return folder;
}

}  // namespace

std::vector<std::string> way_names() {
  std::vector<std::string> names;
  for (const Way& way : kWays) names.emplace_back(way.name);
  return names;
}

const Way& find_way(const std::string& name) {
  for (const Way& way : kWays) {
    if (name == way.name) return way;
  }
  throw InvalidArgument(text("there is no way '", name, "'", suggest(name, way_names()),
                             "; expected some of ", join(way_names(), ",")));
}

Cluster::Cluster(const Way& way, const ClusterShape& shape, const Surroundings& around)
    : way_(way), around_(around), folder_(new_folder(around.folder)) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) throw InternalError("no pipe for a cluster");
  processes_.emplace_back([&] {
    if (around_.pinned) pin_to(1);
    wire::NodeLoopOptions options = loop_of("coordinator", 0);
    options.folder = (folder_ / "log").string();
    wire::NodeLoop loop(options);
    ps::CoordinatorOptions settings;
    settings.num_partitions = 256;
    settings.num_replicas = static_cast<std::uint32_t>(shape.num_replicas);
    settings.first_servers = static_cast<std::uint32_t>(shape.num_servers);
    ps::Coordinator node(settings);
    const wire::Address& where = loop.addresses().front();
    if (::write(ends[1], where.data(), where.size()) < 0) return;
    ::close(ends[1]);
    loop.run(node);
  });
  ::close(ends[1]);
  std::array<char, 256> where;
  const ssize_t got = ::read(ends[0], where.data(), where.size());
  ::close(ends[0]);
  if (got <= 0) throw CommError("the coordinator has not begun");
  coordinator_.assign(where.data(), static_cast<std::size_t>(got));
  for (int i = 0; i < shape.num_servers; ++i) {
    processes_.emplace_back([&] {
      if (around_.pinned) pin_to(1);
      wire::NodeLoop loop(loop_of("server", i));
      ps::ServerOptions options;
      options.name = options.host = text("server", i);
      options.address = loop.addresses().front();
      options.coordinator = coordinator_;
      options.owner_threads = around_.owner_threads;
      ps::Server node(options);
      loop.run(node);
    });
  }
}

std::string Cluster::socket_of(const std::string& who) const {
  return way_.tcp ? "tcp:127.0.0.1:0" : "unix:" + (folder_ / who).string();
}

wire::NodeLoopOptions Cluster::loop_of(const std::string& role, int number) const {
  wire::NodeLoopOptions options;
  options.self = {.role = role, .name = text(number)};
  options.shared_memory = way_.memory;
  options.spin_s = around_.spin_s;
  if (role != "worker") options.listen = {socket_of(text(role, number))};
  if (way_.security == Kind::kTls)
    options.security = wire::Security::with_tls(around_.authority.issue(
        text(folder_.filename().string(), "-", role, number), text("DNS:", role, ".", number)));
  if (way_.security == Kind::kSecret) options.security = wire::Security::with_secret(around_.secret);
  return options;
}

wire::NodeLoopOptions Cluster::worker_loop(int worker) const { return loop_of("worker", worker); }

double Cluster::cpu_s() const {
  double all_s = 0;
  for (const Child& process : processes_) all_s += process.cpu_s();
  return all_s;
}

}  // namespace trireme::bench
