#include "cli/plan_links.h"

#include <algorithm>
#include <cstdio>
#include <span>

#include "cli/topology/report.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

/// All links that were looked at are at least as fast.
class SlowestLink {
 public:
  void see(const topology::Link& link) {
    alpha_s_ = std::max(alpha_s_, link.alpha_s);
    bytes_per_s_ = std::min(bytes_per_s_, link.bytes_per_s);
  }
  train::LinkFacts facts() const { return {.latency_s = alpha_s_, .bytes_per_s = bytes_per_s_}; }

 private:
  double alpha_s_ = 0;
  double bytes_per_s_ = 1e30;  ///< no link
};

std::string of_ranks(std::size_t ranks) { return text(ranks, ranks == 1 ? " rank" : " ranks"); }

/// Of a host. Ranks of each host are consecutive, and as many.
int ranks_of_host(std::span<const int> host_of, const std::string& file) {
  const auto of_first = static_cast<std::size_t>(std::ranges::count(host_of, host_of.front()));
  for (std::size_t i = 0; i < host_of.size(); ++i) {
    const std::size_t expected = i / of_first;
    require(static_cast<std::size_t>(host_of[i]) == expected, file, ": rank ", i, " is on host ", host_of[i],
            ", and host 0 has ", of_ranks(of_first), "; expected it on host ", expected,
            ": as many consecutive ranks on each host. Measure with such ranks, or take -n ", of_first);
  }
  require(host_of.size() % of_first == 0, file, ": the last of the first ", of_ranks(host_of.size()),
          " are on a host with fewer than host 0, which has ", of_first,
          "; expected as many on each host: take -n ", host_of.size() / of_first * of_first);
  return static_cast<int>(of_first);
}

std::string link_in_words(const train::LinkFacts& link) {
  char words[64];
  std::snprintf(words, sizeof words, "%.4g us and %.4g GB/s", 1e6 * link.latency_s, link.bytes_per_s / 1e9);
  return words;
}

}  // namespace

train::LinkLevels read_links(const std::filesystem::path& file, int num_ranks) {
  const topology::LinkTable table = read_topology(file).table;
  require(num_ranks <= table.num_ranks(), file.string(), " has the links of ", of_ranks(table.host_of.size()),
          ", and -n is ", num_ranks, "; measure ", num_ranks,
          " ranks (trireme topology --json), or take at most -n ", table.num_ranks());
  const std::span<const int> host_of = std::span(table.host_of).first(static_cast<std::size_t>(num_ranks));
  train::LinkLevels levels{
      .ranks_of_host = ranks_of_host(host_of, file.string()), .within = {}, .between = {}};
  SlowestLink within, between;
  for (int from = 0; from < num_ranks; ++from) {
    for (int to = 0; to < num_ranks; ++to) {
      const auto host = [&](int of) { return host_of[static_cast<std::size_t>(of)]; };
      if (from != to && host(from) == host(to)) within.see(table.link(from, to));
    }
  }
  const int hosts = num_ranks / levels.ranks_of_host;
  for (int from = 0; from < hosts; ++from) {
    for (int to = 0; to < hosts; ++to) {
      if (from != to) between.see(topology::between_hosts(table, from, to));
    }
  }
  levels.within = within.facts();
  levels.between = between.facts();
  return levels;
}

std::string links_in_words(const train::LinkLevels& links, int num_ranks) {
  const int hosts = num_ranks / links.ranks_of_host;
  std::string words = text(hosts, hosts == 1 ? " host of " : " hosts of ",
                           of_ranks(static_cast<std::size_t>(links.ranks_of_host)));
  const char* separator = ": ";
  if (links.ranks_of_host > 1) {
    words += text(separator, link_in_words(links.within), " within a host");
    separator = ", ";
  }
  if (hosts > 1) words += text(separator, link_in_words(links.between), " between hosts");
  return words;
}

}  // namespace trireme::cli
