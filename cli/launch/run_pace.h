#pragma once
// The usual pace of a run: how long its pauses are, and how fast its ranks issue operations. Values that are
// given the time; not thread-safe.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>

namespace trireme::cli {

/// Times in which no rank shows progress. Those that end by themselves are part of the work: evaluations,
/// checkpoints, long steps.
class Pauses {
 public:
  /// `changed_s`: of the last progress of any rank. Returns how long a pause was that has ended since the
  /// last call; else 0.
  double look(double changed_s);
  /// The present pause has a cause outside of the ranks' work. It is not remembered.
  void disturb() { disturbed_ = true; }
  /// Whether a pause is longer than the earlier ones let expect.
  bool is_unusual(double pause_s) const;

 private:
  double changed_s_ = 0;  ///< 0: before the first call
  double longest_s_ = 0;
  bool disturbed_ = false;
};

/// Operations per second. Each group of ranks counts its own operations: only numbers of one group are
/// compared.
class OperationSpeed {
 public:
  /// The operation that a rank shows now.
  void note(int rank, const std::string& operation, double now_s);
  /// The rank has ended.
  void leave_out(int rank) { ranks_.erase(rank); }
  /// How much slower than at its best the rank is that has lost least of its speed; 1 where that is not
  /// known.
  double slowdown() const;
  /// A pause does not count as slow: the current speed is measured again. The best ones stay.
  void forget_present();

 private:
  struct Seen {
    double at_s;
    std::uint64_t number;
  };
  struct Group {
    std::deque<Seen> seen{};
    double best = 0;
  };
  struct Rank {
    std::map<std::string, Group> groups{};
    double slowdown = 0;  ///< 0: not known
  };
  std::map<int, Rank> ranks_;
};

}  // namespace trireme::cli
