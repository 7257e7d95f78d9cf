#pragma once
// The schedules by name. One row per schedule in schedule_table.cpp: its name, its description, the placement
// of its stages on the ranks, and the function that makes its program. A row makes the order of computations;
// lower() in lowering.h adds the transfers and the update. Pure and thread-safe.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/schedule/costs.h"
#include "trireme/schedule/program.h"

namespace trireme::schedule {

struct ScheduleOptions {
  int num_ranks = 1;
  int num_chunks = 0;  ///< stages per rank; 0: the schedule's default
  int num_microbatches = 1;
  int group_size = 0;  ///< interleaved-1f1b: micro-batches before the next chunk's turn; 0: about num_ranks
  Costs costs = {};    ///< zb-1p, zb-2p, v-half, v-min: costs for the search; stages' costs alike
  double memory_limit = 0;  ///< the same: activations a rank may hold; 0: the schedule's own limit
  std::vector<int> replicas =
      {};                      ///< 1f1b-rr: ranks of each stage; empty: one each, the first takes the rest
  int update_every = 0;        ///< pipedream-2bw: micro-batches of an update; 0: num_ranks
  bool vertical_sync = false;  ///< pipedream, 1f1b-rr: the same weights on every stage of a micro-batch
};

/// Placement of stages on ranks 0 to p - 1.
enum class Placement {
  kLoop,        ///< stage s on rank s % p
  kV,           ///< two chunks: 0 to p - 1, then back from p - 1 to 0
  kBothWays,    ///< stage s on ranks s and p - 1 - s, one for each direction
  kReplicated,  ///< one stage after the other, on as many ranks as it has replicas
};

/// A schedule: its name, and how its program is made.
struct ScheduleRow {
  std::string_view name;
  std::string_view summary;
  Placement placement;
  int default_chunks;  ///< stages per rank
  bool chunks_can_change;
  Program (*make)(const ScheduleOptions&);
  bool asynchronous = false;  ///< never flushes: stages update while micro-batches are under way
  bool is_searched = false;   ///< `make` searches, for a time that grows with ranks and micro-batches
};

/// ScheduleOptions::replicas where they are empty. Pure.
std::vector<int> default_replicas(int num_ranks);

/// All rows, in the order of the table, and their names.
std::span<const ScheduleRow> schedules();
std::vector<std::string> schedule_names();

/// Throws InvalidArgument that suggests the nearest known name.
const ScheduleRow& find_schedule(std::string_view name);

/// The named schedule's program. Throws InvalidArgument when the options do not fit the schedule.
Program make_schedule(std::string_view name, const ScheduleOptions& options);

}  // namespace trireme::schedule
