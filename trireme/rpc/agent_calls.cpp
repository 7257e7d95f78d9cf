// Calls that this worker makes, and calls that it serves.

#include <algorithm>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/rpc/agent_core.h"
#include "trireme/rpc/internal/nanoseconds.h"
#include "trireme/rpc/internal/protocol.h"
#include "trireme/rpc/internal/reference_table.h"
#include "trireme/rpc/served_call.h"
#include "trireme/wire/fields.h"

namespace trireme::rpc {
namespace {

// Memory of a call in addition to its bytes.
constexpr std::size_t kCallBytes = 256;
constexpr std::int64_t kHeadRoomBytes = 64 << 10;

template <class Head>
wire::Message message_of(MessageKind kind, const Head& head) {
  return {.kind = static_cast<std::uint16_t>(kind), .head = wire::encode(head)};
}

}  // namespace

void AgentCore::wait_for_room(std::unique_lock<std::mutex>& lock, WorkerId to, std::size_t bytes,
                              double timeout_s) {
  const auto has_room = [&] {
    const auto found = waiting_bytes_.find(to);
    return found == waiting_bytes_.end() || found->second == 0 ||
           found->second + bytes <= options_.max_waiting_bytes || gone_.contains(to) || !ended_.empty();
  };
  if (has_room()) return;
  const BlockedScope blocked;
  if (changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), has_room)) return;
  throw DeadlineError(text("worker ", to, " has answered none of the ", human_bytes(waiting_bytes_[to]),
                           " of calls that wait for it, for ", timeout_s,
                           " s; make fewer at a time, or raise AgentOptions::max_waiting_bytes"));
}

void AgentCore::call(WorkerId to, const FunctionRow& function, Parcel arguments, const CallOptions& options,
                     std::optional<RefId> result, OnAnswer on_answer) {
  const std::size_t bytes = arguments.num_bytes();
  const std::int64_t most_bytes = options_.max_message_bytes - kHeadRoomBytes;
  if (std::cmp_greater(bytes, most_bytes)) {
    throw InvalidArgument(
        text("the arguments of '", function.name, "' have ", human_bytes(bytes), "; at most ",
             human_bytes(static_cast<std::uint64_t>(most_bytes)),
             " go in one call: make several, or raise AgentOptions::max_message_bytes on all workers"));
  }
  const double timeout_s = options.timeout_s > 0 ? options.timeout_s : options_.timeout_s;
  CallId id = 0;
  {
    std::unique_lock lock(mutex_);
    std::string failure;
    wait_for_room(lock, to, bytes + kCallBytes, timeout_s);
    if (!ended_.empty()) failure = text("worker '", self_.name, "' has ended: ", ended_);
    if (gone_.contains(to)) failure = gone_.at(to);
    if (!failure.empty()) {
      lock.unlock();
      const std::string what =
          text("'", function.name, "' on worker '", name_of(to), "' cannot run: ", failure);
      return on_answer({.error = is_gone(to) ? std::make_exception_ptr(WorkerEnded(what))
                                             : std::make_exception_ptr(CommError(what))});
    }
    id = ++last_call_;
    const std::int64_t now = now_ns();
    calls_[id] = {.to = to,
                  .function = function.name,
                  .on_answer = std::move(on_answer),
                  .begun_ns = now,
                  .deadline_ns = now + nanoseconds(timeout_s),
                  .timeout_s = timeout_s,
                  .bytes = bytes};
    deadlines_.emplace(calls_[id].deadline_ns, id);
    waiting_bytes_[to] += bytes + kCallBytes;
    auto& statistics = statistics_.made[function.name];
    ++statistics.num_calls;
    statistics.bytes_sent += bytes;
  }
  announce(arguments, to);
  const RequestHead head{id, function.name, function.fingerprint(), result};
  wire::Message message =
      pack(static_cast<std::uint16_t>(MessageKind::kRequest), wire::encode(head), arguments);
  if (to == self_.id) {
    // The message is copied, as a message to another worker is.
    const auto copy =
        std::make_shared<std::vector<std::byte>>(message.body.bytes().begin(), message.body.bytes().end());
    message.body = wire::Buffer(copy, std::span<const std::byte>(*copy));
    post([timeout_s](Endpoint& endpoint) { endpoint.wake_within(timeout_s); });
    return on_request(to, message);
  }
  const std::size_t message_bytes = message.num_bytes();
  post(
      [to, timeout_s, message = std::move(message)](Endpoint& endpoint) mutable {
        endpoint.send(to, std::move(message));
        endpoint.wake_within(timeout_s);
      },
      message_bytes);
}

