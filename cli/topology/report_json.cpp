#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/topology/report.h"
#include "trireme/base/bounded_file.h"
#include "trireme/base/bounded_json.h"
#include "trireme/base/error.h"
#include "trireme/base/json_whole.h"

namespace trireme::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Enough for about a thousand ranks, each with a link to every other.
constexpr JsonLimits kLimits{.levels = 8, .values = 10'000'000};
constexpr std::uint64_t kMostBytes = std::uint64_t{128} << 20;

Json json_of(const HostHardware& host) {
  Json caches = Json::array();
  for (const Cache& cache : host.caches)
    caches.push_back({{"name", cache.name}, {"bytes", cache.bytes}, {"count", cache.count}});
  Json interfaces = Json::array();
  for (const Interface& each : host.interfaces)
    interfaces.push_back({{"name", each.name}, {"megabits_per_s", each.megabits_per_s}});
  return {{"name", host.name},   {"sockets", host.sockets}, {"numa_nodes", host.numa_nodes},
          {"cores", host.cores}, {"threads", host.threads}, {"usable", host.usable},
          {"caches", caches},    {"interfaces", interfaces}};
}

HostHardware hardware_of(const Json& json) {
  const auto whole = [&](const char* field) { return whole_in<int>(json.at(field)); };
  HostHardware host{.name = json.at("name"),
                    .sockets = whole("sockets"),
                    .numa_nodes = whole("numa_nodes"),
                    .cores = whole("cores"),
                    .threads = whole("threads"),
                    .usable = whole("usable"),
                    .caches = {},
                    .interfaces = {}};
  for (const Json& each : json.at("caches"))
    host.caches.push_back({.name = each.at("name"),
                           .bytes = whole_in<std::uint64_t>(each.at("bytes")),
                           .count = whole_in<int>(each.at("count"))});
  for (const Json& each : json.at("interfaces"))
    host.interfaces.push_back(
        {.name = each.at("name"), .megabits_per_s = whole_in<std::int64_t>(each.at("megabits_per_s"))});
  return host;
}

double positive(const Json& number, const char* what) {
  const double value = number.get<double>();
  require(std::isfinite(value) && value > 0, what, " is ", value, "; expected a number above 0");
  return value;
}

TopologyReport report_of(const Json& json) {
  TopologyReport report;
  report.table.host_of = wholes_in<int>(json.at("host_of_rank"));
  for (const Json& host : json.at("hosts")) report.hosts.push_back(hardware_of(host));
  const std::size_t ranks = report.table.host_of.size();
  require(ranks > 0, "it has no rank");
  int known = 0;
  for (const int host : report.table.host_of) {
    require(host >= 0 && host <= known, "hosts are not numbered in order of their first rank");
    known = std::max(known, host + 1);
  }
  require(report.table.num_hosts() == static_cast<int>(report.hosts.size()), "it has ", report.hosts.size(),
          " hosts, and ranks on ", report.table.num_hosts());
  report.sum_bytes_per_s = positive(json.at("sum_bytes_per_s"), "sum_bytes_per_s");
  report.probe_s = json.at("probe_s");
  const std::size_t found = json.at("links").size();
  require(found == ranks * (ranks - 1), "it has ", found, " links; expected ", ranks * (ranks - 1));
  report.table.links.assign(ranks, std::vector<topology::Link>(ranks));
  for (const Json& each : json.at("links")) {
    const auto from = whole_in<std::size_t>(each.at("from"));
    const auto to = whole_in<std::size_t>(each.at("to"));
    require(from < ranks && to < ranks && from != to, "a link from rank ", from, " to rank ", to);
    topology::Link& link = report.table.links[from][to];
    require(link.alpha_s == 0, "two links from rank ", from, " to rank ", to);
    link = {positive(each.at("alpha_s"), "alpha_s"), positive(each.at("bytes_per_s"), "bytes_per_s")};
  }
  return report;
}

}  // namespace

std::string to_json(const TopologyReport& report) {
  const topology::LinkTable& table = report.table;
  Json hosts = Json::array();
  for (const HostHardware& host : report.hosts) hosts.push_back(json_of(host));
  Json links = Json::array();
  for (int from = 0; from < table.num_ranks(); ++from) {
    for (int to = 0; to < table.num_ranks(); ++to) {
      if (from == to) continue;
      const topology::Link& link = table.link(from, to);
      links.push_back(
          {{"from", from}, {"to", to}, {"alpha_s", link.alpha_s}, {"bytes_per_s", link.bytes_per_s}});
    }
  }
  const Json json = {{"hosts", hosts},
                     {"host_of_rank", table.host_of},
                     {"links", links},
                     {"sum_bytes_per_s", report.sum_bytes_per_s},
                     {"probe_s", report.probe_s}};
  return json.dump(2) + "\n";
}

TopologyReport parse_topology(const std::string& json, const std::string& source) {
  const auto reject = [&](const char* why) {
    return DataError(text(source, " is not what 'trireme topology --json' prints: ", why,
                          "; write it with trireme topology -n N --json > FILE"));
  };
  try {
    return report_of(parse_json<Json>(json, kLimits));
  } catch (const DataError& error) {
    throw reject(error.what());
  } catch (const Json::exception& error) {
    throw reject(error.what());
  } catch (const InvalidArgument& error) {
    throw reject(error.what());
  }
}

TopologyReport read_topology(const std::filesystem::path& file) {
  return parse_topology(read_bounded_stream(file, kMostBytes, "topology"), file.string());
}

}  // namespace trireme::cli
