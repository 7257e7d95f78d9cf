#pragma once
// One thing a rank does in a step, as data. Text form `<stage><kind><microbatch>`: 0F3, 2SEND_B1, and without
// a micro-batch where it belongs to the whole step: 0REDUCE_GRAD, 0STEP. Grammar: the pipeline schedules of
// PyTorch and torchtitan (torch.distributed.pipelining), extended by STEP. Pure values; thread-safe.

#include <compare>
#include <string>
#include <string_view>

namespace trireme::schedule {

enum class ActionKind {
  kForward,     ///< F
  kBackward,    ///< B: gradient of input and weights
  kReduceGrad,  ///< REDUCE_GRAD: the gradients of the stage are summed over its replicas
  kStep,        ///< STEP: the optimizer updates the stage
};

struct Action {
  static constexpr int kNoMicrobatch = -1;

  int stage = 0;
  ActionKind kind = ActionKind::kForward;
  int microbatch = kNoMicrobatch;

  auto operator<=>(const Action&) const = default;
};

/// True for kinds that work on one micro-batch.
bool has_microbatch(ActionKind kind);

std::string to_text(const Action& action);

/// Throws InvalidArgument that quotes the token and says what a token looks like.
Action parse_action(std::string_view token);

}  // namespace trireme::schedule
