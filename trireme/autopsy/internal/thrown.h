#pragma once
// The exception that a rank reports on standard error before it ends.

#include <string>

#include "trireme/autopsy/evidence.h"

namespace trireme::autopsy {

struct Thrown {
  std::string type;  ///< "std::runtime_error"; empty where it was caught
  std::string message;
};

Thrown thrown_by(const RankEvidence& rank);

/// Whether the rank ended by an error that other ranks have caused.
bool is_about_others(const RankEvidence& rank);

}  // namespace trireme::autopsy
