#pragma once
// One action of a rank in a step, as data. Text form `<stage><kind><microbatch>`: 0F3, 2SEND_B1, and without
// a micro-batch where it belongs to the whole step: 0REDUCE_GRAD, 0STEP. Actions that run together are in
// brackets: (0F3;7B1)OVERLAP_F_B for two computations, (0SEND_F3;0RECV_B1)BATCH for transfers that are
// started as one. An empty text is an idle slot. Grammar: the pipeline schedules of PyTorch and torchtitan
// (torch.distributed.pipelining), extended by RECOMPUTE, STEP and BATCH. Pure values; thread-safe.

#include <compare>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::schedule {

/// Kinds of actions, with their letters in the text form.
enum class ActionKind {
  kForward,          ///< F
  kBackward,         ///< B: gradient of input and weights
  kBackwardInput,    ///< I: gradient of the input alone
  kBackwardWeight,   ///< W: gradient of the weights alone, after I
  kSendForward,      ///< SEND_F: the stage's output goes to the next stage
  kReceiveForward,   ///< RECV_F: the stage's input comes from the stage before
  kSendBackward,     ///< SEND_B: the gradient of the stage's input goes to the stage before
  kReceiveBackward,  ///< RECV_B: the gradient of the stage's output comes from the next stage
  kUnshard,          ///< UNSHARD: the whole weights of the stage are gathered
  kReshard,          ///< RESHARD: frees the weights of UNSHARD
  kReduceGrad,       ///< REDUCE_GRAD: the gradients of the stage are summed over its replicas
  kRecompute,        ///< RECOMPUTE: the forward runs again for activations that were not kept
  kStep,             ///< STEP: the optimizer updates the stage
  kIdle,             ///< empty: nothing; a slot of a table in which every action takes one
};

struct Action {
  static constexpr int kNoMicrobatch = -1;

  int stage = 0;
  ActionKind kind = ActionKind::kForward;
  int microbatch = kNoMicrobatch;
  bool joined = false;  ///< runs together with the action after it

  // A false alarm of clang-tidy 14: it takes the 0 that comparisons are rewritten to for a pointer.
  auto operator<=>(const Action&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// True for kinds that work on one micro-batch.
bool has_microbatch(ActionKind kind);

/// F, B, I, W: actions that occupy the rank and depend on other stages.
bool is_compute(ActionKind kind);

/// B or I: actions that make the gradient of the stage's input. B or W: actions that make that of its
/// weights.
bool makes_input_gradient(ActionKind kind);
bool makes_weight_gradient(ActionKind kind);

/// SEND_F, SEND_B, RECV_F, RECV_B.
bool is_send(ActionKind kind);
bool is_receive(ActionKind kind);
inline bool is_transfer(ActionKind kind) { return is_send(kind) || is_receive(kind); }

/// The text of the action by itself, without joined ones.
std::string to_text(const Action& action);

/// Throws InvalidArgument that quotes the token and describes a valid one.
Action parse_action(std::string_view token);

/// Actions that run together; most cells hold one. A view into a rank's list.
using Cell = std::span<const Action>;

/// A rank's list cut into cells. The list must outlive them.
std::vector<Cell> cells_of(const std::vector<Action>& actions);

/// "0F3", "(0F3;7B1)OVERLAP_F_B", "(0SEND_F3;0RECV_B1)BATCH", "" for an idle slot.
std::string to_text(Cell cell);

/// The inverse of to_text. Throws InvalidArgument like parse_action.
std::vector<Action> parse_cell(std::string_view token);

}  // namespace trireme::schedule
