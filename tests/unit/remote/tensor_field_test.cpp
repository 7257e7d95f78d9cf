// Tensors as message fields: valid tensors are restored, and invalid bytes are rejected.

#include "trireme/remote/tensor_field.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trireme/base/random.h"

namespace trireme::remote {
namespace {

using Bytes = std::vector<std::byte>;

struct Written {
  Bytes fields;
  std::vector<wire::Buffer> attachments;
};

Written written(const at::Tensor& tensor) {
  Written result;
  wire::FieldWriter writer(result.fields);
  writer.write(tensor);
  result.attachments = writer.attachments();
  return result;
}

/// The tensor in the bytes. Nothing if they are not exactly one whole tensor.
std::optional<at::Tensor> read(const Written& bytes) {
  wire::FieldReader reader(bytes.fields, bytes.attachments);
  at::Tensor tensor;
  reader.read(tensor);
  return reader.at_end() ? std::optional(tensor) : std::nullopt;
}

std::vector<at::Tensor> samples() {
  return {torch::arange(6).view({2, 3}),  torch::rand({40, 30}),  torch::zeros({0, 5}), torch::tensor(2.5),
          torch::ones({3}, torch::kBool), torch::rand({2, 2}).t()};
}

TEST(TensorField, ATensorComesBackWhole) {
  for (const at::Tensor& each : samples()) {
    const auto found = read(written(each));
    ASSERT_TRUE(found);
    EXPECT_TRUE(torch::equal(*found, each));
    EXPECT_EQ(found->dtype(), each.dtype());
  }
}

TEST(TensorField, RejectsForeignBytesWithinTheirBounds) {
  Random random(1);
  std::size_t num_rejected = 0, num_read = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto all = samples();
    Written bytes = written(all[random.below(all.size())]);
    const std::size_t at = random.below(std::min<std::size_t>(bytes.fields.size(), 40));
    switch (random.below(4)) {
      case 0:
        bytes.fields[at] ^= static_cast<std::byte>(1U << random.below(8));
        break;
      case 1:
        bytes.fields.resize(at);
        break;
      case 2:
        for (std::size_t k = at; k < std::min(at + 8, bytes.fields.size()); ++k)
          bytes.fields[k] = std::byte{0x7F};
        break;
      default:
        for (auto& each : bytes.fields) each = static_cast<std::byte>(random.below(256));
    }
    const auto found = read(bytes);
    if (!found) {
      ++num_rejected;
      continue;
    }
    ++num_read;
    std::size_t most = bytes.fields.size();
    for (const auto& each : bytes.attachments) most += each.size();
    if (found->defined()) {
      ASSERT_LE(found->nbytes(), most) << "round " << i;
    }
  }
  EXPECT_GT(num_rejected, 1000u);
  EXPECT_GT(num_read, 100u);
}

TEST(TensorField, RejectsSizesBeyondMemory) {
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{std::int64_t{1} << 62, 4},
                                                 {0, std::int64_t{1} << 62, std::int64_t{1} << 62},
                                                 {-1}}) {
    Written bytes;
    wire::FieldWriter writer(bytes.fields);
    writer.write(std::uint8_t{1});  // among the fields
    writer.write(static_cast<std::int8_t>(at::kFloat));
    writer.write(false);
    writer.write(sizes);
    writer.write(Bytes{});
    EXPECT_FALSE(read(bytes));
  }
}

}  // namespace
}  // namespace trireme::remote
