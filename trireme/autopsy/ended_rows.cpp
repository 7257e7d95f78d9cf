// Causes of ranks that ended: killed, out of memory, an exception, mismatched operations.

#include <signal.h>

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "trireme/autopsy/internal/rows.h"
#include "trireme/autopsy/internal/thrown.h"
#include "trireme/autopsy/operation_text.h"
#include "trireme/autopsy/signals.h"
#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/base/text.h"

namespace trireme::autopsy {
namespace {

constexpr std::size_t kMaxMessage = 600;

const RankEvidence* first_killed(const Case& about) {
  for (const RankEvidence* rank : about.failed()) {
    if (rank->signal != 0 && !is_crash(rank->signal)) return rank;
  }
  return nullptr;
}

/// A rank that the kernel killed for memory, among those for which `has_counted` holds.
template <class Counted>
const RankEvidence* killed_for_memory(const Case& about, const Counted& has_counted) {
  for (const RankEvidence* rank : about.failed()) {
    // Counts include other processes of the group. The log names the process.
    const bool contradicted =
        rank->log_read ? !rank->killed_for_memory : rank->kills_counted && rank->oom_kills == 0;
    if (rank->signal == SIGKILL && !contradicted && has_counted(*rank)) return rank;
  }
  return nullptr;
}

/// The code that threw the exception, according to its message, its type and the exit code.
std::string code_of(const RankEvidence& rank, const Thrown& thrown) {
  const auto has = [&](const char* words) { return thrown.message.find(words) != std::string::npos; };
  if (thrown.type.starts_with("c10::") || thrown.type.starts_with("at::") ||
      thrown.type.starts_with("torch::"))
    return "of libtorch";
  if (thrown.type.starts_with("trireme::")) return "of Trireme";
  if (!thrown.type.empty()) return text("of the program (", printable(thrown.type), ", not caught)");
  if (has("the loss of micro-batch")) return "of the objective";
  if (has("stage ") && (has("forward") || has("backward"))) return "of the model";
  if (has("sample ") || has("a batch of")) return "of the data set";
  switch (rank.exit_code) {
    case kExitUsage:
      return "of Trireme, which rejected an option or an input";
    case kExitData:
      return "that reads data, a checkpoint or another file";
    case kExitDiverged:
      return "of Trireme, which found a value that is no finite number";
    default:
      return "of the program";
  }
}

/// The rank that a message names as missing or dead: "...: rank 1 (pid 4711) died".
std::optional<int> rank_missed_in(const std::string& message) {
  std::optional<int> found;
  constexpr std::string_view kRank = "rank ";
  for (std::size_t at = message.find(kRank); at != std::string::npos; at = message.find(kRank, at + 1)) {
    const char* begin = message.data() + at + kRank.size();
    int rank = 0;
    const auto [end, error] = std::from_chars(begin, message.data() + message.size(), rank);
    if (error == std::errc() && std::string_view(end).starts_with(" (pid ")) found = rank;
  }
  return found;
}

/// An operation and the ranks that issued it.
using Side = std::pair<std::string, std::vector<int>>;

/// Parses "4711, 2".
std::vector<int> ranks_in(std::string_view words) {
  std::vector<int> ranks;
  for (const std::string& word : split(words, ',')) {
    const std::string_view digits = trim(word);
    int rank = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), rank).ec == std::errc())
      ranks.push_back(rank);
  }
  return ranks;
}

