#include "trireme/data/decorators.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/data/internal/stacked_targets.h"

namespace trireme::data {

TransformedDataset::TransformedDataset(std::shared_ptr<const Dataset> images, Transforms transforms,
                                       std::uint64_t seed)
    : images_(std::move(images)), transforms_(std::move(transforms)), seed_(seed) {}

Example TransformedDataset::get(std::int64_t index) const {
  Example example = images_->get(index);
  const StageScope transforming(Stage::kTransform);
  Random random(seed_, Random::key_of("transform"), epoch_, index);
  for (const auto& transform : transforms_) example.input = transform->apply(example.input, random);
  return example;
}

std::shared_ptr<const Dataset> TransformedDataset::in_epoch(std::uint64_t epoch) const {
  auto images = images_->in_epoch(epoch);
  const bool draws = std::ranges::any_of(transforms_, [](const auto& each) { return each->is_random(); });
  if (!draws && !images) return nullptr;
  auto view = std::make_shared<TransformedDataset>(*this);
  view->epoch_ = epoch;
  if (images) view->images_ = std::move(images);
  return view;
}

SubsetDataset::SubsetDataset(std::shared_ptr<const Dataset> whole, std::vector<std::int64_t> indices)
    : whole_(std::move(whole)), indices_(std::make_shared<std::vector<std::int64_t>>(std::move(indices))) {
  require(!indices_->empty(), "a part of a data set needs at least one sample");
  for (const std::int64_t index : *indices_) {
    require(index >= 0 && index < whole_->size(), "sample ", index, " cannot be part of a data set of ",
            whole_->size());
  }
}

std::vector<std::int64_t> SubsetDataset::in_whole(std::span<const std::int64_t> indices) const {
  std::vector<std::int64_t> result;
  for (const std::int64_t index : indices) {
    require(index >= 0 && index < size(), "sample ", index, " of a part of ", size(), " was asked for");
    result.push_back((*indices_)[static_cast<std::size_t>(index)]);
  }
  return result;
}

Example SubsetDataset::get(std::int64_t index) const { return whole_->get(in_whole({&index, 1})[0]); }

Example SubsetDataset::get_batch(std::span<const std::int64_t> indices) const {
  if (!indices.empty()) return whole_->get_batch(in_whole(indices));
  return Dataset::get_batch(indices);
}

Fields SubsetDataset::get_targets(std::span<const std::int64_t> indices) const {
  if (!indices.empty()) return whole_->get_targets(in_whole(indices));
  return Dataset::get_targets(indices);
}

double SubsetDataset::cost(std::int64_t index) const { return whole_->cost(in_whole({&index, 1}).front()); }

std::vector<std::int64_t> SubsetDataset::shard_ends() const {
  if (!std::is_sorted(indices_->begin(), indices_->end())) return {};
  std::vector<std::int64_t> ends;
  for (const std::int64_t end : whole_->shard_ends()) {
    const auto mine = std::lower_bound(indices_->begin(), indices_->end(), end) - indices_->begin();
    if (mine > (ends.empty() ? 0 : ends.back())) ends.push_back(mine);
  }
  return ends;
}

std::shared_ptr<const Dataset> SubsetDataset::in_epoch(std::uint64_t epoch) const {
  auto whole = whole_->in_epoch(epoch);
  if (!whole) return nullptr;
  auto view = std::make_shared<SubsetDataset>(*this);
  view->whole_ = std::move(whole);
  return view;
}

ConcatDataset::ConcatDataset(std::vector<std::shared_ptr<const Dataset>> parts) : parts_(std::move(parts)) {
  require(!parts_.empty(), "nothing to concatenate: there is no data set");
  for (const auto& part : parts_) ends_.push_back((ends_.empty() ? 0 : ends_.back()) + part->size());
}

std::pair<const Dataset*, std::int64_t> ConcatDataset::find(std::int64_t index) const {
  require(index >= 0 && index < size(), "sample ", index, " of ", size(), " was asked for");
  const auto part =
      static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
  return {parts_[part].get(), part == 0 ? index : index - ends_[part - 1]};
}

Example ConcatDataset::get(std::int64_t index) const {
  const auto [part, number] = find(index);
  return part->get(number);
}

Fields ConcatDataset::get_targets(std::span<const std::int64_t> indices) const {
  return stacked_targets(indices, [&](std::int64_t index) {
    const auto [part, number] = find(index);
    return target_of(*part, number);
  });
}

double ConcatDataset::cost(std::int64_t index) const {
  const auto [part, number] = find(index);
  return part->cost(number);
}

std::shared_ptr<const Dataset> ConcatDataset::in_epoch(std::uint64_t epoch) const {
  auto view = std::make_shared<ConcatDataset>(*this);
  bool varies = false;
  for (auto& part : view->parts_) {
    auto as_it_is = part->in_epoch(epoch);
    if (!as_it_is) continue;
    part = std::move(as_it_is);
    varies = true;
  }
  return varies ? view : nullptr;
}

}  // namespace trireme::data
