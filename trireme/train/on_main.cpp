#include "trireme/train/internal/on_main.h"

#include <optional>
#include <string>

#include "trireme/base/error.h"

namespace trireme::train {
namespace {

/// An exit code's digits, then the message; empty where nothing failed.
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

void on_main(comm::Context& context, const std::function<void()>& work) {
  std::string told;
  if (context.is_main()) {
    try {
      work();
    } catch (const Error& error) {
      told = text(static_cast<int>(error.exit_code()), ":", error.what());
    }
  }
  told = context.world().all_gather_text(told).front();
  if (!told.empty()) throw_again(told);
}

}  // namespace trireme::train
