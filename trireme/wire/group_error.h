#pragma once
// Why a group of ranks is unusable, as whoever runs its operations tells it.

#include <string>

#include "trireme/base/error.h"

namespace trireme::wire {

class GroupError : public CommError {
 public:
  enum class Kind {
    kFailure,  ///< the message names an operation of the group, and who is that caused it
    kGivenUp,  ///< a rank gave the group up; why, it tells elsewhere
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
