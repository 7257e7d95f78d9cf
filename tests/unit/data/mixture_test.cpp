#include "trireme/data/mixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "trireme/base/error.h"
#include "trireme/data/decorators.h"
#include "trireme/data/tolerant.h"

namespace trireme::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Sample i is `first` + i. Within an epoch, its target is the number of the epoch.
class NumberRange : public Dataset {
 public:
  NumberRange(std::int64_t first, std::int64_t size, std::int64_t epoch = -1)
      : first_(first), size_(size), epoch_(epoch) {}
  std::int64_t size() const override { return size_; }
  Example get(std::int64_t index) const override {
    if (index < 0 || index >= size_) throw std::out_of_range("sample");
    return {torch::tensor(first_ + index), torch::tensor(epoch_)};
  }
  double cost(std::int64_t index) const override { return static_cast<double>(first_ + index); }
  std::shared_ptr<const Dataset> in_epoch(std::uint64_t epoch) const override {
    return std::make_shared<NumberRange>(first_, size_, static_cast<std::int64_t>(epoch));
  }

 private:
  std::int64_t first_, size_, epoch_;
};

std::vector<std::shared_ptr<const Dataset>> two_parts() {
  return {std::make_shared<NumberRange>(0, 10), std::make_shared<NumberRange>(100, 7)};
}

std::int64_t number_of(const Dataset& data, std::int64_t index) {
  return data.get(index).input->item<std::int64_t>();
}

TEST(Mixture, RoundedSharesHaveExactSum) {
  EXPECT_THAT(shares_of(10, {0.5, 0.25, 0.25}), ElementsAre(5, 3, 2));
  EXPECT_THAT(shares_of(100, {1.0 / 3, 1.0 / 3, 1.0 / 3}), ElementsAre(34, 33, 33));
  EXPECT_THAT(shares_of(10, {0.96, 0.04}), ElementsAre(10, 0));
  EXPECT_THAT(shares_of(1000, {0.7, 0.3}), ElementsAre(700, 300));
  EXPECT_THAT(shares_of(3, {0.5 + 4e-7, 0.5 + 4e-7}), ElementsAre(2, 1));
}

TEST(Mixture, SampleCostsAsInItsPart) {
  const auto parts = two_parts();
  const std::vector<std::int64_t> some = {3, 8, 1};
  const std::shared_ptr<const Dataset> made_of_others[] = {
      mixture(parts, {0.5, 0.5}, 12, 1)->in_epoch(3), std::make_shared<ConcatDataset>(parts),
      std::make_shared<SubsetDataset>(parts[0], some), with_retries(parts[1], {})};
  for (const auto& samples : made_of_others) {
    for (std::int64_t i = 0; i < samples->size(); ++i)
      EXPECT_EQ(samples->cost(i), static_cast<double>(number_of(*samples, i)));
  }
}

TEST(Mixture, RejectsWeightsWithInvalidSum) {
  EXPECT_THAT([] { shares_of(10, {0.5, 0.4}); }, ThrowsMessage<InvalidArgument>(HasSubstr("0.9")));
  EXPECT_THAT([] { shares_of(10, {0.5, 0.500002}); }, ThrowsMessage<InvalidArgument>(HasSubstr("1.000002")));
  EXPECT_THROW(shares_of(10, {1.5, -0.5}), InvalidArgument);
  EXPECT_THROW(shares_of(10, {1, 0}), InvalidArgument);
  EXPECT_THROW(mixture(two_parts(), {1.0}, 10, 0), InvalidArgument);
  EXPECT_THROW(mixture({}, {}, 10, 0), InvalidArgument);
  EXPECT_THROW(mixture(two_parts(), {0.5, 0.5}, 0, 0), InvalidArgument);
}

TEST(Mixture, EachPassOverPartHasSamplesOnce) {
  const auto mixed = mixture(two_parts(), {0.3, 0.7}, 10, 5);
  std::vector<std::int64_t> first, second;
  for (std::uint64_t epoch = 0; epoch < 70; ++epoch) {
    const auto view = mixed->in_epoch(epoch);
    ASSERT_EQ(view->size(), 10);
    for (std::int64_t i = 0; i < 10; ++i) (i < 3 ? first : second).push_back(number_of(*view, i));
  }
  const auto holds = [](const std::vector<std::int64_t>& taken, std::int64_t from, std::int64_t size) {
    for (std::size_t pass = 0; pass + static_cast<std::size_t>(size) <= taken.size();
         pass += static_cast<std::size_t>(size)) {
      std::vector<std::int64_t> numbers(taken.begin() + static_cast<std::ptrdiff_t>(pass),
                                        taken.begin() + static_cast<std::ptrdiff_t>(pass) + size);
      std::ranges::sort(numbers);
      for (std::int64_t i = 0; i < size; ++i)
        ASSERT_EQ(numbers[static_cast<std::size_t>(i)], from + i) << pass;
    }
  };
  holds(first, 0, 10);
  holds(second, 100, 7);
}

TEST(Mixture, OrderDependsOnSeedPartAndPass) {
  const auto order = [](std::uint64_t seed, std::uint64_t epoch) {
    const auto view = mixture({std::make_shared<NumberRange>(0, 50), std::make_shared<NumberRange>(0, 50)},
                              {0.5, 0.5}, 100, seed)
                          ->in_epoch(epoch);
    std::vector<std::int64_t> numbers;
    for (std::int64_t i = 0; i < 100; ++i) numbers.push_back(number_of(*view, i));
    return numbers;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  const auto numbers = order(1, 0);
  EXPECT_NE(std::vector(numbers.begin(), numbers.begin() + 50),
            std::vector(numbers.begin() + 50, numbers.end()));
}

TEST(Mixture, PartUsesEpochOfItsPass) {
  const auto view = mixture(two_parts(), {0.5, 0.5}, 8, 0)->in_epoch(3);  // places 12 to 15 of each part
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(view->get(i).target->item<int>(), 1);
  EXPECT_EQ(view->get(4).target->item<int>(), 1);
  EXPECT_EQ(view->get(5).target->item<int>(), 1);
  EXPECT_EQ(view->get(6).target->item<int>(), 2);
  EXPECT_THROW(view->get(8), InvalidArgument);
  EXPECT_THROW(view->get(-1), InvalidArgument);
}

TEST(Mixture, EpochsWithoutEndAreNoTrouble) {
  const auto view =
      mixture({std::make_shared<NumberRange>(0, std::int64_t{1} << 60), std::make_shared<NumberRange>(0, 3)},
              {0.5, 0.5}, std::int64_t{1} << 61, 0)
          ->in_epoch(std::uint64_t{1} << 40);
  EXPECT_GE(number_of(*view, 12345), 0);
  EXPECT_LT(number_of(*view, (std::int64_t{1} << 61) - 1), 3);
}

class NamedNumbers : public NumberRange {
 public:
  using NumberRange::NumberRange;
  Example get(std::int64_t index) const override { return {{{"tokens", torch::tensor(index)}}, {}}; }
};

TEST(Mixture, PartsOfOtherFieldsAreRejected) {
  EXPECT_THAT(
      [] {
        mixture({std::make_shared<NumberRange>(0, 1), std::make_shared<NamedNumbers>(0, 1)}, {0.5, 0.5}, 2,
                0);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("part 1 of the mixture has")));
}

}  // namespace
}  // namespace trireme::data
