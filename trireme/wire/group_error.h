#pragma once
// The reason why a group of ranks is unusable, for callers of its operations.

#include <string>

#include "trireme/base/error.h"

namespace trireme::wire {

class GroupError : public CommError {
 public:
  enum class Kind {
    kFailure,  ///< the message names an operation of the group, and the rank that caused it
    kGivenUp,  ///< a rank has abandoned the group; it reports the reason elsewhere
  };

  GroupError(Kind kind, std::string group, const std::string& message)
      : CommError(message), kind_(kind), group_(std::move(group)) {}
  Kind kind() const { return kind_; }
  const std::string& group() const { return group_; }

 private:
  Kind kind_;
  std::string group_;
};

}  // namespace trireme::wire