/// Parses "the ranks disagree: rank 0, 2 issued A; rank 1 issued B. Every rank ...". Ranks that share memory
/// have "rank 0 issues A, rank 1 issues B.".
std::vector<Side> sides_in(std::string_view message) {
  constexpr std::string_view kDisagree = "the ranks disagree: ", kEnd = ". Every rank";
  const std::size_t begin = message.find(kDisagree);
  const bool is_list = begin != std::string_view::npos;
  const std::string_view verb = is_list ? " issued " : " issues ", next = is_list ? "; rank " : ", rank ";
  if (is_list) message = message.substr(begin + kDisagree.size());
  if (!is_list) {
    const std::size_t first = message.find(": rank ");
    if (first == std::string_view::npos || message.find(verb) == std::string_view::npos) return {};
    message = message.substr(first + 2);
  }
  message = message.substr(0, message.find(kEnd));
  if (message.ends_with('.')) message.remove_suffix(1);
  std::vector<Side> sides;
  while (message.starts_with("rank ")) {
    const std::size_t issued = message.find(verb);
    if (issued == std::string_view::npos) break;
    const std::size_t end = message.find(next, issued);
    const std::size_t words = issued + verb.size();
    sides.emplace_back(message.substr(words, end - words), ranks_in(message.substr(5, issued - 5)));
    message = end == std::string_view::npos ? "" : message.substr(end + 2);
  }
  return sides;
}

/// "all_reduce of 64 f32" of the operation "all_reduce #12 of group world, 64 f32, failed".
std::string issued(const std::string& operation) {
  const std::vector<std::string> words = split(operation, ',');
  const std::string kind = operation.substr(0, operation.find(' '));
  return words.size() < 3 ? kind : text(kind, " of ", trim(words[1]));
}

/// Adds ranks that the message does not name, by the operations on their status pages.
void add_others(std::vector<Side>& sides, const Case& about) {
  std::unordered_set<int> named;
  for (const Side& side : sides) named.insert(side.second.begin(), side.second.end());
  for (const RankEvidence& rank : about.ranks()) {
    if (named.contains(rank.rank) || !is_open(rank.operation)) continue;
    const auto side = std::ranges::find_if(
        sides, [&](const Side& each) { return each.first.starts_with(issued(rank.operation)); });
    if (side != sides.end()) side->second.push_back(rank.rank);
  }
}

}  // namespace

std::optional<Verdict> told_to_stop(const Case& about) {
  const Evidence& evidence = about.evidence();
  if (evidence.told_to_stop == 0) return std::nullopt;
  return Verdict{.summary =
                     text("the run was stopped: the launcher received ", signal_name(evidence.told_to_stop),
                          evidence.told_by.empty() ? "" : text(" from ", evidence.told_by))};
}

std::optional<Verdict> out_of_group_memory(const Case& about) {
  const RankEvidence* rank =
      killed_for_memory(about, [](const RankEvidence& each) { return each.group_oom_kills > 0; });
  if (rank == nullptr) return std::nullopt;
  Verdict verdict{
      .ranks = {rank->rank},
      .summary = text(name_of(*rank, about), " was killed by the kernel after ",
                      human_duration(rank->ended_s), ": its control group reached its memory limit"),
      .advice = "raise the limit, or use a smaller batch or fewer ranks in the group"};
  verdict.evidence.push_back(text("The control group ", printable(rank->group, 200), " counts ",
                                  rank->group_oom_kills, " process(es) killed for memory since the start"));
  if (rank->group_limit_bytes != 0)
    verdict.evidence.push_back(text("Its limit is ", human_bytes(rank->group_limit_bytes)));
  return verdict;
}

std::optional<Verdict> out_of_host_memory(const Case& about) {
  const RankEvidence* rank = killed_for_memory(about, [&](const RankEvidence& each) {
    const HostEvidence* host = about.host_of(each);
    return each.killed_for_memory || each.kills_counted || (host != nullptr && host->oom_kills > 0);
  });
  if (rank == nullptr) return std::nullopt;
  return Verdict{.ranks = {rank->rank},
                 .summary = text(name_of(*rank, about), " was killed by the kernel after ",
                                 human_duration(rank->ended_s), ": the host had no more memory"),
                 .evidence = {rank->killed_for_memory ? "The kernel's log names its process"
                                                      : "The kernel counted a process killed for memory"},
                 .advice = "use a smaller batch, fewer ranks on the host, or more memory"};
}

