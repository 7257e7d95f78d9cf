#include "trireme/ps/internal/coordinator_log.h"

#include <gtest/gtest.h>

#include "tests/support/simulated_disk.h"
#include "trireme/base/error.h"
#include "trireme/wire/fields.h"

namespace trireme::ps {
namespace {

MapChange change_to(MapVersion to) {
  MapChange change = {.from = to - 1, .to = to, .servers = {}, .workers = {}, .tables = {}, .partitions = {}};
  change.num_partitions = 4;
  change.partitions[static_cast<PartitionId>(to % 4)].epoch = to;
  return change;
}

TEST(CoordinatorLog, RecoversSyncedMapAfterAnyCrash) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    test::SimulatedDisk disk(Random(seed, 1));
    MapVersion safe = 0;
    // Of the last change: it was not acknowledged and may or may not be in the log.
    bool was_rejected = false;
    for (int life = 0; life < 4; ++life) {
      CoordinatorLog log(disk);
      ClusterMap map = log.load();
      ASSERT_TRUE(map.version == safe || (was_rejected && map.version == safe + 1))
          << "seed " << seed << ": version " << map.version << " instead of " << safe;
      safe = map.version;
      for (std::uint64_t i = random.below(300); i > 0; --i) {
        const MapChange change = change_to(map.version + 1);
        ClusterMap next = map;
        next.apply(change);
        if (random.below(20) == 0) disk.fail_next(1);
        try {
          log.append(change, next);
        } catch (const DataError&) {
          was_rejected = true;
          continue;  // the same again
        }
        was_rejected = false;
        map = next;
        safe = map.version;
      }
      // A change that is being written when the power fails.
      disk.append("map.log", std::vector<std::byte>(random.below(60), std::byte{7}));
      disk.crash();
    }
  }
}

TEST(CoordinatorLog, RejectsASnapshotThatIsDamaged) {
  test::SimulatedDisk disk(Random(1));
  ClusterMap map;
  {
    CoordinatorLog log(disk);
    map = log.load();
    map.apply(change_to(1));
    log.append(change_to(1), map);
  }
  CoordinatorLog(disk).load();  // writes the snapshot
  std::vector<std::byte> bytes = *disk.read("map.snapshot");
  bytes.back() ^= std::byte{1};
  disk.replace("map.snapshot", bytes);
  EXPECT_THROW(CoordinatorLog(disk).load(), DataError);
}

}  // namespace
}  // namespace trireme::ps
