#pragma once
// Reads tests/golden/schedules.txt: published step programs of other projects.

#include <sstream>
#include <string>
#include <vector>

#include "tests/support/paths.h"
#include "trireme/base/files.h"
#include "trireme/schedule/schedule_table.h"

namespace trireme::schedule {

struct KnownProgram {
  std::string title;     ///< "gpipe 2 1 4 0 order pytorch"
  std::string schedule;  ///< a schedule name of Trireme, or "-"
  ScheduleOptions options;
  std::string content;
  std::string csv;
};

inline std::vector<KnownProgram> known_programs() {
  std::vector<KnownProgram> known;
  std::istringstream file(read_file(test::checkout("tests/golden/schedules.txt")));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    if (!line.starts_with("== ")) {
      known.back().csv += line + "\n";
      continue;
    }
    KnownProgram& program = known.emplace_back();
    program.title = line.substr(3);
    ScheduleOptions& options = program.options;
    std::istringstream(program.title) >> program.schedule >> options.num_ranks >> options.num_chunks >>
        options.num_microbatches >> options.group_size >> program.content;
  }
  return known;
}

}  // namespace trireme::schedule
