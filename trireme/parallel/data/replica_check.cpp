#include "trireme/parallel/data/replica_check.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>

#include "trireme/base/error.h"
#include "trireme/comm/text_difference.h"
#include "trireme/parallel/data/internal/tensor_digests.h"

namespace trireme::parallel {
namespace {

at::Tensor tensor_of(const std::vector<std::int64_t>& words, std::size_t numel) {
  at::Tensor tensor = at::zeros({static_cast<std::int64_t>(numel)}, at::kLong);
  std::ranges::copy(words, tensor.mutable_data_ptr<std::int64_t>());
  return tensor;
}

/// "one on ranks 0, 2; one on rank 1": groups the ranks by value.
std::string holders_of_each(const std::vector<int>& ranks, const std::vector<std::int64_t>& values) {
  constexpr std::size_t kMaxParts = 8;
  std::vector<std::int64_t> different;
  std::map<std::int64_t, std::vector<std::string>> holders;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!holders.contains(values[i])) different.push_back(values[i]);
    holders[values[i]].push_back(std::to_string(ranks[i]));
  }
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < different.size() && i < kMaxParts; ++i) {
    const std::vector<std::string>& of_it = holders[different[i]];
    parts.push_back(text("one on ", of_it.size() > 1 ? "ranks " : "rank ", join(of_it)));
  }
  if (different.size() > kMaxParts) parts.push_back(text(different.size() - kMaxParts, " more"));
  return text(different.size(), " different values: ", join(parts, "; "));
}

}  // namespace

ReplicaCheck::ReplicaCheck(comm::Group group, optim::NamedTensors tensors, std::string advice)
    : group_(std::move(group)), advice_(std::move(advice)) {
  std::map<std::string, at::Tensor> mine;
  for (const auto& [name, tensor] : tensors)
    require(mine.emplace(name, tensor).second, "ReplicaCheck: '", name, "' is listed twice");
  std::map<std::string, std::vector<int>> ranks_of;
  std::vector<std::string> in_order;
  const std::vector<std::vector<std::string>> names = names_of_ranks(tensors);
  for (int rank = 0; rank < group_.size(); ++rank) {
    for (const std::string& name : names[static_cast<std::size_t>(rank)]) {
      std::vector<int>& ranks = ranks_of[name];
      if (ranks.empty()) in_order.push_back(name);
      ranks.push_back(rank);
    }
  }
  std::map<std::vector<int>, std::size_t> numbers;
  for (const std::string& name : in_order) {
    const std::vector<int>& ranks = ranks_of.at(name);
    if (ranks.size() == 1) continue;
    const auto [number, is_new] = numbers.emplace(ranks, holders_.size());
    if (is_new) holders_.push_back(ranks);
    if (const auto found = mine.find(name); found != mine.end())
      mine_.push_back({.label = labels_.size(), .tensor = found->second});
    labels_.push_back({.name = name, .holders = number->second});
  }
}

/// The names on all ranks. They are only gathered if they differ.
std::vector<std::vector<std::string>> ReplicaCheck::names_of_ranks(const optim::NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  const auto num_ranks = static_cast<std::size_t>(group_.size());
  if (num_ranks == 1) return {names};
  const std::string all_names = join(names, "\n");
  if (!comm::find_text_difference(group_, all_names)) return {num_ranks, names};
  std::vector<std::vector<std::string>> all;
  for (const std::string& of_rank : group_.all_gather_text(all_names))
    all.push_back(of_rank.empty() ? std::vector<std::string>() : split(of_rank, '\n'));
  return all;
}

bool ReplicaCheck::holds(int rank, std::size_t set) const {
  return std::ranges::binary_search(holders_[set], rank);
}

/// Number of these sets that include one rank, at most.
std::size_t ReplicaCheck::most_of_a_rank(const std::vector<std::size_t>& sets) const {
  std::vector<std::size_t> counts(static_cast<std::size_t>(group_.size()));
  for (const std::size_t set : sets) {
    for (const int rank : holders_[set]) ++counts[static_cast<std::size_t>(rank)];
  }
  return *std::ranges::max_element(counts);
}

