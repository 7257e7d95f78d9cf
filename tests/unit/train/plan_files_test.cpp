// Untrusted files with plans and measurements.
#include <gmock/gmock.h>

#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/unit/train/known_costs.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/train/planner/planned_keys.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

TEST(SecurityPlanFiles, AcceptOnlyKeysOfPlan) {
  for (const char* foreign : {"folder = \"/etc\"", "\"name=x\\u001b[2J\" = 1"})
    EXPECT_THAT([&] { parse_settings(text("[parallel]\nzero = 1\n[run]\n", foreign, "\n"), "plan.toml"); },
                ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("plan.toml: the key 'run."),
                                                     HasSubstr("is not one that a planner decides"),
                                                     Not(HasSubstr("\x1b")))));
}

TEST(SecurityPlanFiles, RejectScheduleBeyondItsLimit) {
  const test::TemporaryFolder folder;
  write_file_atomic(folder / "own.csv", "0F0,0B0\n");
  std::filesystem::resize_file(folder / "own.csv", (std::uint64_t{64} << 20) + 1);
  RunConfig config = config_of_four();
  config.parallel.pipeline = 2;
  config.parallel.schedule = (folder / "own.csv").string();
  EXPECT_THAT([&] { resolve_plan(config, 2); },
              ThrowsMessage<DataError>(HasSubstr("is not a schedule: it has more than 67108864 bytes")));
}

std::string written_with(const std::string& from, const std::string& to) {
  std::string changed = to_text({known_costs(config_of_four(), 2)});
  return changed.replace(changed.find(from), from.size(), to);
}

TEST(SecurityMeasurements, HaveWholeNumbersWhereTheyAreCounts) {
  for (const char* ranks : {"4294967297", "1e30", "1.5", "-1"})
    EXPECT_THAT(
        [&] { parse_measurements(written_with("\"ranks\": 2", text("\"ranks\": ", ranks)), "costs.json"); },
        ThrowsMessage<DataError>(AllOf(HasSubstr("costs.json: forms[0].exchanges.ranks"),
                                       HasSubstr("expected a whole number from 0 to"))))
        << ranks;
}

TEST(SecurityMeasurements, HaveCountableBytes) {
  Measurements huge = known_costs(config_of_four());
  std::vector<ParameterUse>& parameters = huge.costs.front().layers.front().parameters;
  for (int i = 0; i < 10; ++i) parameters.push_back({.name = "weight", .bytes = 900'000'000'000'000});
  EXPECT_THAT([&] { parse_measurements(to_text({huge}), "costs.json"); },
              ThrowsMessage<DataError>(AllOf(HasSubstr("costs.json: forms[0].costs"),
                                             HasSubstr("expected parameters of at most 1e+15 bytes"))));
}

}  // namespace
}  // namespace trireme::train
