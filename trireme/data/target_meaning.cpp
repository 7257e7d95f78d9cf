// The meaning of targets, by DataOptions::target and num_classes, for any data set.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/data/dataset.h"

namespace trireme::data {
namespace {

/// The same samples with targets in f32.
class NumberTargets : public Dataset {
 public:
  explicit NumberTargets(std::shared_ptr<const Dataset> samples) : samples_(std::move(samples)) {}

  std::int64_t size() const override { return samples_->size(); }
  bool sizes_vary() const override { return samples_->sizes_vary(); }
  bool is_repeatable() const override { return samples_->is_repeatable(); }
  double cost(std::int64_t index) const override { return samples_->cost(index); }
  std::vector<std::int64_t> shard_ends() const override { return samples_->shard_ends(); }

  Example get(std::int64_t index) const override { return as_numbers(samples_->get(index)); }
  Example get_batch(std::span<const std::int64_t> indices) const override {
    return as_numbers(samples_->get_batch(indices));
  }
  Fields get_targets(std::span<const std::int64_t> indices) const override {
    return as_numbers(samples_->get_targets(indices));
  }
  std::shared_ptr<const Dataset> in_epoch(std::uint64_t epoch) const override {
    auto samples = samples_->in_epoch(epoch);
    return samples ? std::make_shared<NumberTargets>(std::move(samples)) : nullptr;
  }

 private:
  static Fields as_numbers(const Fields& targets) {
    return targets.map([](const at::Tensor& target) { return target.to(at::kFloat); });
  }
  static Example as_numbers(Example example) {
    example.target = as_numbers(example.target);
    return example;
  }

  std::shared_ptr<const Dataset> samples_;
};

}  // namespace

TargetMeaning target_meaning(const std::string& target) {
  constexpr std::array<std::pair<std::string_view, TargetMeaning>, 3> kMeanings = {
      {{"auto", TargetMeaning::kByValues},
       {"class", TargetMeaning::kClass},
       {"number", TargetMeaning::kNumber}}};
  for (const auto& [name, meaning] : kMeanings) {
    if (name == target) return meaning;
  }
  throw InvalidArgument(text("data.target = \"", target, "\"; expected auto, class or number"));
}

DataSource with_target_options(DataSource source, const DataOptions& options) {
  const bool numbers = target_meaning(options.target) == TargetMeaning::kNumber;
  require(!numbers || options.num_classes == 0, "data.num_classes = ", options.num_classes,
          " is for targets that are classes, and those of data set ", source.name,
          " are numbers (data.target, or the objective); leave it out");
  if (options.num_classes > 0) {
    require(source.num_classes <= options.num_classes, "data set ", source.name, " has ", source.num_classes,
            " classes, and data.num_classes = ", options.num_classes, "; expected as many at least");
    source.num_classes = options.num_classes;
  }
  if (!numbers) return source;
  require(source.targets_per_sample == 1,
          "data.target = \"number\" is for one target per sample, and data set ", source.name,
          " has the next tokens of a text; leave it out");
  source.train = std::make_shared<NumberTargets>(indexed(source.train));
  if (source.test) source.test = std::make_shared<NumberTargets>(source.test);
  source.num_classes = 0;
  return source;
}

}  // namespace trireme::data
