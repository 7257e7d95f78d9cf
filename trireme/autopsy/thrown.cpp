#include "trireme/autopsy/internal/thrown.h"

#include <string_view>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::autopsy {
namespace {

constexpr std::string_view kTerminate = "terminate called after throwing an instance of '";
/// Of groups with shared memory, which end with the exit code of communication for their own lack of memory.
constexpr std::string_view kNoMemory = "cannot reserve ";
constexpr std::string_view kWhat = "what():", kError = "error: ";

}  // namespace

Thrown thrown_by(const RankEvidence& rank) {
  Thrown thrown;
  for (const std::string& line : rank.last_lines) {
    const std::string_view words = trim(line);
    if (words.starts_with(kTerminate)) {
      thrown.type = std::string(words.substr(kTerminate.size()));
      if (thrown.type.ends_with('\'')) thrown.type.pop_back();
    } else if (words.starts_with(kWhat)) {
      thrown.message = std::string(trim(words.substr(kWhat.size())));
    } else if (const auto at = words.find(kError); at != std::string::npos && thrown.type.empty()) {
      thrown.message = std::string(words.substr(at + kError.size()));
    }
  }
  return thrown;
}

bool is_about_others(const RankEvidence& rank) {
  if (!rank.ended || rank.ended_by_launcher) return false;
  const std::string message = thrown_by(rank).message;
  if (message.starts_with(kNoMemory) ||
      message.find(text(": rank ", rank.rank, ": ", kNoMemory)) != std::string::npos)
    return false;
  return (rank.signal == 0 && rank.exit_code == kExitComm) || thrown_by(rank).type == "trireme::CommError";
}

}  // namespace trireme::autopsy
