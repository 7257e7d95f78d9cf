#include "cli/topology/report.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <ostream>
#include <sstream>

#include "cli/text_table.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

using topology::Link;
using topology::LinkTable;

// With more columns a table is not readable. Then it shows hosts instead of ranks.
constexpr int kMaxColumns = 16;

std::string three_digits(double value) {
  std::ostringstream out;
  const double size = std::abs(value);
  out << std::fixed << std::setprecision(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2) << value;
  return std::move(out).str();
}

std::string with_unit(double value, const std::vector<const char*>& units, double step) {
  std::size_t unit = 0;
  while (unit + 1 < units.size() && value >= step * 0.9995) {
    value /= step;
    ++unit;
  }
  return text(three_digits(value), " ", units[unit]);
}

std::string ranks_of(const LinkTable& table, int host) {
  std::vector<std::string> ranks;
  for (int rank = 0; rank < table.num_ranks(); ++rank) {
    if (table.host_of[static_cast<std::size_t>(rank)] == host) ranks.push_back(std::to_string(rank));
  }
  const bool in_a_row = ranks.size() > 2 && std::stoi(ranks.back()) - std::stoi(ranks.front()) + 1 ==
                                                static_cast<int>(ranks.size());
  return in_a_row ? ranks.front() + "-" + ranks.back() : join(ranks, ",");
}

std::string caches_text(const HostHardware& host) {
  std::vector<std::string> words;
  for (const Cache& cache : host.caches)
    words.push_back(text(cache.count, "x ", cache.name, " ", human_bytes(cache.bytes)));
  return words.empty() ? "-" : join(words);
}

std::string interfaces_text(const HostHardware& host) {
  std::vector<std::string> words;
  for (const Interface& each : host.interfaces) {
    words.push_back(each.megabits_per_s == 0
                        ? each.name
                        : text(each.name, " ", static_cast<double>(each.megabits_per_s) / 1000, " Gb/s"));
  }
  return words.empty() ? "-" : join(words);
}

void print_hosts(std::ostream& out, const TopologyReport& report) {
  TextTable shown{
      .columns = {Align::kRight, Align::kLeft, Align::kLeft, Align::kRight, Align::kRight, Align::kRight,
                  Align::kRight, Align::kLeft, Align::kLeft},
      .rows = {{"host", "name", "ranks", "sockets", "NUMA", "cores", "usable", "caches", "interfaces"}}};
  for (std::size_t i = 0; i < report.hosts.size(); ++i) {
    const HostHardware& host = report.hosts[i];
    shown.rows.push_back({text(i), host.name, ranks_of(report.table, static_cast<int>(i)), text(host.sockets),
                          text(host.numa_nodes), text(host.cores), text(host.usable), caches_text(host),
                          interfaces_text(host)});
  }
  print(out, shown);
}

/// A row per sender, a column per receiver.
template <class LinkOf, class CellOf>
void print_matrix(std::ostream& out, int size, const LinkOf& link_of, const CellOf& cell_of) {
  TextTable shown{.columns = std::vector<Align>(static_cast<std::size_t>(size) + 1, Align::kRight),
                  .rows = {{""}}};
  for (int to = 0; to < size; ++to) shown.rows[0].push_back(text(to));
  for (int from = 0; from < size; ++from) {
    std::vector<std::string> row = {text(from)};
    for (int to = 0; to < size; ++to) row.push_back(from == to ? "." : cell_of(link_of(from, to)));
    shown.rows.push_back(row);
  }
  print(out, shown);
}

}  // namespace

std::string seconds_text(double seconds) { return with_unit(seconds * 1e6, {"us", "ms", "s"}, 1000); }

std::string rate_text(double bytes_per_s) {
  return with_unit(bytes_per_s, {"B/s", "KB/s", "MB/s", "GB/s"}, 1000);
}

void print_topology(std::ostream& out, const TopologyReport& report) {
  const LinkTable& table = report.table;
  print_hosts(out, report);
  if (table.num_ranks() < 2) return;
  const bool by_rank = table.num_ranks() <= kMaxColumns;
  const int size = by_rank ? table.num_ranks() : table.num_hosts();
  const std::string who = by_rank ? "ranks" : "hosts (medians over their ranks)";
  const auto link_of = [&](int from, int to) {
    return by_rank ? table.link(from, to) : between_hosts(table, from, to);
  };
  if (size > 1) {
    out << "\nLatency between " << who << " in us: half the round trip of a small message\n";
    print_matrix(out, size, link_of, [](const Link& link) { return three_digits(link.alpha_s * 1e6); });
    out << "\nBandwidth between " << who << " in MB/s, from the row to the column\n";
    print_matrix(out, size, link_of, [](const Link& link) { return three_digits(link.bytes_per_s / 1e6); });
  }
  const topology::Network network = network_of(table);
  out << "\nThe slowest link between " << network.members
      << (table.num_hosts() > 1 ? " hosts" : " ranks of one host") << ": alpha "
      << seconds_text(network.cost.alpha_s) << ", " << rate_text(1 / network.cost.beta_s_per_byte)
      << ". Probed in " << seconds_text(report.probe_s) << ".\n";
}

}  // namespace trireme::cli
