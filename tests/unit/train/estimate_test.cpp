// The estimate of a step from known costs, the file of measurements, and the measurements of ranks.
#include "trireme/train/estimate/estimate.h"

#include <gmock/gmock.h>

#include "tests/support/temporary_folder.h"
#include "tests/unit/train/known_costs.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/data/synthetic_dataset.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

Estimate estimate_of(const RunConfig& config, int ranks, WeightsMemory weights = WeightsMemory::kOwn) {
  return estimate(resolve_plan(config, ranks), known_costs(config, ranks), weights);
}

TEST(Estimate, OneRankTakesLayersAndUpdate) {
  const Estimate found = estimate_of(without_clipping(), 1);
  EXPECT_DOUBLE_EQ(found.step_s, 4 * 3 + 1);
  ASSERT_EQ(found.ranks.size(), 1U);
  const SecondsOfRank& seconds = found.ranks[0].seconds;
  EXPECT_DOUBLE_EQ(seconds.forward, 4);
  EXPECT_DOUBLE_EQ(seconds.backward, 8);
  EXPECT_DOUBLE_EQ(seconds.update, 1);
  EXPECT_DOUBLE_EQ(seconds.exchange + seconds.idle, 0);
}

TEST(Estimate, ReplicasAddAllReduceToSmallerBatches) {
  // 8 samples per rank, between the measured sizes.
  const Estimate found = estimate_of(without_clipping(), 2);
  EXPECT_DOUBLE_EQ(found.step_s, 4 * 1.5 + 4 + 1);
  EXPECT_DOUBLE_EQ(found.ranks[0].seconds.exchange, 4);
}

TEST(Estimate, FourReplicasSendMorePerByte) {
  RunConfig config = without_clipping();
  config.train.global_batch = 32;
  // Three quarters of the bytes are sent, instead of half of them.
  EXPECT_DOUBLE_EQ(estimate_of(config, 4).step_s, 4 * 1.5 + 4 * 1.5 + 1);
}

TEST(Estimate, ShardsUpdatePartAndGatherWeights) {
  RunConfig config = without_clipping();
  config.parallel.zero = 1;
  // Ranks share the memory of weights, so no weights are gathered.
  EXPECT_DOUBLE_EQ(estimate_of(config, 2, WeightsMemory::kCommon).step_s, 4 * 1.5 + 4 + 0.5);
  // Otherwise 4 MiB per step: the weights are gathered after the update.
  EXPECT_DOUBLE_EQ(estimate_of(config, 2).step_s, 4 * 1.5 + 4 + 0.5 + 4);
}

TEST(Estimate, ShardedWeightsGatherAheadOfUse) {
  RunConfig config = without_clipping();
  config.parallel.zero = 3;
  const Estimate found = estimate_of(config, 2);
  const double computation = 4 * 1.5;
  EXPECT_GT(found.step_s, computation + 0.5) << "the first layer waits for its weights";
  EXPECT_LT(found.step_s, computation + 0.5 + 3 * 4) << "the others are gathered beside computations";
}

TEST(Estimate, OfStagesHasTheirBubble) {
  RunConfig config = without_clipping();
  config.parallel.pipeline = 2;
  config.parallel.microbatches = 4;
  config.parallel.schedule = "gpipe";
  const Estimate found = estimate_of(config, 2);
  EXPECT_THAT(found.plan.cuts(), ElementsAre(2));
  // Micro-batches of 4: a stage of two layers takes 0.5 s forward and 1 s backward; (m + p - 1) of them.
  EXPECT_DOUBLE_EQ(found.step_s, (4 + 1) * 1.5 + 0.5);
  ASSERT_EQ(found.ranks.size(), 2U);
  EXPECT_DOUBLE_EQ(found.ranks[0].seconds.idle, 1.5);
  EXPECT_THAT(found.ranks[1].memory.stages, ElementsAre(1));
}

TEST(Estimate, SplitBackwardTakesTimeOfBothParts) {
  RunConfig config = without_clipping();
  config.parallel.pipeline = 2;
  config.parallel.microbatches = 4;
  config.parallel.schedule = "zb-h1";
  const Estimate found = estimate_of(config, 2);
  EXPECT_DOUBLE_EQ(found.ranks[0].seconds.backward, 4 * 2 * (0.2 + 0.35));
}

