#include "trireme/autopsy/internal/case.h"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "trireme/autopsy/internal/thrown.h"
#include "trireme/autopsy/operation_text.h"

namespace trireme::autopsy {
namespace {

bool went_wrong(const RankEvidence& rank) {
  return rank.ended && !rank.ended_by_launcher && (rank.signal != 0 || rank.exit_code != 0);
}

}  // namespace

bool stands(const RankEvidence& rank) {
  return !rank.ended || rank.ended_by_launcher || is_about_others(rank);
}

Case::Case(const Evidence& evidence) : evidence_(evidence) {
  for (const HostEvidence& host : evidence.hosts) hosts_.emplace(host.name, &host);
  for (const RankEvidence& rank : evidence.ranks) {
    by_number_.emplace(rank.rank, &rank);
    if (went_wrong(rank)) failed_.push_back(&rank);
  }
  std::ranges::stable_sort(failed_, {}, &RankEvidence::ended_s);
  find_places();
  evidence_.occasion == "slow" ? find_slow() : find_suspects();
}

const RankEvidence* Case::find(int rank) const {
  const auto found = by_number_.find(rank);
  return found == by_number_.end() ? nullptr : found->second;
}

const HostEvidence* Case::host_of(const RankEvidence& rank) const {
  const auto found = hosts_.find(rank.host);
  return found == hosts_.end() ? nullptr : found->second;
}

const Case::Place& Case::place_of(const RankEvidence& rank) const {
  return places_[static_cast<std::size_t>(&rank - ranks().data())];
}

void Case::find_places() {
  std::map<std::string, int> groups;
  for (const RankEvidence& rank : ranks()) {
    const auto next = static_cast<int>(groups.size());
    const int group = groups.emplace(operation_group(rank.operation), next).first->second;
    const Place place{.group = group,
                      .number = operation_number(rank.operation),
                      .stands = autopsy::stands(rank),
                      .guesses = rank.waits_for.empty() && is_open(rank.operation)};
    places_.push_back(place);
    numbers_.resize(groups.size());
    numbers_[static_cast<std::size_t>(group)].push_back(place.number);
    if (!place.stands) continue;
    for (const int other : rank.waits_for) named_[other].push_back(rank.rank);
    if (!place.guesses) continue;
    std::uint64_t& furthest = guessed_[group];
    furthest = std::max(furthest, place.number);
  }
  for (auto& numbers : numbers_) std::ranges::sort(numbers);
}

/// Whether a rank at `other` has not issued the operation of `place`.
bool Case::is_behind(const Place& other, const Place& place) const {
  return other.group != place.group || other.number < place.number;
}

bool Case::is_waited_for(const RankEvidence& rank) const {
  const Place& place = place_of(rank);
  return named_.contains(rank.rank) || std::ranges::any_of(guessed_, [&](const auto& waited) {
           return is_behind(place, {.group = waited.first, .number = waited.second});
         });
}

/// Whether it waits for any rank.
bool Case::waits(const RankEvidence& rank) const {
  const Place& place = place_of(rank);
  if (!place.guesses) return !rank.waits_for.empty();
  const auto& numbers = numbers_[static_cast<std::size_t>(place.group)];
  const auto issued =
      static_cast<std::size_t>(numbers.end() - std::ranges::lower_bound(numbers, place.number));
  return issued < ranks().size();
}

/// `rank` has to be one that waits.
int Case::first_waited_for_by(const RankEvidence& rank) const {
  const Place& place = place_of(rank);
  if (!place.guesses) return rank.waits_for.front();
  return std::ranges::find_if(ranks(),
                              [&](const RankEvidence& other) { return is_behind(place_of(other), place); })
      ->rank;
}

std::vector<int> Case::waiting_for(int rank) const {
  std::vector<int> result;
  if (const auto named = named_.find(rank); named != named_.end()) result = named->second;
  const RankEvidence* awaited = find(rank);
  for (const RankEvidence& other : ranks()) {
    const Place& place = place_of(other);
    const bool waits_here = place.stands && place.guesses && other.rank != rank;
    if (waits_here && awaited != nullptr && is_behind(place_of(*awaited), place))
      result.push_back(other.rank);
  }
  std::ranges::sort(result);
  return result;
}

/// In a slow run, each rank waits now and then. The slow rank waits for processor time or memory.
void Case::find_slow() {
  for (const RankEvidence& rank : ranks()) {
    if (!rank.ended) suspects_.push_back(&rank);
  }
  // A rank inside an operation may only wait for the rank without cores.
  constexpr double kWithin = 0.5;
  std::ranges::stable_sort(suspects_, std::greater(), [](const RankEvidence* rank) {
    return std::max(rank->waits_for_core, rank->throttled) - (is_open(rank->operation) ? kWithin : 0);
  });
}

void Case::find_suspects() {
  std::set<int> unknown;
  for (const auto& [rank, waiting] : named_) {
    if (find(rank) == nullptr) unknown.insert(rank);
  }
  unknown_.assign(unknown.begin(), unknown.end());
  bool any_waited_for = false;
  for (const RankEvidence& rank : ranks()) {
    const bool waited_for = is_waited_for(rank);
    any_waited_for = any_waited_for || waited_for;
    const bool is_root = waited_for && !waits(rank);
    if (place_of(rank).stands && is_root) suspects_.push_back(&rank);
  }
  if (suspects_.empty() && any_waited_for && unknown_.empty()) find_cycle();
  if (suspects_.empty() && cycle_.empty() && unknown_.empty()) {
    for (const RankEvidence& rank : ranks()) {
      if (place_of(rank).stands) suspects_.push_back(&rank);
    }
  }
  std::ranges::stable_sort(suspects_, std::greater(), &RankEvidence::still_s);
}

/// Follows the first rank that each rank waits for, from a rank that others wait for, until a rank repeats.
void Case::find_cycle() {
  const auto begin =
      std::ranges::find_if(ranks(), [&](const RankEvidence& rank) { return is_waited_for(rank); });
  std::vector<int> path = {begin->rank};
  std::unordered_set<int> passed;
  while (passed.insert(path.back()).second) {
    const RankEvidence* rank = find(path.back());
    if (rank == nullptr || !place_of(*rank).stands || !waits(*rank)) return;
    path.push_back(first_waited_for_by(*rank));
  }
  cycle_.assign(std::ranges::find(path, path.back()), path.end() - 1);
  std::ranges::sort(cycle_);
}

}  // namespace trireme::autopsy
