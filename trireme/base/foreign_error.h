#pragma once
// Errors of a user's model, or of libtorch in it, get a place and an exit code of their own: they are no bugs
// of trireme. Functions without state; thread-safe.

#include <exception>

#include "trireme/base/error.h"
#include "trireme/base/run_main.h"
#include "trireme/base/text.h"

namespace trireme {

/// Returns what `body` returns. An exception that is no Error, and no lack of memory, becomes an
/// InvalidArgument "PLACE: MESSAGE", without libtorch's list of stack frames; `place` returns a text and is
/// called then only. Costs nothing where nothing is thrown.
template <class Place, class Body>
decltype(auto) as_error_of(const Place& place, const Body& body) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    const Failure failure = failure_of(std::current_exception());
    if (failure.known) throw;
    throw InvalidArgument(text(place(), ": ", failure.message));
  }
}

}  // namespace trireme
