// Machines that are described in a file: parsing, rejections, and the costs of a GPT on them.
#include <gmock/gmock.h>

#include "tests/support/paths.h"
#include "trireme/base/error.h"
#include "trireme/data/example.h"
#include "trireme/train/estimate/layer_memory.h"
#include "trireme/train/machine/described_forms.h"
#include "trireme/train/machine/gpt_costs.h"
#include "trireme/train/machine/machine.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const std::string kMachine = R"(name = "two hosts"
[device]
name = "a device"
peak_tflops = { bf16 = 100, fp32 = 10 }
product_share = 0.5
memory_gib = 16
reserved_gib = 1
memory_gb_per_s = 1000
[hosts]
count = 2
ranks = 4
[links.within]
gb_per_s = 100
latency_us = 2
[links.between]
gb_per_s = 8
latency_us = 10
)";

std::string with(std::string from, const std::string& to) {
  std::string content = kMachine;
  return content.replace(content.find(from), from.size(), to);
}

auto reading(const std::string& content) {
  return [content] { parse_machine(content, "machine.toml"); };
}

TEST(DescribedMachine, HasItsFigures) {
  const Machine machine = parse_machine(kMachine, "machine.toml");
  EXPECT_EQ(machine.num_ranks(), 8);
  EXPECT_DOUBLE_EQ(machine.device.peak_flop_s.at("bf16"), 100e12);
  EXPECT_DOUBLE_EQ(machine.device.memory_bytes_per_s, 1e12);
  EXPECT_EQ(machine.limit_bytes(), std::int64_t{15} << 30);
  EXPECT_DOUBLE_EQ(machine.links.within.bytes_per_s, 100e9);
  EXPECT_DOUBLE_EQ(machine.links.between.bytes_per_s, 2e9) << "a host's link, shared by its ranks";
  EXPECT_DOUBLE_EQ(machine.links.between.latency_s, 10e-6);
}

TEST(DescribedMachine, ShippedFilesAreRead) {
  for (const char* name : {"a100_selene", "h100", "cpu_10g", "cpu_100g"})
    EXPECT_GE(read_machine(test::checkout("examples/machines/" + std::string(name) + ".toml")).num_ranks(),
              128)
        << name;
}

TEST(DescribedMachine, UnknownKeysAreNamedWithTheNearest) {
  EXPECT_THAT(
      reading(with("memory_gib = 16", "memory_gb = 16")),
      ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("machine.toml:6"), HasSubstr("'device.memory_gb'"),
                                           HasSubstr("did you mean 'device.memory_gib'?"))));
  EXPECT_THAT(reading(kMachine + "[network]\ngb_per_s = 1\n"),
              ThrowsMessage<InvalidArgument>(HasSubstr("unknown key 'network'")));
  EXPECT_THAT(reading(with("peak_tflops = { bf16 = 100, fp32 = 10 }", "peak_tflops = 100")),
              ThrowsMessage<InvalidArgument>(HasSubstr("'device.peak_tflops' is a table")));
}

TEST(DescribedMachine, MissingKeysAreNamedWithExpectedValues) {
  EXPECT_THAT(reading(with("memory_gb_per_s = 1000", "")),
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("device.memory_gb_per_s is missing"), HasSubstr("GB/s"))));
  EXPECT_THAT(reading(with("peak_tflops = { bf16 = 100, fp32 = 10 }", "")),
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("device.peak_tflops is missing"),
                                                   HasSubstr("peak_tflops = { bf16 = 312 }"))));
  EXPECT_THAT(reading(with("gb_per_s = 8\n", "")),
              ThrowsMessage<InvalidArgument>(HasSubstr("links.between.gb_per_s is missing")));
  EXPECT_THAT(reading(with("name = \"two hosts\"", "")),
              ThrowsMessage<InvalidArgument>(HasSubstr("name is missing; expected a text")));
}

