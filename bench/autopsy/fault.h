#pragma once
// The faults of bench_autopsy: which kinds there are, and how a rank is told about its own.

#include <string>

namespace trireme::bench {

struct RankArguments {
  std::string kind;
  int victim = 0;
  int step = 0;        ///< not before this one
  std::string folder;  ///< of this fault
  std::string disk;    ///< where the victim saves
};

int run_rank(const RankArguments& arguments);

}  // namespace trireme::bench
