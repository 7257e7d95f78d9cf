// All-reduce choices as text: for checkpoints, and for users.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "trireme/base/error.h"
#include "trireme/topology/all_reduce_choice.h"

namespace trireme::topology {
namespace {

constexpr const char* kForced = "forced";
constexpr const char* kMeasured = "measured";
constexpr const char* kOther = "other";  // in a comparison, among the names of algorithms
constexpr const char* kLanes = "lanes";
constexpr std::size_t kMaxComparisons = 64;

/// The shortest text that parses to the same number.
std::string exact(double number) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, number).ptr};
}

double number_from(const std::string& written) {
  double number = 0;
  const char* const end = written.data() + written.size();
  const auto [stop, error] = std::from_chars(written.data(), end, number);
  require(error == std::errc() && stop == end && std::isfinite(number) && number >= 0, "'", written,
          "' is no number of a choice of all-reduces: expected a finite one from 0 on");
  return number;
}

/// "1024 direct:0.01 other:0.02".
AllReduceChoice::Comparison comparison_from(const std::string& written) {
  std::istringstream in(written);
  std::string word;
  in >> word;
  AllReduceChoice::Comparison comparison{.bytes = number_from(word), .lists = {}};
  while (in >> word) {
    const std::size_t colon = std::min(word.find(':'), word.size());
    require(colon < word.size(), "'", word, "' in a choice of all-reduces has no ':'");
    const double seconds = number_from(word.substr(colon + 1));
    const std::string name = word.substr(0, colon);
    if (name == kOther) {
      comparison.other_s = seconds;
    } else {
      comparison.lists.push_back({parse_algorithm(name), seconds});
    }
  }
  require(comparison.bytes > 0 && !comparison.lists.empty(), "'", written,
          "' compares no all-reduces: expected a size and at least one algorithm");
  return comparison;
}

}  // namespace

std::string to_text(const AllReduceChoice& choice) {
  std::string written = text(choice.ranks, ' ');
  if (choice.forced) return text(written, kForced, ' ', name_of(*choice.forced));
  const MessageCost& cost = choice.cost;
  written += text(kMeasured, ' ', exact(cost.alpha_s), ' ', exact(cost.beta_s_per_byte), ' ',
                  exact(cost.gamma_s_per_byte));
  if (choice.lanes > 1) written += text(' ', kLanes, ' ', choice.lanes);
  for (const auto& comparison : choice.comparisons) {
    written += text("; ", exact(comparison.bytes));
    for (const Estimate& each : comparison.lists)
      written += text(' ', name_of(each.algorithm), ':', exact(each.seconds));
    if (comparison.other_s) written += text(' ', kOther, ':', exact(*comparison.other_s));
  }
  return written;
}

AllReduceChoice all_reduce_choice_from(const std::string& written) {
  const std::vector<std::string> parts = split(written, ';');
  std::istringstream in(parts.front());
  AllReduceChoice choice;
  std::string how, alpha, beta, gamma;
  in >> choice.ranks >> how >> alpha >> beta >> gamma;
  require(choice.ranks >= 1 && (how == kForced || how == kMeasured), "'", written,
          "' is no choice of all-reduces: expected a number of ranks, then ", kForced, " or ", kMeasured);
  if (how == kForced) {
    choice.forced = parse_algorithm(alpha);
  } else {
    choice.cost = {number_from(alpha), number_from(beta), number_from(gamma)};
    std::string lanes;
    if (in >> lanes && lanes == kLanes) in >> choice.lanes;
    require(choice.lanes >= 1 && choice.lanes <= kMaxLanes, "a choice of all-reduces over ", choice.lanes,
            " connections between any two: expected 1 to ", kMaxLanes);
    require(parts.size() <= kMaxComparisons, "a choice of all-reduces compares ", parts.size() - 1,
            " sizes; expected at most ", kMaxComparisons - 1);
    for (std::size_t i = 1; i < parts.size(); ++i) choice.comparisons.push_back(comparison_from(parts[i]));
  }
  require(to_text(choice) == written, "'", written, "' is no choice of all-reduces: it reads as '",
          to_text(choice), "'");
  return choice;
}

std::string describe(const AllReduceChoice& choice, const std::string& other) {
  constexpr double kLeast = 4, kMost = 1 << 30;
  const auto name = [&](double bytes) {
    const auto algorithm = choice.of(bytes);
    return algorithm ? name_of(*algorithm) : other;
  };
  std::string said, now = name(kLeast);
  for (double bytes = 2 * kLeast; bytes <= kMost; bytes *= 2) {
    const std::string next = name(bytes);
    if (next == now) continue;
    said += text(now, " below ", human_bytes(static_cast<std::uint64_t>(bytes)), ", ");
    now = next;
  }
  const std::string lanes =
      choice.lanes > 1 ? text("; ", choice.lanes, " connections between any two") : std::string();
  return said.empty() ? now + lanes : text(said, now, " above", lanes);
}

}  // namespace trireme::topology
