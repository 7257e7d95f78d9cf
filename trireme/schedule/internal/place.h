#pragma once
// Place of an action, for messages: rank, position in cells, text. A value.

#include <string>

#include "trireme/base/error.h"
#include "trireme/schedule/program.h"

namespace trireme::schedule {

struct Place {
  std::size_t rank = 0;
  std::size_t position = 0;
  Action action;
  std::string describe() const { return text("rank ", rank, ", position ", position, ", ", to_text(action)); }
};

/// Throws InvalidArgument: program, place, reason.
template <class... Parts>
[[noreturn]] void reject_at(const Program& program, const Place& place, const Parts&... reason) {
  throw InvalidArgument(text("program '", program.name, "': ", place.describe(), ": ", reason...));
}

}  // namespace trireme::schedule
