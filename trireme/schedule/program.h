#pragma once
// A step program: for each rank of a pipeline the list of actions of one step, in order. The same value is
// generated, validated, executed and printed. Plain data-parallel training is the program with one stage.
// A Program is a value; functions here are pure and thread-safe.

#include <string>
#include <string_view>
#include <vector>

#include "trireme/schedule/action.h"

namespace trireme::schedule {

struct Program {
  std::string name;  ///< "data-parallel", "1f1b"
  int num_stages = 1;
  int num_microbatches = 1;
  std::vector<std::vector<Action>> ranks;  ///< ranks[r]: what rank r of the pipeline does, in order
};

/// One stage, `num_microbatches` (at least 1) micro-batches: 0F0 0B0 0F1 0B1 ... 0REDUCE_GRAD 0STEP.
Program data_parallel(int num_microbatches);

/// One line per rank, tokens separated by a comma.
std::string to_csv(const Program& program);

/// Reads what to_csv wrote; stages and micro-batches are counted. Throws InvalidArgument with line and token.
Program parse_csv(std::string_view csv);

/// Proves that the program can run: every stage on one rank; each micro-batch forward once, then backward
/// once; gradients reduced once after the last backward of the stage; one STEP after that, nothing behind it.
/// Throws InvalidArgument that names rank, position and action. Milliseconds.
void validate(const Program& program);

}  // namespace trireme::schedule
