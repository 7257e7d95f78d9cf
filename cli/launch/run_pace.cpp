#include "cli/launch/run_pace.h"

#include <algorithm>

#include "trireme/autopsy/operation_text.h"

namespace trireme::cli {
namespace {

// A pause is unusual after three times the longest one, but at the latest this long after it.
constexpr double kLongerThanBefore = 3, kMostLonger_s = 60;
/// Time over which a speed is measured.
constexpr double kSpan_s = 2;
/// Operations in that time; fewer give no reliable speed.
constexpr double kFewest = 20;
/// Groups per rank; programs have a few.
constexpr std::size_t kMostGroups = 64;

}  // namespace

double Pauses::look(double changed_s) {
  if (changed_s <= changed_s_) return 0;
  const double pause_s = changed_s_ > 0 ? changed_s - changed_s_ : 0;
  if (!disturbed_) longest_s_ = std::max(longest_s_, pause_s);
  changed_s_ = changed_s;
  disturbed_ = false;
  return pause_s;
}

bool Pauses::is_unusual(double pause_s) const {
  return pause_s >= std::min(kLongerThanBefore * longest_s_, longest_s_ + kMostLonger_s);
}

void OperationSpeed::note(int rank, const std::string& operation, double now_s) {
  Rank& of_rank = ranks_[rank];
  of_rank.slowdown = 0;
  const std::uint64_t number = autopsy::operation_number(operation);
  if (number == 0) return;
  if (of_rank.groups.size() > kMostGroups) of_rank.groups.clear();
  Group& group = of_rank.groups[autopsy::operation_group(operation)];
  std::deque<Seen>& seen = group.seen;
  if (!seen.empty() && number < seen.back().number) seen.clear();  // another group of that name
  seen.push_back({now_s, number});
  while (seen.size() > 2 && now_s - seen[1].at_s >= kSpan_s) seen.pop_front();
  const double passed_s = now_s - seen.front().at_s;
  if (passed_s < kSpan_s) return;
  const double speed = static_cast<double>(number - seen.front().number) / passed_s;
  group.best = std::max(group.best, speed);
  if (group.best * kSpan_s >= kFewest) of_rank.slowdown = group.best / std::max(speed, 1 / passed_s);
}

double OperationSpeed::slowdown() const {
  double least = 0;
  for (const auto& [number, rank] : ranks_) {
    if (rank.slowdown > 0) least = least > 0 ? std::min(least, rank.slowdown) : rank.slowdown;
  }
  return std::max(least, 1.0);
}

void OperationSpeed::forget_present() {
  for (auto& [number, rank] : ranks_) {
    rank.slowdown = 0;
    for (auto& [name, group] : rank.groups) group.seen.clear();
  }
}

}  // namespace trireme::cli
