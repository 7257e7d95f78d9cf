#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/data/idx_samples.h"
#include "trireme/base/error.h"
#include "trireme/data/dataset.h"

namespace trireme::data {
namespace {

using test::idx_bytes;
using test::TemporaryFolder;
using test::write_bytes;
using testing::AllOf;
using testing::HasSubstr;

template <class ExpectedError>
std::string error_of(const DataOptions& options) {
  try {
    open_data(options);
  } catch (const ExpectedError& error) {
    return error.what();
  }
  return "no error";
}

TEST(DataTable, NamesTheNearestKnownDataSet) {
  EXPECT_THAT(error_of<InvalidArgument>({.name = "fashion_mnits"}), HasSubstr("fashion_mnist"));
}

TEST(DataTable, NamesProviderOfMissingFiles) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of<DataError>({.name = "fashion_mnist", .path = folder.path().string()}),
              AllOf(HasSubstr("train-images-idx3-ubyte"), HasSubstr(folder.path().string()),
                    HasSubstr("dataset-fashion-mnist"), HasSubstr("data.path")));
  EXPECT_THAT(error_of<InvalidArgument>({.name = "mnist"}), HasSubstr("data.path"));
}

TEST(DataTable, OpensAFolderOfIdxFiles) {
  const TemporaryFolder folder;
  write_bytes(folder / "train-images-idx3-ubyte", idx_bytes({2, 2, 2}, "abcdefgh"));
  write_bytes(folder / "train-labels-idx1-ubyte.gz", test::gzip(idx_bytes({2}, "\x03\x09")));
  write_bytes(folder / "t10k-images-idx3-ubyte", idx_bytes({1, 2, 2}, "abcd"));
  write_bytes(folder / "t10k-labels-idx1-ubyte", idx_bytes({1}, "\x01"));
  const DataSource source = open_data({.name = "mnist", .path = folder.path().string()});
  EXPECT_EQ(source.train->size(), 2);
  EXPECT_EQ(source.test->size(), 1);
  EXPECT_EQ(source.input_shape, (std::vector<std::int64_t>{1, 2, 2}));
  EXPECT_EQ(source.num_classes, 10);
  EXPECT_EQ(indexed(source.train)->get(1).target->item<std::int64_t>(), 9);
}

TEST(DataTable, SyntheticSamplesAreConstantPerSplit) {
  const DataSource first = open_data({.name = "synthetic"});
  const DataSource second = open_data({.name = "synthetic"});
  EXPECT_TRUE(indexed(first.train)->get(5).input->equal(indexed(second.train)->get(5).input));
  EXPECT_FALSE(indexed(first.train)->get(5).input->equal(first.test->get(5).input));
  EXPECT_EQ(indexed(first.train)->get(0).input->sizes(), first.input_shape);
}

TEST(DataTable, SyntheticClassesCanBeToldApart) {
  // The nearest mean of 32 training samples per class finds the class of nearly every test sample.
  const DataSource source = open_data({.name = "synthetic"});
  at::Tensor means = at::zeros({source.num_classes, 28 * 28});
  for (std::int64_t i = 0; i < 320; ++i) {
    const Example sample = indexed(source.train)->get(i);
    means[sample.target->item<std::int64_t>()] += sample.input->flatten();
  }
  int right = 0;
  for (std::int64_t i = 0; i < 100; ++i) {
    const Example sample = source.test->get(i);
    const at::Tensor match = means.matmul(sample.input->flatten());
    right += match.argmax().item<std::int64_t>() == sample.target->item<std::int64_t>() ? 1 : 0;
  }
  EXPECT_GE(right, 95);
}

}  // namespace
}  // namespace trireme::data
