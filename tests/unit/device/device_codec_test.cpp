// Codecs with tensor operations compared with the loops of the host: the same bytes, or the same numbers up
// to rounding.
#include "trireme/parallel/data/internal/device_codec.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

#include "tests/support/codecs.h"
#include "tests/support/stand_in_device.h"
#include "trireme/base/random.h"
#include "trireme/compress/nearest.h"
#include "trireme/parallel/data/internal/encoded_slot.h"
#include "trireme/parallel/data/internal/low_rank_tensors.h"
#include "trireme/parallel/data/internal/spans.h"

namespace trireme::parallel {
namespace {

const c10::Device kDevice{std::string(test::kStandInDevice) + ":0"};

at::Tensor some_values(std::int64_t count, std::uint64_t seed = 1) {
  Random random(seed);
  at::Tensor values = at::empty({count});
  for (float& value : span_of(values)) value = (random.uniform() - 0.5F) * 8 * random.uniform();
  return values;
}

/// With numbers at the ends of the range, zeros, equal magnitudes, and a non-finite block.
at::Tensor edge_values(std::int64_t count) {
  at::Tensor values = some_values(count, 2);
  std::int64_t i = 0;
  for (const float edge : {FLT_MAX, -FLT_MAX, 0.0F, -0.0F, FLT_MIN, 1e-42F, -1e-42F, 2.0F, -2.0F, 2.0F})
    if (i < count) values[i++] = edge;
  if (count > 5000) values.narrow(0, 4096, 600).fill_(-3);
  return values;
}

/// With one thread of libtorch, because its threads spin, and tensors here are small.
class DeviceCodecs : public testing::Test {
 protected:
  DeviceCodecs() { at::set_num_threads(1); }
};
class LowRankOnDevice : public DeviceCodecs {};

struct Row {
  std::string name;
  const compress::Codec* codec;
  bool same_bytes;
};
std::vector<Row> rows() {
  std::vector<Row> all;
  for (const std::string& name : test::all_codecs())
    all.push_back({name, compress::codec(name), !test::has_sums_as_scales(name)});
  all.push_back({"nearest int8", compress::nearest_codec("int8"), true});
  return all;
}

at::Tensor slot_with(const Row& row, const at::Tensor& values, const compress::Codec::Options& how,
                     const Flag& finite = true) {
  const at::Tensor slot =
      at::zeros({slot_bytes(*row.codec, values.numel(), how)}, values.options().dtype(at::kByte));
  write_slot(*row.codec, values, how, finite, slot);
  return slot;
}

/// The used bytes of a slot.
at::Tensor used_bytes(const at::Tensor& slot) {
  return slot.narrow(0, 0, 8 + slot.narrow(0, 0, 8).view(at::kLong).item<std::int64_t>());
}

at::Tensor decoded(const Row& row, const at::Tensor& slot, std::int64_t count) {
  const at::Tensor values = at::zeros({count}, slot.options().dtype(at::kFloat));
  EXPECT_TRUE(read_slot(*row.codec, slot, values, "it").on(slot.device()).item<bool>()) << row.name;
  return values.cpu();
}

TEST_F(DeviceCodecs, AreThereForEachOfTheHost) {
  for (const auto& [names, codec] : {std::pair(compress::codec_names(), &compress::codec),
                                     std::pair(compress::nearest_codec_names(), &compress::nearest_codec)}) {
    for (const std::string& name : names) {
      if (name != "none") {
        EXPECT_NO_THROW(device_codec(*codec(name))) << name;
      }
    }
  }
}

void expect_same_bytes(const Row& row, const at::Tensor& values, double fraction, std::uint64_t seed = 5) {
  const compress::Codec::Options how{.fraction = fraction, .seed = seed};
  const at::Tensor here = used_bytes(slot_with(row, values, how));
  const at::Tensor there = used_bytes(slot_with(row, values.to(kDevice), how).cpu());
  EXPECT_TRUE(at::equal(here, there)) << row.name << ", " << values.numel() << " values, " << fraction;
}

TEST_F(DeviceCodecs, WriteTheBytesOfTheHost) {
  for (const Row& row : rows()) {
    if (!row.same_bytes) continue;
    for (const std::int64_t count : {1, 2, 511, 513, 4096, 4097, 70'000}) {
      for (const at::Tensor& values : {some_values(count), edge_values(count), at::zeros({count})})
        expect_same_bytes(row, values, 0.01);
    }
  }
}

TEST_F(DeviceCodecs, NameElementsOfHostForAnySample) {
  const Row row{"top-k", compress::codec("top-k"), true};
  for (const double fraction : {0.0001, 0.001, 0.1, 0.5}) {
    for (const std::int64_t count : {4097, 65536, 65537})
      expect_same_bytes(row, edge_values(count), fraction);
  }
  // One of ten is sampled, and the largest of these is the threshold. So any ten numbers contain one above
  // it.
  for (std::uint64_t seed = 0; seed < 12; ++seed)
    expect_same_bytes(row, some_values(40'960, seed), 0.000245, seed);
  at::Tensor few = at::zeros({20'000});
  few[17] = few[19'000] = 1e-42F;
  expect_same_bytes(row, few, 0.01);
  expect_same_bytes(row, at::full({20'000}, 2, at::kFloat), 0.01);
}

/// Non-finite values of a block.
TEST_F(DeviceCodecs, PreserveNonFiniteValues) {
  at::Tensor values = some_values(1000);
  values[3] = NAN;
  values[700] = -INFINITY;
  for (const Row& row : rows()) {
    const compress::Codec::Options how{.fraction = 0.1};
    const at::Tensor here = decoded(row, slot_with(row, values, how), 1000),
                     there = decoded(row, slot_with(row, values.to(kDevice), how), 1000);
    EXPECT_TRUE(at::equal(here.isnan(), there.isnan())) << row.name;
  }
}

TEST_F(DeviceCodecs, DecodeAsTheHostDoes) {
  for (const Row& row : rows()) {
    for (const std::int64_t count : {1, 511, 513, 4097, 65537}) {
      const compress::Codec::Options how{.fraction = 0.01, .seed = 5};
      const at::Tensor slot = slot_with(row, some_values(count), how);
      const at::Tensor here = decoded(row, slot, count), there = decoded(row, slot.to(kDevice), count);
      ASSERT_TRUE(at::equal(here, there)) << row.name << ", " << count;
      at::Tensor left = some_values(count), left_there = left.to(kDevice);
      take_out(*row.codec, slot, true, left);
      take_out(*row.codec, slot.to(kDevice), true, left_there);
      ASSERT_TRUE(at::equal(left, left_there.cpu())) << row.name << ", " << count;
      const at::Tensor sum = some_values(count), sum_there = sum.to(kDevice);
      add_slot(*row.codec, slot, sum, "it");
      add_slot(*row.codec, slot.to(kDevice), sum_there, "it");
      ASSERT_TRUE(at::equal(sum, sum_there.cpu())) << row.name << ", " << count;
    }
  }
}

/// Scales are sums: of 4096 magnitudes in 16 lanes for "sign", and of 512 squares for "qsgd", whose root
/// halves the error. A level next to its random number may differ.
TEST_F(DeviceCodecs, RoundScaleOfBlockAsSum) {
  constexpr std::int64_t kCount = 70'000;
  for (const Row& row : rows()) {
    if (row.same_bytes) continue;
    const bool has_levels = row.name == "qsgd";
    const at::Tensor here = decoded(row, slot_with(row, some_values(kCount), {.seed = 5}), kCount),
                     there =
                         decoded(row, slot_with(row, some_values(kCount).to(kDevice), {.seed = 5}), kCount);
    const at::Tensor error = (here - there).abs(), bound = here.abs() * (272 * 0x1p-24);
    const auto others = error.gt(bound).sum().item<std::int64_t>();
    EXPECT_LE(others, has_levels ? kCount / 10'000 : 0) << row.name;
    const double level = here.abs().max().item<double>();
    EXPECT_LE(error.max().item<double>(), has_levels ? level : level * 1e-4) << row.name;
  }
}

TEST_F(DeviceCodecs, TreatForeignBytesAsNonFinite) {
  for (const Row& row : rows()) {
    const at::Tensor whole = slot_with(row, some_values(70'000), {.fraction = 0.01});
    at::Tensor values = at::zeros({70'000}, at::TensorOptions().device(kDevice));
    const auto fits = [&](const at::Tensor& slot) {
      return add_slot(*row.codec, slot.to(kDevice), values, "it").on(kDevice).item<bool>();
    };
    EXPECT_TRUE(fits(whole)) << row.name;
    for (const std::int64_t head : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 40,
                                    std::numeric_limits<std::int64_t>::min()}) {
      const at::Tensor slot = whole.clone();
      slot.narrow(0, 0, 8).view(at::kLong).fill_(head);
      EXPECT_FALSE(fits(slot)) << row.name << ", " << head;
    }
  }
}

/// In a slot of two ranges: a leading word, two counts, values, and positions of 16 bits.
TEST_F(DeviceCodecs, TreatForeignPairsAsNonFinite) {
  const Row row{"top-k", compress::codec("top-k"), true};
  const at::Tensor whole = slot_with(row, some_values(70'000), {.fraction = 0.01});
  const std::int64_t used = used_bytes(whole).numel(), named = (used - 16) / 6;
  const auto expect_misfit = [&](const char* what, const auto& change) {
    const at::Tensor slot = whole.clone();
    change(slot.narrow(0, 8, 8).view(at::kInt), slot.narrow(0, 16 + 4 * named, 2 * named).view(at::kShort));
    EXPECT_FALSE(row.codec->fits(bytes_of(slot).subspan(8, static_cast<std::size_t>(used - 8)), 70'000))
        << what;
    const at::Tensor values = at::zeros({70'000}, at::TensorOptions().device(kDevice));
    EXPECT_FALSE(read_slot(*row.codec, slot.to(kDevice), values, "it").on(kDevice).item<bool>()) << what;
  };
  expect_misfit("one is counted too few", [](at::Tensor counts, const at::Tensor&) { counts[1] -= 1; });
  expect_misfit("one is counted too many", [](at::Tensor counts, const at::Tensor&) { counts[1] += 1; });
  expect_misfit("a count is below 0", [&](at::Tensor counts, const at::Tensor&) {
    counts[0] = -1;
    counts[1] = named + 1;
  });
  expect_misfit("places do not rise",
                [](const at::Tensor&, at::Tensor places) { places[1].copy_(places[0]); });
  expect_misfit("a place is behind the last value",
                [&](const at::Tensor&, at::Tensor places) { places[named - 1] = 70'000 - 65'536; });
}

TEST_F(DeviceCodecs, ReadNothingBack) {
  for (const Row& row : rows()) {
    const at::Tensor values = some_values(70'000).to(kDevice);
    const std::int64_t reads = test::reads_from_stand_in(), pageable = test::copies_from_pageable_memory();
    const Flag finite = Flag::is_finite(values);
    const at::Tensor slot = slot_with(row, values, {.fraction = 0.01}, finite);
    take_out(*row.codec, slot, finite, values);
    add_slot(*row.codec, slot, values, "it").show_in(values);
    EXPECT_EQ(test::reads_from_stand_in(), reads) << row.name;
    EXPECT_EQ(test::copies_from_pageable_memory(), pageable) << row.name;
  }
}

// ---- PowerSGD

at::Tensor matrix_of(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  return some_values(rows * columns, seed).view({rows, columns});
}

/// The error of a sum of n products is at most n 2^-24 of the sum of their magnitudes, on both sides.
TEST_F(LowRankOnDevice, MultipliesUpToRounding) {
  const at::Tensor m = matrix_of(60, 100, 1), p = matrix_of(60, 3, 2), q = matrix_of(100, 3, 3);
  const auto expect_near = [](const at::Tensor& here, const at::Tensor& there, const at::Tensor& magnitudes) {
    EXPECT_TRUE((here - there.cpu()).abs().le(magnitudes * (2 * 100 * 0x1p-24)).all().item<bool>());
  };
  const at::Tensor here = at::zeros({60, 3}), there = here.to(kDevice);
  multiply(m, q, here);
  multiply(m.to(kDevice), q.to(kDevice), there);
  expect_near(here, there, at::mm(m.abs(), q.abs()));
  const at::Tensor turned = at::zeros({100, 3}), turned_there = turned.to(kDevice);
  multiply_turned(m, p, turned);
  multiply_turned(m.to(kDevice), p.to(kDevice), turned_there);
  expect_near(turned, turned_there, at::mm(m.abs().t(), p.abs()));
  const at::Tensor product = at::zeros({60, 100}), product_there = product.to(kDevice);
  multiply_transposed(p, q, product);
  multiply_transposed(p.to(kDevice), q.to(kDevice), product_there);
  expect_near(product, product_there, at::mm(p.abs(), q.abs().t()));
}

/// Both sides add in f64, and the host rounds each step to f32. 1e-4: 2^-24 of 64 elements, times a condition
/// below 25.
TEST_F(LowRankOnDevice, OrthogonalisesUpToRoundingAndReplacesDependent) {
  at::Tensor dependent = matrix_of(64, 4, 5);
  dependent.select(1, 0).zero_();                            // a zero column
  dependent.select(1, 2).copy_(dependent.select(1, 1) * 2);  // a multiple of another column
  at::Tensor unit = at::zeros({64, 3});
  unit[0][0] = 2;  // the first unit vector exists already
  for (const at::Tensor& matrix : {matrix_of(64, 4, 5), dependent, unit, at::zeros({3, 3}), at::eye(4)}) {
    const at::Tensor here = matrix.clone(), there = matrix.to(kDevice);
    const std::int64_t reads = test::reads_from_stand_in();
    orthogonalise(here);
    orthogonalise(there);
    EXPECT_EQ(test::reads_from_stand_in(), reads);
    EXPECT_LE((here - there.cpu()).abs().max().item<double>(), 1e-4) << matrix;
    const at::Tensor product = at::mm(there.cpu().t(), there.cpu());
    EXPECT_LE((product - at::eye(matrix.size(1))).abs().max().item<double>(), 1e-6);
  }
}

TEST_F(LowRankOnDevice, PreservesNaN) {
  at::Tensor matrix = matrix_of(64, 2, 5);
  matrix[3][1] = NAN;
  const at::Tensor there = matrix.to(kDevice);
  orthogonalise(there);
  EXPECT_FALSE(std::isfinite(there.sum().item<float>()));
}

}  // namespace
}  // namespace trireme::parallel
