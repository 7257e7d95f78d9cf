#pragma once
// The ranks of a probe, as they meet in the job's store: texts of all for all, and rounds that begin
// together. Every wait has a deadline and names the ranks that are missing. Belongs to one thread;
// collective: every rank makes the same calls in the same order.

#include <string>
#include <vector>

#include "trireme/wire/store_client.h"

namespace trireme::topology {

/// Number of this rank and of all, and the timeout of waits for the others.
struct MeetingOptions {
  int rank = 0;
  int size = 1;
  std::string prefix;  ///< of its keys, which no other meeting has
  double timeout_s = 10;
};

class Meeting {
 public:
  Meeting(wire::StoreClient& store, MeetingOptions options);

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }

  /// The texts of all ranks, by rank. `what` is the missing action of absent ranks in an error: "arrive".
  /// Throws CommError.
  std::vector<std::string> gather(const std::string& mine, const std::string& what);
  /// Waits until all ranks call it. `problem` is this rank's, or empty: where a rank has one, all throw
  /// CommError with the problems of all. So does a rank at the deadline, which names the missing.
  void end_round(const std::string& problem, const std::string& what);

 private:
  std::string key(int rank) const;
  void wait_for_all(const std::string& what);

  wire::StoreClient& store_;
  const MeetingOptions options_;
  int turn_ = 0;
};

}  // namespace trireme::topology
