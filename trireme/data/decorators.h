#pragma once
// Data sets made of other data sets. Like every Dataset they are immutable, thread-safe and deterministic.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "trireme/data/dataset.h"
#include "trireme/data/transform.h"

namespace trireme::data {

/// The images of another data set, each changed by the transforms in order. The random numbers of a sample
/// are keyed by (seed, epoch, sample): new ones in every epoch, the same for any rank and worker.
class TransformedDataset : public Dataset {
 public:
  TransformedDataset(std::shared_ptr<const Dataset> images, Transforms transforms, std::uint64_t seed);

  std::int64_t size() const override { return images_->size(); }
  Example get(std::int64_t index) const override;
  Fields get_targets(std::span<const std::int64_t> indices) const override {
    return images_->get_targets(indices);
  }
  double cost(std::int64_t index) const override { return images_->cost(index); }
  std::vector<std::int64_t> shard_ends() const override { return images_->shard_ends(); }
  std::shared_ptr<const Dataset> in_epoch(std::uint64_t epoch) const override;

 private:
  std::shared_ptr<const Dataset> images_;
  Transforms transforms_;
  std::uint64_t seed_, epoch_ = 0;
};

/// Those samples of another data set that are listed, in that order.
class SubsetDataset : public Dataset {
 public:
  /// Throws InvalidArgument when an index is outside the data set, or there is none.
  SubsetDataset(std::shared_ptr<const Dataset> whole, std::vector<std::int64_t> indices);

  std::int64_t size() const override { return static_cast<std::int64_t>(indices_->size()); }
  Example get(std::int64_t index) const override;
  Example get_batch(std::span<const std::int64_t> indices) const override;
  Fields get_targets(std::span<const std::int64_t> indices) const override;
  bool sizes_vary() const override { return whole_->sizes_vary(); }
  double cost(std::int64_t index) const override;
  std::vector<std::int64_t> shard_ends() const override;
  std::shared_ptr<const Dataset> in_epoch(std::uint64_t epoch) const override;

 private:
  std::vector<std::int64_t> in_whole(std::span<const std::int64_t> indices) const;

  std::shared_ptr<const Dataset> whole_;
  std::shared_ptr<const std::vector<std::int64_t>> indices_;
};

/// Several data sets, one after the other.
class ConcatDataset : public Dataset {
 public:
  /// Throws InvalidArgument when there is none.
  explicit ConcatDataset(std::vector<std::shared_ptr<const Dataset>> parts);

  std::int64_t size() const override { return ends_.back(); }
  Example get(std::int64_t index) const override;
  Fields get_targets(std::span<const std::int64_t> indices) const override;
  double cost(std::int64_t index) const override;
  std::shared_ptr<const Dataset> in_epoch(std::uint64_t epoch) const override;

 private:
  /// Which part a sample is of, and its number there.
  std::pair<const Dataset*, std::int64_t> find(std::int64_t index) const;

  std::vector<std::shared_ptr<const Dataset>> parts_;
  std::vector<std::int64_t> ends_;  ///< ends_[i]: samples of the parts up to i
};

}  // namespace trireme::data
