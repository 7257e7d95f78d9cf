#include "cli/plan_fit.h"

#include <algorithm>
#include <iostream>

#include "cli/quantities.h"
#include "cli/text_table.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

using nlohmann::ordered_json;
using train::PlannedStep;
using train::WayToFit;

std::int64_t missing_bytes(const PlannedStep& plan, const train::PlanSearch& search) {
  return std::max<std::int64_t>(0, plan.memory_bytes - search.limit_bytes);
}

std::int64_t freed_bytes(const PlannedStep& plan, const train::PlanSearch& search) {
  return search.too_large.front().memory_bytes - plan.memory_bytes;
}

std::string missing_in_words(const PlannedStep& plan, const train::PlanSearch& search) {
  return text(in_bytes(missing_bytes(plan, search)), " on rank ", plan.memory_rank);
}

void print_table_of_ways(const FoundPlans& found, int world_size) {
  TextTable table{
      .columns = {Align::kRight, Align::kRight, Align::kRight, Align::kLeft, Align::kLeft, Align::kLeft},
      .rows = {{"step ms", "memory", "frees", "change", "plan", "missing"}}};
  for (const WayToFit& way : found.ways)
    table.rows.push_back({text(way.is_time_known ? "" : "> ", in_ms(way.plan.step_s)),
                          in_bytes(way.plan.memory_bytes),
                          in_bytes(std::max<std::int64_t>(0, freed_bytes(way.plan, found.search))),
                          train::in_words(way, world_size), train::in_words(way.plan.config, way.world_size),
                          way.fits ? "nothing" : missing_in_words(way.plan, found.search)});
  cli::print(std::cout, table);
  if (!std::ranges::all_of(found.ways, &WayToFit::is_time_known))
    std::cout << ">: without the time of disks, which is not estimated\n";
}

}  // namespace

void print_ways(const FoundPlans& found, int world_size) {
  const train::PlanSearch& search = found.search;
  const PlannedStep& smallest = search.too_large.front();
  std::cout << "\nno plan " << (search.is_complete ? "" : "of those tried ") << "fits into "
            << in_bytes(search.limit_bytes) << " per rank; the smallest, "
            << train::in_words(smallest.config, world_size) << ", needs " << in_bytes(smallest.memory_bytes)
            << " on rank " << smallest.memory_rank << ", " << in_bytes(missing_bytes(smallest, search))
            << " more\n";
  if (found.bare_bytes >= search.limit_bytes) {
    std::cout << "A rank's process needs " << in_bytes(found.bare_bytes)
              << " without tensors, so that no change makes it fit: give it more memory (--memory)\n";
    return;
  }
  const bool any_fits = std::ranges::any_of(found.ways, &WayToFit::fits);
  std::cout << "\n"
            << (any_fits ? "changes that make it fit, the cheapest first"
                         : "no change that was tried makes it fit")
            << "\n";
  if (!found.ways.empty()) print_table_of_ways(found, world_size);
  std::cout << "not estimated: offload.activations, a smaller model\n";
}

ordered_json ways_as_json(const FoundPlans& found, int world_size) {
  ordered_json ways = ordered_json::array();
  for (const WayToFit& way : found.ways) {
    ordered_json changes = ordered_json::object(), settings = ordered_json::object();
    for (const auto& [key, value] : way.changes) changes[key] = value;
    for (const auto& [key, value] : way.plan.settings) settings[key] = value;
    ways.push_back({{"change", train::in_words(way, world_size)},
                    {"ranks", way.world_size},
                    {"changes", changes},
                    {"left_out", way.left_out},
                    {"plan", train::in_words(way.plan.config, way.world_size)},
                    {"settings", settings},
                    {"step_s", way.plan.step_s},
                    {"is_time_known", way.is_time_known},
                    {"fits", way.fits},
                    {"memory_bytes", way.plan.memory_bytes},
                    {"memory_rank", way.plan.memory_rank},
                    {"freed_bytes", freed_bytes(way.plan, found.search)},
                    {"missing_bytes", missing_bytes(way.plan, found.search)}});
  }
  return ways;
}

}  // namespace trireme::cli