void AgentCore::finish(CallId id, Answer&& answer) {
  Call call;
  {
    const std::lock_guard lock(mutex_);
    const auto found = calls_.find(id);
    if (found == calls_.end() || found->second.to != answer.from) return;  // a late answer
    call = std::move(found->second);
    calls_.erase(found);
    deadlines_.erase({call.deadline_ns, id});
    waiting_bytes_[call.to] -= call.bytes + kCallBytes;
    auto& statistics = statistics_.made[call.function];
    statistics.bytes_received += answer.parcel.num_bytes();
    statistics.add_latency(static_cast<double>(now_ns() - call.begun_ns) * 1e-9);
    if (answer.error) ++statistics.num_errors;
    trace("rpc", call.function, call.begun_ns, call.bytes + answer.parcel.num_bytes());
  }
  changed_.notify_all();
  call.on_answer(std::move(answer));
}

void AgentCore::on_message(WorkerId from, wire::Message message) {
  switch (static_cast<MessageKind>(message.kind)) {
    case MessageKind::kRequest:
      return on_request(from, message);
    case MessageKind::kAnswer:
      return on_answer(from, message);
    case MessageKind::kCancel:
      if (const auto head = wire::decode<CancelHead>(message.head)) {
        const std::lock_guard lock(mutex_);
        const auto found = served_.find({from, head->call});
        if (found == served_.end()) return;
        if (const auto served = found->second.lock()) served->cancelled = true;
        return;
      }
      break;
    case MessageKind::kIntroduced:
      if (const auto head = wire::decode<IntroducedHead>(message.head)) {
        std::shared_ptr<RemoteValue> freed;
        {
          const std::lock_guard lock(mutex_);
          freed = references_->introduced(head->id, from, head->holder);
        }
        endpoint_->watch(head->holder);
        return;
      }
      break;
    case MessageKind::kDropped:
      if (const auto head = wire::decode<DroppedHead>(message.head)) {
        std::shared_ptr<RemoteValue> freed;
        const std::lock_guard lock(mutex_);
        freed = references_->dropped(head->id, head->introducer, from);
        return;
      }
      break;
    case MessageKind::kDone: {
      const std::lock_guard lock(mutex_);
      done_.insert(from);
    }
      return changed_.notify_all();
  }
  complain(from, text("a message that cannot be read, of kind ", message.kind));
}

void AgentCore::complain(WorkerId from, const std::string& what) {
  if (options_.report) options_.report(text("worker '", name_of(from), "' sends ", what));
}

/// Whether `from` may pass these references on as their introducer.
bool AgentCore::may_pass(WorkerId from, const std::vector<RefPass>& references) {
  return std::ranges::all_of(references, [&](const RefPass& pass) {
    return pass.introducer == from && pass.id.creator != kNobody && pass.id.owner != kNobody &&
           pass.id.number != 0;
  });
}

void AgentCore::on_request(WorkerId from, const wire::Message& message) {
  auto unpacked = unpack(message);
  const auto head = unpacked ? wire::decode<RequestHead>(unpacked->head) : std::nullopt;
  const bool names_its_own =
      head && (!head->result || (head->result->creator == from && head->result->number != 0 &&
                                 head->result->owner == self_.id));
  if (!names_its_own || !may_pass(from, unpacked->parcel.references)) {
    return complain(from, "a call that cannot be read");
  }
  static const FunctionRow kNone;
  const FunctionRow* const function = find_function(head->function);
  const auto served = std::make_shared<ServedCall>(shared_from_this(),
                                                   function == nullptr ? kNone : *function, from, head->call);
  served->arrived_ns = now_ns();
  served->arguments = std::move(unpacked->parcel);
  served->references = adopt(served->arguments.references);
  {
    const std::lock_guard lock(mutex_);
    if (head->result) {
      if (from != self_.id) references_->arrived(*head->result);
      references_->hold_here(*head->result);
      served->result = std::make_shared<RefHandle>(shared_from_this(), *head->result, self_.id);
    }
    served_[{from, head->call}] = served;
  }
  if (head->result && from != self_.id) endpoint_->watch(from);
  const bool fits = function != nullptr && head->fingerprint == function->fingerprint();
  if (fits) return pool_->submit([served] { served->core().run(served); });
  std::string reason;
  if (function == nullptr) {
    reason = text("worker '", self_.name, "' has no function '", head->function, "'; it has:");
    for (const auto& each : function_names()) reason += text(" ", each);
    const std::size_t type = head->function.rfind(": ");  // of a function without an explicit name
    reason += type == std::string::npos
                  ? text(". Its program has to name rpc::function<\"", head->function, "\", ...> too")
                  : text(". Its program has to call ", head->function.substr(0, type),
                         " too: build both from one source");
  } else {
    reason = text("'", head->function, "' is ", function->signature, " on worker '", self_.name,
                  "', and another one for the caller: build both from one source");
  }
  served->fail(std::make_exception_ptr(InvalidArgument(reason)));
}

