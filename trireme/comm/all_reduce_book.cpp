#include "trireme/comm/internal/all_reduce_book.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/comm/all_reduce_setting.h"
#include "trireme/comm/internal/backend_table.h"
#include "trireme/comm/internal/host_layout.h"

namespace trireme::comm {
namespace {

constexpr const char* kKnown = "all_reduce/known";
constexpr const char* kMeasured = "all_reduce/measured";
constexpr const char* kNone = "none";

/// The value that the first rank of the group publishes under the key.
std::string told_by_first(const BackendRequest& group, const char* key, const std::string& mine,
                          const Deadline& deadline) {
  if (group.rank == 0) {
    group.store->set(key, std::vector<std::uint8_t>(mine.begin(), mine.end()));
    return mine;
  }
  try {
    group.store->wait({key}, whole_milliseconds(deadline.remaining_s()));
  } catch (const std::exception&) {
    throw CommError(text("group ", group.group_name, ": rank ", group.world_ranks.front(),
                         " did not say which all-reduces are taken between hosts within ",
                         human_duration(group.timeout_s)));
  }
  return group.store->get_to_str(key);
}

/// In the order of their first ranks.
std::vector<std::string> hosts_of(const std::vector<std::string>& host_ids) {
  std::vector<std::string> hosts;
  for (const std::string& each : host_ids)
    if (std::ranges::find(hosts, each) == hosts.end()) hosts.push_back(each);
  return hosts;
}

}  // namespace

std::string ranks_by_host(const std::vector<int>& world_ranks, const std::vector<std::string>& host_ids) {
  std::vector<std::string> by_host;
  for (const auto& ranks : layout_of(host_ids, 0).ranks_of_host) {
    std::vector<std::string> names;
    for (const int rank : ranks) names.push_back(std::to_string(world_ranks[static_cast<std::size_t>(rank)]));
    by_host.push_back(join(names, ","));
  }
  return join(by_host, "|");
}

std::string AllReduceBook::known_for(const std::vector<std::string>& hosts) const {
  const auto found =
      std::ranges::find_if(entries_, [&](const auto& each) { return each.second.hosts == hosts; });
  return found == entries_.end() ? kNone : topology::to_text(*found->second.choice);
}

AllReduceBook::Choice AllReduceBook::agree(const BackendRequest& group,
                                           const std::function<topology::AllReduceChoice()>& measure,
                                           const Deadline& deadline) {
  const std::vector<std::string> hosts = hosts_of(group.host_ids);
  std::string agreed = told_by_first(group, kKnown, known_for(hosts), deadline);
  if (agreed == kNone) agreed = told_by_first(group, kMeasured, topology::to_text(measure()), deadline);
  Entry& entry = entries_[ranks_by_host(group.world_ranks, group.host_ids)];
  if (!entry.choice) entry = {hosts, std::make_shared<topology::AllReduceChoice>()};
  *entry.choice = topology::all_reduce_choice_from(agreed);
  return entry.choice;
}

AllReduceBook::Choice AllReduceBook::forced(const std::string& algorithm, int num_hosts) {
  return std::make_shared<topology::AllReduceChoice>(
      topology::AllReduceChoice{.ranks = num_hosts, .forced = topology::parse_algorithm(algorithm)});
}

std::string AllReduceBook::to_text() const {
  std::string written;
  for (const auto& [ranks, entry] : entries_)
    written += text(ranks, ' ', topology::to_text(*entry.choice), '\n');
  return written;
}

void AllReduceBook::take_over(const std::string& written) {
  std::vector<std::pair<topology::AllReduceChoice*, topology::AllReduceChoice>> changes;
  for (const std::string& line : split(written, '\n')) {
    if (line.empty()) continue;
    const std::size_t space = std::min(line.find(' '), line.size());
    require(space < line.size(), "'", line, "' says of no group which all-reduces it takes");
    const auto choice = topology::all_reduce_choice_from(line.substr(space + 1));
    const auto found = entries_.find(line.substr(0, space));
    if (found == entries_.end()) continue;
    topology::AllReduceChoice& mine = *found->second.choice;
    require(choice.ranks == mine.ranks, "all-reduces between ", choice.ranks, " hosts for a group over ",
            mine.ranks);
    changes.emplace_back(&mine, choice);
  }
  for (auto& [mine, choice] : changes) {
    choice.lanes = mine->lanes;  // the connections exist already, and the lanes do not affect results
    *mine = choice;
  }
}

std::string AllReduceBook::describe(const std::string& ranks) const {
  const auto found = entries_.find(ranks);
  return found == entries_.end() ? "" : topology::describe(*found->second.choice, kAllReduceByGloo);
}

}  // namespace trireme::comm
