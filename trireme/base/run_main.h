#pragma once
// The main of a custom program:
//
//   int main() { return trireme::run_main([&] { ... }); }
//
// An exception of the body, of any origin (trireme, libtorch, the standard library), becomes one line on
// standard error. The exit code is for the launcher and scripts (docs/errors.md), as on the command line of
// trireme. Needs nothing of libtorch. Functions without state; thread-safe.

#include <exception>
#include <functional>
#include <string>
#include <type_traits>

namespace trireme {

/// The result of an exception for the caller of the program.
struct Failure {
  int exit_code = 0;
  std::string message;  ///< libtorch's without its list of stack frames
  bool known = true;    ///< thrown by trireme on purpose, or memory has run out
};

Failure failure_of(const std::exception_ptr& error);

/// Returns the result of the body; of an exception the exit code, after the line "PROGRAM: error: MESSAGE".
int run_main_returning(const std::function<int()>& body);

/// The same for a body that returns an exit code, or nothing.
template <class Body>
int run_main(Body&& body) {
  return run_main_returning([&]() -> int {
    if constexpr (std::is_void_v<std::invoke_result_t<Body&>>) {
      body();
      return 0;
    } else {
      return body();
    }
  });
}

}  // namespace trireme
