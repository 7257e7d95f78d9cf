#include "trireme/comm/pin.h"

#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::comm {
namespace {

constexpr const char *kNone = "none", *kCores = "cores", *kNuma = "numa";

/// Example: "0 on 0-3, 1 on 4-7 and 6 more".
std::string in_words(std::span<const RankCores> ranks) {
  constexpr std::size_t kNamed = 8;
  std::vector<std::string> words;
  for (const RankCores& each : ranks.first(std::min(ranks.size(), kNamed)))
    words.push_back(text(each.rank, " on ", topology::describe_cores(each.cores)));
  return text(join(words), ranks.size() > kNamed ? text(" and ", ranks.size() - kNamed, " more") : "");
}

PinPlan refused(const std::string& pin, const std::string& why) {
  return {.words = text("comm.pin = \"", pin, "\": ", why, "; no rank is pinned"), .is_rejected = true};
}

bool meet(const std::vector<int>& a, const std::vector<int>& b) {
  return std::ranges::find_first_of(a, b) != a.end();
}

}  // namespace

std::vector<std::string> pin_names() { return {kNone, kCores, kNuma}; }

void check_pin(const std::string& name) {
  const std::vector<std::string> known = pin_names();
  require(std::ranges::find(known, name) != known.end(), "ranks cannot be pinned to '", name, "'",
          suggest(name, known));
}

PinPlan plan_pins(const std::string& pin, std::span<const RankCores> ranks,
                  const std::function<std::vector<topology::CorePlace>(std::span<const int>)>& places) {
  if (pin == kNone) return {};
  std::map<std::vector<int>, std::vector<int>> ranks_of;  // by allowed cores
  for (const RankCores& each : ranks) ranks_of[each.cores].push_back(each.rank);
  PinPlan plan;
  std::vector<RankCores> bound;
  for (auto group = ranks_of.begin(); group != ranks_of.end(); ++group) {
    const auto& [cores, sharing] = *group;
    for (auto other = std::next(group); other != ranks_of.end(); ++other) {
      if (meet(cores, other->first))
        return refused(
            pin, text("rank ", sharing.front(), " may run on cores ", topology::describe_cores(cores),
                      " and rank ", other->second.front(), " on ", topology::describe_cores(other->first),
                      ", which are partly the same: bind all or none before"));
    }
    if (sharing.size() > cores.size())
      return refused(pin, text("there are ", sharing.size(), " ranks for ", cores.size(),
                               cores.size() == 1 ? " core (" : " cores (", topology::describe_cores(cores),
                               "), and none for each"));
    if (sharing.size() == 1) {
      bound.push_back({sharing.front(), cores});
      continue;
    }
    const std::vector<topology::CorePlace> of_group = places(cores);
    std::vector<std::vector<int>> shares = topology::share_out(of_group, static_cast<int>(sharing.size()));
    if (pin == kNuma) shares = topology::with_nodes(of_group, shares);
    for (std::size_t i = 0; i < sharing.size(); ++i) plan.pinned.push_back({sharing[i], shares[i]});
  }
  std::ranges::sort(plan.pinned, {}, &RankCores::rank);
  std::ranges::sort(bound, {}, &RankCores::rank);
  if (!plan.pinned.empty()) plan.words = text("ranks are pinned to cores: ", in_words(plan.pinned));
  // A single rank on the host competes with no other rank.
  if (!bound.empty() && ranks.size() > 1)
    plan.words += text(plan.words.empty() ? "" : "; ",
                       "ranks stay on the cores that they were bound to: ", in_words(bound));
  return plan;
}

}  // namespace trireme::comm