TEST(Estimate, OfRecomputedLayersRunsTheirForwardAgain) {
  RunConfig config = without_clipping();
  config.train.recompute_layers = {"*"};
  EXPECT_DOUBLE_EQ(estimate_of(config, 1).step_s, 4 * 4 + 1);
}

TEST(Estimate, OfRecomputedStagesRunsTheirForwardAgain) {
  RunConfig config = without_clipping();
  config.parallel.pipeline = 2;
  config.parallel.microbatches = 4;
  config.parallel.schedule = "gpipe";
  config.parallel.recompute = true;
  EXPECT_DOUBLE_EQ(estimate_of(config, 2).step_s, (4 + 1) * (0.5 + 1.5) + 0.5);
}

TEST(Estimate, AsynchronousStagesCountBetweenUpdates) {
  RunConfig config = without_clipping();
  config.parallel.pipeline = 2;
  config.parallel.schedule = "pipedream";
  config.parallel.microbatches = 1;
  config.train.global_batch = 4;
  // A stage's micro-batch and its update. The pipeline is never drained.
  const Estimate found = estimate_of(config, 2);
  EXPECT_NEAR(found.step_s, 1.5 + 0.5, 0.01);
  for (const EstimateOfRank& rank : found.ranks) {
    EXPECT_NEAR(rank.seconds.total(), found.step_s, 1e-9) << "parts are of one step";
    EXPECT_DOUBLE_EQ(rank.seconds.update, 0.5);
  }
}

TEST(Estimate, OfShardedGradientsReducesEachMicroBatch) {
  RunConfig config = without_clipping();
  config.parallel.zero = 2;
  config.train.accumulation = 2;
  EXPECT_DOUBLE_EQ(estimate_of(config, 2).step_s, 2 * 4 * 0.75 + 2 * 4 + 0.5 + 4);
  config.parallel.keep_gradients = true;
  EXPECT_DOUBLE_EQ(estimate_of(config, 2).step_s, 2 * 4 * 0.75 + 4 + 0.5 + 4);
}

TEST(Estimate, ShardGroupsExchangeWithinAndBetween) {
  RunConfig config = without_clipping();
  config.parallel.zero = 1;
  config.parallel.shard_ranks = 2;
  config.train.global_batch = 32;
  EXPECT_DOUBLE_EQ(estimate_of(config, 4).step_s, 4 * 1.5 + (4 + 2) + 0.5 + 4);
}

TEST(Estimate, GroupsWithinHostUseItsLinks) {
  RunConfig config = without_clipping();
  config.train.global_batch = 32;
  Measurements measured = known_costs(config, 4);
  measured.ranks_of_host = 2;
  measured.within_host = measured.exchanges;
  for (CostLine* line : {&measured.within_host.all_reduce, &measured.within_host.reduce_scatter,
                         &measured.within_host.all_gather})
    line->unit_s /= 10;
  const auto exchange_s = [&] {
    return estimate(resolve_plan(config, 4), measured, WeightsMemory::kOwn).ranks[0].seconds.exchange;
  };
  EXPECT_DOUBLE_EQ(exchange_s(), 4 * 1.5) << "replicas on two hosts";
  config.parallel.pipeline = 2;  // all replicas of a stage are on one host
  config.parallel.microbatches = 2;
  EXPECT_NEAR(exchange_s(), 2 * 0.1, 1e-9);
  config.parallel.pipeline = 1;
  config.parallel.zero = 1;
  config.parallel.shard_ranks = 2;
  // Reduce-scatter within the host, then the shards are reduced between hosts.
  EXPECT_DOUBLE_EQ(exchange_s(), 4 * 0.1 + 2);
}

TEST(Estimate, GroupsBetweenHostsShareTheirLinks) {
  RunConfig config = without_clipping();
  config.train.global_batch = 32;
  config.parallel.zero = 1;
  config.parallel.shard_ranks = 2;
  Measurements measured = known_costs(config, 4);
  measured.ranks_of_host = 2;
  measured.within_host = measured.exchanges;
  for (CostLine* line : {&measured.within_host.reduce_scatter, &measured.within_host.all_gather})
    line->unit_s = 0;
  measured.exchanges.ranks = 4;  // of two hosts
  const auto exchange_s = [&] {
    return estimate(resolve_plan(config, 4), measured, WeightsMemory::kCommon).ranks[0].seconds.exchange;
  };
  // Two groups of shards reduce 2 MiB each, so that 4 MiB cross the link as with replicas.
  EXPECT_DOUBLE_EQ(exchange_s(), 4);
  config.parallel.zero = config.parallel.shard_ranks = 0;
  EXPECT_DOUBLE_EQ(exchange_s(), 4);
}

