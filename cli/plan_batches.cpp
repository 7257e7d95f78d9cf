#include "cli/plan_batches.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include "cli/quantities.h"
#include "cli/text_table.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;
using train::BatchChoice;
using train::BatchChoices;

std::string rate_of(const BatchChoice& batch) { return text(std::llround(batch.plan.samples_per_s())); }

void print_fastest(const BatchChoices& found, std::int64_t configured, int world_size) {
  const BatchChoice& best = found.fastest();
  std::cout << "\nfastest by the time of a sample: train.global_batch = " << best.global_batch << ", "
            << rate_of(best) << " samples/s, " << train::in_words(best.plan.config, world_size) << "\n";
  const auto own = std::ranges::find(found.batches, configured, &BatchChoice::global_batch);
  if (own != found.batches.end() && best.global_batch != configured)
    std::cout << "the batch of the file, " << configured << ": " << rate_of(*own) << " samples/s\n";
  if (best.global_batch == configured) return;
  std::cout
      << "warning: another batch changes the training. Choose the learning rate and the number of steps "
         "for it;\ntrireme find-batch measures how many samples it needs. The plan for it:\n"
      << "  --set train.global_batch=" << best.global_batch << "\n";
}

}  // namespace

void print_batches(const BatchChoices& found, std::int64_t configured, int world_size) {
  TextTable table{.columns = {Align::kRight, Align::kRight, Align::kRight, Align::kRight, Align::kLeft},
                  .rows = {{"batch", "step ms", "samples/s", "memory", "plan"}}};
  for (const BatchChoice& batch : found.batches)
    table.rows.push_back({text(batch.global_batch), in_ms(batch.plan.step_s), rate_of(batch),
                          in_bytes(batch.plan.memory_bytes), train::in_words(batch.plan.config, world_size)});
  cli::print(std::cout, table);
  if (found.first_too_large > 0) {
    const train::PlannedStep& smallest = found.without_fit.too_large.front();
    std::cout << found.first_too_large << " and more: no plan "
              << (found.is_complete ? "" : "of those tried ") << "fits; the smallest "
              << train::why_not(smallest, smallest, found.without_fit.limit_bytes) << "\n";
  }
  if (!found.is_complete)
    std::cout << "incomplete: a limit ended the search, so larger batches and faster plans may be missing\n";
  print_fastest(found, configured, world_size);
  std::cout << std::flush;
}

ordered_json batches_as_json(const BatchChoices& found, std::int64_t configured, int world_size) {
  ordered_json batches = ordered_json::array();
  for (const BatchChoice& batch : found.batches) {
    ordered_json settings = ordered_json::object();
    for (const auto& [key, value] : batch.plan.settings) settings[key] = value;
    batches.push_back({{"global_batch", batch.global_batch},
                       {"step_s", batch.plan.step_s},
                       {"samples_per_s", batch.plan.samples_per_s()},
                       {"memory_bytes", batch.plan.memory_bytes},
                       {"memory_rank", batch.plan.memory_rank},
                       {"plan", train::in_words(batch.plan.config, world_size)},
                       {"settings", settings}});
  }
  return {{"ranks", world_size},
          {"configured", configured},
          {"fastest", found.fastest().global_batch},
          {"first_too_large", found.first_too_large},
          {"is_complete", found.is_complete},
          {"batches", batches}};
}

}  // namespace trireme::cli
