// Joining a group, finding its workers, and leaving it.

#include "trireme/rpc/agent_core.h"

#include <pthread.h>

#include <algorithm>
#include <charconv>
#include <future>
#include <string_view>
#include <thread>
#include <utility>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/rpc/internal/protocol.h"
#include "trireme/rpc/internal/reference_table.h"
#include "trireme/rpc/served_call.h"
#include "trireme/wire/fields.h"

namespace trireme::rpc {
namespace {

constexpr double kLookAgain_s = 0.02, kLookForOthers_s = 1;
// Longer messages are sent from the endpoint's thread, concurrently with the caller.
constexpr std::size_t kSentAtOnceBytes = 64 << 10;
constexpr std::string_view kScheme = "rpc:";

std::string as_text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string random_name() {
  const wire::Nonce nonce = wire::random_nonce();
  std::string name;
  for (std::size_t i = 0; i < 12; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    name += {kDigits[nonce[i] >> 4], kDigits[nonce[i] & 15]};
  }
  return name;
}

wire::NodeLoopOptions loop_options(const AgentOptions& options,
                                   std::function<wire::Address(const wire::Address&)> look_up) {
  wire::NodeLoopOptions loop;
  loop.listen = options.listen;
  if (options.shares_memory) loop.listen.push_back("unix:@trireme-rpc-" + random_name());
  loop.security = options.security;
  loop.self = {.role = "worker", .name = options.name};
  loop.report = options.report;
  loop.look_up = std::move(look_up);
  loop.limits = {.max_message_bytes = options.max_message_bytes,
                 .max_unfinished_bytes = 2 * options.max_message_bytes};
  return loop;
}

/// Parses a worker's number in the directory. Throws CommError if it is invalid.
WorkerId number_in(const std::string& told) {
  WorkerId worker = kNobody;
  const char* const end = told.data() + told.size();
  const auto read = std::from_chars(told.data(), end, worker);
  if (read.ec == std::errc{} && read.ptr == end && worker != kNobody) return worker;
  throw CommError(text("the directory has '", told.substr(0, 64),
                       "' where the number of a worker is expected: something else writes to this group"));
}

void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

}  // namespace

std::shared_ptr<AgentCore> AgentCore::start(AgentOptions options) {
  const bool good_name =
      !options.name.empty() && options.name.size() <= 128 &&
      std::ranges::all_of(options.name, [](unsigned char each) { return each > ' ' && each != '/'; });
  require(good_name, "'", options.name,
          "' is no name of a worker; expected 1 to 128 characters, none of them a space or '/'");
  require(options.directory != nullptr, "worker '", options.name,
          "' has no directory to find the others in: give AgentOptions::directory");
  require(options.shares_memory || !options.listen.empty(), "worker '", options.name,
          "' shares no memory and listens nowhere: give AgentOptions::listen, such as tcp:127.0.0.1:0");
  require(options.timeout_s > 0 && options.num_threads > 0, "timeout_s is ", options.timeout_s,
          " and num_threads ", options.num_threads, "; expected both above zero");
  check_function_table();
  auto core = std::make_shared<AgentCore>(std::move(options));
  try {
    core->publish();
    core->thread_ = std::thread([raw = core.get()] { raw->serve(); });
    pthread_setname_np(core->thread_.native_handle(), "trireme-rpc");
    core->claim_name();
  } catch (...) {
    core->stop();
    throw;
  }
  return core;
}

AgentCore::AgentCore(AgentOptions options)
    : options_(std::move(options)),
      self_{.id = static_cast<WorkerId>(options_.directory->add(options_.group + "/count", 1)),
            .name = options_.name,
            .host = host_id()},
      pool_(std::make_shared<WorkerPool>(WorkerPoolOptions{.num_threads = options_.num_threads,
                                                           .on_thread_start = options_.on_thread_start})),
      references_(std::make_unique<ReferenceTable>(self_.id)) {
  if (options_.trace != nullptr) lanes_ = &options_.trace->add_lanes("rpc");
}

AgentCore::~AgentCore() = default;

void AgentCore::publish() {
  loop_ = std::make_shared<wire::NodeLoop>(
      loop_options(options_, [this](const wire::Address& address) { return look_up(address); }));
  self_.addresses = loop_->addresses();
  EndpointOptions endpoint{.self = self_,
                           .address_of = [](WorkerId worker) { return text(kScheme, worker); },
                           .lost_after_s = options_.lost_after_s,
                           .silent_after_s = options_.silent_after_s};
  endpoint_ = std::make_unique<Endpoint>(std::move(endpoint), *this);
  options_.directory->set(key(text("worker/", self_.id)), as_text(wire::encode(self_)));
}

void AgentCore::claim_name() {
  const std::string place = key("name/" + self_.name), mine = text(self_.id);
  std::string holder = options_.directory->replace(place, "", mine);
  const double until_s = now_s() + options_.timeout_s;
  while (holder != mine) {
    const auto other = number_in(holder);
    const bool left = options_.directory->get(key("left/" + holder)).has_value();
    require(left || has_ended(other, until_s - now_s()), "the name '", self_.name, "' in the group '",
            options_.group, "' is worker ", other, "'s, which is alive; choose another name for this one");
    holder = options_.directory->replace(place, holder, mine);
  }
}

bool AgentCore::has_ended(WorkerId worker, double timeout_s) {
  post([worker](Endpoint& endpoint) { endpoint.watch(worker); });
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                    [&] { return gone_.contains(worker) || met_.contains(worker); });
  return gone_.contains(worker);
}

