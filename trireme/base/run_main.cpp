#include "trireme/base/run_main.h"

#include <algorithm>
#include <cerrno>
#include <iostream>
#include <new>
#include <string_view>

#include "trireme/base/error.h"
#include "trireme/base/out_of_memory.h"
#include "trireme/base/printable.h"

namespace trireme {
namespace {

std::string without_backtrace(std::string_view message) {
  const std::size_t end = std::min(message.find("\nException raised from"), message.find("\nframe #0"));
  return std::string(trim(message.substr(0, end)));
}

}  // namespace

Failure failure_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    return {.exit_code = error.exit_code(), .message = error.what()};
  } catch (const std::bad_alloc&) {
    return {.exit_code = kExitInternal, .message = "out of memory"};
  } catch (const std::exception& error) {
    if (std::string words = out_of_memory_in(error.what()); !words.empty())
      return {.exit_code = kExitInternal, .message = std::move(words)};
    return {.exit_code = kExitInternal, .message = without_backtrace(error.what()), .known = false};
  } catch (...) {
    return {.exit_code = kExitInternal, .message = "an exception that is no std::exception", .known = false};
  }
}

int run_main_returning(const std::function<int()>& body) {
  try {
    return body();
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    std::cout.flush();
    std::cerr << program_invocation_short_name << ": error: " << printable_message(failure.message)
              << std::endl;
    return failure.exit_code;
  }
}

}  // namespace trireme
