// User-defined types, by name and with their own keys.
#include "trireme/train/config/registry.h"

#include <gmock/gmock.h>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/model/mlp.h"
#include "trireme/train/estimate/measurements.h"
#include "trireme/train/plan/parallel_plan.h"
#include "trireme/train/run/recovery.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct Widths {
  std::int64_t width = 8;
  int depth = 2;
  double dropout = 0;
  bool bias = true;
  std::string norm = "none";
  std::vector<std::int64_t> extra = {};
};

Keys<Widths> keys_of_widths() {
  return {{"width", &Widths::width, "of a layer", {.least = 1}},
          {"depth", &Widths::depth, "layers", {.least = 1}, OnResume::kMayChange},
          {"dropout", &Widths::dropout, "share that is dropped", {.least = 0, .below = 1}},
          {"bias", &Widths::bias, "whether there is one"},
          {"norm",
           &Widths::norm,
           "kind of norm",
           {.names =
                [] {
                  return std::vector<std::string>{"none", "layer"};
                }}},
          {"extra", &Widths::extra, "more layers", {.least = 1}}};
}

std::shared_ptr<model::Model> make_net(const Widths& widths, const ModelTask& task) {
  std::vector<std::int64_t> hidden(static_cast<std::size_t>(widths.depth), widths.width);
  hidden.insert(hidden.end(), widths.extra.begin(), widths.extra.end());
  return std::make_shared<model::Mlp>(task.data.train->trial_batch(1).input->numel(), hidden,
                                      task.num_outputs);
}

data::DataSource open_small(const DataTask&) {
  data::DataSource source = data::open_data({.name = "synthetic"});
  source.name.clear();
  return source;
}

objective::Metric count_of_samples() {
  return {.name = "samples", .measure = [](const at::Tensor&, const at::Tensor& target) {
            return objective::Sum{static_cast<double>(target.size(0)), 1};
          }};
}

std::shared_ptr<const Registry> registry() {
  return std::make_shared<const Registry>(OwnTypes{.models = {{"net", keys_of_widths(), make_net}},
                                                   .datasets = {{"small", open_small}},
                                                   .metrics = {count_of_samples()}});
}

RunConfig parse(const std::string& content) {
  return parse_run_config("[data]\nname = \"small\"\n[model]\nname = \"net\"\n" + content, "run.toml",
                          registry());
}

