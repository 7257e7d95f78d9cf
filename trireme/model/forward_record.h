#pragma once
// State of a forward besides its inputs, parameters and buffers, recorded so that it can run again in the
// same way: torch's random generators (of the CPU and of this thread's device), autocast's switches, and the
// values of same_again(). One record, one forward. Scopes belong to their thread and nest: a forward in a
// forward is part of both.

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "trireme/model/untouched.h"

namespace trireme::model {

/// Autocast's switches of a kind of device, on this thread.
struct AutocastState {
  c10::DeviceType device = c10::kCPU;
  bool enabled = false;
  at::ScalarType dtype = at::kBFloat16;
};

class ForwardRecord {
 public:
  class Recording;
  class Replaying;

 private:
  friend class ForwardScope;
  std::vector<at::Tensor> random_state_;
  std::vector<AutocastState> autocast_;
  std::vector<std::uint64_t> values_;  ///< of same_again(), in the order of the calls
};

/// A number that a layer's forward depends on and that is not among its inputs: a step, a key of random
/// numbers, a switch. Returns `value`; in a forward that runs again, the value of the same call the first
/// time. Throws InvalidArgument: the forward makes more calls than it did.
std::uint64_t same_again(std::uint64_t value);

/// The common part of both kinds of scopes.
class ForwardScope {
 public:
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

 protected:
  enum class Kind { kRecording, kReplaying };
  ForwardScope(ForwardRecord& record, Kind kind);
  ~ForwardScope();

 private:
  friend std::uint64_t same_again(std::uint64_t value);
  std::uint64_t pass(std::uint64_t value);

  ForwardRecord& record_;
  const Kind kind_;
  std::size_t next_ = 0;
  ForwardScope* const before_;  ///< innermost when this one was opened
  ForwardScope* const outer_;   ///< it is part of; none for a forward that runs again
};

/// While it lives, the record's forward runs for the first time.
class ForwardRecord::Recording : public ForwardScope {
 public:
  explicit Recording(ForwardRecord& record) : ForwardScope(record, Kind::kRecording) {}
};

/// While it lives, it runs again. After it `buffers`, generators and switches are as they were before.
class ForwardRecord::Replaying {
 public:
  Replaying(ForwardRecord& record, const Tensors& buffers);
  ~Replaying();
  Replaying(const Replaying&) = delete;
  Replaying& operator=(const Replaying&) = delete;

 private:
  class Scope : public ForwardScope {
   public:
    explicit Scope(ForwardRecord& record) : ForwardScope(record, Kind::kReplaying) {}
  };

  const Untouched untouched_;
  const std::vector<AutocastState> autocast_before_;
  const Scope scope_;
};

}  // namespace trireme::model
