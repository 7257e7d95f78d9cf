#pragma once
// What became of clusters under faults, as text and as JSON.

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/chaos/growth.h"
#include "cli/chaos/ledger.h"
#include "trireme/base/text.h"

namespace trireme::cli {

struct Outcome {
  std::vector<Fault> faults;
  std::uint64_t pushes = 0, lost = 0, doubled = 0;  ///< lost, doubled: elements
  bool is_compared = false;                         ///< otherwise losses are unknown
  std::string failure;
};

/// The pause that 95 % of them do not exceed; 0 without any.
inline double p95(std::vector<double> pauses) {
  if (pauses.empty()) return 0;
  std::sort(pauses.begin(), pauses.end());
  return pauses[(pauses.size() * 95 + 99) / 100 - 1];
}

class Report {
 public:
  void add(std::uint64_t seed, const Outcome& outcome) {
    nlohmann::json faults = nlohmann::json::array();
    double longest_s = 0;
    for (const Fault& fault : outcome.faults) {
      pauses_.push_back(fault.longest_wait_s);
      if (fault.kills_server) pauses_of_kills_.push_back(fault.longest_wait_s);
      pauses_of_[fault.kind].push_back(fault.longest_wait_s);
      longest_s = std::max(longest_s, fault.longest_wait_s);
      faults.push_back({{"what", fault.kind}, {"longest_pause_s", fault.longest_wait_s}});
    }
    lost_ += outcome.lost;
    doubled_ += outcome.doubled;
    pushes_ += outcome.pushes;
    failed_ += outcome.failure.empty() && outcome.lost + outcome.doubled == 0 ? 0 : 1;
    rows_.push_back({{"seed", seed},
                     {"pushes", outcome.pushes},
                     {"faults", faults},
                     {"compared", outcome.is_compared},
                     {"lost", outcome.lost},
                     {"doubled", outcome.doubled},
                     {"longest_pause_s", longest_s},
                     {"failure", outcome.failure}});
  }

  /// Of the cluster that was added last.
  void add(const Lives& lives) {
    for (const Life& life : lives.long_ones()) {
      const auto [memory, memory_last] = life.first_and_last(&Usage::resident_bytes);
      const auto [files, files_last] = life.first_and_last(&Usage::descriptors);
      const std::string growth = life.growth();
      grown_ += growth.empty() ? 0 : 1;
      processes_.push_back({{"who", life.who},
                            {"seconds", life.seen.back().at_s - life.seen.front().at_s},
                            {"looks", life.seen.size()},
                            {"most_bytes_of_first_third", memory},
                            {"least_bytes_of_last_third", memory_last},
                            {"most_descriptors_of_first_third", files},
                            {"least_descriptors_of_last_third", files_last},
                            {"growth", growth}});
    }
    num_processes_ = lives.count();
  }

  std::string last_line() const {
    const nlohmann::json& row = rows_.back();
    std::vector<std::string> waits;
    for (const auto& fault : row["faults"])
      waits.push_back(text(fault["what"].get<std::string>(), " ", human_duration(fault["longest_pause_s"])));
    const std::string failure = row["failure"];
    return text("seed ", row["seed"].get<std::uint64_t>(), ": ", row["pushes"].get<std::uint64_t>(),
                " pushes, ", sums(row), "; longest waits: ", join(waits),
                failure.empty() ? "" : "; FAILED: " + failure);
  }

  nlohmann::json all() const {
    nlohmann::json kinds = nlohmann::json::object();
    for (const auto& [kind, pauses] : pauses_of_)
      kinds[kind] = {{"count", pauses.size()},
                     {"pause_p95_s", p95(pauses)},
                     {"longest_pause_s", *std::max_element(pauses.begin(), pauses.end())}};
    return {{"seeds", rows_},
            {"kinds", kinds},
            {"pushes", pushes_},
            {"kills", pauses_of_kills_.size()},
            {"lost", lost_},
            {"doubled", doubled_},
            {"failed", failed_},
            {"pause_p95_s", p95(pauses_)},
            {"pause_of_kills_p95_s", p95(pauses_of_kills_)},
            {"processes", num_processes_},
            {"long_processes", processes_},
            {"grown", grown_}};
  }

  std::string summary() const {
    std::string kinds;
    for (const auto& [kind, pauses] : pauses_of_)
      kinds +=
          text("\n  ", kind, ": ", pauses.size(), ", 95 % of pauses at most ", human_duration(p95(pauses)),
               ", the longest ", human_duration(*std::max_element(pauses.begin(), pauses.end())));
    for (const auto& life : processes_) {
      const std::string growth = life["growth"];
      kinds += text("\n  ", life["who"].get<std::string>(), ", ", human_duration(life["seconds"]), ": ",
                    human_bytes(life["most_bytes_of_first_third"]), ", in the end ",
                    human_bytes(life["least_bytes_of_last_third"]), "; descriptors ",
                    life["most_descriptors_of_first_third"].get<int>(), ", in the end ",
                    life["least_descriptors_of_last_third"].get<int>(),
                    growth.empty() ? "" : "; FAILED: " + growth);
    }
    return text(rows_.size(), " seeds: ", pushes_, " pushes, ", pauses_of_kills_.size(), " kills, lost ",
                lost_, ", doubled ", doubled_,
                num_uncompared() > 0 ? text(", not compared ", num_uncompared()) : "", ", failed ", failed_,
                "; 95 % of pauses at most ", human_duration(p95(pauses_)), ", of kills ",
                human_duration(p95(pauses_of_kills_)), kinds);
  }
  bool is_as_promised() const { return failed_ == 0 && grown_ == 0; }

 private:
  static std::string sums(const nlohmann::json& row) {
    if (!row["compared"]) return "sums were not compared";
    return text("lost ", row["lost"].get<std::uint64_t>(), ", doubled ", row["doubled"].get<std::uint64_t>());
  }
  std::ptrdiff_t num_uncompared() const {
    return std::count_if(rows_.begin(), rows_.end(), [](const auto& row) { return !row["compared"]; });
  }

  nlohmann::json rows_ = nlohmann::json::array();
  nlohmann::json processes_ = nlohmann::json::array();
  std::uint64_t pushes_ = 0, lost_ = 0, doubled_ = 0, failed_ = 0, grown_ = 0;
  std::size_t num_processes_ = 0;
  std::vector<double> pauses_, pauses_of_kills_;
  std::map<std::string, std::vector<double>> pauses_of_;
};

}  // namespace trireme::cli