void AgentCore::run(const std::shared_ptr<ServedCall>& served) {
  if (served->cancelled) {
    return served->fail(std::make_exception_ptr(DeadlineError("the call was given up before it began")));
  }
  CallHooks* const hooks = this->hooks();
  try {
    if (hooks != nullptr) hooks->begin_run(served->arguments.annex);
    served->function().run(served);
  } catch (...) {
    served->fail(std::current_exception());
  }
  if (hooks != nullptr) hooks->end_run();
}

void AgentCore::answer(const ServedCall& served, Parcel results) {
  const std::size_t bytes = results.num_bytes();
  if (std::cmp_greater(bytes, options_.max_message_bytes - kHeadRoomBytes)) {
    return answer_error(served, std::make_exception_ptr(InvalidArgument(text(
                                    "the result of '", served.function().name, "' has ", human_bytes(bytes),
                                    ", more than a message may hold; return it in parts, or raise "
                                    "AgentOptions::max_message_bytes on all workers"))));
  }
  finish_served(served, false, bytes);
  announce(results, served.from());
  wire::Message message = pack(static_cast<std::uint16_t>(MessageKind::kAnswer),
                               wire::encode(AnswerHead{.call = served.call(), .error = {}}), results);
  if (served.from() == self_.id) {
    const auto copy =
        std::make_shared<std::vector<std::byte>>(message.body.bytes().begin(), message.body.bytes().end());
    message.body = wire::Buffer(copy, std::span<const std::byte>(*copy));
    return on_answer(self_.id, message);
  }
  const std::size_t message_bytes = message.num_bytes();
  post([to = served.from(),
        message = std::move(message)](Endpoint& endpoint) mutable { endpoint.send(to, std::move(message)); },
       message_bytes);
}

void AgentCore::answer_error(const ServedCall& served, const std::exception_ptr& error) {
  finish_served(served, true, 0);
  const AnswerHead head{.call = served.call(), .error = carry(error)};
  wire::Message message = pack(static_cast<std::uint16_t>(MessageKind::kAnswer), wire::encode(head), {});
  if (served.from() == self_.id) return on_answer(self_.id, message);
  post([to = served.from(), message = std::move(message)](Endpoint& endpoint) mutable {
    endpoint.send(to, std::move(message));
  });
}

void AgentCore::finish_served(const ServedCall& served, bool failed, std::size_t bytes_sent) {
  {
    const std::lock_guard lock(mutex_);
    served_.erase({served.from(), served.call()});
    auto& statistics = statistics_.served[served.function().name];
    ++statistics.num_calls;
    if (failed) ++statistics.num_errors;
    statistics.bytes_received += served.arguments.num_bytes();
    statistics.bytes_sent += bytes_sent;
    statistics.add_latency(static_cast<double>(now_ns() - served.arrived_ns) * 1e-9);
    trace("rpc served", served.function().name, served.arrived_ns, bytes_sent);
  }
  changed_.notify_all();
}

void AgentCore::trace(const char* category, const std::string& function, std::int64_t begun_ns,
                      std::size_t bytes) {
  if (lanes_ == nullptr || !lanes_->recording()) return;
  lanes_->add({.begin_ns = begun_ns,
               .end_ns = now_ns(),
               .category = category,
               .name = options_.trace->intern(function),
               .arguments = {telemetry::TraceArgument{"bytes", static_cast<std::int64_t>(bytes)}}});
}

