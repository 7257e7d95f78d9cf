#include "trireme/comm/internal/patience.h"

#include <algorithm>

namespace trireme::comm {
namespace {

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

class Judge {
 public:
  Judge(int me, const std::vector<WaitStatus>& ranks, double patience_s)
      : me_(me), ranks_(ranks), patience_s_(patience_s) {}

  /// True if the rank cannot continue; the verdict then contains the reason.
  bool hopeless(int rank) {
    if (contains(cleared_, rank)) return false;
    if (rank == me_ || contains(verdict_.chain, rank)) {
      verdict_.in_circle = true;
      if (rank != me_) verdict_.chain.push_back(rank);
      return true;
    }
    verdict_.chain.push_back(rank);
    const WaitStatus& standing = ranks_[static_cast<std::size_t>(rank)];
    if (standing.lost) return true;
    if (standing.idle_s >= patience_s_) {
      if (!standing.waits || standing.waits_for.empty()) return true;
      for (const int next : standing.waits_for) {
        if (hopeless(next)) return true;
      }
    } else if (!standing.waits && standing.made_progress) {
      verdict_.slow.push_back(rank);
    }
    verdict_.chain.pop_back();
    cleared_.push_back(rank);
    return false;
  }

  Verdict verdict() { return std::move(verdict_); }

 private:
  const int me_;
  const std::vector<WaitStatus>& ranks_;
  const double patience_s_;
  std::vector<int> cleared_;
  Verdict verdict_;
};

}  // namespace

Verdict judge(int me, const std::vector<int>& missing, const std::vector<WaitStatus>& ranks,
              double patience_s) {
  Judge judge(me, ranks, patience_s);
  for (const int rank : missing) {
    if (judge.hopeless(rank)) break;
  }
  return judge.verdict();
}

}  // namespace trireme::comm