// Three replicas of a stage on hosts of two ranks: one of the two groups spans two hosts, and so does its
// copy.
TEST(Estimate, GroupsOfPartialHostsExchangeBetweenThem) {
  RunConfig config = without_clipping();
  config.train.global_batch = 48;
  config.parallel.pipeline = 2;
  config.parallel.microbatches = 2;
  Measurements measured = known_costs(config, 6);
  measured.ranks_of_host = 2;
  measured.exchanges.ranks = 6;
  const ParallelPlan plan = resolve_plan(config, 6);
  EXPECT_GT(estimate(plan, measured, WeightsMemory::kOwn).ranks[0].seconds.exchange, 0.5);
  EXPECT_EQ(weights_memory(plan, measured), WeightsMemory::kOwn);
}

TEST(Estimate, CountsFixedUpdateCostPerRank) {
  RunConfig config = without_clipping();
  config.parallel.zero = 3;  // each layer is a stage
  const ParallelPlan plan = resolve_plan(config, 2);
  Measurements measured = known_costs(config, 2);
  const double before = estimate(plan, measured, WeightsMemory::kCommon).step_s;
  measured.update.fixed_s = 1;
  EXPECT_DOUBLE_EQ(estimate(plan, measured, WeightsMemory::kCommon).step_s, before + 1);
}

TEST(Estimate, AddsTheOverheadOfEachMicroBatch) {
  const auto overhead_of = [](const RunConfig& config) {
    const ParallelPlan plan = resolve_plan(config, 2);
    Measurements measured = known_costs(config, 2);
    const Estimate before = estimate(plan, measured, WeightsMemory::kOwn);
    measured.overhead = {.fixed_s = 2, .unit_s = 0.25};
    const Estimate found = estimate(plan, measured, WeightsMemory::kOwn);
    const double added = found.step_s - before.step_s;
    EXPECT_DOUBLE_EQ(found.ranks[0].seconds.overhead, added);
    EXPECT_DOUBLE_EQ(found.ranks[0].seconds.total(), before.ranks[0].seconds.total() + added);
    return added;
  };
  RunConfig config = without_clipping();
  EXPECT_DOUBLE_EQ(overhead_of(config), 2.25);
  config.train.accumulation = 4;
  EXPECT_DOUBLE_EQ(overhead_of(config), 3);
  config.parallel.zero = 3;  // each layer is a stage of the pipeline program
  EXPECT_DOUBLE_EQ(overhead_of(config), 3);
  config = without_clipping();
  config.parallel.pipeline = 2;
  config.parallel.microbatches = 4;
  config.parallel.schedule = "interleaved-1f1b";
  config.parallel.chunks = 2;
  EXPECT_DOUBLE_EQ(overhead_of(config), 4);
}

TEST(Estimate, CompressedGradientsTakeTimeOfCodec) {
  RunConfig config = without_clipping();
  config.parallel.compression = "bf16";
  Measurements measured = known_costs(config, 2);
  measured.exchanges.codecs = {{.codec = "bf16", .all_reduce = {.fixed_s = 0, .unit_s = 0.25 / kMib}}};
  const auto step_s = [&] {
    return estimate(resolve_plan(config, 2), measured, WeightsMemory::kCommon).step_s;
  };
  EXPECT_DOUBLE_EQ(step_s(), 4 * 1.5 + 1 + 1);
  config.parallel.zero = 1;
  EXPECT_DOUBLE_EQ(step_s(), 4 * 1.5 + 1 + 0.5);
  measured.exchanges.codecs[0].codec = "int8";
  EXPECT_THAT(step_s, ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("bf16"), HasSubstr("measure again"))));
  EXPECT_GT(estimate(resolve_plan(config, 1), measured, WeightsMemory::kOwn).step_s, 0)
      << "one rank exchanges nothing";
}

