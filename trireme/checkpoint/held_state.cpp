#include "trireme/checkpoint/held_state.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::checkpoint {
namespace {

std::vector<std::string> names_in(const ShardCatalogue& catalogue) {
  std::vector<std::string> names;
  for (const ShardCatalogue::Entry& entry : catalogue.entries()) {
    if (names.empty() || names.back() != entry.name) names.push_back(entry.name);
  }
  return names;
}

}  // namespace

std::vector<std::string> names_of_all(comm::Group group, const Shards& mine) {
  return names_in(ShardCatalogue(std::move(group), mine));
}

HeldStates::HeldStates(comm::Group group, std::vector<HeldState> held)
    : group_(std::move(group)), held_(std::move(held)) {
  for (const Instant& instant : instants_of_all()) {
    const ShardCatalogue catalogue(group_, mine_at(instant));
    const std::string missing = is_complete(catalogue, instant) ? "" : "missing";
    const std::vector<std::string> answers = group_.all_gather_text(missing);
    if (std::ranges::any_of(answers, [](const std::string& each) { return !each.empty(); })) continue;
    newest_.emplace(Found{.step = instant.first, .world = instant.second, .entries = catalogue.entries()});
    return;
  }
}

/// Instants of all ranks, newest first.
std::set<HeldStates::Instant, std::greater<>> HeldStates::instants_of_all() {
  std::string mine;
  for (const HeldState& each : held_) mine += text(each.step, ':', each.world, ' ');
  std::set<Instant, std::greater<>> instants;
  for (const std::string& of_rank : group_.all_gather_text(mine)) {
    for (const std::string& each : split(of_rank, ' ')) {
      const auto words = split(each, ':');
      if (words.size() == 2) instants.emplace(std::stoll(words[0]), std::stoi(words[1]));
    }
  }
  return instants;
}

bool HeldStates::is_complete(const ShardCatalogue& catalogue, const Instant& instant) const {
  try {
    catalogue.check_complete();
  } catch (const InvalidArgument&) {
    return false;
  }
  const std::vector<std::string> there = names_in(catalogue);
  return std::ranges::all_of(held_, [&](const HeldState& each) {
    return Instant(each.step, each.world) != instant || std::ranges::includes(there, each.names);
  });
}

Shards HeldStates::mine_at(const Instant& instant) const {
  Shards shards;
  std::set<std::pair<std::string, Box>> there;
  for (const HeldState& held : held_) {
    if (Instant(held.step, held.world) != instant) continue;
    for (const Shard& shard : held.shards) {
      if (there.emplace(shard.name, shard.box()).second) shards.push_back(shard);
    }
  }
  return shards;
}

void HeldStates::restore(const Shards& wanted) const {
  const Shards mine = mine_at({newest_->step, newest_->world});
  ShardExchange(group_, mine, wanted).run(mine, wanted);
}

PeerCopies::PeerCopies(comm::Group group, const Shards& mine, std::vector<int> hosts)
    : group_(std::move(group)),
      hosts_(std::move(hosts)),
      is_one_host_(std::ranges::adjacent_find(hosts_, std::ranges::not_equal_to()) == hosts_.end()),
      catalogue_(group_, mine),
      names_(names_in(catalogue_)) {
  const bool some_travel = std::ranges::any_of(catalogue_.entries(), [&](const ShardCatalogue::Entry& entry) {
    const Copiers copiers = copiers_of(entry);
    return copiers.second != copiers.first &&
           (entry.replicas == Replicas::kFirstCounts || !entry.is_held_by(copiers.second));
  });
  if (some_travel) to_peers_.emplace(group_, mine, wanted());
}

bool PeerCopies::on_other_hosts(int one, int other) const {
  return is_one_host_ || hosts_[static_cast<std::size_t>(one)] != hosts_[static_cast<std::size_t>(other)];
}

/// The first holder that counts, and the next holder on another host. Without one, the next rank on another
/// host.
PeerCopies::Copiers PeerCopies::copiers_of(const ShardCatalogue::Entry& entry) const {
  const int first = entry.holders.front();
  if (entry.replicas == Replicas::kEqual) {
    for (const int holder : entry.holders)
      if (holder != first && on_other_hosts(first, holder)) return {.first = first, .second = holder};
  }
  for (int step = 1; step < group_.size(); ++step) {
    const int rank = (first + step) % group_.size();
    if (on_other_hosts(first, rank)) return {.first = first, .second = rank};
  }
  return {.first = first, .second = first};
}

Shards PeerCopies::wanted() const {
  Shards shards;
  for (const ShardCatalogue::Entry& entry : catalogue_.entries()) {
    const Copiers copiers = copiers_of(entry);
    const bool holds = entry.is_held_by(group_.rank()) && entry.replicas == Replicas::kEqual;
    if (copiers.second != group_.rank() || copiers.second == copiers.first || holds) continue;
    shards.push_back(empty_shard(entry));
  }
  return shards;
}

HeldState PeerCopies::copy(const Shards& mine, std::int64_t step) {
  const at::NoGradGuard no_grad;
  HeldState held{.step = step, .shards = wanted(), .names = names_};
  if (to_peers_) to_peers_->run(mine, held.shards);
  for (const Shard& shard : mine) {
    const Box box = shard.box();
    for (const ShardCatalogue::Entry& entry : catalogue_.of(shard.name)) {
      if (entry.box != box) continue;
      const Copiers copiers = copiers_of(entry);
      const bool is_copied = copiers.first == group_.rank() ||
                             (copiers.second == group_.rank() && entry.replicas == Replicas::kEqual);
      if (!is_copied) continue;
      Shard own = shard;
      own.tensor =
          own.offloaded_storage ? own.offloaded_storage->fetch(own.tensor) : own.tensor.detach().clone();
      own.offloaded_storage = nullptr;
      held.shards.push_back(std::move(own));
    }
  }
  return held;
}

}  // namespace trireme::checkpoint
