#pragma once
// The cause of a failure or a stall, from the evidence: one table of causes, each row with its test of the
// evidence. The first row that holds decides. Pure functions; thread-safe.

#include <span>
#include <string>
#include <vector>

#include "trireme/autopsy/evidence.h"

namespace trireme::autopsy {

struct Verdict {
  std::string cause = {};       ///< the name of a row: "killed"; empty: there is no failure
  bool shown_by_work = false;   ///< ranks at work show the same evidence for some time: an evaluation, a save
  std::vector<int> ranks = {};  ///< the failing ranks; several where they cannot be distinguished, as in a
                                ///< deadlock
  std::string summary = {};     ///< "rank 1 (pid 4711) was killed by SIGKILL, sent by another process"
  std::string action = {};      ///< of the first of the ranks: "step 12: 0B3"
  std::string operation = {};   ///< the last one of that rank
  std::vector<std::string> evidence = {};  ///< one sentence each
  std::string advice = {};
};

/// A row of the table, for its documentation and its tests.
struct CauseRow {
  std::string name;
  std::string meaning;  ///< of one line
};

/// In the order in which they are tried.
std::span<const CauseRow> causes();

/// The first row of the table that the evidence shows; an empty verdict where none does.
Verdict judge(const Evidence& evidence);

/// The verdict as one paragraph without a newline; empty where there is no failure.
std::string paragraph(const Verdict& verdict);
/// As JSON, with the evidence.
std::string to_json(const Verdict& verdict, const Evidence& evidence);

}  // namespace trireme::autopsy
