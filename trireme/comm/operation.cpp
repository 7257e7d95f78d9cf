#include "trireme/comm/internal/operation.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "trireme/base/clock.h"
#include "trireme/base/text.h"

namespace trireme::comm {
namespace {

const char* state_name(OperationRecord::State state) {
  switch (state) {
    case OperationRecord::State::kIssued:
      return "running";
    case OperationRecord::State::kDone:
      return "done";
    case OperationRecord::State::kFailed:
      return "failed";
  }
  return "?";
}

// Appends to a buffer of fixed size and drops the rest.
class Writer {
 public:
  Writer(char* out, std::size_t space) : begin_(out), at_(out), end_(out + space) {}
  Writer& operator<<(std::string_view part) {
    const auto length = std::min(part.size(), static_cast<std::size_t>(end_ - at_));
    std::memcpy(at_, part.data(), length);
    at_ += length;
    return *this;
  }
  Writer& operator<<(std::uint64_t number) {
    const auto [end, error] = std::to_chars(at_, end_, number);
    if (error == std::errc()) at_ = end;
    return *this;
  }
  std::size_t length() const { return static_cast<std::size_t>(at_ - begin_); }

 private:
  char* begin_;
  char* at_;
  char* end_;
};

}  // namespace

const char* name_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::kAllReduce:
      return "all_reduce";
    case OperationKind::kReduceScatter:
      return "reduce_scatter";
    case OperationKind::kAllGather:
      return "all_gather";
    case OperationKind::kBroadcast:
      return "broadcast";
    case OperationKind::kReduce:
      return "reduce";
    case OperationKind::kGather:
      return "gather";
    case OperationKind::kScatter:
      return "scatter";
    case OperationKind::kAllToAll:
      return "all_to_all";
    case OperationKind::kAllToAllCoalesced:
      return "all_to_all_coalesced";
    case OperationKind::kSend:
      return "send";
    case OperationKind::kRecv:
      return "recv";
    case OperationKind::kBarrier:
      return "barrier";
  }
  return "?";
}

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAverage:
      return "average";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kProduct:
      return "product";
  }
  return "?";
}

std::size_t format_status(const Operation& operation, const std::string& group, char* out,
                          std::size_t space) {
  Writer writer(out, space);
  writer << name_of(operation.kind) << " #" << operation.number << " of group " << group;
  if (operation.dtype != at::ScalarType::Undefined) {
    writer << ", " << static_cast<std::uint64_t>(operation.numel) << " " << name_of(operation.dtype);
  }
  writer << ", " << state_name(operation.state);
  return writer.length();
}

OperationRecord Operation::record() const {
  return {.number = number,
          .operation = name_of(kind),
          .dtype = name_of(dtype),
          .numel = numel,
          .peer = peer,
          .state = state,
          .issued_s = issued_s,
          .done_s = done_s};
}

std::string OperationRecord::describe() const {
  std::string result = text(operation, " #", number);
  if (!dtype.empty()) result += text(", ", numel, " ", dtype);
  if (peer >= 0) {
    const char* role = operation == "send" ? "to rank " : operation == "recv" ? "from rank " : "root ";
    result += text(", ", role, peer);
  }
  const double end_s = state == State::kIssued ? now_s() : done_s;
  const char* how = state == State::kIssued ? ", running for "
                    : state == State::kDone ? ", took "
                                            : ", failed after ";
  return result + how + human_duration(end_s - issued_s);
}

}  // namespace trireme::comm
