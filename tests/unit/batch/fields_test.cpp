#include "trireme/batch/fields.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <functional>

#include "trireme/base/error.h"

namespace trireme::batch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

at::Tensor numbers(std::int64_t size) { return at::arange(size); }

TEST(Fields, OneTensorIsFieldsAndBack) {
  const auto second = [](const at::Tensor& one, const at::Tensor& other) { return one[1] + other[1]; };
  const std::function<Fields(const Fields&, const Fields&)> taken = second;
  const at::Tensor sum = taken(numbers(3), Fields{{"named", numbers(4)}});
  EXPECT_EQ(sum.item<std::int64_t>(), 2);
  const Fields one = numbers(3);
  EXPECT_EQ(one->size(0), 3);
  EXPECT_EQ((*one)[2].item<std::int64_t>(), 2);
  EXPECT_FALSE(one.has_names());
}

TEST(Fields, SeveralAreNoTensorAndAreListed) {
  const Fields two{{"tokens", numbers(3)}, {"mask", at::zeros({3, 2}, at::kBool)}};
  EXPECT_THAT([&] { return at::Tensor(two); },
              ThrowsMessage<InvalidArgument>(HasSubstr(
                  "expected one tensor, found 2 fields: 'tokens', Long of shape [3]; 'mask', Bool of shape "
                  "[3, 2]")));
  EXPECT_THAT([] { return at::Tensor(Fields()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("found no field")));
  EXPECT_THAT([&] { return two->numel(); }, ThrowsMessage<InvalidArgument>(HasSubstr("'mask'")));
}

TEST(Fields, AreAskedForByNameOrPlace) {
  const Fields two{{"tokens", numbers(3)}, {"mask", numbers(4)}};
  EXPECT_EQ(two["mask"].size(0), 4);
  EXPECT_EQ(two.at(0).size(0), 3);
  EXPECT_TRUE(two.has("tokens"));
  EXPECT_THAT([&] { return two["token"]; },
              ThrowsMessage<InvalidArgument>(HasSubstr("no field 'token' (did you mean 'tokens'?)")));
  EXPECT_THAT([&] { return two.at(2); }, ThrowsMessage<InvalidArgument>(HasSubstr("no field number 2")));
}

TEST(Fields, RowsAreFirstDimOfFirstField) {
  EXPECT_EQ(Fields(at::zeros({3, 2})).rows(), 3);
  EXPECT_EQ((Fields{{"one", at::zeros({4, 5})}, {"other", numbers(7)}}).rows(), 4);
  EXPECT_EQ(Fields(at::zeros({})).rows(), 0);
  EXPECT_EQ(Fields().rows(), 0);
}

TEST(Fields, NoTwoHaveOneName) {
  EXPECT_THAT(([] {
                return Fields{{"a", numbers(1)}, {"a", numbers(2)}};
              }),
              ThrowsMessage<InvalidArgument>(HasSubstr("two fields 'a'")));
  EXPECT_EQ(Fields(Tensors{numbers(1), numbers(2)}).size(), 2U);
}

TEST(Fields, MapKeepsNamesAndOrder) {
  const Fields two{{"b", numbers(3)}, {"a", numbers(2)}};
  const Fields twice = two.map([](const at::Tensor& tensor) { return tensor * 2; });
  EXPECT_TRUE(same_names(two, twice));
  EXPECT_EQ(twice["b"][2].item<std::int64_t>(), 4);
  EXPECT_EQ(two["b"][2].item<std::int64_t>(), 2);
  EXPECT_FALSE(same_names(two, Fields{{"a", numbers(3)}, {"b", numbers(2)}}));
}

}  // namespace
}  // namespace trireme::batch
