#include "trireme/schedule/schedule_table.h"

#include <algorithm>
#include <array>

#include "trireme/base/error.h"
#include "trireme/schedule/internal/generators.h"

namespace trireme::schedule {
namespace {

constexpr auto kLoop = Placement::kLoop;
constexpr auto kV = Placement::kV;
constexpr auto kBothWays = Placement::kBothWays;

constexpr std::array kSchedules{
    ScheduleRow{"naive", "one micro-batch in flight: model parallelism without a pipeline", kLoop, 1, false,
                naive},
    ScheduleRow{"gpipe", "all forwards, then all backwards", kLoop, 1, false, gpipe},
    ScheduleRow{"1f1b", "one forward, one backward: GPipe's bubble, memory of p micro-batches", kLoop, 1,
                false, one_f_one_b},
    ScheduleRow{"interleaved-1f1b", "1f1b over v chunks per rank: a v-th of the bubble, more messages", kLoop,
                2, true, interleaved_one_f_one_b},
    ScheduleRow{"looped-bfs", "all micro-batches of a chunk, then the next chunk; breadth first", kLoop, 2,
                true, looped_bfs},
    ScheduleRow{"zb-h1", "1f1b with W split off: a third of its bubble, in its memory", kLoop, 1, false,
                zero_bubble_h1},
    ScheduleRow{"zb-h2", "the same with twice the warm-up and twice the memory: nearly no bubble", kLoop, 1,
                false, zero_bubble_h2},
    ScheduleRow{"zb-1p", "searched with given times, in the memory of p micro-batches", kLoop, 1, false,
                zero_bubble_1p, false, true},
    ScheduleRow{"zb-2p", "searched with given times, in the memory of 2p micro-batches", kLoop, 1, false,
                zero_bubble_2p, false, true},
    ScheduleRow{"interleaved-zb", "interleaved 1f1b with W split off", kLoop, 2, true,
                interleaved_zero_bubble},
    ScheduleRow{"zb-v", "zero bubble in 1f1b's memory where F, I and W take alike", kV, 2, false,
                zero_bubble_v},
    ScheduleRow{"v-half", "searched, in half of 1f1b's memory", kV, 2, false, v_half, false, true},
    ScheduleRow{"v-min", "searched, in a third of 1f1b's memory", kV, 2, false, v_min, false, true},
    ScheduleRow{"dualpipe", "both ends at once, forward and backward overlapped; two copies of the model",
                kBothWays, 1, false, dualpipe},
    ScheduleRow{"dualpipe-v", "dualpipe folded into a V; one copy of the model", kV, 2, false, dualpipe_v},
    ScheduleRow{"pipedream", "never flushes: a step after each backward, weights stashed", kLoop, 1, false,
                pipedream, true},
    ScheduleRow{"pipedream-2bw",
                "never flushes: a step after every few backwards, two versions of the weights", kLoop, 1,
                false, pipedream_2bw, true},
    ScheduleRow{"1f1b-rr", "pipedream with several replicas of a stage, served in turn",
                Placement::kReplicated, 1, false, one_f_one_b_round_robin, true},
};

ScheduleOptions checked(const ScheduleRow& row, ScheduleOptions options) {
  require(options.num_ranks >= 1 && options.num_microbatches >= 1, "schedule '", row.name,
          "' needs at least 1 rank and 1 micro-batch, found ", options.num_ranks, " and ",
          options.num_microbatches);
  if (options.num_chunks == 0) options.num_chunks = row.default_chunks;
  require(options.num_chunks >= 1 && (row.chunks_can_change || options.num_chunks == row.default_chunks),
          "schedule '", row.name, "' has ", row.chunks_can_change ? "at least 1" : text(row.default_chunks),
          " chunk(s) per rank, found ", options.num_chunks);
  check_size(text("schedule '", row.name, "'"), options.num_ranks,
             std::int64_t{options.num_ranks} * options.num_chunks, options.num_microbatches);
  return options;
}

}  // namespace

std::span<const ScheduleRow> schedules() { return kSchedules; }

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const ScheduleRow& row : kSchedules) names.emplace_back(row.name);
  return names;
}

const ScheduleRow& find_schedule(std::string_view name) {
  const auto row = std::find_if(kSchedules.begin(), kSchedules.end(),
                                [&](const ScheduleRow& candidate) { return candidate.name == name; });
  require(row != kSchedules.end(), "unknown schedule '", name, "'", suggest(name, schedule_names()));
  return *row;
}

Program make_schedule(std::string_view name, const ScheduleOptions& options) {
  const ScheduleRow& row = find_schedule(name);
  Program program = row.make(checked(row, options));
  program.name = row.name;
  return program;
}

}  // namespace trireme::schedule