void AgentCore::on_answer(WorkerId from, const wire::Message& message) {
  auto unpacked = unpack(message);
  auto head = unpacked ? wire::decode<AnswerHead>(unpacked->head) : std::nullopt;
  if (!head || !may_pass(from, unpacked->parcel.references)) {
    return complain(from, "an answer that cannot be read");
  }
  Answer answer{.from = from, .parcel = std::move(unpacked->parcel)};
  answer.references = adopt(answer.parcel.references);
  std::string function;
  {
    const std::lock_guard lock(mutex_);
    const auto found = calls_.find(head->call);
    if (found == calls_.end()) return;  // a late answer
    function = found->second.to == from ? found->second.function : "";
  }
  if (function.empty()) return complain(from, "an answer to a call of another worker");
  if (head->error) {
    answer.error = arrive(*head->error, text("in '", function, "' on worker '", name_of(from), "'"));
  }
  finish(head->call, std::move(answer));
}

void AgentCore::on_rejected(WorkerId worker, const wire::Message& message, const std::string& reason) {
  const auto unpacked = unpack(message);
  const auto error = std::make_exception_ptr(InvalidArgument(reason));
  if (message.kind == static_cast<std::uint16_t>(MessageKind::kRequest)) {
    finish(wire::decode<RequestHead>(unpacked->head)->call, {.error = error, .from = worker});
  } else if (message.kind == static_cast<std::uint16_t>(MessageKind::kAnswer)) {
    const auto call = wire::decode<AnswerHead>(unpacked->head)->call;
    endpoint_->send(worker, pack(message.kind, wire::encode(AnswerHead{call, carry(error)}), {}));
  }
}

void AgentCore::on_gone(WorkerId worker, bool left, const std::string& reason) {
  const std::string name = name_of(worker);
  const std::string what =
      left ? text("worker '", name, "' has left") : text("worker '", name, "' has ended: ", reason);
  std::vector<CallId> failed;
  std::vector<std::shared_ptr<RemoteValue>> freed;
  {
    const std::lock_guard lock(mutex_);
    gone_[worker] = what;
    std::erase_if(ids_, [&](const auto& each) { return each.second == worker; });
    for (const auto& [id, call] : calls_) {
      if (call.to == worker) failed.push_back(id);
    }
    freed = references_->worker_gone(worker, what);
  }
  changed_.notify_all();
  if (!left && options_.report) options_.report(what);
  for (const CallId id : failed) {
    std::string function;
    {
      const std::lock_guard lock(mutex_);
      const auto found = calls_.find(id);
      if (found == calls_.end()) continue;
      function = found->second.function;
    }
    finish(id, {.error = std::make_exception_ptr(WorkerEnded(text("'", function, "' was under way: ", what))),
                .from = worker});
  }
}

void AgentCore::on_tick() {
  while (true) {
    CallId id = 0;
    WorkerId to = kNobody;
    std::string function;
    double timeout_s = 0;
    {
      const std::lock_guard lock(mutex_);
      if (deadlines_.empty()) return;
      const auto [at_ns, first] = *deadlines_.begin();
      const std::int64_t now = now_ns();
      if (at_ns > now) {
        endpoint_->wake_within(static_cast<double>(at_ns - now) * 1e-9);
        return;
      }
      const Call& call = calls_.at(first);
      id = first;
      to = call.to;
      function = call.function;
      timeout_s = call.timeout_s;
    }
    const char* const where = to == self_.id            ? "it is running"
                              : !endpoint_->has_met(to) ? "no process has answered there at all"
                              : endpoint_->num_unacknowledged(to) == 0 ? "it has arrived there"
                                                                       : "it may not have arrived there";
    finish(id, {.error = std::make_exception_ptr(DeadlineError(
                    text("'", function, "' on worker '", name_of(to), "' has not answered within ", timeout_s,
                         " s; ", where, ". Give CallOptions::timeout_s what it takes"))),
                .from = to});
    if (to != self_.id) endpoint_->send(to, message_of(MessageKind::kCancel, CancelHead{id}));
  }
}

}  // namespace trireme::rpc