TEST(Estimate, StateInFilesTakesMeasuredUpdate) {
  RunConfig config = without_clipping();
  config.offload.optimizer = "files";
  Measurements measured = known_costs(config, 2);
  const auto step_s = [&] { return estimate(resolve_plan(config, 2), measured, WeightsMemory::kOwn).step_s; };
  const double unknown_s = step_s();
  measured.update_in_files = {.fixed_s = 1, .unit_s = 3.0 / kNumel};
  EXPECT_DOUBLE_EQ(step_s(), unknown_s + 1 + 2);
}

TEST(Estimate, SeveralRanksRequireMeasuredExchanges) {
  const RunConfig config = without_clipping();
  Measurements measured = known_costs(config);
  measured.exchanges = {};
  EXPECT_THAT(
      [&] { estimate(resolve_plan(config, 2), measured, WeightsMemory::kOwn); },
      ThrowsMessage<InvalidArgument>(
          AllOf(HasSubstr("measured by 1 rank"), HasSubstr("the plan has 2"), HasSubstr("2 ranks or more"))));
  EXPECT_GT(estimate(resolve_plan(config, 1), measured, WeightsMemory::kOwn).step_s, 0);
}

TEST(Estimate, HasTheMemoryOfTheForecast) {
  RunConfig config = without_clipping();
  config.parallel.pipeline = 2;
  config.parallel.microbatches = 4;
  const Estimate found = estimate_of(config, 2);
  const auto expected = forecast_memory(found.plan, model_at(known_costs(config, 2), 4), WeightsMemory::kOwn);
  for (std::size_t rank = 0; rank < 2; ++rank)
    EXPECT_EQ(found.ranks[rank].memory.at_peak.bytes, expected[rank].at_peak.bytes) << rank;
}

TEST(Estimate, OfAnotherModelIsRejected) {
  RunConfig config = without_clipping();
  const Measurements measured = known_costs(config);
  config.model.hidden = {9, 8, 8};
  EXPECT_THAT([&] { estimate(resolve_plan(config, 1), measured, WeightsMemory::kOwn); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("model.hidden"), HasSubstr("[9, 8, 8]"), HasSubstr("measure again"))));
}

TEST(Measurements, OneSizeIsProportionalToSamples) {
  Measurements measured = known_costs(config_of_four());
  measured.costs.erase(measured.costs.begin());
  const ModelUse model = model_at(measured, 8);
  EXPECT_EQ(model.samples, 8);
  EXPECT_DOUBLE_EQ(model.layers[0].time.forward_s, 0.5);
  EXPECT_DOUBLE_EQ(model.layers[0].memory.kept.inner_bytes, 5 * kMib);
  EXPECT_EQ(model.layers[0].memory.gradient_bytes, kMib) << "parameters do not depend on samples";
}

TEST(Measurements, ExtrapolateAlongLineBeyondMeasuredSizes) {
  const Measurements measured = known_costs(config_of_four());
  EXPECT_DOUBLE_EQ(model_at(measured, 32).layers[0].time.forward_s, 2);
  EXPECT_DOUBLE_EQ(model_at(measured, 2).layers[0].time.forward_s, 0.125);
}

TEST(Measurements, AreTheSameAfterAFile) {
  const test::TemporaryFolder folder;
  const Measurements measured = known_costs(config_of_four());
  write_measurements(folder / "costs.json", {measured});
  write_measurements(folder / "again.json", read_measurements(folder / "costs.json"));
  EXPECT_EQ(read_file(folder / "again.json"), read_file(folder / "costs.json"));
}

TEST(Measurements, FindFormByItsKeys) {
  RunConfig config = config_of_four();
  const Measurements whole = known_costs(config, 2);
  config.parallel.tensor = 2;
  Measurements parts = known_costs(config, 2);
  parts.threads = 7;
  const MeasuredForms forms = {whole, parts};
  EXPECT_EQ(form_of(forms, resolve_plan(config, 2)).threads, 7);
  config.parallel.tensor = 1;
  EXPECT_EQ(form_of(forms, resolve_plan(config, 2)).threads, 1);
}