std::string error_of(const std::string& content) {
  try {
    parse(content);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

std::int64_t num_parameters(const RunConfig& config) {
  const data::DataSource data = open_data(config);
  std::int64_t count = 0;
  for (const at::Tensor& parameter : make_model(config, data, 10)->parameters()) count += parameter.numel();
  return count;
}

TEST(Registry, BuildsNamedPartsWithTheirKeys) {
  EXPECT_EQ(num_parameters(parse("")), 784 * 8 + 8 + 8 * 8 + 8 + 8 * 10 + 10);
  EXPECT_EQ(num_parameters(parse("[net]\nwidth = 3\ndepth = 1\n")), 784 * 3 + 3 + 3 * 10 + 10);
  EXPECT_EQ(open_data(parse("")).name, "small") << "a source without a name gets that of the part";
}

TEST(Registry, CustomModelValuesFollowSeed) {
  RunConfig one = parse(""), other = parse("[run]\nseed = 1\n");
  const data::DataSource data = open_data(one);
  const auto first = [&](const RunConfig& config) { return make_model(config, data, 10)->parameters()[0]; };
  EXPECT_TRUE(first(one).equal(first(one)));
  EXPECT_FALSE(first(one).equal(first(other)));
}

TEST(Registry, CostsBelongToKeysOfModel) {
  const auto key = [](const std::string& more) { return model_key(resolve_plan(parse(more), 1)); };
  EXPECT_NE(key("[net]\nwidth = 3\n"), key("[net]\nwidth = 512\n"));
  EXPECT_EQ(key("[net]\nwidth = 3\n"), key("[net]\nwidth = 3\n[optimizer]\nlr = 0.5\n"));
}

TEST(Registry, OwnTablesAreAsStrictAsOurs) {
  EXPECT_EQ(error_of("[net]\nwidht = 3\n"),
            "run.toml:6: unknown key 'net.widht' (did you mean 'net.width'?)");
  EXPECT_EQ(error_of("[nett]\nwidth = 3\n"), "run.toml:5: unknown table [nett] (did you mean 'net'?)");
  EXPECT_EQ(error_of("[net]\nwidth = 0\n"), "run.toml:6: net.width = 0 is out of range: at least 1");
  EXPECT_EQ(error_of("[net]\nwidth = 2.5\n"),
            "run.toml:6: net.width: expected whole number, found number 2.5");
  EXPECT_EQ(error_of("[net]\ndropout = 1\n"),
            "run.toml:6: net.dropout = 1.0 is out of range: at least 0, below 1");
  EXPECT_EQ(error_of("[net]\nnorm = \"laier\"\n"),
            "run.toml:6: net.norm = \"laier\" is not known (did you mean 'layer'?)");
  EXPECT_EQ(error_of("[net]\nextra = [4, 0]\n"),
            "run.toml:6: net.extra = [4, 0] is out of range: at least 1");
  EXPECT_THAT(error_of("[net]\ndepth = 3000000000\n"), HasSubstr("net.depth = 3000000000 is out of range"));
  EXPECT_THAT(error_of("[objective]\nmetrics = [\"sampels\"]\n"), HasSubstr("did you mean 'samples'?"));
}

TEST(Registry, IsNoneOfAnotherConfigurations) {
  EXPECT_THAT([] { parse_run_config("[model]\nname = \"net\"\n", "run.toml"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("model.name = \"net\" is not known")));
  EXPECT_THAT([] { parse_run_config("[net]\nwidth = 3\n", "run.toml"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("unknown table [net]")));
}

TEST(Registry, CustomKeysRoundTrip) {
  const std::string written = describe(parse("[net]\nwidth = 3\nnorm = \"layer\"\nextra = [4, 5]\n"));
  EXPECT_THAT(written, HasSubstr("[net]\nwidth = 3\ndepth = 2\ndropout = 0.0\nbias = true\nnorm = \"layer\"\n"
                                 "extra = [4, 5]\n"));
  EXPECT_EQ(describe(parse_run_config(written, "again", registry())), written);
}

TEST(Registry, CustomKeysStayUnlessChangeable) {
  const RunConfig before = parse_run_config(describe(parse("")), "saved", registry());
  EXPECT_THAT([&] { check_same_run(parse("[net]\nwidth = 9\n"), before, 7); },
              ThrowsMessage<InvalidArgument>(HasSubstr("net.width was 8 and is now 9")));
  EXPECT_NO_THROW(check_same_run(parse("[net]\ndepth = 3\n"), before, 7));
}

TEST(Registry, ValuesFromCodeAreChecked) {
  const auto resolve = [](const std::string& name, const ConfigValue& value) {
    RunConfig config = parse("");
    config.own[name] = value;
    return resolve_plan(config, 1);
  };
  EXPECT_NO_THROW(resolve("net.width", std::int64_t{4}));
  EXPECT_THAT([&] { resolve("net.width", std::int64_t{0}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("net.width = 0 is out of range")));
  EXPECT_THAT(
      [&] { resolve("net.width", 4.0); },
      ThrowsMessage<InvalidArgument>(HasSubstr("net.width: expected whole number, found number 4.0")));
  EXPECT_THAT([&] { resolve("net.with", std::int64_t{4}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("did you mean 'net.width'?")));
}

TEST(Registry, OwnMetricsAreMeasuredBesideOurs) {
  const RunConfig config = parse("[objective]\nmetrics = [\"samples\", \"accuracy\"]\n");
  const data::DataSource data = open_data(config);
  const auto objective = make_objective(config, {.data = data});
  ASSERT_EQ(objective->metrics().size(), 2U);
  EXPECT_EQ(objective->metrics()[0].name, "samples");
  EXPECT_EQ(objective->metrics()[1].name, "accuracy");
}

TEST(Registry, RejectsTakenNamesAndContradictoryRows) {
  const auto refusal = [](const OwnTypes& own) -> std::string {
    try {
      const Registry made(own);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  const auto make = [](const ModelTask&) { return std::shared_ptr<model::Model>(); };
  EXPECT_THAT(refusal({.models = {{"mlp", make}}}), HasSubstr("model \"mlp\" is there already"));
  EXPECT_THAT(refusal({.models = {{"a", make}, {"a", make}}}), HasSubstr("model \"a\" is there already"));
  EXPECT_THAT(refusal({.models = {{"a b", make}}}), HasSubstr("letters, digits, _ and -"));
  EXPECT_THAT(refusal({.models = {{"train", keys_of_widths(), make_net}}}), HasSubstr("table [train]"));
  EXPECT_THAT(refusal({.datasets = {{"text", open_small}}}), HasSubstr("data set \"text\" is there"));
  EXPECT_THAT(refusal({.metrics = {{.name = "loss", .measure = count_of_samples().measure}}}),
              HasSubstr("metric \"loss\" is there already"));
  EXPECT_THAT(refusal({.metrics = {{.name = "none_at_all", .measure = nullptr}}}),
              HasSubstr("measures nothing"));
  const Keys<Widths> bad = {{"width", &Widths::width, "", {.least = 100}}};
  EXPECT_THAT(refusal({.models = {{"a", bad, make_net}}}), HasSubstr("a.width = 8 is out of range"));
  const Keys<Widths> twice = {{"w", &Widths::width, ""}, {"w", &Widths::depth, ""}};
  EXPECT_THAT(refusal({.models = {{"a", twice, make_net}}}), HasSubstr("key a.w is given twice"));
}

TEST(Registry, APartThatMakesNothingIsSaid) {
  const auto none = [](const ModelTask&) { return std::shared_ptr<model::Model>(); };
  RunConfig config;
  config.registry = std::make_shared<const Registry>(OwnTypes{.models = {{"none", none}}});
  config.model.name = "none";
  const data::DataSource data = data::open_data({.name = "synthetic"});
  EXPECT_THAT([&] { make_model(config, data, 10); },
              ThrowsMessage<InvalidArgument>(HasSubstr("returned null")));
}

}  // namespace
}  // namespace trireme::train
