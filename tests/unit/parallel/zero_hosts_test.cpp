// Compression of sharded gradients between hosts of several ranks. A host adds its gradients, encodes the
// sums, and keeps their residuals. The results equal a serial program of that rule, bit by bit.
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/codecs.h"
#include "tests/unit/parallel/sharded_steps.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/compress/codec.h"

namespace trireme::parallel {
namespace {

using comm::Context;
using test::by_host;
using test::floats_of;
using test::gradient_of;
using test::Hosts;
using test::kEncoded;
using test::KnownStage;
using test::reduce_in_shards;
using test::Reduced;
using test::RunOfRank;
using test::shape_of;
using test::shard_options;
using test::ShardSetting;
using testing::HasSubstr;
using testing::ThrowsMessage;

const Hosts kPairs = {"a", "a", "b", "b"};

ShardSetting over(const Hosts& hosts) { return {.ranks = test::ranks_on(hosts), .hosts = hosts}; }

/// For every owner, the rank at its position on each host encodes the host's sum of the owner's run plus the
/// residual. The owner adds the decoded values in the order of the hosts.
class SerialHosts {
 public:
  SerialHosts(const CompressionOptions& options, std::string name, std::vector<RunOfRank> runs,
              const Hosts& hosts)
      : options_(options),
        name_(std::move(name)),
        codec_(*compress::codec(options.name)),
        runs_(std::move(runs)),
        ranks_(by_host(hosts)),
        residuals_(ranks_.size()) {
    for (at::Tensor& each : residuals_) each = at::zeros({c10::multiply_integers(shape_of(name_))});
  }
  at::Tensor sum(int step) {
    std::vector<at::Tensor> handed_in;  // by host
    for (const std::vector<int>& ranks : ranks_) {
      handed_in.push_back(at::zeros_like(residuals_[0]));
      for (const int rank : ranks) handed_in.back() += gradient_of(name_, rank, step, 0).flatten();
    }
    at::Tensor sum = at::zeros_like(residuals_[0]);
    for (std::size_t owners_host = 0; owners_host < ranks_.size(); ++owners_host) {
      for (std::size_t place = 0; place < ranks_[owners_host].size(); ++place) {
        const RunOfRank& run = runs_[static_cast<std::size_t>(ranks_[owners_host][place])];
        for (std::size_t host = 0; run.numel > 0 && host < ranks_.size(); ++host) {
          Random of_gradient(options_.seed, Random::key_of(name_), draws_, ranks_[host][place]);
          Random of_owner(of_gradient.bits());
          std::uint64_t seed = 0;
          for (std::size_t i = 0; i <= owners_host; ++i) seed = of_owner.bits();
          at::Tensor values = handed_in[host].narrow(0, run.begin, run.numel);
          if (codec_.leaves_out()) values = residuals_[host].narrow(0, run.begin, run.numel).add_(values);
          const compress::Codec::Options how{.fraction = options_.fraction, .seed = seed};
          std::vector<std::byte> bytes(codec_.most_bytes(static_cast<std::size_t>(run.numel), how));
          bytes.resize(codec_.encode(floats_of(values), how, bytes));
          codec_.add(bytes, floats_of(sum.narrow(0, run.begin, run.numel)));
          if (codec_.leaves_out()) codec_.take_out(bytes, floats_of(values));
        }
      }
    }
    ++draws_;
    return sum;
  }