TEST(Measurements, WithoutUsableCostsAreRejected) {
  const Measurements whole = known_costs(config_of_four());
  const auto of = [&](const std::function<void(std::vector<ModelUse>&)>& damage) {
    Measurements damaged = whole;
    damage(damaged.costs);
    return [text = to_text({damaged})] { parse_measurements(text, "costs.json"); };
  };
  EXPECT_THAT(of([](auto& costs) { costs.clear(); }),
              ThrowsMessage<DataError>(AllOf(HasSubstr("costs.json"), HasSubstr("forms[0].costs"))));
  EXPECT_THAT(of([](auto& costs) { std::swap(costs[0], costs[1]); }),
              ThrowsMessage<DataError>(HasSubstr("expected rising samples, found 4 after 16")));
  EXPECT_THAT(of([](auto& costs) { costs[1].samples = costs[0].samples; }),
              ThrowsMessage<DataError>(HasSubstr("found 4 after 4")));
  EXPECT_THAT(of([](auto& costs) { costs[1].layers.pop_back(); }),
              ThrowsMessage<DataError>(HasSubstr("the same layers")));
  EXPECT_THAT(of([](auto& costs) {
                for (ModelUse& each : costs) each.layers.clear();
              }),
              ThrowsMessage<DataError>(HasSubstr("a loss for each size")));
}

TEST(Measurements, OfADamagedFileNameThePlace) {
  const test::TemporaryFolder folder;
  write_measurements(folder / "costs.json", {known_costs(config_of_four())});
  const std::string whole = read_file(folder / "costs.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = whole;
    changed.replace(changed.find(from), from.size(), to);
    write_file_atomic(folder / "costs.json", changed);
    return [&] { read_measurements(folder / "costs.json"); };
  };
  EXPECT_THAT(with("\"backward_s\"", "\"backwards\""),
              ThrowsMessage<DataError>(AllOf(HasSubstr("costs.json"), HasSubstr("costs[0].layers[0].time"),
                                             HasSubstr("'backward_s' is missing"))));
  EXPECT_THAT(with("\"version\": 4", "\"version\": 7"), ThrowsMessage<DataError>(HasSubstr("measure again")));
  EXPECT_THAT(with("\"unit_s\": 0", "\"unit_s\": -1"),
              ThrowsMessage<DataError>(HasSubstr("expected a number from 0")));
  std::string many = "\"codecs\": [";
  for (int i = 0; i < 33; ++i)
    many += text(i == 0 ? "" : ", ", R"({"codec": "bf16", "all_reduce": {"fixed_s": 0, "unit_s": 0}})");
  EXPECT_THAT(with("\"codecs\": [", many),
              ThrowsMessage<DataError>(HasSubstr("exchanges.codecs: expected at most 32, found 33")));
  EXPECT_THAT(with("\"ranks\": 2", "\"ranks\": \"two\""),
              ThrowsMessage<DataError>(HasSubstr("forms[0].exchanges.ranks: expected a number")));
}

TEST(MeasureCosts, AreEqualOnRanksWithLayerTimes) {
  RunConfig config = config_of_four();
  std::vector<std::string> written(2);
  const test::TemporaryFolder folder;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const data::DataSource data = data::open_data(config.data);
    const Measurements measured = measure_costs(resolve_plan(config, 2), context, data);
    const std::filesystem::path file = folder / text(context.rank(), ".json");
    write_measurements(file, {measured});
    written[static_cast<std::size_t>(context.rank())] = read_file(file);
    ASSERT_EQ(measured.costs.size(), 2U);
    EXPECT_EQ(measured.costs[0].samples, 2);
    EXPECT_EQ(measured.costs[1].samples, 8);
    for (const ModelUse& model : measured.costs) {
      EXPECT_EQ(model.layers.back().name, "loss");
      for (const LayerUse& layer : model.layers) EXPECT_GT(layer.time.forward_s, 0) << layer.name;
      EXPECT_GT(model.layers.front().time.backward_s, 0);
      EXPECT_GT(model.layers.front().time.backward_weight_s, 0);
    }
    EXPECT_EQ(measured.exchanges.ranks, 2);
    EXPECT_GT(measured.exchanges.all_reduce.of(1 << 20), 0);
    EXPECT_GT(measured.update.of(1 << 20), 0);
    EXPECT_GT(measured.update_in_files.of(1 << 20), 0);
    EXPECT_THAT(measured.exchanges.codecs,
                testing::ElementsAre(testing::Field(&CodecCost::codec, "bf16"),
                                     testing::Field(&CodecCost::codec, "int8"),
                                     testing::Field(&CodecCost::codec, "power-sgd")));
    for (const CodecCost& each : measured.exchanges.codecs)
      EXPECT_GT(each.all_reduce.of(1 << 20), 0) << each.codec;
  });
  EXPECT_EQ(written[0], written[1]);
}