std::optional<WorkerInfo> AgentCore::info_of(WorkerId worker) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = infos_.find(worker);
    if (found != infos_.end()) return found->second;
  }
  const auto told = options_.directory->get(key(text("worker/", worker)));
  if (!told) return std::nullopt;
  auto info = wire::decode<WorkerInfo>(std::as_bytes(std::span(*told)));
  if (!info) return std::nullopt;
  const std::lock_guard lock(mutex_);
  infos_[worker] = *info;
  return info;
}

wire::Address AgentCore::look_up(const wire::Address& address) try {
  const auto worker = number_in(address.substr(kScheme.size()));
  const auto info = info_of(worker);
  if (!info) throw CommError(text("there is no worker ", worker));
  const bool same_host = info->host == self_.host;
  const auto is_unix = [](const wire::Address& each) { return each.starts_with("unix:"); };
  for (const wire::Address& each : info->addresses) {
    if (is_unix(each) && same_host && options_.shares_memory) return each;
  }
  for (const wire::Address& each : info->addresses) {
    if (!is_unix(each)) return each;
  }
  throw CommError(text("worker '", info->name, "' listens for workers of its own host alone; give its ",
                       "AgentOptions::listen an address that this one reaches"));
} catch (const Error&) {
  throw;
} catch (const std::exception& error) {  // an error of a custom directory
  throw CommError(error.what());
}

WorkerId AgentCore::find(const std::string& name, double timeout_s) {
  const double until_s = now_s() + (timeout_s > 0 ? timeout_s : options_.timeout_s);
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = ids_.find(name);
      if (found != ids_.end()) return found->second;
      if (!ended_.empty()) throw CommError(text("worker '", self_.name, "' has ended: ", ended_));
    }
    const auto told = options_.directory->get(key("name/" + name));
    if (told) {
      const auto worker = number_in(*told);
      if (!is_gone(worker) && info_of(worker)) {
        const std::lock_guard lock(mutex_);
        return ids_[name] = worker;
      }
    }
    if (now_s() >= until_s) {
      throw CommError(text("there is no worker '", name, "' in the group '", options_.group,
                           told ? "' any more: it has ended" : "': none of that name has joined", " (waited ",
                           timeout_s > 0 ? timeout_s : options_.timeout_s, " s)"));
    }
    const BlockedScope blocked;
    sleep_s(kLookAgain_s);
  }
}

std::string AgentCore::name_of(WorkerId worker) {
  if (worker == self_.id) return self_.name;
  const std::lock_guard lock(mutex_);
  const auto found = infos_.find(worker);
  return found == infos_.end() ? text("#", worker) : found->second.name;
}

bool AgentCore::is_gone(WorkerId worker) const {
  const std::lock_guard lock(mutex_);
  return gone_.contains(worker);
}

void AgentCore::serve() {
  std::string ended = "it was closed";
  try {
    loop()->run(*endpoint_);
  } catch (const std::exception& error) {
    ended = error.what();
    if (options_.report) options_.report(text("worker '", self_.name, "' ends: ", ended));
  }
  std::shared_ptr<wire::NodeLoop> loop;
  {
    const std::lock_guard lock(loop_mutex_);
    loop = std::move(loop_);
  }
  std::map<CallId, Call> calls;
  {
    const std::lock_guard lock(mutex_);
    ended_ = ended;
    calls.swap(calls_);
    deadlines_.clear();
    waiting_bytes_.clear();
  }
  changed_.notify_all();
  for (auto& [id, call] : calls) {
    call.on_answer({.error = std::make_exception_ptr(
                        CommError(text("'", call.function, "' on worker '", name_of(call.to),
                                       "' is given up: worker '", self_.name, "' has ended: ", ended)))});
  }
}

void AgentCore::post(std::function<void(Endpoint&)> use, std::size_t bytes) {
  // Not under the lock: the work may report a failure, and its receiver may post again.
  const auto loop = this->loop();
  if (!loop) return;
  auto work = [this, use = std::move(use)] { use(*endpoint_); };
  if (bytes <= kSentAtOnceBytes) return loop->post_or_run(std::move(work));
  loop->post(std::move(work));
}

std::shared_ptr<wire::NodeLoop> AgentCore::loop() const {
  const std::lock_guard lock(loop_mutex_);
  return loop_;
}

void AgentCore::stop() {
  {
    const std::lock_guard lock(loop_mutex_);
    if (loop_) loop_->stop();
  }
  if (thread_.joinable()) thread_.join();
  {
    const std::lock_guard lock(loop_mutex_);
    loop_.reset();
  }
  pool_->close();
  // Values may hold references to others, and so call this object: they are destroyed without the lock.
  auto values = std::make_unique<ReferenceTable>(self_.id);
  const std::lock_guard lock(mutex_);
  values.swap(references_);
}

