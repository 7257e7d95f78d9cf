#include "trireme/comm/on_every_rank.h"

#include <algorithm>
#include <exception>
#include <string>

#include "trireme/base/error.h"

namespace trireme::comm {
namespace {

/// Format: the digits of an exit code, a colon, the message. Empty if nothing failed.
[[noreturn]] void throw_again(const std::string& told) {
  const auto colon = told.find(':');
  const int code = std::stoi(told.substr(0, colon));
  const std::string message = told.substr(colon + 1);
  if (code == kExitUsage) throw InvalidArgument(message);
  if (code == kExitData) throw DataError(message);
  if (code == kExitDiverged) throw DivergedError(message);
  if (code == kExitComm) throw CommError(message);
  throw InternalError(message);
}

}  // namespace

void on_every_rank(Group& group, const std::function<void()>& work) {
  std::string told;
  std::exception_ptr own;
  try {
    work();
  } catch (const CommError&) {
    throw;  // the group has failed and cannot send the error
  } catch (const Error& error) {
    told = text(static_cast<int>(error.exit_code()), ":", error.what());
    own = std::current_exception();
  }
  const std::vector<std::string> all = group.all_gather_text(told);
  const auto first =
      std::find_if(all.begin(), all.end(), [](const std::string& each) { return !each.empty(); });
  if (first == all.end()) return;
  if (first - all.begin() == group.rank()) std::rethrow_exception(own);
  throw_again(*first);
}

}  // namespace trireme::comm
