#pragma once
// The one hierarchy of errors, by the caller's possible reaction. A message names the failure, the expected
// and the found value, then the remedy. Names of this module are in `trireme` itself.

#include <stdexcept>
#include <string>

#include "trireme/base/text.h"

namespace trireme {

/// Exit codes of every program of the project; scripts and schedulers rely on them.
enum ExitCode : int {
  kExitOk = 0,
  kExitUsage = 2,
  kExitComm = 3,
  kExitData = 4,
  kExitDiverged = 5,
  kExitInternal = 70,
};

/// Base of all errors that the library throws on purpose.
class Error : public std::runtime_error {
 public:
  Error(ExitCode exit_code, const std::string& message)
      : std::runtime_error(message), exit_code_(exit_code) {}
  /// The exit code of a program that ends because of this error.
  ExitCode exit_code() const { return exit_code_; }

 private:
  ExitCode exit_code_;
};

/// The caller asked for something that cannot work: bad option, bad configuration, wrong shape.
class InvalidArgument : public Error {
 public:
  explicit InvalidArgument(const std::string& message) : Error(kExitUsage, message) {}
};

/// A rank, its host or the link to it failed, or ranks disagree. The group is unusable afterwards.
class CommError : public Error {
 public:
  explicit CommError(const std::string& message) : Error(kExitComm, message) {}
};

/// A file is missing, unreadable, foreign, damaged, or cannot be written.
class DataError : public Error {
 public:
  explicit DataError(const std::string& message) : Error(kExitData, message) {}
};

/// The loss or a gradient stopped being a finite number.
class DivergedError : public Error {
 public:
  explicit DivergedError(const std::string& message) : Error(kExitDiverged, message) {}
};

/// A bug of this library.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& message) : Error(kExitInternal, message) {}
};

/// Throws InvalidArgument with the given parts, joined as text, unless `condition` holds.
template <class... Parts>
void require(bool condition, const Parts&... message) {
  if (!condition) throw InvalidArgument(text(message...));
}

}  // namespace trireme
