#pragma once
// The table of causes: its rows in order. A row returns nothing where the evidence does not show its cause.

#include <optional>
#include <span>
#include <string>

#include "trireme/autopsy/internal/case.h"
#include "trireme/autopsy/verdict.h"

namespace trireme::autopsy {

using RowTest = std::optional<Verdict> (*)(const Case&);

struct Row {
  const char* name;
  const char* meaning;
  RowTest test;
  bool shown_by_work = false;  ///< ranks at work show the same evidence for some time
};

std::span<const Row> rows();

// Of ranks that ended.
std::optional<Verdict> told_to_stop(const Case& about);
std::optional<Verdict> out_of_group_memory(const Case& about);
std::optional<Verdict> out_of_host_memory(const Case& about);
std::optional<Verdict> killed(const Case& about);
std::optional<Verdict> mismatched(const Case& about);
std::optional<Verdict> threw(const Case& about);
std::optional<Verdict> crashed(const Case& about);
std::optional<Verdict> lost_contact(const Case& about);
// Of ranks without progress.
std::optional<Verdict> stopped(const Case& about);
std::optional<Verdict> cut_off(const Case& about);
std::optional<Verdict> swapping(const Case& about);
std::optional<Verdict> starved(const Case& about);
std::optional<Verdict> waits_for_data(const Case& about);
std::optional<Verdict> waits_for_disk(const Case& about);
std::optional<Verdict> in_a_cycle(const Case& about);
std::optional<Verdict> never_entered(const Case& about);

/// "rank 1 (pid 4711)", with the host where there are several.
std::string name_of(const RankEvidence& rank, const Case& about);
/// "rank 1" or "ranks 0, 2 and 3".
std::string names_of(const std::vector<int>& ranks);

}  // namespace trireme::autopsy
