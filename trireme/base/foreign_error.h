#pragma once
// Errors of a user's model, or of libtorch in it, get a place and an exit code of their own: they are no bugs
// of trireme. Functions without state; thread-safe.

#include <exception>
#include <string>

#include "trireme/base/error.h"
#include "trireme/base/run_main.h"
#include "trireme/base/text.h"

namespace trireme {

/// An error of a user's code, and where in the run it was thrown: "step 3, stage 0, layer 'fc1'".
class PlacedError : public InvalidArgument {
 public:
  PlacedError(const std::string& place, const std::string& message)
      : InvalidArgument(text(place, ": ", message)), place_(place), message_(message) {}
  const std::string& place() const { return place_; }
  /// Without the place.
  const std::string& message() const { return message_; }

 private:
  std::string place_, message_;
};

/// Returns the result of `body`, a user's code. An InvalidArgument, and an exception that is no Error and no
/// lack of memory, becomes a PlacedError, without libtorch's list of stack frames; other errors, and those
/// that have a place, pass. `place` returns a text and is called only then. Costs nothing where nothing is
/// thrown.
template <class Place, class Body>
decltype(auto) as_error_of(const Place& place, const Body& body) {
  try {
    return body();
  } catch (const PlacedError&) {
    throw;
  } catch (const InvalidArgument& error) {
    throw PlacedError(place(), error.what());
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    if (failure.known) throw;
    throw PlacedError(place(), failure.message);
  }
}

/// Returns the result of `body`. A PlacedError in it gets `place` before its own.
template <class Place, class Body>
decltype(auto) within(const Place& place, const Body& body) {
  try {
    return body();
  } catch (const PlacedError& error) {
    throw PlacedError(text(place(), ", ", error.place()), error.message());
  }
}

/// As as_error_of() for code that reads data: an exception of it that is no Error, and no lack of memory,
/// becomes a DataError.
template <class Place, class Body>
decltype(auto) as_data_error_of(const Place& place, const Body& body) {
  try {
    return body();
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    if (failure.known) throw;
    throw DataError(text(place(), ": ", failure.message));
  }
}

}  // namespace trireme
