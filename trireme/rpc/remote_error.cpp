#include "trireme/rpc/remote_error.h"

#include <map>
#include <mutex>
#include <stdexcept>
#include <typeindex>
#include <utility>

#include "trireme/rpc/function_table.h"
#include "trireme/rpc/future.h"

namespace trireme::rpc {
namespace {

struct KnownException {
  std::type_index type;
  internal::MakeException make;
  internal::DescribeException describe;  ///< empty: what()
};

template <class Exception>
std::pair<const std::string, KnownException> row(const std::string& kind) {
  return {kind,
          {typeid(Exception),
           [](const std::string& message) { return std::make_exception_ptr(Exception(message)); },
           {}}};
}

struct KnownExceptions {
  std::mutex mutex;
  std::map<std::string, KnownException> rows = {row<InvalidArgument>("trireme.InvalidArgument"),
                                                row<CommError>("trireme.CommError"),
                                                row<DataError>("trireme.DataError"),
                                                row<DivergedError>("trireme.DivergedError"),
                                                row<InternalError>("trireme.InternalError"),
                                                row<DeadlineError>("trireme.DeadlineError"),
                                                row<std::invalid_argument>("std.invalid_argument"),
                                                row<std::out_of_range>("std.out_of_range"),
                                                row<std::length_error>("std.length_error"),
                                                row<std::domain_error>("std.domain_error"),
                                                row<std::range_error>("std.range_error"),
                                                row<std::overflow_error>("std.overflow_error"),
                                                row<std::underflow_error>("std.underflow_error"),
                                                row<std::logic_error>("std.logic_error"),
                                                row<std::runtime_error>("std.runtime_error")};
};

KnownExceptions& known_exceptions() {
  static KnownExceptions* const rows = new KnownExceptions;  // outlives every other static object
  return *rows;
}

}  // namespace

bool internal::add_exception(const std::string& kind, const std::type_info& type, MakeException make,
                             DescribeException describe) {
  const std::lock_guard lock(known_exceptions().mutex);
  const auto [place, is_new] = known_exceptions().rows.try_emplace(
      kind, KnownException{std::type_index(type), std::move(make), std::move(describe)});
  require(is_new || place->second.type == std::type_index(type), "another type of exceptions is '", kind,
          "' already");
  return true;
}

std::exception_ptr internal::nobody_answers() {
  return std::make_exception_ptr(
      CommError("there will be no answer: the worker that was called ended without a message"));
}

CarriedError carry(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const RemoteError& thrown) {
    return {.type = thrown.type(), .message = thrown.what()};
  } catch (const std::exception& thrown) {
    CarriedError carried{.type = readable(typeid(thrown).name()), .message = thrown.what()};
    const std::lock_guard lock(known_exceptions().mutex);
    for (const auto& [kind, known] : known_exceptions().rows) {
      if (known.type != std::type_index(typeid(thrown))) continue;
      carried.kind = kind;
      if (known.describe) carried.message = known.describe(thrown);
    }
    return carried;
  } catch (...) {
    return {.type = "something else", .message = "what is no std::exception was thrown"};
  }
}

std::exception_ptr arrive(const CarriedError& error, const std::string& where) {
  const std::string message = text(error.message, " [", where, "]");
  {
    const std::lock_guard lock(known_exceptions().mutex);
    const auto found = known_exceptions().rows.find(error.kind);
    if (found != known_exceptions().rows.end()) return found->second.make(message);
  }
  return std::make_exception_ptr(RemoteError(error.type, text(error.type, ": ", message)));
}

}  // namespace trireme::rpc
