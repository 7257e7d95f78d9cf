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
    KindRow{ActionKind::kReduceGrad, "REDUCE_GRAD", false},
    KindRow{ActionKind::kStep, "STEP", false},
};

const KindRow& row_of(ActionKind kind) {
  return *std::find_if(kKinds.begin(), kKinds.end(), [&](const KindRow& row) { return row.kind == kind; });
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Takes the digits at the front of `rest`; false when there are none or too many.
bool take_number(std::string_view& rest, int& number) {
  const auto end = std::find_if_not(rest.begin(), rest.end(), is_digit);
  const auto length = static_cast<std::size_t>(end - rest.begin());
  const auto result = std::from_chars(rest.data(), rest.data() + length, number);
  if (length == 0 || result.ec != std::errc()) return false;
  rest.remove_prefix(length);
  return true;
}

[[noreturn]] void refuse(std::string_view token) {
  throw InvalidArgument(text("'", token,
                             "' is not an action; expected STAGE, then F or B with a micro-batch ",
                             "(0F3, 1B0), or REDUCE_GRAD or STEP (0REDUCE_GRAD, 0STEP)"));
}

}  // namespace

bool has_microbatch(ActionKind kind) { return row_of(kind).has_microbatch; }

std::string to_text(const Action& action) {
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
  if (row == kKinds.end()) refuse(token);
  action.kind = row->kind;
  rest.remove_prefix(word.size());
  if (row->has_microbatch && !take_number(rest, action.microbatch)) refuse(token);
  if (!rest.empty()) refuse(token);
  return action;
}

}  // namespace trireme::schedule
