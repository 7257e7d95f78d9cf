#include "trireme/train/config/run_config.h"

#include <gmock/gmock.h>

#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"
#include "trireme/train/config/internal/removed_settings.h"
#include "trireme/train/plan/parallel_plan.h"

namespace trireme::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// A configuration file that is removed at the end of the test.
class ConfigFile {
 public:
  explicit ConfigFile(const std::string& content) { write_file_atomic(path(), content); }
  std::filesystem::path path() const { return folder_ / "run.toml"; }
  RunConfig load(const std::vector<std::string>& overrides = {}) const {
    return load_run_config(path(), overrides);
  }
  /// The error message without the folder. "no error" if there is none.
  std::string error(const std::vector<std::string>& overrides = {}) const {
    try {
      load(overrides);
    } catch (const InvalidArgument& found) {
      std::string message = found.what();
      const std::string folder = folder_.path().string() + "/";
      if (message.starts_with(folder)) message.erase(0, folder.size());
      return message;
    }
    return "no error";
  }

 private:
  test::TemporaryFolder folder_;
};

TEST(RunConfig, FileAndOverridesAreRead) {
  const ConfigFile file("[run]\nname = \"a\"\n[optimizer]\nlr = 1\n[model]\nhidden = [3, 4]\n");
  const RunConfig config = file.load({"optimizer.lr=0.25", "run.name=b", "optimizer.nesterov = true"});
  EXPECT_EQ(config.run.name, "b");
  EXPECT_EQ(config.optimizer.lr, 0.25);
  EXPECT_EQ(config.optimizer.nesterov, true);
  EXPECT_EQ(config.model.hidden, (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(config.source, file.path().string());
}

TEST(RunConfig, TextKeyTakesAnyWord) {
  const ConfigFile file("");
  EXPECT_EQ(file.load({"run.name=2026"}).run.name, "2026");
  EXPECT_EQ(file.load({"data.path=/a b/c"}).data.path, "/a b/c");
  EXPECT_EQ(file.load({"run.name=\"quoted\""}).run.name, "quoted");
}

TEST(RunConfig, DescriptionRoundTrips) {
  const ConfigFile file("");
  const RunConfig config = file.load({"optimizer.lr=0.3", "data.path=a\\\"b", "model.hidden=[7]"});
  const ConfigFile written(describe(config));
  EXPECT_EQ(describe(written.load()), describe(config));
  EXPECT_THAT(describe(config), testing::HasSubstr("[optimizer]\nname = \"sgd\"\nlr = 0.3\n"));
}

TEST(RunConfig, HasTheDefaultsOfItsOptimizer) {
  const RunConfig adamw = parse_run_config("[optimizer]\nname = \"adamw\"\nlr = 0.3\n", "run.toml");
  const std::string written = describe(adamw);
  EXPECT_THAT(written, testing::HasSubstr("lr = 0.3\nweight_decay = 0.01\n"));
  const RunConfig again = parse_run_config(written, "run.toml");
  EXPECT_EQ(again.optimizer.weight_decay, 0.01) << "every value is written down";
  EXPECT_EQ(describe(again), written);
  EXPECT_THAT(describe(RunConfig()), testing::HasSubstr("lr = 0.001\nweight_decay = 0.0\n"));
}

struct BadConfig {
  const char* name;
  const char* content;
  const char* message;
};

const BadConfig kBadConfigs[] = {
    BadConfig{"UnknownKey", "[optimizer]\nname = \"sgd\"\nlrr = 1\n",
              "run.toml:3: unknown key 'optimizer.lrr' (did you mean 'optimizer.lr'?)"},
    BadConfig{"UnknownKeyNearNone", "[eval]\nfoo = 1\n",
              "run.toml:2: unknown key 'eval.foo' (known in [eval]: every_steps, patience, patience_metric)"},
    BadConfig{"UnknownTable", "\n[optimiser]\nlr = 1\n",
              "run.toml:2: unknown table [optimiser] (did you mean 'optimizer'?)"},
    BadConfig{"KeyOutsideATable", "train = 3\n",
              "run.toml:1: 'train' is a table: write [train] and its keys below"},
    BadConfig{"TextForNumber", "[train]\nepochs = \"ten\"\n",
              "run.toml:2: train.epochs: expected whole number, found text 'ten'"},
    BadConfig{"FractionForWhole", "[train]\nepochs = 1.5\n",
              "run.toml:2: train.epochs: expected whole number, found number 1.5"},
    BadConfig{"NumberForText", "[run]\nname = 7\n",
              "run.toml:2: run.name: expected text, found whole number 7"},
    BadConfig{"NumberForSwitch", "[optimizer]\nnesterov = 1\n",
              "run.toml:2: optimizer.nesterov: expected true or false, found whole number 1"},
    BadConfig{"TableForNumber", "[train.epochs]\na = 1\n",
              "run.toml:1: train.epochs: expected whole number, found a table"},
    BadConfig{"ListOfText", "[model]\nhidden = [\"a\"]\n",
              "run.toml:2: model.hidden: expected list of whole numbers, found a list"},
    BadConfig{"BelowLeast", "[train]\nepochs = 0\n",
              "run.toml:2: train.epochs = 0 is out of range: at least 1"},
    BadConfig{"NotAbove", "[optimizer]\nlr = 0\n", "run.toml:2: optimizer.lr = 0.0 is out of range: above 0"},
    BadConfig{"NotBelow", "[optimizer]\nmomentum = 1\n",
              "run.toml:2: optimizer.momentum = 1.0 is out of range: at least 0, below 1"},
    BadConfig{"NotFinite", "[optimizer]\nlr = inf\n", "run.toml:2: optimizer.lr = inf is no finite number"},
    BadConfig{"ElementOutOfRange", "[model]\nhidden = [8, 0]\n",
              "run.toml:2: model.hidden = [8, 0] is out of range: at least 1"},
    BadConfig{"NameThatLeavesTheFolder", "[run]\nname = \"../a\"\n",
              "run.toml:2: run.name = \"../a\" is out of range: not empty, without '/', printable"},
    BadConfig{"UnknownChoice", "[optimizer]\nname = \"addamw\"\n",
              "run.toml:2: optimizer.name = \"addamw\" is not known (did you mean 'adamw'?)"},
    BadConfig{"UnknownPrecision", "[train]\nprecision = \"int4\"\n",
              "run.toml:2: train.precision = \"int4\" is not known (known: fp32, bf16, fp16)"},
    BadConfig{"SameKeyTwice", "[run]\nseed = 1\nseed = 2\n",
              "run.toml:3: Error while parsing key-value pair: cannot redefine existing integer 'seed'"},
    BadConfig{"NotToml", "[run]\nname = a\n",
              "run.toml:2: Error while parsing value: could not determine value type"}};

TEST(RunConfig, WrongFileIsRejectedWithCure) {
  for (const BadConfig& bad : kBadConfigs)
    EXPECT_EQ(ConfigFile(bad.content).error(), bad.message) << bad.name;
}

// A configuration may be untrusted.
TEST(SecurityRunConfig, ANameIsOnePrintablePathComponent) {
  for (const std::string name : {"", ".", "..", "a/b", "/tmp/a", "a\nb", "a\tb", "\x1b[2Ja", "a\x7f",
                                 "a\xc2\x9b", "a\xe2\x80\xae", "a\xff"}) {
    RunConfig config;
    config.run.name = name;
    EXPECT_THAT([&] { check_run_config(config, 1); },
                ThrowsMessage<InvalidArgument>(HasSubstr("run.name = ")))
        << name;
  }
  for (const std::string name : {"a", "..a",
                                 "gr\xc3\xb6\xc3\x9f"
                                 "e 1",
                                 "a\\b", "\xe5\xae\x9f\xe9\xa8\x93", "it's \"this\""}) {
    RunConfig config;
    config.run.name = name;
    config.data.name = "synthetic";
    EXPECT_NO_THROW(check_run_config(config, 1)) << name;
  }
}

TEST(SecurityRunConfig, RejectsFileBeyondItsLimit) {
  const std::string most((4 << 20) - 1, '#');
  EXPECT_NO_THROW(ConfigFile(most + '\n').load());
  EXPECT_THAT([&] { ConfigFile(most + "\n\n").load(); },
              ThrowsMessage<DataError>(HasSubstr("is not a configuration: it has more than 4194304 bytes")));
  const ConfigFile file("");
  std::filesystem::remove(file.path());
  std::filesystem::create_symlink("/dev/zero", file.path());
  EXPECT_THAT([&] { file.load(); }, ThrowsMessage<DataError>(HasSubstr("more than 4194304 bytes")));
}

TEST(SecurityRunConfig, TraceFilesStayBelowRunFolder) {
  for (const char* key : {"run.trace", "run.timeline"}) {
    for (const char* path : {"/root/.ssh/authorized_keys", "..", "../a", "a/../../b", "a/..", ".", "./a",
                             "a//b", "a/", "a\\nb", "\\u001b[2J"}) {
      const std::string setting = text(key, " = \"", path, "\"");
      EXPECT_THAT([&] { parse_run_config(setting, "run.toml"); },
                  ThrowsMessage<InvalidArgument>(HasSubstr("a path below the folder")))
          << setting;
    }
    for (const char* path : {"", "trace.json", "traces/one/trace.json", "..json", "it's \\\"this\\\".json"})
      EXPECT_NO_THROW(parse_run_config(text(key, " = \"", path, "\""), "run.toml")) << path;
  }
}

TEST(RunConfig, BadOverrideIsQuoted) {
  const ConfigFile file("");
  EXPECT_EQ(file.error({"optimizer.lr=x"}),
            "--set optimizer.lr=x: optimizer.lr: expected number, found text 'x'");
  EXPECT_EQ(file.error({"optimizer.lr"}), "--set optimizer.lr: expected table.key=value");
  EXPECT_EQ(file.error({"train.max_steps=99999999999999999999"}),
            "--set train.max_steps=99999999999999999999: train.max_steps = 99999999999999999999 is beyond "
            "what a whole "
            "number holds, at most 9223372036854775807");
  EXPECT_EQ(file.error({"optimizerlr=1"}),
            "--set optimizerlr=1: unknown key 'optimizerlr' (did you mean 'optimizer.lr'?)");
  EXPECT_EQ(file.error({"run.seed=1\nb=2"}),
            "--set run.seed=1\nb=2: run.seed: expected whole number, found text '''1\nb=2'''");
}

TEST(RunConfig, RemovedKeysAcceptTheirDefaultOnly) {
  for (const RemovedKey& removed : removed_keys()) {
    const std::size_t dot = removed.name.find('.');
    const std::string table(removed.name.substr(0, dot)), key(removed.name.substr(dot + 1));
    const auto in_file = [&](double value) {
      return ConfigFile(text("[", table, "]\n", key, " = ", value, "\n")).error();
    };
    EXPECT_EQ(in_file(removed.without_effect), "no error");
    EXPECT_THAT(in_file(0.25), testing::HasSubstr(text(
                                   ":2: ", removed.name, " was removed, and is accepted with the value ",
                                   removed.without_effect, " alone; found number 0.25; ", removed.instead)));
    const ConfigFile file("");
    EXPECT_EQ(file.error({text(removed.name, "=", removed.without_effect)}), "no error");
    EXPECT_THAT(file.error({text(removed.name, "=0.25")}), testing::HasSubstr(removed.instead));
    EXPECT_THAT(file.error({text(removed.name, "=no")}), testing::HasSubstr("found text 'no'"));
  }
}

TEST(RunConfig, RemovedValuesNameTheirReplacement) {
  const std::string page = read_file(test::checkout("docs/configuration.md"));
  for (const RemovedValue& removed : removed_values()) {
    EXPECT_EQ(ConfigFile("").error({text(removed.key, "=", removed.value)}),
              text("--set ", removed.key, "=", removed.value, ": ", removed.key, " = \"", removed.value,
                   "\" was removed; ", removed.instead));
    EXPECT_THAT(page, testing::HasSubstr(
                          text("| `", removed.key, " = \"", removed.value, "\"` | ", removed.instead, " |")));
  }
  for (const RemovedKey& removed : removed_keys())
    EXPECT_THAT(page, testing::HasSubstr(text("| `", removed.name, "` | ", removed.instead, " |")));
}

TEST(RunConfig, RejectsKeyOfManyPartsUnparsed) {
  std::string key = "a";
  for (int i = 0; i < 3'000'000; ++i) key += ".a";
  try {
    parse_run_config("\n" + key + " = 1\n", "run.toml");
    ADD_FAILURE() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("run.toml:2: a key of more than 64 parts"));
  }
}

TEST(RunConfig, MissingFileIsADataError) { EXPECT_THROW(load_run_config("/nowhere/run.toml"), DataError); }

TEST(RunConfig, EveryKeyHasMeaningAndValidDefault) {
  for (const ConfigKeyInfo& key : config_keys()) {
    EXPECT_FALSE(key.meaning.empty()) << key.name;
    const ConfigFile file("");
    EXPECT_EQ(file.error({key.name + "=" + key.default_value}), "no error");
  }
}

TEST(RunConfig, DocumentationListsEveryKeyAsItIs) {
  const std::string page = read_file(test::checkout("docs/configuration.md"));
  for (const ConfigKeyInfo& key : config_keys()) {
    const std::string row = text("| `", key.name, "` | ", key.type, " | `", key.default_value, "` | ",
                                 key.allowed, " | ", key.meaning, " |");
    EXPECT_THAT(page, testing::HasSubstr(row));
  }
}

}  // namespace
}  // namespace trireme::train