void AgentCore::wait_for_calls(double deadline_at_s) {
  std::unique_lock lock(mutex_);
  const auto idle = [&] { return !ended_.empty() || (calls_.empty() && served_.empty()); };
  const bool is_idle = changed_.wait_for(lock, std::chrono::duration<double>(deadline_at_s - now_s()), idle);
  if (is_idle) return;
  std::string what = text(calls_.size(), " calls of its own and ", served_.size(), " of others");
  if (!calls_.empty()) what += text(", such as '", calls_.begin()->second.function, "'");
  throw CommError(text("worker '", self_.name, "' waits in vain to leave: ", what, " are under way"));
}

/// Returns those of the first `count` workers that are not done, and notifies the others that this worker is
/// done. A worker that is done later finds this in the directory: of any two workers, one sees the other's
/// entry.
std::map<WorkerId, std::string> AgentCore::look_who_is_missing(WorkerId count) {
  std::map<WorkerId, std::string> missing;
  for (WorkerId each = 1; each <= count; ++each) {
    {
      const std::lock_guard lock(mutex_);
      if (each == self_.id || done_.contains(each) || gone_.contains(each)) continue;
    }
    const bool has_left = options_.directory->get(key(text("left/", each))).has_value();
    const bool is_done = has_left || options_.directory->get(key(text("done/", each)));
    if (is_done) {
      const std::lock_guard lock(mutex_);
      done_.insert(each);
    } else {
      missing[each] = info_of(each).value_or(WorkerInfo{}).name;
    }
    if (has_left) continue;
    post([each, is_done](Endpoint& endpoint) {
      if (!is_done) return endpoint.watch(each);
      endpoint.send(each, {.kind = static_cast<std::uint16_t>(MessageKind::kDone)});
    });
  }
  return missing;
}

void AgentCore::wait_for_all(double deadline_at_s, double joined_by_s) {
  options_.directory->set(key(text("done/", self_.id)), "1");
  while (true) {
    // Read once: a worker that joined between two reads would be counted neither as missing nor as still to
    // join.
    const auto count = static_cast<WorkerId>(options_.directory->add(key("count"), 0));
    const auto missing = look_who_is_missing(count);
    const std::size_t to_join = options_.num_workers > count ? options_.num_workers - count : 0;
    if (missing.empty() && to_join == 0) return;
    if (now_s() >= (to_join > 0 ? joined_by_s : deadline_at_s)) {
      std::string who = to_join == 0 ? "" : text(to_join, " that have not joined yet");
      for (const auto& [worker, name] : missing) who += text(who.empty() ? "" : ", ", "'", name, "'");
      throw CommError(
          text("worker '", self_.name, "' waits in vain for the others to end their work: ", who));
    }
    // There is no message about a worker that joins or that leaves without the others, so the directory is
    // polled.
    const double longest_s = std::min(to_join > 0 ? kLookAgain_s : kLookForOthers_s, deadline_at_s - now_s());
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(longest_s), [&] {
      const auto is_there = [&](const auto& each) {
        return done_.contains(each.first) || gone_.contains(each.first);
      };
      return !ended_.empty() || (!missing.empty() && std::ranges::all_of(missing, is_there));
    });
    if (!ended_.empty()) throw CommError(text("worker '", self_.name, "' has ended: ", ended_));
  }
}

void AgentCore::leave(bool with_all, double timeout_s) {
  const auto within_s = [&](double otherwise_s) {
    return now_s() + (timeout_s > 0 ? timeout_s : otherwise_s);
  };
  const double until_s = within_s(kLongestTimeout_s), joined_by_s = within_s(options_.timeout_s);
  wait_for_calls(until_s);
  if (with_all) wait_for_all(until_s, joined_by_s);
  wait_for_calls(until_s);
  options_.directory->set(key(text("left/", self_.id)), "1");
  post([](Endpoint& endpoint) { endpoint.say_good_bye(); });
  // A message that is not acknowledged is no error here: the other workers may leave at the same time.
  const double known_by_s = std::min(until_s, now_s() + options_.timeout_s);
  bool all_know = false;
  while (!all_know && now_s() < known_by_s) {
    const auto known = std::make_shared<std::promise<bool>>();
    auto answer = known->get_future();
    post([known](Endpoint& endpoint) { known->set_value(endpoint.all_acknowledged()); });
    {
      const std::lock_guard lock(mutex_);
      if (!ended_.empty()) break;
    }
    if (answer.wait_for(std::chrono::seconds(1)) == std::future_status::ready) all_know = answer.get();
    if (!all_know) sleep_s(kLookAgain_s / 4);
  }
  stop();
}

void AgentCore::on_met(WorkerId worker) {
  {
    const std::lock_guard lock(mutex_);
    met_[worker];
  }
  changed_.notify_all();
}

wire::ChannelCounts AgentCore::channel_counts() const {
  const auto loop = this->loop();
  return loop ? loop->counts() : wire::ChannelCounts{};
}

Statistics AgentCore::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

}  // namespace trireme::rpc
