// Conflicts between features of a plan follow from the requirements and limits of each feature.
#include "trireme/train/plan/internal/conflicts.h"

#include <gmock/gmock.h>

#include <set>

#include "tests/support/paths.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/text.h"

namespace trireme::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

std::string table_of_conflicts() {
  std::string table = "| feature | requires | conflicts with |\n| --- | --- | --- |\n";
  std::string row, last;
  for (const Conflict& conflict : all_conflicts()) {
    row = text("| ", conflict.needing, " | ", conflict.need, " | ");
    table += row == last ? "; " : last.empty() ? row : text(" |\n", row);
    table += text(conflict.lacking, ": ", conflict.lack);
    last = row;
  }
  return table + " |\n";
}

TEST(Conflicts, AreThoseOfTheDocumentation) {
  const std::string page = read_file(test::checkout("docs/hybrid.md"));
  EXPECT_THAT(page, HasSubstr(table_of_conflicts())) << "the table of docs/hybrid.md is to be\n"
                                                     << table_of_conflicts();
}

TEST(Conflicts, NameFeaturesRequirementAndReasons) {
  RunConfig config;
  config.parallel.mode = "ps";
  config.parallel.tensor = 2;
  config.train.clip_norm = 0;
  EXPECT_THAT(
      [&] { resolve_plan(config, 4); },
      ThrowsMessage<InvalidArgument>(AllOf(
          HasSubstr(
              "parallel.mode = \"ps\" needs unsharded layers on each rank (each rank with a parameter server "
              "computes whole layers); parallel.tensor = 2: it shards layers; leave one of the two out"),
          HasSubstr("the nearest plan that works on 4 ranks: parallel.tensor = 1"))));
}

TEST(Conflicts, ComeFromFeaturesThatAreOn) {
  RunConfig config;
  config.parallel.zero = 3;
  config.train.ema_decay = 0.9;
  EXPECT_NO_THROW(resolve_plan(config, 2));
  const ParallelPlan plan = resolve_plan(config, 2);
  EXPECT_TRUE(lacks(plan, Property::kReplicatedState));
  EXPECT_FALSE(lacks(plan, Property::kWholeLayers));
}

TEST(Conflicts, NoFeatureConflictsWithItself) {
  for (const Conflict& conflict : all_conflicts())
    EXPECT_NE(conflict.needing, conflict.lacking) << conflict.need;
}

}  // namespace
}  // namespace trireme::train
