#pragma once
// Exceptions that are sent to another process. Those of trireme's hierarchy and the standard library's keep
// their type. Custom exceptions do, when they are registered once:
//
//   const bool kKnown = rpc::carry_exception<GameOver>("GameOver");   // GameOver(const std::string&)
//
// Others come as RemoteError. Messages name the worker and the function that threw them.

#include <exception>
#include <functional>
#include <string>
#include <tuple>
#include <typeinfo>

#include "trireme/base/error.h"

namespace trireme::rpc {

class RemoteError : public Error {
 public:
  RemoteError(const std::string& type, const std::string& message)
      : Error(kExitInternal, message), type_(type) {}
  /// The type of the exception there, by its name in the source.
  const std::string& type() const { return type_; }

 private:
  std::string type_;
};

/// The deadline of a call has passed.
class DeadlineError : public CommError {
 public:
  using CommError::CommError;
};

/// The worker of a call has ended: whether the function has run is not known.
class WorkerEnded : public CommError {
 public:
  using CommError::CommError;
};

/// An exception on its way.
struct CarriedError {
  std::string kind = {};  ///< a row of the table; empty: none
  std::string type = {};  ///< for people
  std::string message = {};
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.kind, self.type, self.message);
  }
};

/// The exception as fields, by which arrive() makes it again at the other end.
CarriedError carry(const std::exception_ptr& error);
/// `where` is added to the message.
std::exception_ptr arrive(const CarriedError& error, const std::string& where);

namespace internal {
using MakeException = std::function<std::exception_ptr(const std::string& message)>;
using DescribeException = std::function<std::string(const std::exception&)>;
bool add_exception(const std::string& kind, const std::type_info& type, MakeException make,
                   DescribeException describe = {});
}  // namespace internal

/// Always true; throws InvalidArgument when another type has that name.
template <class Exception>
bool carry_exception(const std::string& kind) {
  return internal::add_exception(kind, typeid(Exception), [](const std::string& message) {
    return std::make_exception_ptr(Exception(message));
  });
}

}  // namespace trireme::rpc
