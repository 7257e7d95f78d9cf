#include "trireme/checkpoint/tensor_match.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme::checkpoint {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string error_of(const TensorMap& found, const TensorMap& expected) {
  try {
    check_same_tensors(found, expected, "file.safetensors");
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CheckSameTensors, AcceptsSameNamesAndShapes) {
  EXPECT_EQ(error_of({}, {}), "no error");
  EXPECT_EQ(error_of({{"a", at::zeros({2, 3}, at::kHalf)}, {"b", at::zeros({})}},
                     {{"a", at::zeros({2, 3})}, {"b", at::zeros({})}}),
            "no error");
}

TEST(CheckSameTensors, NamesMissingUnexpectedAndMisshapenTensors) {
  EXPECT_EQ(error_of({{"a", at::zeros({2, 3})}, {"b", at::zeros({4})}, {"module.c", at::zeros({})}},
                     {{"a", at::zeros({3, 2})}, {"b", at::zeros({4})}, {"c", at::zeros({5})}}),
            "the tensors of file.safetensors are not the model's (3 found, 3 expected); 1 missing: 'c' [5]; "
            "1 unexpected: 'module.c' []; 1 of another shape: 'a' [2, 3] instead of [3, 2]; choose the model "
            "they were saved from, or rename them");
}

TEST(CheckSameTensors, NamesFirstFiveAndCountsRest) {
  TensorMap many;
  for (int i = 0; i < 7; ++i) many[text("t", i)] = at::zeros({1});
  const std::string missing = error_of({}, many);
  EXPECT_THAT(missing,
              HasSubstr("; 7 missing: 't0' [1], 't1' [1], 't2' [1], 't3' [1], 't4' [1] and 2 more;"));
  EXPECT_THAT(missing, Not(HasSubstr("unexpected")));
  many.erase("t6");
  many.erase("t5");
  EXPECT_THAT(error_of(many, {}),
              HasSubstr("; 5 unexpected: 't0' [1], 't1' [1], 't2' [1], 't3' [1], 't4' [1];"));
}

TEST(DropTiedCopies, RemovesSecondNameOfTensorOnly) {
  const at::Tensor embedding = at::ones({5, 3});
  TensorMap found = {{"wte.weight", embedding},
                     {"lm_head.weight", embedding.clone()},
                     {"bias", at::ones({3})},
                     {"other.bias", at::ones({3})},
                     {"other_head.weight", at::zeros({5, 3})},
                     {"half_head.weight", embedding.to(at::kHalf)}};
  EXPECT_THAT(drop_tied_copies(found, {{"wte.weight", at::zeros({5, 3})}, {"bias", at::zeros({3})}}),
              testing::ElementsAre("lm_head.weight"));
  EXPECT_EQ(found.size(), 5u);
  TensorMap known = {{"a", embedding}, {"b", embedding}};
  EXPECT_TRUE(drop_tied_copies(known, {{"a", embedding}, {"b", embedding}}).empty()) << "the model has both";
}

}  // namespace
}  // namespace trireme::checkpoint
