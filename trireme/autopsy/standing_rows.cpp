// Causes of ranks that hang or are slow: stopped, cut off, swapping, without cores, waiting for a file
// or a data source, in a deadlock, or elsewhere in their code.

#include <algorithm>

#include "trireme/autopsy/internal/rows.h"
#include "trireme/autopsy/signals.h"
#include "trireme/base/printable.h"
#include "trireme/base/text.h"

namespace trireme::autopsy {
namespace {

/// More than this share of the time is most of it.
constexpr double kMost = 0.5;
/// Share of the wanted processor time. A rank that gets more is slow, but not without cores.
constexpr double kLittle = 0.1;
/// Faults on a rank's own pages. With so many per second, hardly any of its pages are in memory.
constexpr double kManyFaults_per_s = 20;
/// A segment is retransmitted after 0.2 s, then after twice the time. Two retransmissions are not one lost
/// packet.
constexpr std::int64_t kManyRetransmissions = 2;

/// Share of the time in which the first thread ran or was ready to.
double wanted(const RankEvidence& rank) { return rank.busy + rank.waits_for_core; }

std::string percent(double share) { return text(static_cast<int>(100 * std::min(share, 1.0) + 0.5), " %"); }

void add_waiting(Verdict& verdict, const RankEvidence& rank, const Case& about) {
  const std::vector<int> waiting = about.waiting_for(rank.rank);
  if (!waiting.empty())
    verdict.evidence.push_back(text(names_of(waiting), waiting.size() == 1 ? " waits" : " wait", " for it"));
  if (rank.still_s >= 1)
    verdict.evidence.push_back(text("It has reported nothing new for ", human_duration(rank.still_s)));
}

std::string place_of(const BlockedThread& thread) {
  std::string result = text("thread '", printable(thread.name), "'");
  if (!thread.call.empty()) result += text(" is in ", thread.call);
  if (!thread.target.empty())
    result += text(thread.call.empty() ? " waits for " : " of ", printable(thread.target, 300));
  if (thread.state == "D")
    result += text(" (uninterruptible", thread.kernel.empty() ? "" : text(", in ", thread.kernel), ")");
  return result;
}

/// A blocked thread with such a target. Threads that serve other ranks do not count.
const BlockedThread* blocked_on(const RankEvidence& rank, std::initializer_list<std::string_view> kinds) {
  for (const bool disk_only : {true, false}) {
    for (const BlockedThread& thread : rank.blocked) {
      const bool is_service = !thread.first && thread.name.starts_with("trireme-");
      const bool fits = std::ranges::find(kinds, std::string_view(thread.kind)) != kinds.end();
      if (!is_service && fits && (thread.state == "D" || !disk_only)) return &thread;
    }
  }
  return nullptr;
}

/// In a slow run, each rank waits now and then. This alone shows nothing.
bool is_slow_only(const Case& about) { return about.evidence().occasion == "slow"; }

bool waits_for_samples(const RankEvidence& rank) {
  const auto has = [](const std::string& words) {
    return words.find("waiting for data") != std::string::npos ||
           words.find("opening the data") != std::string::npos ||
           words.find("reading samples") != std::string::npos;
  };
  return has(rank.own_work) || (rank.own_work.empty() && has(rank.action));
}

}  // namespace

std::optional<Verdict> stopped(const Case& about) {
  // Not only among suspects: it is not one if the ranks that wait for it have ended.
  for (const RankEvidence& rank : about.ranks()) {
    const bool is_traced = rank.state == "t";
    if (rank.frozen_by == 0 && rank.state != "T" && !is_traced && !rank.freezer) continue;
    Verdict verdict{.ranks = {rank.rank}};
    if (rank.freezer) {
      verdict.summary = text(name_of(rank, about), " was stopped by the freezer of its control group");
      verdict.evidence.push_back(text("Its control group is ", printable(rank.group, 200)));
      verdict.advice = "thaw the control group (a paused container, a suspended job)";
    } else if (is_traced) {
      verdict.summary = text(name_of(rank, about), " was stopped by a debugger");
      verdict.advice = "detach the debugger";
    } else {
      verdict.summary = text(name_of(rank, about), " was stopped",
                             rank.frozen_by == 0 ? "" : text(" by ", signal_name(rank.frozen_by)));
      verdict.advice = text("kill -CONT ", rank.pid, " continues it");
    }
    add_waiting(verdict, rank, about);
    return verdict;
  }
  return std::nullopt;
}

std::optional<Verdict> cut_off(const Case& about) {
  for (const RankEvidence& rank : about.ranks()) {
    for (const SilentPeer& peer : rank.silent_peers) {
      if (peer.retransmissions < kManyRetransmissions) continue;
      Verdict verdict{.ranks = {rank.rank},
                      .summary = text("the link of ", name_of(rank, about), " to ", printable(peer.address),
                                      " does not carry its bytes"),
                      .evidence = {text("The last segment was sent again ", peer.retransmissions,
                                        " times, and no confirmation came")},
                      .advice = "check the network between the two hosts: cable, switch, firewall"};
      if (!about.unknown().empty())
        verdict.evidence.push_back(
            text("Ranks of another host that are waited for: ", names_of(about.unknown())));
      return verdict;
    }
  }
  return std::nullopt;
}

std::optional<Verdict> swapping(const Case& about) {
  for (const RankEvidence* rank : about.suspects()) {
    if (rank->window_s <= 0 || rank->major_faults_per_s < kManyFaults_per_s) continue;
    const HostEvidence* host = about.host_of(*rank);
    Verdict verdict{
        .ranks = {rank->rank},
        .summary = text(name_of(*rank, about), " is swapping: it waits for its own memory pages from a disk"),
        .evidence = {text("It read ", static_cast<std::int64_t>(rank->major_faults_per_s),
                          " pages per second from a disk, and ran ", percent(rank->busy), " of the time")},
        .advice = "give it more memory, or use a smaller batch or fewer ranks on the host"};
    if (rank->swapped_bytes > 0)
      verdict.evidence.push_back(
          text(human_bytes(rank->swapped_bytes), " of its memory are in the swap area"));
    if (rank->group_limit_bytes != 0)
      verdict.evidence.push_back(
          text("Its control group has a limit of ", human_bytes(rank->group_limit_bytes)));
    if (host != nullptr && host->memory_pressure > 0)
      verdict.evidence.push_back(text("Memory pressure of the host: ", percent(host->memory_pressure)));
    return verdict;
  }
  return std::nullopt;
}

std::optional<Verdict> starved(const Case& about) {
  for (const RankEvidence* rank : about.suspects()) {
    if (rank->window_s <= 0) continue;
    const bool by_quota = rank->throttled >= kMost;
    const bool by_others = rank->waits_for_core >= kMost && rank->busy <= kLittle * wanted(*rank);
    if (!by_quota && !by_others) continue;
    Verdict verdict{.ranks = {rank->rank}};
    if (by_quota) {
      verdict.summary =
          text(name_of(*rank, about), " has no processor time: the quota of its control group is spent");
      verdict.evidence.push_back(text("The quota was spent ", percent(rank->throttled), " of the time"));
      verdict.advice = "raise the quota of processor time of the control group";
    } else {
      verdict.summary = text(name_of(*rank, about), " has no core: other processes run on those it may use");
      verdict.evidence.push_back(text("It was ready to run and had no core ", percent(rank->waits_for_core),
                                      " of the time, and ran ", percent(rank->busy)));
      verdict.advice =
          "give it cores of its own: end the other processes, or check its affinity (taskset -p)";
    }
    add_waiting(verdict, *rank, about);
    return verdict;
  }
  return std::nullopt;
}

std::optional<Verdict> waits_for_data(const Case& about) {
  if (is_slow_only(about)) return std::nullopt;
  for (const RankEvidence* rank : about.suspects()) {
    if (!waits_for_samples(*rank) || blocked_on(*rank, {"file"}) != nullptr) continue;
    const BlockedThread* source = blocked_on(*rank, {"socket", "pipe"});
    Verdict verdict{.ranks = {rank->rank},
                    .summary = text(name_of(*rank, about), " waits for data",
                                    source == nullptr ? ", and no data source of its process is known"
                                                      : text(" from ", printable(source->target, 300)),
                                    source == nullptr ? "" : ", which does not answer"),
                    .advice = "check the data source, and the keys data.path and data.workers"};
    if (source != nullptr) verdict.evidence.push_back("Its " + place_of(*source));
    add_waiting(verdict, *rank, about);
    return verdict;
  }
  return std::nullopt;
}

std::optional<Verdict> waits_for_disk(const Case& about) {
  if (is_slow_only(about)) return std::nullopt;
  for (const RankEvidence* rank : about.suspects()) {
    const BlockedThread* thread = blocked_on(*rank, {"file"});
    if (thread == nullptr) continue;
    Verdict verdict{
        .ranks = {rank->rank},
        .summary = text(name_of(*rank, about), " waits for the file ", printable(thread->target, 300),
                        ", which has not answered for ", human_duration(rank->still_s)),
        .evidence = {"Its " + place_of(*thread)},
        .advice = "check the disk or the file server of that file"};
    if (!rank->own_work.empty())
      verdict.evidence.push_back(text("It was busy with: ", printable(rank->own_work, 300)));
    add_waiting(verdict, *rank, about);
    return verdict;
  }
  return std::nullopt;
}

std::optional<Verdict> in_a_cycle(const Case& about) {
  if (about.cycle().size() < 2) return std::nullopt;
  Verdict verdict{.ranks = about.cycle(),
                  .summary = text(names_of(about.cycle()), " wait for each other"),
                  .advice = "issue the operations in the same order on every rank"};
  for (const int number : about.cycle()) {
    const RankEvidence& rank = *about.find(number);
    verdict.evidence.push_back(text("rank ", number, " is in ", printable(rank.operation, 200)));
  }
  return verdict;
}

std::optional<Verdict> never_entered(const Case& about) {
  if (is_slow_only(about)) return std::nullopt;
  for (const RankEvidence* rank : about.suspects()) {
    if (!about.is_waited_for(*rank)) continue;
    const RankEvidence& waiter = *about.find(about.waiting_for(rank->rank).front());
    Verdict verdict{.ranks = {rank->rank},
                    .summary = text(name_of(*rank, about), " has not entered ",
                                    waiter.operation.empty() ? "the operation that other ranks wait in"
                                                             : printable(waiter.operation, 200))};
    const auto first =
        std::ranges::find_if(rank->blocked, [](const BlockedThread& each) { return each.first; });
    if (!rank->own_work.empty()) {
      verdict.evidence.push_back(text("It is busy with: ", printable(rank->own_work, 300)));
    }
    if (rank->window_s > 0 && wanted(*rank) >= kMost) {
      verdict.evidence.push_back(
          text("It computes: its first thread ran ", percent(rank->busy), " of the time"));
      verdict.advice =
          "look for a loop without end or a longer computation on this rank (gdb -p, perf top -p)";
    } else {
      if (first != rank->blocked.end()) verdict.evidence.push_back("Its first " + place_of(*first));
      verdict.advice =
          text("look at what it waits for: gdb -p ", rank->pid, " -batch -ex 'thread apply all bt'");
    }
    add_waiting(verdict, *rank, about);
    return verdict;
  }
  return std::nullopt;
}

}  // namespace trireme::autopsy
