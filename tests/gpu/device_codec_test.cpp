// Codecs on a GPU compared with the loops on the host, and the values that NVML reports for that GPU.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tests/support/codecs.h"
#include "trireme/base/random.h"
#include "trireme/comm/device.h"
#include "trireme/comm/internal/backend_table.h"
#include "trireme/compress/nearest.h"
#include "trireme/parallel/data/internal/encoded_slot.h"
#include "trireme/parallel/data/internal/low_rank_tensors.h"
#include "trireme/parallel/data/internal/spans.h"
#include "trireme/telemetry/nvml.h"

namespace trireme::parallel {
namespace {

at::Tensor some_values(std::int64_t count, std::uint64_t seed) {
  Random random(seed);
  at::Tensor values = at::empty({count});
  for (float& value : span_of(values)) value = (random.uniform() - 0.5F) * 8 * random.uniform();
  return values;
}

at::Tensor slot_with(const compress::Codec& codec, const at::Tensor& values) {
  const compress::Codec::Options how{.fraction = 0.01, .seed = 5};
  const at::Tensor slot =
      at::zeros({slot_bytes(codec, values.numel(), how)}, values.options().dtype(at::kByte));
  write_slot(codec, values, how, true, slot);
  return slot.cpu();
}

/// The used bytes of a slot. Its first word is their number.
at::Tensor used_bytes(const at::Tensor& slot) {
  return slot.narrow(0, 0, 8 + slot.narrow(0, 0, 8).view(at::kLong).item<std::int64_t>());
}

TEST(DeviceCodecsOnGpu, WriteTheBytesOfTheHost) {
  if (const auto reason = comm::nccl_unavailable_because(); !reason.empty()) GTEST_SKIP() << reason;
  std::vector<const compress::Codec*> codecs = {compress::nearest_codec("int8")};
  for (const std::string& name : test::all_codecs()) {
    if (!test::has_sums_as_scales(name)) codecs.push_back(compress::codec(name));
  }
  for (const compress::Codec* codec : codecs) {
    for (const std::int64_t count : {1, 511, 4097, 70'000, 3'000'000}) {
      const at::Tensor values = some_values(count, 1), there = values.to(at::kCUDA);
      EXPECT_TRUE(at::equal(used_bytes(slot_with(*codec, values)), used_bytes(slot_with(*codec, there))))
          << count;
    }
  }
}

TEST(DeviceCodecsOnGpu, DecodeAsTheHostDoes) {
  if (const auto reason = comm::nccl_unavailable_because(); !reason.empty()) GTEST_SKIP() << reason;
  for (const std::string& name : test::all_codecs()) {
    const compress::Codec& codec = *compress::codec(name);
    const at::Tensor values = some_values(70'000, 2), slot = slot_with(codec, values);
    const at::Tensor here = at::zeros({70'000}), there = here.to(at::kCUDA);
    read_slot(codec, slot, here, "it");
    read_slot(codec, slot.to(at::kCUDA), there, "it");
    EXPECT_TRUE(at::equal(here, there.cpu())) << name;
  }
}

/// Both sides add in f64. The host rounds each step to f32.
TEST(LowRankOnGpu, OrthogonalisesUpToRounding) {
  if (const auto reason = comm::nccl_unavailable_because(); !reason.empty()) GTEST_SKIP() << reason;
  const at::Tensor here = some_values(64 * 4, 3).view({64, 4}), there = here.to(at::kCUDA);
  orthogonalise(here);
  orthogonalise(there);
  EXPECT_LE((here - there.cpu()).abs().max().item<double>(), 1e-4);
}

TEST(NvmlOfGpu, TellsOfTheDeviceThatCudaNames) {
  if (const auto reason = comm::nccl_unavailable_because(); !reason.empty()) GTEST_SKIP() << reason;
  const std::vector<std::string> ids = comm::pci_bus_ids_of_ranks(c10::kCUDA, 1);
  ASSERT_EQ(ids.size(), 1U);
  const telemetry::Nvml& nvml = telemetry::Nvml::of_process();
  ASSERT_EQ(nvml.missing_because(), "");
  const auto reading = nvml.read(ids.front());
  ASSERT_TRUE(reading) << ids.front();
  EXPECT_FALSE(reading->name.empty());
  ASSERT_TRUE(reading->memory_used_bytes && reading->memory_total_bytes);
  EXPECT_GT(*reading->memory_used_bytes, 0) << "of this process, at least";
  EXPECT_LE(*reading->memory_used_bytes, *reading->memory_total_bytes);
}

}  // namespace
}  // namespace trireme::parallel
