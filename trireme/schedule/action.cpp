#include "trireme/schedule/action.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "trireme/base/error.h"

namespace trireme::schedule {
namespace {

struct KindRow {
  ActionKind kind;
  std::string_view word;
  bool has_microbatch;
};

constexpr std::array kKinds{
    KindRow{ActionKind::kForward, "F", true},
    KindRow{ActionKind::kBackward, "B", true},
    KindRow{ActionKind::kBackwardInput, "I", true},
    KindRow{ActionKind::kBackwardWeight, "W", true},
    KindRow{ActionKind::kSendForward, "SEND_F", true},
    KindRow{ActionKind::kReceiveForward, "RECV_F", true},
    KindRow{ActionKind::kSendBackward, "SEND_B", true},
    KindRow{ActionKind::kReceiveBackward, "RECV_B", true},
    KindRow{ActionKind::kUnshard, "UNSHARD", false},
    KindRow{ActionKind::kReshard, "RESHARD", false},
    KindRow{ActionKind::kReduceGrad, "REDUCE_GRAD", false},
    KindRow{ActionKind::kRecompute, "RECOMPUTE", true},
    KindRow{ActionKind::kStep, "STEP", false},
    KindRow{ActionKind::kIdle, "", false},
};

constexpr std::string_view kOverlap = "OVERLAP_F_B";
constexpr std::string_view kBatch = "BATCH";

const KindRow& row_of(ActionKind kind) {
  return *std::find_if(kKinds.begin(), kKinds.end(), [&](const KindRow& row) { return row.kind == kind; });
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Removes the number at the front of `rest`; false if there is none or it overflows.
bool take_number(std::string_view& rest, int& number) {
  const auto end = std::find_if_not(rest.begin(), rest.end(), is_digit);
  const auto length = static_cast<std::size_t>(end - rest.begin());
  const auto result = std::from_chars(rest.data(), rest.data() + length, number);
  if (length == 0 || result.ec != std::errc()) return false;
  rest.remove_prefix(length);
  return true;
}

[[noreturn]] void refuse(std::string_view token) {
  throw InvalidArgument(
      text("'", token,
           "' is not an action; expected STAGE, then F, B, I, W, RECOMPUTE, SEND_F, RECV_F, "
           "SEND_B or RECV_B with a micro-batch (0F3, 1SEND_B0), or UNSHARD, RESHARD, "
           "REDUCE_GRAD or STEP (0STEP), or actions that run together: "
           "(0F3;1B0)OVERLAP_F_B, (0SEND_F3;0RECV_B1)BATCH"));
}

/// `word`, after the brackets, defines which actions may be inside them.
void check_joined(const std::vector<Action>& actions, std::string_view word, std::string_view token) {
  if (word == kOverlap) {
    require(actions.size() == 2 && actions[0].kind == ActionKind::kForward &&
                makes_input_gradient(actions[1].kind),
            "'", token, "' does not overlap a forward with a backward; expected (0F3;1B0)OVERLAP_F_B");
  } else if (word == kBatch) {
    const auto transfers = [](const Action& action) { return is_transfer(action.kind); };
    require(actions.size() >= 2 && std::all_of(actions.begin(), actions.end(), transfers), "'", token,
            "' is not a batch of transfers; expected SEND_F, RECV_F, SEND_B and RECV_B, two or more: "
            "(0SEND_F3;0RECV_B1)BATCH");
  } else {
    refuse(token);
  }
}

}  // namespace

bool has_microbatch(ActionKind kind) { return row_of(kind).has_microbatch; }

bool is_compute(ActionKind kind) {
  return kind == ActionKind::kForward || kind == ActionKind::kBackwardWeight || makes_input_gradient(kind);
}

bool makes_input_gradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
}

bool makes_weight_gradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardWeight;
}

bool is_send(ActionKind kind) {
  return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward;
}

bool is_receive(ActionKind kind) {
  return kind == ActionKind::kReceiveForward || kind == ActionKind::kReceiveBackward;
}

std::string to_text(const Action& action) {
  if (action.kind == ActionKind::kIdle) return "";
  const KindRow& row = row_of(action.kind);
  std::string result = std::to_string(action.stage) + std::string(row.word);
  if (row.has_microbatch) result += std::to_string(action.microbatch);
  return result;
}

Action parse_action(std::string_view token) {
  std::string_view rest = token;
  Action action;
  if (!take_number(rest, action.stage)) refuse(token);
  const auto word_end = std::find_if(rest.begin(), rest.end(), is_digit);
  const std::string_view word = rest.substr(0, static_cast<std::size_t>(word_end - rest.begin()));
  const auto row =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const KindRow& r) { return r.word == word; });
  if (word.empty() || row == kKinds.end()) refuse(token);
  action.kind = row->kind;
  rest.remove_prefix(word.size());
  if (row->has_microbatch && !take_number(rest, action.microbatch)) refuse(token);
  if (!rest.empty()) refuse(token);
  return action;
}

std::vector<Cell> cells_of(const std::vector<Action>& actions) {
  std::vector<Cell> cells;
  for (std::size_t begin = 0; begin < actions.size();) {
    std::size_t end = begin;
    while (end + 1 < actions.size() && actions[end].joined) ++end;
    cells.push_back(Cell(actions).subspan(begin, end + 1 - begin));
    begin = end + 1;
  }
  return cells;
}

std::string to_text(Cell cell) {
  if (cell.size() == 1) return to_text(cell.front());
  std::string result;
  for (const Action& action : cell) result += (result.empty() ? "(" : ";") + to_text(action);
  return result + ")" + std::string(is_compute(cell.front().kind) ? kOverlap : kBatch);
}

std::vector<Action> parse_cell(std::string_view token) {
  if (token.empty()) return {{.kind = ActionKind::kIdle}};
  if (token.front() != '(') return {parse_action(token)};
  const std::size_t close = token.find(')');
  if (close == std::string_view::npos) refuse(token);
  std::vector<Action> actions;
  for (const std::string& part : split(token.substr(1, close - 1), ';')) {
    actions.push_back(parse_action(trim(part)));
    actions.back().joined = true;
  }
  actions.back().joined = false;
  check_joined(actions, token.substr(close + 1), token);
  return actions;
}

}  // namespace trireme::schedule
