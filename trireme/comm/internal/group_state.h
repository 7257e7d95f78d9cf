#pragma once
// Common state of the copies of one Group handle: the backend, the numbering and the ring of last operations,
// and the first failure, which every later operation repeats. Issuing is for one thread at a time; ending,
// failing and reading are allowed from any thread.

#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "trireme/comm/group.h"
#include "trireme/comm/internal/operation.h"
#include "trireme/telemetry/status_page.h"
#include "trireme/telemetry/trace.h"

namespace trireme::comm {

class Watcher;

using Work = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

/// Time by which a backend's own deadline is after the watcher's, which has more information.
constexpr double kBackendMargin_s = 5;

/// Whether the caller waits at once; a backend may then work on the caller's thread.
enum class IssueMode { kSync, kAsync };

/// The operation line of a rank's status page: groups of several threads share it.
struct StatusLine {
  explicit StatusLine(telemetry::StatusPage& of_page) : page(of_page) {}
  telemetry::StatusPage& page;
  std::mutex mutex;
};

/// Parts of a new Group.
struct GroupParts {
  std::string name;
  std::string backend_name;
  Transport transport_of_device = Transport::kBuffered;  ///< of tensors on the context's device
  c10::intrusive_ptr<c10d::Backend> backend;             ///< empty for a group of one rank
  std::vector<int> world_ranks;
  int rank = 0;
  double timeout_s = 60;         ///< for ranks that do not make progress
  double slow_timeout_s = 1800;  ///< for the others; not less
  std::shared_ptr<StatusLine> status;
  Watcher* watcher = nullptr;  ///< the Context's, which outlives its groups; null in a world of one
  std::vector<std::string> host_ids = {};  ///< of the members
  /// Makes a group of world ranks, as the Context does, which outlives it; collective over them.
  std::function<Group(const std::vector<int>&, const std::string&)> make_group = {};
};

struct Group::State : std::enable_shared_from_this<Group::State> {
  static constexpr std::size_t kRingSize = 64;

  explicit State(GroupParts given)
      : parts(std::move(given)), num_sends_(parts.world_ranks.size()), num_recvs_(parts.world_ranks.size()) {}
  ~State();

  int size() const { return static_cast<int>(parts.world_ranks.size()); }

  template <class Start, class Alone>
  static Pending issue(const std::shared_ptr<State>& self, IssueMode mode, Operation operation,
                       Tensors tensors, Start&& start, Alone&& alone);

  /// Numbers the operation and enters it into ring and status page. Throws the group's first failure.
  void begin(Operation& operation);
  /// Takes back the operation that was begun last and never issued.
  void withdraw(const Operation& operation);
  /// `work` is that of an operation that was seen to have ended; null when it was given up.
  void end(std::uint64_t number, OperationRecord::State how, const c10d::Work* work = nullptr);
  /// Waits until the operation is over. Throws CommError after failing the group.
  void wait(const Operation& operation, c10d::Work& work);
  /// Fails the group because of the failure of an operation.
  [[noreturn]] void fail_operation(const Operation& operation, const std::exception_ptr& error);
  void note_failure(const Operation& operation, const std::exception_ptr& error);
  /// Keeps an operation without a waiting thread, and its tensors.
  void keep_dropped(const Operation& operation, Work work, Tensors tensors);
  /// Closes the records of those that are over; one that failed fails the group.
  void look_after_dropped();

  /// Fails the group: the first cause stays, pending operations are aborted, the others are notified.
  void fail(const std::string& cause);
  /// The same for a failure that another rank has reported.
  void fail_told(const std::string& cause);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// Throws the first failure if there is one.
  void check() const;
  [[noreturn]] void throw_failure() const;

  /// A group of some of its members, this one among them, named "NAME.WISH" or, where that name is taken,
  /// "NAME.WISH#2". It fails with this one, and this one with it. Collective over those members, which have
  /// made the same number of that name.
  Group make_part(const std::vector<int>& members, const std::string& wish);

  /// From now on operations, and the waiting for them, are spans there; null: nowhere.
  void set_trace(telemetry::Trace* trace);
  telemetry::Trace* trace() const;
  /// While it lives, a thread waits for the operation, which the watcher looks after and the trace shows.
  class WaitScope {
   public:
    WaitScope(State& group, const Operation& operation);
    ~WaitScope();
    WaitScope(const WaitScope&) = delete;
    WaitScope& operator=(const WaitScope&) = delete;

   private:
    State& group_;
    const Operation& operation_;
    std::int64_t begin_ns_ = 0;  ///< 0: not needed
  };

  /// Operations that are issued and not over, oldest first.
  std::vector<Operation> pending() const;
  std::vector<Operation> recent() const;
  /// Those that a thread waits for.
  std::vector<Operation> waits() const;
  bool is_running(std::uint64_t number) const;
  /// Shows on the status page which world ranks an operation that a thread waits for has not seen yet: "...,
  /// running; waits for ranks 1,3".
  void show_missing(const Operation& operation, const std::vector<int>& missing);

  GroupParts parts;

 private:
  struct Dropped {
    Operation operation;
    Work work;
    Tensors tensors;
  };

  bool close_if_over(const Dropped& dropped);
  bool enter_failure(const std::string& cause);
  void fail_parts(const std::string& cause);
  void add_wait_span(const Operation& operation, std::int64_t begin_ns);
  telemetry::TraceSpan span_of(const Operation& operation) const;
  std::uint64_t& last_order(const Operation& operation);

  mutable std::mutex mutex_;
  std::uint64_t number_ = 0;
  std::uint64_t num_collectives_ = 0;
  std::vector<std::uint64_t> num_sends_;  ///< by peer
  std::vector<std::uint64_t> num_recvs_;
  std::array<Operation, kRingSize> ring_;
  std::vector<Operation> waits_;
  std::vector<Dropped> dropped_;
  Operation replaced_;  ///< the entry of the ring that the last operation has replaced
  std::atomic<bool> failed_ = false;
  std::string cause_;
  std::weak_ptr<State> whole_;                            ///< the group that this is a part of
  std::vector<std::weak_ptr<State>> parts_;               ///< those of this
  std::map<std::string, int> num_parts_;                  ///< made so far, by wish
  std::atomic<telemetry::TraceBuffer*> trace_ = nullptr;  ///< written to under the mutex
  const char* trace_name_ = nullptr;                      ///< of the group
};

}  // namespace trireme::comm