TEST(MeasureCosts, UseConfiguredCodec) {
  RunConfig config = config_of_four();
  const std::string codec = "one-bit";  // measured without an optimizer's momentum
  config.parallel.compression = codec;
  config.parallel.compression_warmup_steps = 10;
  config.train.clip_norm = 0;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const data::DataSource data = data::open_data(config.data);
    const ParallelPlan plan = resolve_plan(config, 2);
    const Measurements measured = measure_costs(plan, context, data);
    EXPECT_THAT(measured.exchanges.codecs, testing::ElementsAre(testing::Field(&CodecCost::codec, codec)));
    EXPECT_GT(estimate(plan, measured, WeightsMemory::kOwn).step_s, 0);
  });
}

// One sample has one value per channel at the end of the network, and batch norm needs two.
TEST(MeasureCosts, LeaveOutRejectedBatchSizes) {
  RunConfig config = config_of_four();
  config.model = {};
  config.model.name = "resnet18";
  config.train.global_batch = 2;
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const data::DataSource data = data::open_data(config.data);
    const Measurements measured = measure_costs(resolve_plan(config, 1), context, data, {.samples = {1, 2}});
    ASSERT_EQ(measured.costs.size(), 1U);
    EXPECT_EQ(measured.costs.front().samples, 2);
    EXPECT_EQ(measured.least_samples, 2);
    EXPECT_GT(estimate(resolve_plan(config, 1), measured, WeightsMemory::kOwn).step_s, 0);
    config.train.accumulation = 2;
    EXPECT_THAT([&] { estimate(resolve_plan(config, 1), measured, WeightsMemory::kOwn); },
                ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr("a micro-batch has 1 sample"), HasSubstr("2 or more"))));
  });
}

TEST(MeasureCosts, WithoutFolderHaveNoUpdateInFiles) {
  RunConfig config = config_of_four();
  config.offload.folder = "/proc";
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const data::DataSource data = data::open_data(config.data);
    const Measurements measured = measure_costs(resolve_plan(config, 2), context, data);
    EXPECT_EQ(measured.update_in_files.unit_s, 0);
    EXPECT_EQ(measured.update_in_files.fixed_s, 0);
  });
}

TEST(MeasureCosts, PartialLayersHaveTheirForm) {
  RunConfig config = config_of_four();
  config.model.hidden = {64};
  config.parallel.tensor = 2;
  comm::run_ranks_as_threads(2, [&](comm::Context& context) {
    const data::DataSource data = data::open_data(config.data);
    const ParallelPlan plan = resolve_plan(config, 2);
    const Measurements measured = measure_costs(plan, context, data);
    EXPECT_GT(estimate(plan, measured, WeightsMemory::kOwn).step_s, 0);
    RunConfig whole = config;
    whole.parallel.tensor = 1;
    EXPECT_THAT([&] { estimate(resolve_plan(whole, 2), measured, WeightsMemory::kOwn); },
                ThrowsMessage<InvalidArgument>(HasSubstr("parallel.tensor")));
  });
}

TEST(MeasureCosts, StagesOfPartialLayersHaveTheirForm) {
  RunConfig config = config_of_four();
  config.model.hidden = {64, 64};
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  config.parallel.microbatches = 2;
  comm::run_ranks_as_threads(4, [&](comm::Context& context) {
    const data::DataSource data = data::open_data(config.data);
    const ParallelPlan plan = resolve_plan(config, 4);
    const Estimate found = estimate(plan, measure_costs(plan, context, data), WeightsMemory::kOwn);
    EXPECT_EQ(found.ranks.size(), 2U);
    EXPECT_EQ(found.plan.cuts().size(), 1U);
  });
}

TEST(MeasureCosts, OversizedBatchUsesMeasuredSamples) {
  RunConfig config = config_of_four();
  comm::run_ranks_as_threads(1, [&](comm::Context& context) {
    const data::DataSource data = data::open_data(config.data);
    config.train.global_batch = 4 * data.train->size();
    const Measurements measured = measure_costs(resolve_plan(config, 1), context, data);
    EXPECT_EQ(measured.costs.back().samples, data.train->size());
  });
}

}  // namespace
}  // namespace trireme::train
