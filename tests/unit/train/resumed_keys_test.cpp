// The keys that a resumed run may change, which is a property of their rows in the table of keys.
#include <gmock/gmock.h>

#include "tests/support/paths.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"
#include "trireme/train/config/internal/config_keys.h"
#include "trireme/train/run/recovery.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;

/// Returns a value other than the held one.
struct Another {
  const Allowed& allowed;
  ConfigValue operator()(std::int64_t held) const { return held + 1; }
  ConfigValue operator()(double held) const { return held == 0 ? 0.25 : held / 2; }
  ConfigValue operator()(bool held) const { return !held; }
  ConfigValue operator()(const std::vector<std::int64_t>&) const { return std::vector<std::int64_t>{77}; }
  ConfigValue operator()(const std::vector<double>&) const { return std::vector<double>{0.5}; }
  ConfigValue operator()(const std::vector<std::string>&) const {
    return std::vector<std::string>{allowed.names ? allowed.names().front() : "another"};
  }
  ConfigValue operator()(const std::string& held) const {
    if (!allowed.names) return held + "x";
    for (const std::string& name : allowed.names()) {
      if (name != held) return name;
    }
    return held;
  }
};

/// The rejection of a resume with this key changed. Empty: none.
std::string rejection_of(const ConfigKey& key, const ConfigValue& value) {
  RunConfig changed;
  key.set(changed, value);
  try {
    check_same_run(changed, RunConfig(), 7);
  } catch (const InvalidArgument& refusal) {
    return refusal.what();
  }
  return "";
}

TEST(ResumedKeys, AreRejectedAsTheirRowsSay) {
  int num_kept = 0;
  for (const ConfigKey& key : config_key_table()) {
    const ConfigValue held = key.get(RunConfig());
    const ConfigValue other = std::visit(Another{key.allowed}, held);
    ASSERT_NE(to_toml(held), to_toml(other)) << key.name;
    const std::string refusal = rejection_of(key, other);
    if (key.on_resume == OnResume::kStays) {
      ++num_kept;
      EXPECT_THAT(refusal, HasSubstr(text(key.name, " was ", to_toml(held), " and is now ", to_toml(other))));
    } else if (key.name != "parallel.pipeline" && key.name != "parallel.schedule") {
      EXPECT_EQ(refusal, "") << key.name;
    }
  }
  EXPECT_GE(num_kept, 16);
}

TEST(ResumedKeys, AreAllListedWithBothValues) {
  EXPECT_TRUE(changed_keys(RunConfig(), RunConfig()).empty());
  for (const ConfigKey& key : config_key_table()) {
    const ConfigValue held = key.get(RunConfig()), other = std::visit(Another{key.allowed}, held);
    RunConfig changed;
    key.set(changed, other);
    const auto listed = changed_keys(changed, parse_run_config(describe(RunConfig()), "run.toml"));
    EXPECT_THAT(listed,
                testing::Contains(text(key.name, " was ", to_toml(held), " and is now ", to_toml(other))));
    const bool changes_defaults = key.name == "optimizer.name";  // of the optimizer options
    EXPECT_TRUE(listed.size() == 1 || changes_defaults) << key.name;
  }
}

TEST(ResumedKeys, ProgramMayChangeWithinUpdateOrder) {
  RunConfig before, now;
  before.parallel.pipeline = now.parallel.pipeline = 2;
  before.parallel.schedule = "/nowhere/own.csv";
  now.parallel.schedule = "zb-h1";
  EXPECT_NO_THROW(check_same_run(now, before, 7)) << "no file is opened, which may be gone";
  now.parallel.schedule = "pipedream";
  EXPECT_THAT([&] { check_same_run(now, before, 7); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("while micro-batches are under way")));
  now.parallel.pipeline = 1;
  EXPECT_NO_THROW(check_same_run(now, before, 7)) << "without a pipeline a schedule says nothing";
}