/// One digest for each set of this rank, in order.
std::vector<std::int64_t> ReplicaCheck::words_of_sets() const {
  std::vector<std::vector<std::int64_t>> digests(holders_.size());
  for (std::size_t i = 0; i < mine_.size(); ++i)
    digests[labels_[mine_[i].label].holders].push_back(digests_[i]);
  std::vector<std::int64_t> words;
  for (const std::vector<std::int64_t>& of_set : digests) {
    if (!of_set.empty()) words.push_back(digest_of(of_set.data(), of_set.size() * sizeof(std::int64_t)));
  }
  return words;
}

void ReplicaCheck::run(const std::string& when) {
  start();
  finish(when);
}

void ReplicaCheck::start() {
  if (holders_.empty()) return;
  words_.reset();
  std::vector<at::Tensor> tensors;
  for (const Mine& each : mine_) tensors.push_back(each.tensor);
  digests_ = digests_of(tensors);
  std::vector<std::size_t> sets(holders_.size());
  for (std::size_t i = 0; i < sets.size(); ++i) sets[i] = i;
  word_ = tensor_of(words_of_sets(), most_of_a_rank(sets));
  at::Tensor words = at::empty({group_.size() * word_.numel()}, at::kLong);
  pending_ = group_.all_gather_async(words, word_);
  words_ = std::move(words);
}

void ReplicaCheck::finish(const std::string& when) {
  if (holders_.empty()) return;
  const at::Tensor words = std::exchange(words_, {});
  require(words.defined(), "ReplicaCheck::finish() needs an earlier start()");
  std::exchange(pending_, {}).wait();
  if (!is_same_everywhere(words)) throw_difference(when);
}

bool ReplicaCheck::is_same_everywhere(const at::Tensor& words) const {
  std::vector<const std::int64_t*> next;
  for (int rank = 0; rank < group_.size(); ++rank)
    next.push_back(words.const_data_ptr<std::int64_t>() + rank * word_.numel());
  bool is_same = true;
  for (const std::vector<int>& ranks : holders_) {
    const std::int64_t first = *next[static_cast<std::size_t>(ranks.front())];
    for (const int rank : ranks) is_same = *next[static_cast<std::size_t>(rank)]++ == first && is_same;
  }
  return is_same;
}

/// Gathers the digests of single tensors. All ranks interpret them alike.
void ReplicaCheck::throw_difference(const std::string& when) {
  std::vector<std::size_t> sets;
  for (const Label& label : labels_) sets.push_back(label.holders);
  const at::Tensor mine = tensor_of(digests_, most_of_a_rank(sets));
  at::Tensor all = at::empty({group_.size() * mine.numel()}, at::kLong);
  group_.all_gather(all, mine);
  std::vector<const std::int64_t*> next;
  for (int rank = 0; rank < group_.size(); ++rank)
    next.push_back(all.const_data_ptr<std::int64_t>() + rank * mine.numel());
  std::string first, values_of_first;
  std::size_t count = 0;
  for (const Label& label : labels_) {
    std::vector<int> ranks;
    std::vector<std::int64_t> values;
    for (const int rank : holders_[label.holders]) {
      ranks.push_back(group_.world_ranks()[static_cast<std::size_t>(rank)]);
      values.push_back(*next[static_cast<std::size_t>(rank)]++);
    }
    if (std::ranges::adjacent_find(values, std::ranges::not_equal_to{}) == values.end()) continue;
    if (count++ > 0) continue;
    first = label.name;
    values_of_first = holders_of_each(ranks, values);
  }
  throw CommError(
      text(when, ": the replicas have drifted apart: '", first, "' has ", values_of_first, "; of ",
           labels_.size(), " tensors that ranks hold alike ", count, count == 1 ? " differs" : " differ",
           ". Expected the same bits on all of them. Usual causes: a forward that writes its parameters "
           "(embedding max_norm, spectral norm, weight standardisation), an update that not every rank made, "
           "processors or libraries that round differently",
           advice_));
}

}  // namespace trireme::parallel
