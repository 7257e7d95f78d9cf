#pragma once
// Messages between agents, besides those of endpoint.h. Values.

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "trireme/rpc/endpoint.h"
#include "trireme/rpc/remote_error.h"

namespace trireme::rpc {

enum class MessageKind : std::uint16_t {
  kRequest = Endpoint::kLastOwnKind + 1,  ///< with a parcel
  kAnswer,                                ///< with a parcel
  kCancel,                                ///< no caller waits for the answer any more
  kIntroduced,                            ///< to an owner: another worker has a reference now
  kDropped,                               ///< to an owner
  kDone,                                  ///< to those that wait to leave: so does this one
};

struct RequestHead {
  std::uint64_t call = 0;
  std::string function;
  std::uint64_t fingerprint = 0;
  std::optional<RefId> result;  ///< where the result is to stay
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.call, self.function, self.fingerprint, self.result);
  }
};

struct AnswerHead {
  std::uint64_t call = 0;
  std::optional<CarriedError> error;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.call, self.error);
  }
};

struct CancelHead {
  std::uint64_t call = 0;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.call);
  }
};

struct IntroducedHead {
  RefId id;
  WorkerId holder = kNobody;  ///< the introducer sends it
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.id, self.holder);
  }
};

struct DroppedHead {
  RefId id;
  WorkerId introducer = kNobody;  ///< the holder sent it
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.id, self.introducer);
  }
};

}  // namespace trireme::rpc