std::optional<Verdict> killed(const Case& about) {
  const RankEvidence* rank = first_killed(about);
  if (rank == nullptr) return std::nullopt;
  const SignalReason* reason = reason_of(rank->signal);
  Verdict verdict{
      .ranks = {rank->rank},
      .summary = text(name_of(*rank, about), " was killed by ", signal_name(rank->signal), " after ",
                      human_duration(rank->ended_s),
                      reason != nullptr ? text(": ", reason->reason) : ", sent by another process"),
      .advice = reason != nullptr ? reason->advice
                                  : "look for a user or a scheduler that ended it, and start the same "
                                    "command again (trireme train: with "
                                    "--resume)"};
  if (rank->signal == SIGKILL) {
    verdict.evidence.push_back(rank->log_read ? "The kernel's log has no kill of it for lack of memory"
                                              : "The kernel counted no process killed for memory meanwhile");
  }
  return verdict;
}

std::optional<Verdict> mismatched(const Case& about) {
  for (const RankEvidence* rank : about.failed()) {
    const std::string message = thrown_by(*rank).message;
    auto sides = sides_in(message);
    if (sides.size() < 2) continue;
    add_others(sides, about);
    std::ranges::stable_sort(sides, {}, [](const auto& side) { return side.second.size(); });
    Verdict verdict{.advice = "issue the same operations in the same order on every rank of a group"};
    verdict.ranks = sides.front().second;
    const bool is_minority = sides.front().second.size() < sides[1].second.size();
    for (std::size_t i = 1; i < sides.size() && !is_minority; ++i)
      verdict.ranks.insert(verdict.ranks.end(), sides[i].second.begin(), sides[i].second.end());
    std::ranges::sort(verdict.ranks);
    verdict.summary = text(names_of(verdict.ranks),
                           is_minority ? " issued another operation than the other ranks of the group"
                                       : " issued different operations in one group");
    for (const auto& [operation, ranks] : sides)
      verdict.evidence.push_back(text("Issued by ", names_of(ranks), ": ", printable(operation, 200)));
    return verdict;
  }
  return std::nullopt;
}

std::optional<Verdict> threw(const Case& about) {
  for (const RankEvidence* rank : about.failed()) {
    const Thrown thrown = thrown_by(*rank);
    const bool aborted = rank->signal == SIGABRT && !thrown.type.empty();
    if ((rank->signal != 0 && !aborted) || is_about_others(*rank)) continue;
    Verdict verdict{.ranks = {rank->rank}};
    verdict.summary = text(name_of(*rank, about), " ended after ", human_duration(rank->ended_s),
                           aborted ? "" : text(" with exit code ", rank->exit_code),
                           " by an exception in code ", code_of(*rank, thrown));
    if (!thrown.message.empty())
      verdict.evidence.push_back(text("Its message: ", printable(thrown.message, kMaxMessage)));
    return verdict;
  }
  return std::nullopt;
}

std::optional<Verdict> crashed(const Case& about) {
  for (const RankEvidence* rank : about.failed()) {
    if (!is_crash(rank->signal) || is_about_others(*rank)) continue;
    Verdict verdict{.ranks = {rank->rank},
                    .summary = text(name_of(*rank, about), " crashed by ", signal_name(rank->signal),
                                    " after ", human_duration(rank->ended_s)),
                    .advice = "open its core file in a debugger"};
    if (!rank->last_lines.empty())
      verdict.evidence.push_back(text("Its last line: ", printable(rank->last_lines.back(), kMaxMessage)));
    return verdict;
  }
  return std::nullopt;
}

std::optional<Verdict> lost_contact(const Case& about) {
  if (about.failed().empty()) return std::nullopt;
  const RankEvidence& rank = *about.failed().front();
  const std::string message = thrown_by(rank).message;
  const std::optional<int> missed = rank_missed_in(message);
  Verdict verdict{.ranks = {missed.value_or(rank.rank)},
                  .summary = missed ? text(names_of({*missed}), " was missed by the other ranks")
                                    : text(name_of(rank, about), " gave up waiting for other ranks")};
  if (!message.empty()) verdict.evidence.push_back(text("Its message: ", printable(message, kMaxMessage)));
  return verdict;
}

}  // namespace trireme::autopsy