TEST(ResumedKeys, ClippingChangesOnlyWhenNamed) {
  const auto parse = [](const std::string& content) { return parse_run_config(content, "run.toml"); };
  const auto rejection_of = [&](const RunConfig& now, const RunConfig& before) -> std::string {
    try {
      check_same_run(now, before, 7);
    } catch (const InvalidArgument& refusal) {
      return refusal.what();
    }
    return "";
  };
  const RunConfig off = parse("[train]\nclip_norm = 0\n"), named = parse("[train]\nclip_norm = 1\n"),
                  by_default = parse("");
  EXPECT_THAT(rejection_of(by_default, off),
              HasSubstr("train.clip_norm was 0.0 and is now 1.0, by default; name the value that you want"));
  EXPECT_EQ(rejection_of(named, off), "");
  EXPECT_EQ(rejection_of(off, off), "");
  EXPECT_EQ(rejection_of(off, named), "");
  // A run of a version without the key did not clip.
  EXPECT_THAT(rejection_of(by_default, by_default), HasSubstr("train.clip_norm was 0.0 and is now 1.0"));
  EXPECT_EQ(rejection_of(off, by_default), "");
  EXPECT_EQ(rejection_of(by_default, parse(describe(by_default))), "") << "runs write down every key";
  // A configuration in code counts as chosen if it is not the default.
  EXPECT_THAT(rejection_of(RunConfig(), off), HasSubstr("by default"));
  RunConfig chosen;
  chosen.train.clip_norm = 0.5;
  EXPECT_EQ(rejection_of(chosen, off), "");
}

TEST(ResumedKeys, OptimizerKeepsValuesOverNewDefaults) {
  const auto parse = [](const std::string& content) { return parse_run_config(content, "run.toml"); };
  const RunConfig before = parse(describe(parse("[optimizer]\nlr = 0.1\nmomentum = 0.9\n")));
  EXPECT_THAT([&] { check_same_run(parse("[optimizer]\nlr = 0.1\n"), before, 7); },
              testing::ThrowsMessage<InvalidArgument>(
                  HasSubstr("optimizer.momentum was 0.9 and is now 0.0, by default; name the value")));
  EXPECT_NO_THROW(check_same_run(parse("[optimizer]\nlr = 0.1\nmomentum = 0\n"), before, 7));
  EXPECT_NO_THROW(check_same_run(parse("[optimizer]\nlr = 0.05\nmomentum = 0.9\n"), before, 7));
}

TEST(ResumedKeys, RemovedKeysEndResumeWithError) {
  RunConfig config;
  config.run.name = "old";
  EXPECT_THAT(
      [&] { config_of_checkpoint("[lr]\nscale_with_batch = \"adascale\"\nprogress_steps = 0\n", config); },
      testing::ThrowsMessage<InvalidArgument>(
          testing::AllOf(HasSubstr("cannot resume run 'old': the checkpoint's configuration:2: "
                                   "lr.scale_with_batch = \"adascale\" was removed"),
                         HasSubstr("start a fresh one, which may begin with its weights"))));
  EXPECT_NO_THROW(config_of_checkpoint("[lr]\nscale_with_batch = \"linear\"\nprogress_steps = 0\n", config))
      << "a run that did not use it";
}

TEST(ResumedKeys, AreListedInTheDocumentation) {
  std::vector<std::string> kept, kept_in_kind, by_name;
  for (const ConfigKeyInfo& key : config_keys()) {
    if (key.on_resume == OnResume::kStays) kept.push_back(text('`', key.name, '`'));
    if (key.on_resume == OnResume::kUpdatesStay) kept_in_kind.push_back(text('`', key.name, '`'));
    if (key.on_resume == OnResume::kMayChangeByName) by_name.push_back(text('`', key.name, '`'));
  }
  const std::string page = read_file(test::checkout("docs/configuration.md"));
  EXPECT_THAT(page, HasSubstr(text("A resumed run has to keep ", join(kept), ".")));
  EXPECT_THAT(page, HasSubstr(join(kept_in_kind, " and ") + " may change as long as"));
  EXPECT_THAT(page, HasSubstr(join(by_name) + " may change where the file or `--set` names it"));
}

}  // namespace
}  // namespace trireme::train
