#include "trireme/autopsy/internal/rows.h"

#include <array>

#include "trireme/base/text.h"

namespace trireme::autopsy {

std::span<const Row> rows() {
  static constexpr std::array kRows = {
      Row{"told to stop", "the launcher received a signal and stopped all ranks", told_to_stop},
      Row{"memory limit", "the kernel killed the rank: its control group reached its memory limit",
          out_of_group_memory},
      Row{"out of memory", "the kernel killed the rank: the host had no more memory", out_of_host_memory},
      Row{"killed", "a signal ended the rank: from another process, a limit of the kernel or a timer",
          killed},
      Row{"stopped", "the rank was stopped: by SIGSTOP, a debugger, or the freezer of its control group",
          stopped},
      Row{"mismatched operations", "the ranks issued different operations in one group", mismatched},
      Row{"exception", "code of the program, libtorch or Trireme threw an exception", threw},
      Row{"crash", "the rank ended by a fault of its own code", crashed},
      Row{"link", "the peer of a connection confirms no bytes, or a host was lost", cut_off},
      Row{"swapping", "the rank waits for its own memory pages from a disk", swapping},
      Row{"no cores", "the rank is ready to run, and other processes or a quota take its processor time",
          starved},
      Row{"waiting for data", "the rank waits for a data source that does not answer", waits_for_data, true},
      Row{"disk", "the rank waits for a file that does not answer", waits_for_disk, true},
      Row{"deadlock", "ranks wait for each other in different operations", in_a_cycle},
      Row{"never entered", "other ranks wait for the rank, which is somewhere else in its code",
          never_entered, true},
      Row{"lost contact", "a rank gave up waiting, and the evidence shows no cause", lost_contact},
  };
  return kRows;
}

std::string name_of(const RankEvidence& rank, const Case& about) {
  if (rank.rank < 0) return "a rank";
  const bool several = about.evidence().hosts.size() > 1 && !rank.host.empty();
  return text("rank ", rank.rank, " (pid ", rank.pid, several ? text(" on ", rank.host) : "", ")");
}

std::string names_of(const std::vector<int>& ranks) {
  constexpr std::size_t kMostNamed = 8;
  std::vector<std::string> words;
  for (const int rank : ranks) {
    if (words.size() == kMostNamed) break;
    words.push_back(std::to_string(rank));
  }
  const std::size_t more = ranks.size() - words.size();
  return text(ranks.size() == 1 ? "rank " : "ranks ", join(words),
              more > 0 ? text(" and ", more, " more") : "");
}

}  // namespace trireme::autopsy
