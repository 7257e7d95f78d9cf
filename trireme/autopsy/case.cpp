#include "trireme/autopsy/internal/case.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "trireme/autopsy/internal/thrown.h"
#include "trireme/base/text.h"

namespace trireme::autopsy {
namespace {

/// "world" of "all_reduce #12 of group world, 64 f32, running".
std::string group_of(const std::string& operation) {
  constexpr std::string_view kOfGroup = " of group ";
  const std::size_t begin = operation.find(kOfGroup);
  if (begin == std::string::npos) return {};
  const std::size_t name = begin + kOfGroup.size();
  return operation.substr(name, operation.find(',', name) - name);
}

bool went_wrong(const RankEvidence& rank) {
  return rank.ended && !rank.ended_by_launcher && (rank.signal != 0 || rank.exit_code != 0);
}

}  // namespace

std::uint64_t operation_number(const std::string& operation) {
  const std::size_t mark = operation.find('#');
  std::uint64_t number = 0;
  if (mark != std::string::npos)
    std::from_chars(operation.data() + mark + 1, operation.data() + operation.size(), number);
  return number;
}

bool is_open(const std::string& operation) {
  return operation.find(", running") != std::string::npos || operation.find(", failed") != std::string::npos;
}

bool stands(const RankEvidence& rank) {
  return !rank.ended || rank.ended_by_launcher || is_about_others(rank);
}

Case::Case(const Evidence& evidence) : evidence_(evidence) {
  for (const RankEvidence& rank : evidence.ranks) {
    if (went_wrong(rank)) failed_.push_back(&rank);
  }
  std::ranges::stable_sort(failed_, {}, &RankEvidence::ended_s);
  find_suspects();
}

const RankEvidence* Case::find(int rank) const {
  const auto found = std::ranges::find(ranks(), rank, &RankEvidence::rank);
  return found == ranks().end() ? nullptr : &*found;
}

const HostEvidence* Case::host_of(const RankEvidence& rank) const {
  const auto found = std::ranges::find(evidence_.hosts, rank.host, &HostEvidence::name);
  return found == evidence_.hosts.end() ? nullptr : &*found;
}

/// What the rank tells, else the ranks of its group that have not issued the operation it waits in.
std::vector<int> Case::waited_for_by(const RankEvidence& rank) const {
  if (!rank.waits_for.empty() || !is_open(rank.operation)) return rank.waits_for;
  std::vector<int> result;
  const std::uint64_t number = operation_number(rank.operation);
  for (const RankEvidence& other : ranks()) {
    const bool is_behind =
        group_of(other.operation) != group_of(rank.operation) || operation_number(other.operation) < number;
    if (other.rank != rank.rank && is_behind) result.push_back(other.rank);
  }
  return result;
}

std::vector<int> Case::waiting_for(int rank) const {
  std::vector<int> result;
  for (const RankEvidence& other : ranks()) {
    const std::vector<int> waits_for = waited_for_by(other);
    if (stands(other) && std::ranges::find(waits_for, rank) != waits_for.end()) result.push_back(other.rank);
  }
  return result;
}

void Case::find_suspects() {
  if (evidence_.occasion == "slow") {
    // Each rank waits now and then; the slow one waits for processor time or memory.
    for (const RankEvidence& rank : ranks()) {
      if (!rank.ended) suspects_.push_back(&rank);
    }
    // A rank within an operation may only wait there for the one without cores.
    constexpr double kWithin = 0.5;
    std::ranges::stable_sort(suspects_, std::greater(), [](const RankEvidence* rank) {
      return std::max(rank->waits_for_core, rank->throttled) - (is_open(rank->operation) ? kWithin : 0);
    });
    return;
  }
  std::set<int> waited_for, unknown;
  for (const RankEvidence& rank : ranks()) {
    if (!stands(rank)) continue;
    for (const int other : waited_for_by(rank))
      find(other) ? waited_for.insert(other) : unknown.insert(other);
  }
  unknown_.assign(unknown.begin(), unknown.end());
  for (const RankEvidence& rank : ranks()) {
    const bool is_root = waited_for.contains(rank.rank) && waited_for_by(rank).empty();
    if (stands(rank) && is_root) suspects_.push_back(&rank);
  }
  if (suspects_.empty() && !waited_for.empty() && unknown_.empty()) {
    // From any of them along what each waits for first, until a rank comes again.
    std::vector<int> path = {*waited_for.begin()};
    while (std::ranges::count(path, path.back()) == 1) {
      const RankEvidence* rank = find(path.back());
      const std::vector<int> next = rank && stands(*rank) ? waited_for_by(*rank) : std::vector<int>();
      if (next.empty()) break;
      path.push_back(next.front());
    }
    const auto first = std::ranges::find(path, path.back());
    cycle_.assign(first, path.end() - 1);
    std::ranges::sort(cycle_);
  }
  if (suspects_.empty() && cycle_.empty() && unknown_.empty()) {
    for (const RankEvidence& rank : ranks()) {
      if (stands(rank)) suspects_.push_back(&rank);
    }
  }
  std::ranges::stable_sort(suspects_, std::greater(), &RankEvidence::still_s);
}

}  // namespace trireme::autopsy
