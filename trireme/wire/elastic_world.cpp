#include "trireme/wire/elastic_world.h"

#include <algorithm>
#include <charconv>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::wire {
namespace {

constexpr int kMostMembers = 1 << 20, kMostBeats = 1 << 30;

[[noreturn]] void reject_elastic(const std::string& what, const std::string& found) {
  throw CommError(text("the job's store has '", found.substr(0, 80), "' as ", what,
                       ": the launcher and the ranks are of different versions"));
}

int number_in(const std::string& word, int least, const char* what, int most = kMostMembers) {
  int number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size() || number < least || number > most)
    reject_elastic(what, word);
  return number;
}

}  // namespace

int ElasticWorld::rank_of(const std::string& id) const {
  const auto found = std::ranges::find(ranks, id, &ElasticMember::id);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

int ElasticWorld::local_rank_of(int rank) const {
  const auto end = ranks.begin() + rank;
  return static_cast<int>(std::count_if(ranks.begin(), end, [&](const ElasticMember& each) {
    return each.node == ranks[static_cast<std::size_t>(rank)].node;
  }));
}

int ElasticWorld::local_size_of(int rank) const {
  return static_cast<int>(
      std::ranges::count(ranks, ranks[static_cast<std::size_t>(rank)].node, &ElasticMember::node));
}

std::string to_text(const ElasticWorld& world) {
  std::string lines = text(world.generation, "\n");
  for (const ElasticMember& each : world.ranks) lines += text(each.node, " ", each.id, "\n");
  return lines;
}

ElasticWorld parse_elastic_world(const std::string& given) {
  constexpr const char* kWhat = "a world";
  std::vector<std::string> lines = split(given, '\n');
  if (lines.size() < 3 || !lines.back().empty()) reject_elastic(kWhat, given);
  lines.pop_back();
  ElasticWorld world{.generation = number_in(lines.front(), 0, kWhat)};
  for (auto line = lines.begin() + 1; line != lines.end(); ++line) {
    const std::size_t blank = line->find(' ');
    if (blank == std::string::npos || blank + 1 == line->size()) reject_elastic(kWhat, *line);
    world.ranks.push_back(
        {.id = line->substr(blank + 1), .node = number_in(line->substr(0, blank), 0, kWhat)});
  }
  return world;
}

std::string to_text(const WaitingMember& member) {
  std::string sizes;
  for (const int size : member.sizes) sizes += text(sizes.empty() ? "" : " ", size);
  return text(sizes, "\n", member.cause);
}

WaitingMember parse_waiting_member(const std::string& given) {
  constexpr const char* kWhat = "a process that waits";
  const std::size_t end = given.find('\n');
  if (end == std::string::npos) reject_elastic(kWhat, given);
  WaitingMember member{.sizes = {}, .cause = given.substr(end + 1)};
  if (end == 0) return member;
  for (const std::string& word : split(given.substr(0, end), ' '))
    member.sizes.push_back(number_in(word, 1, kWhat));
  return member;
}

std::string to_text(const HostReport& report) {
  std::string lines = text(report.beat, " ", report.capacity, " ", report.is_leaving ? 1 : 0, "\n");
  for (const MemberReport& each : report.members)
    lines += text(static_cast<int>(each.state), " ", each.exit_code, " ", each.id, "\n");
  return lines;
}

HostReport parse_host_report(const std::string& given) {
  constexpr const char* kWhat = "the report of a host";
  std::vector<std::string> lines = split(given, '\n');
  if (lines.size() < 2 || !lines.back().empty()) reject_elastic(kWhat, given);
  lines.pop_back();
  const std::vector<std::string> head = split(lines.front(), ' ');
  if (head.size() != 3) reject_elastic(kWhat, given);
  HostReport report{.beat = number_in(head[0], 0, kWhat, kMostBeats),
                    .capacity = number_in(head[1], 0, kWhat),
                    .is_leaving = number_in(head[2], 0, kWhat) != 0};
  for (auto line = lines.begin() + 1; line != lines.end(); ++line) {
    const std::vector<std::string> words = split(*line, ' ');
    if (words.size() != 3 || words[2].empty()) reject_elastic(kWhat, *line);
    const int state = number_in(words[0], 0, kWhat);
    if (state > static_cast<int>(MemberState::kFailedForGood)) reject_elastic(kWhat, *line);
    report.members.push_back({.id = words[2],
                              .state = static_cast<MemberState>(state),
                              .exit_code = number_in(words[1], 0, kWhat)});
  }
  return report;
}

std::string to_text(const JobState& state) {
  std::string all =
      text(state.generation, " ", state.wants_next ? 1 : 0, " ", state.stop_signal, " ", state.end ? 1 : 0);
  if (state.end) all += text(" ", state.end->exit_code, "\n", state.end->reason);
  return all;
}

JobState parse_job_state(const std::string& given) {
  constexpr const char* kWhat = "the state of the job";
  const std::size_t line = given.find('\n');
  const std::vector<std::string> words = split(given.substr(0, line), ' ');
  if (words.size() < 4) reject_elastic(kWhat, given);
  JobState state{.generation = number_in(words[0], -1, kWhat),
                 .wants_next = number_in(words[1], 0, kWhat) != 0,
                 .stop_signal = number_in(words[2], 0, kWhat)};
  const bool has_end = number_in(words[3], 0, kWhat) != 0;
  if (words.size() != (has_end ? 5 : 4) || has_end != (line != std::string::npos))
    reject_elastic(kWhat, given);
  if (has_end) state.end = {.exit_code = number_in(words[4], 0, kWhat), .reason = given.substr(line + 1)};
  return state;
}

std::string elastic_host_key(int node) { return text("elastic/host/", node); }
std::string elastic_world_key(int generation) { return text("elastic/world/", generation); }
std::string waiting_member_key(int generation, const std::string& id) {
  return text("elastic/waiting/", generation, "/", id);
}
std::string lost_world_key(int generation) { return text("elastic/lost/", generation); }
std::string rendezvous_outcome_key(int generation) {
  return text("trireme/", generation, "/rendezvous_outcome");
}

}  // namespace trireme::wire