TEST(DescribedMachine, OtherUnitsAreFoundByTheirSize) {
  EXPECT_THAT(reading(with("bf16 = 100", "bf16 = 3.12e14")),
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("device.peak_tflops.bf16 = 3.12e+14"), HasSubstr("check the unit"))));
  EXPECT_THAT(reading(with("product_share = 0.5", "product_share = 50")),
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("0.01 to 1"), HasSubstr("check the unit"))));
  EXPECT_THAT(reading(with("count = 2", "count = 2.5")),
              ThrowsMessage<InvalidArgument>(HasSubstr("expected a whole number")));
  EXPECT_THAT(reading(with("memory_gib = 16", "memory_gib = \"16\"")),
              ThrowsMessage<InvalidArgument>(HasSubstr("device.memory_gib: expected a number")));
  EXPECT_THAT(reading(with("reserved_gib = 1", "reserved_gib = 16")),
              ThrowsMessage<InvalidArgument>(HasSubstr("expected less than that")));
}

TEST(LinkLevels, RanksOfAHostShareItsLink) {
  const LinkLevels links = parse_machine(kMachine, "machine.toml").links;
  // Two ranks of a host: half of the bytes are sent, after one latency.
  EXPECT_DOUBLE_EQ(gather_s(links, {2, 2}, 1e9), 2e-6 + 0.5e9 / 100e9);
  // All eight: a quarter of the bytes is sent between the hosts, over each rank's share of the link.
  EXPECT_DOUBLE_EQ(gather_s(links, {8, 8}, 1e9), 10e-6 + 0.125e9 / 2e9 + 2 * 2e-6 + 0.75e9 / 100e9);
  // Two ranks, one on each host.
  EXPECT_DOUBLE_EQ(gather_s(links, {2, 8}, 1e9), 10e-6 + 0.5e9 / 2e9);
  EXPECT_DOUBLE_EQ(all_reduce_s(links, {2, 8}, 1e9), 2 * gather_s(links, {2, 8}, 1e9));
}

RunConfig gpt_config() {
  RunConfig config;
  config.data.name = "text";
  config.data.block = 64;
  config.model.name = "gpt";
  config.model.layers = 4;
  config.model.heads = 4;
  config.model.width = 128;
  config.train.global_batch = 32;
  config.optimizer.name = "adamw";
  return config;
}

GptOnMachine gpt_alone(int operand_bytes) {
  return {.model = {.layers = 2, .heads = 4, .width = 128, .block = 64, .vocabulary = 300},
          .form = {},
          .flop_s = 1e12,
          .memory_bytes_per_s = 1e11,
          .operand_bytes = operand_bytes,
          .links = {}};
}

TEST(GptCosts, HaveTheParametersOfTheModel) {
  const GptOnMachine gpt = gpt_alone(4);
  model::Gpt real(gpt.model);
  const std::vector<model::Layer> layers = real.layers();
  const ModelUse use = gpt_use(gpt, 8);
  ASSERT_EQ(use.layers.size(), layers.size() + 1) << "and the loss";
  for (std::size_t i = 0; i < layers.size(); ++i) {
    EXPECT_EQ(use.layers[i].name, layers[i].name);
    ASSERT_EQ(use.layers[i].parameters.size(), layers[i].parameters.size()) << layers[i].name;
    for (const auto& [name, parameter] : layers[i].parameters) {
      const auto found = std::ranges::find(use.layers[i].parameters, name, &ParameterUse::name);
      ASSERT_NE(found, use.layers[i].parameters.end()) << name;
      EXPECT_EQ(found->numel, parameter.numel()) << name;
    }
  }
}

TEST(GptCosts, MemoryMatchesTheAllocator) {
  const GptOnMachine gpt = gpt_alone(4);
  model::Gpt real(gpt.model);
  const auto measured =
      profile_memory(real.layers(), at::zeros({8, gpt.model.block}, at::kLong), BackwardParts::kTwo);
  const ModelUse use = gpt_use(gpt, 8);
  for (std::size_t i = 0; i < measured.size(); ++i) {
    const plan::LayerMemory &found = use.layers[i].memory, &real_memory = measured[i];
    const auto within = [&](double value, double expected, double share, const char* of) {
      EXPECT_NEAR(value, expected, share * expected + 1024) << use.layers[i].name << ": " << of;
    };
    EXPECT_EQ(found.kept.saves_input, real_memory.kept.saves_input) << use.layers[i].name;
    within(found.kept.output_bytes, real_memory.kept.output_bytes, 0, "output");
    within(found.kept.inner_bytes, real_memory.kept.inner_bytes, 0.1, "inner");
    within(found.gradient_bytes, real_memory.gradient_bytes, 0, "gradients");
    within(found.for_weights_bytes, real_memory.for_weights_bytes, 0.25, "for weights");
    within(found.backward_bytes, real_memory.backward_bytes, 0.5, "backward");
    within(found.forward_bytes, real_memory.forward_bytes, 0.25, "forward");
  }
}

