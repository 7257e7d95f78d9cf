#pragma once
// Chosen all-reduces of a rank's groups between hosts, by the ranks of each group, host by host ("0,1|2,3").
// A choice decides the order of sums: to reproduce the bits, save the book and restore it. Groups of the same
// ranks have one choice, and one that is over the same hosts as an earlier one need not measure. For one
// thread at a time, and while no operation is in progress.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/topology/all_reduce_choice.h"

namespace trireme::comm {

struct BackendRequest;

class AllReduceBook {
 public:
  using Choice = std::shared_ptr<const topology::AllReduceChoice>;

  /// Collective over the ranks of `group`, which has one book on each rank: the choice of its first rank,
  /// which has one for its hosts or measures it. `measure` is called on all ranks or on none. Later calls of
  /// take_over() change the result's object. Throws CommError, and the exceptions of `measure`.
  Choice agree(const BackendRequest& group, const std::function<topology::AllReduceChoice()>& measure,
               const Deadline& deadline);
  /// A choice that nothing can change.
  static Choice forced(const std::string& algorithm, int num_hosts);

  /// A line for each group.
  std::string to_text() const;
  /// From now on groups in `text` use its choices; other groups, and entries for groups that are not here,
  /// are ignored. Throws InvalidArgument without a change for a malformed text.
  void take_over(const std::string& text);
  /// Of the group of these ranks, in words; empty where it chose nothing.
  std::string describe(const std::string& ranks_by_host) const;

 private:
  struct Entry {
    std::vector<std::string> hosts;
    std::shared_ptr<topology::AllReduceChoice> choice;
  };
  std::string known_for(const std::vector<std::string>& hosts) const;

  std::map<std::string, Entry> entries_;
};

/// "0,1|2,3": the ranks of the world that are in the group.
std::string ranks_by_host(const std::vector<int>& world_ranks, const std::vector<std::string>& host_ids);

}  // namespace trireme::comm