 private:
  const CompressionOptions options_;
  const std::string name_;
  const compress::Codec& codec_;
  const std::vector<RunOfRank> runs_;
  const std::vector<std::vector<int>> ranks_;
  std::vector<at::Tensor> residuals_;
  std::int64_t draws_ = 0;
};

at::Tensor residual_of(const HookState& state, const std::string& name) {
  for (const auto& [known, tensor] : state.own) {
    if (known == "residual/" + name) return tensor;
  }
  return {};
}

class ZeroBetweenHosts : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Table, ZeroBetweenHosts, testing::ValuesIn(test::all_codecs()), test::name_of_codec);

TEST_P(ZeroBetweenHosts, EqualsASerialProgramOfItsRule) {
  const CompressionOptions options = shard_options(GetParam());
  for (const Hosts& hosts : {kPairs, Hosts{"a", "b", "b", "a"}, Hosts{"a", "a", "b", "b", "c", "c"}}) {
    for (const ReduceScale scale : {ReduceScale::kSum, ReduceScale::kMean}) {
      ShardSetting setting = over(hosts);
      setting.scale = scale;
      const Reduced found = reduce_in_shards(options, setting);
      for (const std::string& name : kEncoded) {
        SerialHosts rule(options, name, found.runs.at(name), hosts);
        for (int step = 0; step < 3; ++step) {
          at::Tensor expected = rule.sum(step);
          if (scale == ReduceScale::kMean) expected.div_(test::ranks_on(hosts));
          EXPECT_TRUE(at::equal(found.steps[static_cast<std::size_t>(step)].at(name).flatten(), expected))
              << name << " in step " << step << " of " << hosts.size();
        }
      }
    }
  }
}

TEST_P(ZeroBetweenHosts, SendsLikeOneRankPerHost) {
  const CompressionOptions options = shard_options(GetParam());
  ShardSetting setting = over(kPairs);
  setting.end = 1;
  const Reduced by_hosts = reduce_in_shards(options, setting);
  setting.hosts = {};
  const Reduced by_ranks = reduce_in_shards(options, setting);
  // Each rank sends one message to the other host instead of to three ranks. Vectors are sent uncompressed.
  const std::int64_t message = (by_ranks.sent[0] - by_hosts.sent[0]) / 2;
  const std::int64_t plain = by_hosts.sent[0] - message;
  EXPECT_GT(message, (1800 + 6161) / 8 / 4);
  EXPECT_GE(plain, 3 * (60 + 20) * 4 / 4);
  EXPECT_LE(plain, 3 * (60 + 20 + 4 * 16) * 4 / 4) << "parts end at cache lines";
}

TEST_P(ZeroBetweenHosts, HasSameBitsOverEveryBackend) {
  const Reduced expected = reduce_in_shards(shard_options(GetParam()), over(kPairs));
  for (const char* backend : {"threads", "shm"}) {
    ShardSetting setting = over(kPairs);
    setting.backend = backend;
    const Reduced found = reduce_in_shards(shard_options(GetParam()), setting);
    for (std::size_t step = 0; step < 3; ++step) {
      for (const std::string& name : kEncoded)
        EXPECT_TRUE(at::equal(found.steps[step].at(name), expected.steps[step].at(name))) << name << backend;
    }
  }
}

TEST_P(ZeroBetweenHosts, ContinuesBitwiseFromStateAndAfterErrors) {
  const CompressionOptions options = shard_options(GetParam());
  ShardSetting setting = over(kPairs), of_part = setting;
  setting.end = 5;
  const Reduced whole = reduce_in_shards(options, setting), part = reduce_in_shards(options, of_part);
  setting.abandoned = 2;
  const Reduced with_error = reduce_in_shards(options, setting);
  setting.abandoned = -1;
  setting.first = 3;
  setting.go_on_from = &part;
  const Reduced rest = reduce_in_shards(options, setting);
  for (const std::string& name : kEncoded) {
    for (std::size_t step = 0; step < 5; ++step)
      EXPECT_TRUE(at::equal(with_error.steps[step].at(name), whole.steps[step].at(name))) << name << step;
    for (std::size_t step = 0; step < 2; ++step)
      EXPECT_TRUE(at::equal(rest.steps[step].at(name), whole.steps[step + 3].at(name))) << name << step;
  }
}

TEST_P(ZeroBetweenHosts, ShowsNonFiniteAndKeepsResidual) {
  const auto spoil = [](const std::string& name, int rank, int step, at::Tensor& gradient) {
    if (name == "p3" && rank == 1 && step == 1) gradient[7][70] = std::numeric_limits<float>::infinity();
  };
  ShardSetting setting = over(kPairs);
  setting.spoil = spoil;
  setting.end = 2;
  const Reduced found = reduce_in_shards(shard_options(GetParam()), setting);
  EXPECT_TRUE(found.steps[1].at("p3").isnan().all().item<bool>());
  EXPECT_TRUE(found.steps[1].at("p2").isfinite().all().item<bool>());
  setting.spoil = nullptr;
  setting.end = 1;
  const Reduced before = reduce_in_shards(shard_options(GetParam()), setting);
  for (const std::size_t rank : {0U, 1U}) {
    const at::Tensor kept = residual_of(found.kept[rank], "p3");
    if (!kept.defined()) continue;
    EXPECT_TRUE(at::equal(kept, residual_of(before.kept[rank], "p3"))) << rank;
  }
}

TEST_P(ZeroBetweenHosts, HostsLearnOfARankThatFailed) {
  test::expect_others_are_told(shard_options(GetParam()), over(kPairs));
}

/// The sum of the received gradients and all residuals equals the sum of the ranks' gradients, also if
/// another layout stored the residuals.
TEST(ZeroBetweenHostsFeedback, LosesNothingAndHandsResidualsOver) {
  for (const std::string& compression : test::codecs_that_leave_out()) {
    const CompressionOptions options = shard_options(compression);
    ShardSetting by_ranks = over(kPairs), by_hosts = over(kPairs);
    by_ranks.hosts = {};
    const Reduced first = reduce_in_shards(options, by_ranks);
    by_hosts.first = 3;
    by_hosts.end = 9;
    by_hosts.go_on_from = &first;
    const Reduced rest = reduce_in_shards(options, by_hosts);
    for (const std::string& name : kEncoded) {
      at::Tensor arrived = at::zeros(shape_of(name)), given = at::zeros(shape_of(name));
      for (int step = 0; step < 9; ++step) {
        arrived += step < 3 ? first.steps[static_cast<std::size_t>(step)].at(name)
                            : rest.steps[static_cast<std::size_t>(step - 3)].at(name);
        for (int rank = 0; rank < 4; ++rank) given += gradient_of(name, rank, step, 0);
      }
      for (std::size_t rank = 0; rank < 4; ++rank) {
        const at::Tensor kept = residual_of(rest.kept[rank], name);
        arrived += kept.view(shape_of(name));
        const std::size_t other = rank ^ 1U;  // a rank of the same host
        const at::Tensor of_other = residual_of(rest.kept[other], name);
        EXPECT_EQ((kept * of_other).abs().max().item<double>(), 0) << "each run is one rank's";
      }
      EXPECT_LE((arrived - given).abs().max().item<double>(), 5e-5) << name << ", " << compression;
    }
  }
}

TEST(ZeroBetweenHostsScope, UnequalHostsEncodeRankByRank) {
  const Hosts uneven = {"a", "a", "b"};
  const Reduced found = reduce_in_shards(shard_options("sign"), over(uneven));
  ShardSetting setting = over(uneven);
  setting.hosts = {};
  const Reduced expected = reduce_in_shards(shard_options("sign"), setting);
  for (const std::string& name : kEncoded)
    EXPECT_TRUE(at::equal(found.steps[2].at(name), expected.steps[2].at(name))) << name;
  CompressionOptions hosts = shard_options("sign");
  hosts.scope = "hosts";
  comm::run_ranks_as_threads(3, [&](Context& context) {
    context.world().state().parts.host_ids = uneven;
    EXPECT_THAT([&] { KnownStage(context, hosts, {}); },
                ThrowsMessage<InvalidArgument>(HasSubstr("different numbers of them")));
  });
}

TEST(ZeroBetweenHostsScope, OneHostEncodesSumOnRequest) {
  CompressionOptions options = shard_options("sign");
  options.scope = "hosts";
  const Reduced found = reduce_in_shards(options, {.ranks = 2});
  for (const std::string& name : kEncoded) {
    SerialHosts rule(options, name, found.runs.at(name), {"a", "a"});
    for (int step = 0; step < 3; ++step)
      EXPECT_TRUE(at::equal(found.steps[static_cast<std::size_t>(step)].at(name).flatten(), rule.sum(step)));
  }
  const Reduced first = reduce_in_shards(options, {.ranks = 2, .end = 1});
  EXPECT_LE(first.sent[0], (60 + 20 + 2 * 16) * 4 / 2) << "vectors, and nothing that is encoded";
}

}  // namespace
}  // namespace trireme::parallel
