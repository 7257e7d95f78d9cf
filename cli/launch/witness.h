#pragma once
// Collects the evidence about the ranks of this launcher (trireme/autopsy/): what their status pages, /proc
// and their control groups show while they run, and again at the first failure, before the other ranks are
// stopped. Finds stalls: no page has changed for some seconds, and the evidence shows a cause. Work of the
// ranks shows some causes, too: those count only in a pause far longer than before. Not thread-safe.

#include <optional>
#include <string>
#include <vector>

#include "cli/launch/rank_process.h"
#include "cli/launch/report.h"
#include "cli/launch/run_pace.h"
#include "trireme/autopsy/evidence.h"
#include "trireme/autopsy/kernel_log.h"
#include "trireme/autopsy/process_readings.h"

namespace trireme::cli {

class Witness {
 public:
  explicit Witness(int world_size) : world_size_(world_size) {}

  void add(const RankProcess& process);
  /// To be called about twice per second. Returns a line about a stall that has just been found, or is over;
  /// else nothing. `found` is set to the evidence of a new one.
  std::string look(std::optional<autopsy::Evidence>* found);
  /// A rank has failed: what the others are doing is collected at once.
  void note_failure();
  /// The launcher itself received this signal.
  void note_stop(int signal, int sender);
  /// The evidence at the end. `last_lines`: by position of the rank.
  autopsy::Evidence end(const WorldStory& world, const std::vector<std::vector<std::string>>& last_lines);

 private:
  struct Watched {
    const RankProcess* process;
    telemetry::Status seen{};
    double changed_s = 0;  ///< 0: the page is empty
    autopsy::ProcessReadings before{};
    int looks = 0, ready = 0;  ///< since then, and those that found its first thread running or ready to
    std::string group{};       ///< its control groups for memory, and their counts when it came into them
    std::vector<autopsy::MemoryGroup> at_first{};
  };
  void look_at(Watched& watched);
  void suspect(double now);
  double last_change_s() const;
  void measure_speed(double now);
  void forget_suspicion();
  bool is_time_to_judge(double still, double slower, double now);
  bool all_have_begun() const;
  autopsy::Evidence collect(const std::string& occasion) const;
  std::string describe(const autopsy::Evidence& evidence, double still);

  const int world_size_;
  autopsy::MemoryKillLog log_;
  std::vector<Watched> ranks_;
  autopsy::HostReadings host_at_start_ = autopsy::read_host();
  autopsy::HostReadings host_before_{};
  double suspected_s_ = 0;  ///< since when; 0: the run makes progress
  double looked_s_ = 0;
  double judged_still_s_ = 0;  ///< how long the present pause was when it was judged last
  Pauses pauses_;
  OperationSpeed speed_;
  double reported_slow_s_ = 0;
  std::optional<autopsy::Evidence> stall_, failure_;
  int told_to_stop_ = 0;
  std::string told_by_;
};

}  // namespace trireme::cli
