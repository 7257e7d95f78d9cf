#include "trireme/schedule/internal/look.h"

#include <algorithm>
#include <array>
#include <iomanip>

#include "trireme/base/text.h"

namespace trireme::schedule {
namespace {

constexpr std::array kLooks{
    Look{ActionKind::kForward, "forward", "#7fb2e5", "#2f6fb0"},
    Look{ActionKind::kBackward, "backward", "#8fd19e", "#3c8f54"},
    Look{ActionKind::kBackwardInput, "input gradient", "#5fc3b6", "#23857a"},
    Look{ActionKind::kBackwardWeight, "weight gradient", "#f2c879", "#c58a1f"},
    Look{ActionKind::kRecompute, "recompute", "#c7b3e5", "#8464b8"},
    Look{ActionKind::kStep, "step", "#e58f8f", "#b34a4a"},
};

constexpr std::array kBeside{
    Look{ActionKind::kUnshard, "weights gathered", "#9aa5b1", "#9aa5b1"},
    Look{ActionKind::kReduceGrad, "gradients reduced", "#d9822b", "#d9822b"},
};

}  // namespace

std::span<const Look> looks() { return kLooks; }
std::span<const Look> looks_beside() { return kBeside; }

const Look* look_of(ActionKind kind) {
  const auto found =
      std::find_if(kLooks.begin(), kLooks.end(), [&](const Look& look) { return look.kind == kind; });
  return found == kLooks.end() ? nullptr : &*found;
}

std::string number(double value) {
  std::string digits = text(std::fixed, std::setprecision(2), value);
  digits.erase(digits.find_last_not_of('0') + 1);
  if (digits.back() == '.') digits.pop_back();
  return digits == "-0" ? "0" : digits;
}

std::string escaped(std::string_view plain) {
  std::string xml;
  for (const char c : plain) {
    switch (c) {
      case '&':
        xml += "&amp;";
        break;
      case '<':
        xml += "&lt;";
        break;
      case '>':
        xml += "&gt;";
        break;
      case '"':
        xml += "&quot;";
        break;
      default:
        xml += c;
    }
  }
  return xml;
}

std::string counted(double count, std::string_view what, std::string_view plural) {
  return text(number(count), " ", what, count == 1 ? "" : plural);
}

std::string percent(double share) { return number(100 * share) + "%"; }

}  // namespace trireme::schedule
