#include "trireme/autopsy/verdict.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "trireme/autopsy/evidence_file.h"
#include "trireme/autopsy/internal/case.h"
#include "trireme/autopsy/internal/rows.h"
#include "trireme/base/printable.h"
#include "trireme/base/text.h"

namespace trireme::autopsy {
namespace {

/// Limit of the sentences of a verdict.
constexpr std::size_t kMaxSentences = 6;
/// Limit of the characters of an action or operation. A status page has fewer.
constexpr std::size_t kMaxPlace = 300;

void describe_place(Verdict& verdict, const Case& about) {
  if (verdict.ranks.empty()) return;
  const RankEvidence* rank = about.find(verdict.ranks.front());
  if (rank == nullptr) return;
  verdict.action = rank->action;
  verdict.operation = rank->operation;
  if (verdict.action.empty()) verdict.action = rank->own_work;
}

}  // namespace

Verdict judge(const Evidence& evidence) {
  const Case about(evidence);
  for (const Row& row : rows()) {
    if (std::optional<Verdict> found = row.test(about)) {
      found->cause = row.name;
      found->shown_by_work = row.shown_by_work;
      describe_place(*found, about);
      if (found->evidence.size() > kMaxSentences) found->evidence.resize(kMaxSentences);
      return *found;
    }
  }
  return {};
}

std::span<const CauseRow> causes() {
  static const std::vector<CauseRow> kCauses = [] {
    std::vector<CauseRow> result;
    for (const Row& row : rows()) result.push_back({row.name, row.meaning});
    return result;
  }();
  return kCauses;
}

std::string paragraph(const Verdict& verdict) {
  if (verdict.cause.empty()) return {};
  std::string result = verdict.summary;
  if (!verdict.action.empty()) result += text("; it was in: ", printable(verdict.action, kMaxPlace));
  if (!verdict.operation.empty())
    result += text("; last operation: ", printable(verdict.operation, kMaxPlace));
  result += ".";
  for (const std::string& sentence : verdict.evidence) result += text(" ", sentence, ".");
  if (!verdict.advice.empty()) result += text(" To do: ", verdict.advice, ".");
  return result;
}

std::string to_json(const Verdict& verdict, const Evidence& evidence) {
  using Json = nlohmann::ordered_json;
  const Json json = {{"cause", verdict.cause},
                     {"ranks", verdict.ranks},
                     {"summary", verdict.summary},
                     {"action", verdict.action},
                     {"operation", verdict.operation},
                     {"sentences", verdict.evidence},
                     {"advice", verdict.advice},
                     {"paragraph", paragraph(verdict)},
                     {"evidence", Json::parse(encode_all(evidence))}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace trireme::autopsy
