#pragma once
// The value that a remote reference refers to, of any type, or the error that came instead.

#include <memory>
#include <typeinfo>

#include "trireme/rpc/future.h"

namespace trireme::rpc {

struct AnyValue {
  std::shared_ptr<void> object;
  const std::type_info* type = &typeid(void);
};

/// The owner's state of a reference as long as it exists.
using RemoteValue = Promise<AnyValue>;

}  // namespace trireme::rpc
