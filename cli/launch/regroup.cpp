#include "cli/launch/regroup.h"

#include <algorithm>

namespace trireme::cli {
namespace {

bool runs_on(const RegroupRequest& request, int size) {
  const auto has_size = [size](const std::vector<int>& sizes) {
    return sizes.empty() || std::ranges::binary_search(sizes, size);
  };
  return has_size(request.sizes) &&
         std::ranges::all_of(request.living, [&](const LivingMember& each) { return has_size(each.sizes); });
}

int size_of_next(const RegroupRequest& request) {
  const int there = static_cast<int>(request.living.size() + request.spares.size());
  int size = std::min(request.wanted_ranks, there);
  while (size >= request.min_ranks && !runs_on(request, size)) --size;
  return size >= request.min_ranks ? size : 0;
}

}  // namespace

std::optional<wire::ElasticWorld> regroup(const RegroupRequest& request) {
  const int size = size_of_next(request);
  if (size <= 0) return std::nullopt;
  wire::ElasticWorld next{.generation = request.before.generation + 1};
  auto spare = request.spares.begin();
  const bool keeps_places = size == request.before.size();
  for (const wire::ElasticMember& each : request.before.ranks) {
    const bool lives = std::ranges::any_of(request.living,
                                           [&](const LivingMember& living) { return living.member == each; });
    if (lives) next.ranks.push_back(each);
    if (!lives && keeps_places && spare != request.spares.end()) next.ranks.push_back(*spare++);
  }
  while (next.size() < size && spare != request.spares.end()) next.ranks.push_back(*spare++);
  next.ranks.resize(std::min(next.ranks.size(), static_cast<std::size_t>(size)));
  return next;
}

}  // namespace trireme::cli
