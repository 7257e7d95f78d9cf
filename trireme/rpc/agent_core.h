#pragma once
// The implementation of an Agent, without types: pending and served calls, references, the thread that serves
// the endpoint. Its interface takes and returns parcels; agent.h and reference.h write and read them. Lives
// as long as anything that refers to it; after stop() every request fails. Thread-safe.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "trireme/rpc/endpoint.h"
#include "trireme/rpc/function_table.h"
#include "trireme/rpc/options.h"
#include "trireme/rpc/parcel.h"
#include "trireme/rpc/remote_error.h"
#include "trireme/rpc/remote_value.h"
#include "trireme/rpc/statistics.h"

namespace trireme::rpc {

class AgentCore;
class ReferenceTable;
class ServedCall;

/// A reference of this worker; copies of an RRef share it.
class RefHandle {
 public:
  RefHandle(std::shared_ptr<AgentCore> core, RefId id, WorkerId introducer)
      : core_(std::move(core)), id_(id), introducer_(introducer) {}
  ~RefHandle();
  RefHandle(const RefHandle&) = delete;
  RefHandle& operator=(const RefHandle&) = delete;

  AgentCore& core() const { return *core_; }
  const std::shared_ptr<AgentCore>& shared_core() const { return core_; }
  const RefId& id() const { return id_; }

 private:
  const std::shared_ptr<AgentCore> core_;
  const RefId id_;
  const WorkerId introducer_;
};
/// References that travel in one parcel, in their order.
using Handles = std::vector<std::shared_ptr<RefHandle>>;

/// The answer of a call.
struct Answer {
  std::exception_ptr error = {};
  WorkerId from = kNobody;
  Parcel parcel = {};
  Handles references = {};
};

class AgentCore final : public EndpointEvents, public std::enable_shared_from_this<AgentCore> {
 public:
  /// Called once, with the answer.
  using OnAnswer = std::function<void(Answer&&)>;

  /// Joins the group; throws as Agent does.
  static std::shared_ptr<AgentCore> start(AgentOptions options);
  explicit AgentCore(AgentOptions options);
  ~AgentCore() override;

  const AgentOptions& options() const { return options_; }
  WorkerId self() const { return self_.id; }
  const WorkerInfo& info() const { return self_; }
  const std::shared_ptr<WorkerPool>& pool() const { return pool_; }
  CallHooks* hooks() const { return options_.hooks.get(); }

  /// Waits until there is a worker of that name. Throws CommError when there is none by then.
  WorkerId find(const std::string& name, double timeout_s);
  std::string name_of(WorkerId worker);
  bool is_gone(WorkerId worker) const;

  /// `on_answer` is called once, on any thread. Waits where too much is under way to that worker. Throws
  /// InvalidArgument for more than a message may hold.
  void call(WorkerId to, const FunctionRow& function, Parcel arguments, const CallOptions& options,
            std::optional<RefId> result, OnAnswer on_answer);
  void answer(const ServedCall& served, Parcel results);
  void answer_error(const ServedCall& served, const std::exception_ptr& error);

  /// For the result of a call that is about to be made; the caller has the reference.
  std::shared_ptr<RefHandle> make_reference(WorkerId owner);
  /// Of a value of this worker; null when it is gone.
  std::shared_ptr<RemoteValue> value_of(const RefId& id);
  void drop(const RefId& id, WorkerId introducer);
  std::size_t num_values() const;

  /// Waits for calls of this worker and of others; see Agent::leave().
  void leave(bool with_all, double timeout_s);
  /// At once. From no thread of the agent.
  void stop();

  Statistics statistics() const;
  wire::ChannelCounts channel_counts() const;

  void on_message(WorkerId from, wire::Message message) override;
  void on_gone(WorkerId worker, bool left, const std::string& reason) override;
  void on_rejected(WorkerId worker, const wire::Message& message, const std::string& reason) override;
  void on_met(WorkerId worker) override;
  void on_tick() override;

 private:
  using CallId = std::uint64_t;
  struct Call {
    WorkerId to = kNobody;
    std::string function;
    OnAnswer on_answer;
    std::int64_t begun_ns = 0, deadline_ns = 0;
    double timeout_s = 0;
    std::size_t bytes = 0;
  };

  void serve();
  void publish();
  void claim_name();
  bool has_ended(WorkerId worker, double timeout_s);
  wire::Address look_up(const wire::Address& address);
  /// With `use`, on the endpoint's thread; not at all once it has stopped.
  /// `bytes`: of the message that it sends.
  void post(std::function<void(Endpoint&)> use, std::size_t bytes = 0);
  std::shared_ptr<wire::NodeLoop> loop() const;
  std::string key(const std::string& what) const { return options_.group + "/" + what; }
  std::optional<WorkerInfo> info_of(WorkerId worker);

  void wait_for_room(std::unique_lock<std::mutex>& lock, WorkerId to, std::size_t bytes, double timeout_s);
  void announce(const Parcel& parcel, WorkerId to);
  Handles adopt(const std::vector<RefPass>& references);
  void finish(CallId id, Answer&& answer);
  void on_request(WorkerId from, const wire::Message& message);
  void on_answer(WorkerId from, const wire::Message& message);
  void complain(WorkerId from, const std::string& what);
  static bool may_pass(WorkerId from, const std::vector<RefPass>& references);
  void run(const std::shared_ptr<ServedCall>& served);
  void finish_served(const ServedCall& served, bool failed, std::size_t bytes_sent);
  void trace(const char* category, const std::string& function, std::int64_t begun_ns, std::size_t bytes);
  void wait_for_calls(double deadline_at_s);
  void wait_for_all(double deadline_at_s, double joined_by_s);
  std::map<WorkerId, std::string> look_who_is_missing(WorkerId count);

  const AgentOptions options_;
  WorkerInfo self_;
  std::shared_ptr<WorkerPool> pool_;
  telemetry::TraceBuffer* lanes_ = nullptr;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<CallId, Call> calls_;
  std::set<std::pair<std::int64_t, CallId>> deadlines_;
  std::map<WorkerId, std::size_t> waiting_bytes_;
  std::map<std::pair<WorkerId, CallId>, std::weak_ptr<ServedCall>> served_;
  CallId last_call_ = 0;
  std::unique_ptr<ReferenceTable> references_;
  std::map<WorkerId, std::uint64_t> last_reference_;  ///< made here, by owner
  std::map<std::string, WorkerId> ids_;
  std::map<WorkerId, WorkerInfo> infos_;
  std::map<WorkerId, std::string> gone_, met_;
  std::set<WorkerId> done_;  ///< workers whose work has ended; by their messages, or at the store
  Statistics statistics_;
  std::string ended_;  ///< why; empty: it serves

  mutable std::mutex loop_mutex_;  ///< of loop_
  std::shared_ptr<wire::NodeLoop> loop_;
  std::unique_ptr<Endpoint> endpoint_;  ///< used by its thread alone
  std::thread thread_;
};

}  // namespace trireme::rpc