TEST(GptCosts, ProductTakesItsOperationsOrBytes) {
  GptOnMachine gpt = gpt_alone(4);
  gpt.memory_bytes_per_s = 1e30;
  const double step_s = [&] {
    double sum = 0;
    for (const LayerUse& layer : gpt_use(gpt, 8).layers) sum += layer.time.forward_s + layer.time.backward_s;
    return sum;
  }();
  // Attention counts half of all pairs of tokens, and one more product in its backward.
  const double tokens = 8 * 64, pairs = 4 * tokens * 64 * 128;
  EXPECT_NEAR(step_s * gpt.flop_s, gpt_flops(gpt.model, 8) - 2 * 3 * pairs + 2 * (1 + 2.5) * pairs / 2,
              1e-6 * step_s * gpt.flop_s);
  gpt.flop_s = 1e30;
  gpt.memory_bytes_per_s = 1e11;
  EXPECT_GT(gpt_use(gpt, 8).layers[1].time.forward_s, 0);
}

TEST(GptCosts, PartialLayersAreSmallerAndExchange) {
  GptOnMachine gpt = gpt_alone(2);
  gpt.links = parse_machine(kMachine, "machine.toml").links;
  const LayerTime whole = gpt_use(gpt, 64).layers[1].time;
  gpt.form.tensor = 4;
  gpt.links.within = {.latency_s = 0, .bytes_per_s = 1e30};
  const LayerTime fast = gpt_use(gpt, 64).layers[1].time;
  EXPECT_LT(fast.forward_s, whole.forward_s / 2);
  gpt.links.within = {.latency_s = 1, .bytes_per_s = 1e30};
  // Two sums in each of two passes, over four ranks.
  EXPECT_NEAR(gpt_use(gpt, 64).layers[1].time.forward_s - fast.forward_s, 2 * 2 * 2, 1e-9);
}

TEST(DescribedForms, MatchModelOnMachine) {
  const Machine machine = parse_machine(kMachine, "machine.toml");
  const MeasuredForms forms = described_forms(gpt_config(), 8, machine, 300);
  ASSERT_FALSE(forms.empty());
  EXPECT_EQ(forms.front().model, model_key(resolve_plan(gpt_config(), 8)));
  EXPECT_EQ(forms.front().exchanges.ranks, 8);
  EXPECT_EQ(forms.front().ranks_of_host, 4);
}

TEST(DescribedForms, RejectConfigurationsOutsideTheDescription) {
  const Machine machine = parse_machine(kMachine, "machine.toml");
  const auto of = [&](const std::function<void(RunConfig&)>& change, int ranks = 8) {
    return [&machine, change, ranks] {
      RunConfig config = gpt_config();
      change(config);
      described_forms(config, ranks, machine, 300);
    };
  };
  EXPECT_THAT(of([](RunConfig& config) { config.train.precision = "fp16"; }),
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("\"fp16\""), HasSubstr("bf16, fp32"))));
  EXPECT_THAT(of([](RunConfig& config) { config.model.name = "mlp"; }),
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("\"mlp\""), HasSubstr("known of gpt"))));
  EXPECT_THAT(of([](RunConfig&) {}, 16),
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("2 hosts of 4 ranks"), HasSubstr("at most 8"))));
  EXPECT_THAT(of([](RunConfig&) {}, 6), ThrowsMessage<InvalidArgument>(HasSubstr("whole hosts of 4")));
}

}  // namespace
}  // namespace trireme::train
