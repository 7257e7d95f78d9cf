#include "trireme/topology/internal/connections.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/topology/internal/ucx_object.h"
#include "trireme/topology/networks.h"

namespace trireme::topology {
namespace {

struct NetworkRow {
  std::string name;
  std::string summary;
  std::string (*unavailable_because)();
  std::unique_ptr<Connections> (*make)(const wire::Socket&, const Membership&, const Deadline&);
};

const std::vector<NetworkRow>& network_table() {
  static const std::vector<NetworkRow> rows{
      {kNetworkTcp, "TCP between hosts, any network", [] { return std::string(); }, make_tcp_connections},
      {kNetworkUcx, "UCX between hosts: InfiniBand, RoCE, or what else it finds",
       [] { return ucx_object().missing_because; }, make_ucx_connections},
  };
  return rows;
}

const NetworkRow& find_network(const std::string& name) {
  const auto& rows = network_table();
  const auto row = std::ranges::find(rows, name, &NetworkRow::name);
  require(row != rows.end(), "there is no network '", name, "'", suggest(name, network_names()));
  return *row;
}

}  // namespace

std::vector<std::string> network_names() {
  std::vector<std::string> names;
  for (const NetworkRow& each : network_table()) names.push_back(each.name);
  return names;
}

std::vector<NetworkInfo> network_infos() {
  std::vector<NetworkInfo> infos;
  for (const NetworkRow& each : network_table())
    infos.push_back({each.name, each.summary, each.unavailable_because()});
  return infos;
}

std::string network_unavailable_because(const std::string& name) {
  return find_network(name).unavailable_because();
}

std::unique_ptr<Connections> make_connections(const wire::Socket& listening, const Membership& membership,
                                              const Deadline& deadline) {
  return find_network(membership.network).make(listening, membership, deadline);
}

void throw_late(const std::vector<std::string>& names, std::span<const Line> waited_for) {
  std::vector<std::string> late;
  for (const Line& line : waited_for) {
    const std::string& name = names[static_cast<std::size_t>(line.peer)];
    if (std::ranges::find(late, name) == late.end()) late.push_back(name);
  }
  throw CommError(text("nothing has come from ", join(late), " by the deadline"));
}

void throw_differs(const std::string& name) {
  throw CommError(text(name, " is in another operation, or in one of another size or type"));
}

}  // namespace trireme::topology
