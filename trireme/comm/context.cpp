#include "trireme/comm/context.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <numeric>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/comm/all_reduce_setting.h"
#include "trireme/comm/device.h"
#include "trireme/comm/internal/context_state.h"
#include "trireme/comm/internal/device_backend.h"
#include "trireme/comm/internal/rendezvous.h"
#include "trireme/comm/internal/wire_store.h"
#include "trireme/comm/pin.h"
#include "trireme/comm/tensor_blocks.h"
#include "trireme/comm/vector_math.h"
#include "trireme/telemetry/rank_usage.h"

namespace trireme::comm {
namespace {

constexpr const char* kVersion = "7";

// Shutdown timeout of a rank in a failed world.
constexpr double kShortGoodbyeS = 1;

void check_options(const ContextOptions& options) {
  require(options.timeout_s > 0, "the communication timeout is ", options.timeout_s,
          " s; expected more than 0");
  require(options.slow_timeout_s > 0, "the communication timeout for slow ranks is ", options.slow_timeout_s,
          " s; expected more than 0");
  if (options.backend != "auto") find_backend(options.backend);
  check_all_reduce(options.all_reduce);
  check_network(options.network);
  check_pin(options.pin);
}

bool is_available(const std::string& backend) {
  const auto& table = backend_table();
  return std::any_of(table.begin(), table.end(), [&](const auto& row) {
    return row.name == backend && row.unavailable_because().empty();
  });
}

bool is_one_host(const std::vector<std::string>& host_ids) {
  return std::all_of(host_ids.begin(), host_ids.end(),
                     [&](const std::string& each) { return each == host_ids[0]; });
}

/// For CPU tensors.
std::string choose_host_backend(const std::vector<std::string>& host_ids) {
  const std::string best = is_one_host(host_ids) ? "shm" : "hierarchical";
  return is_available(best) ? best : "gloo";
}

std::string choose_backend(const std::string& wanted, c10::DeviceType device,
                           const std::vector<Arrival>& arrivals) {
  if (wanted != "auto") return wanted;
  for (const BackendRow& row : backend_table()) {
    if (device != c10::kCPU && row.carries == device && is_available(row.name)) return row.name;
  }
  std::vector<std::string> host_ids;
  for (const Arrival& arrival : arrivals) host_ids.push_back(arrival.host_id);
  return choose_host_backend(host_ids);
}

/// Ranks share a device only if the user has chosen a backend that allows it.
c10::Device choose_device(const ContextOptions& options, const LaunchEnvironment& environment) {
  const c10::DeviceType type = device_type_of(options.device);
  const bool is_named = options.backend != "auto";
  const c10::DeviceType carried = is_named ? find_backend(options.backend).carries : c10::kCPU;
  require(carried == c10::kCPU || carried == type, "backend '", options.backend, "' moves tensors of ",
          name_of(carried), ", and this rank computes on ", name_of(type),
          "; take another one, or train.device = \"", name_of(carried), "\"");
  const c10::Device device = device_of_rank(
      type, environment.local_rank, is_named && carried == c10::kCPU ? DeviceUse::kShared : DeviceUse::kOwn);
  if (!device.is_cpu()) c10::impl::getDeviceGuardImpl(type)->setDevice(device);
  return device;
}

/// Reasons against pinning, other than the number of cores.
std::string why_not_pinned(const LaunchEnvironment& environment) {
  if (environment.launcher == "threads") return "ranks are threads of one process";
  // The OpenMP runtime has computed its thread places from all cores when the library was loaded.
  for (const char* name : {"OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && std::string_view(value) != "false")
      return text(name, " = ", value, " puts torch's threads on cores by itself");
  }
  return "";
}

std::string joined(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (const int rank : ranks) names.push_back(std::to_string(rank));
  return trireme::join(names);
}

Log log_of(const LaunchEnvironment& environment) { return Log(text("trireme[rank ", environment.rank, "]")); }

std::string in_words(StoreHost host) {
  return host == StoreHost::kLauncher ? "the launcher of the first host" : "rank 0";
}

c10::intrusive_ptr<c10d::Store> prefixed(const std::string& prefix, c10::intrusive_ptr<c10d::Store> store) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
}

}  // namespace

Context::Context(std::unique_ptr<State> state) : state_(std::move(state)) {}

std::shared_ptr<Context> Context::from_environment(const ContextOptions& options) {
  return join(read_launch_environment(), options);
}

std::shared_ptr<Context> Context::join(const LaunchEnvironment& environment, const ContextOptions& options) {
  check_options(options);
  settle_gpu_libraries(options.cuda, options.nccl);
  require(!environment.is_spare,
          "this process is a spare of an elastic job and has no rank yet: a program for trireme launch "
          "--elastic calls trireme::run_elastic()");
  settle_vector_math();
  std::unique_ptr<State> state;
  if (environment.world_size == 1) {
    auto store = c10::make_intrusive<c10d::HashStore>();
    state = State::make(
        environment, options, [store](double) { return store; }, telemetry::StatusPage::from_environment());
  } else {
    const WorldStore store = open_world_store(environment, log_of(environment), options.timeout_s);
    LaunchEnvironment found = environment;
    found.master_addr = store.endpoint.host;
    found.master_port = store.endpoint.port;
    state = State::make(found, options, store.source, telemetry::StatusPage::from_environment());
    state->served = store.served;
  }
  at::set_num_threads(state->torch_threads());
  if (options.keep_freed_memory && trireme::keep_freed_memory()) keep_tensor_blocks();
  return std::shared_ptr<Context>(new Context(std::move(state)));
}

std::unique_ptr<Context::State> Context::State::make(const LaunchEnvironment& environment,
                                                     const ContextOptions& options, const StoreSource& stores,
                                                     std::shared_ptr<telemetry::StatusPage> status) {
  auto state = std::make_unique<State>();
  state->environment = environment;
  state->options = options;
  state->log = log_of(environment);
  state->status = std::move(status);
  state->status->set_rank(environment.rank);
  state->status->usage().begin(environment.world_size);
  state->status_line = std::make_shared<StatusLine>(*state->status);
  state->device = choose_device(options, environment);
  state->connection = stores(options.timeout_s);
  const Arrival mine{.world_size = environment.world_size,
                     .version = kVersion,
                     .backend = options.backend,
                     .device = name_of(state->device.type()),
                     .all_reduce = options.all_reduce,
                     .network = options.network,
                     .not_ucx_because = options.network == kNetworkAuto ? why_not_ucx() : std::string(),
                     .host_id = host_id(),
                     .pid = ::getpid(),
                     .boot_id = boot_id(),
                     .cores = allowed_cores()};
  const std::string start = text("trireme/", environment.restart_count);
  const std::string world = claim_place(*prefixed(start, state->connection), environment, mine);
  const StoreSource prefixed_stores = [stores, prefix = start + world](double timeout_s) {
    return prefixed(prefix, stores(timeout_s));
  };
  state->store = prefixed(start + world, state->connection);
  state->arrivals = arrive(*state->store, environment, mine, options.timeout_s);
  state->pin();
  state->backend = choose_backend(options.backend, state->device.type(), state->arrivals);
  state->interface_addr = interface_towards(environment);
  state->choose_network();
  if (environment.world_size > 1) {
    state->watcher = std::make_unique<Watcher>(WatcherOptions{.rank = environment.rank,
                                                              .arrivals = state->arrivals,
                                                              .connect = prefixed_stores,
                                                              .store_host = in_words(environment.store_host),
                                                              .status = state->status,
                                                              .log = state->log});
  }
  std::vector<int> everybody(static_cast<std::size_t>(environment.world_size));
  std::iota(everybody.begin(), everybody.end(), 0);
  state->world = state->make_group(everybody, "world", state->backend);
  const std::string ranks = ranks_by_host(everybody, state->hosts_of(everybody));
  if (const std::string chosen = state->all_reduces->describe(ranks);
      environment.rank == 0 && !chosen.empty())
    state->log.info("all-reduces between hosts: ", chosen, ", as measured");
  state->self = state->make_group({environment.rank}, "self", state->backend);
  return state;
}

void Context::State::choose_network() {
  network.network = options.network;
  if (options.network != kNetworkAuto) return;
  std::vector<int> everybody(arrivals.size());
  std::iota(everybody.begin(), everybody.end(), 0);
  const bool by_gloo = options.all_reduce == kAllReduceByGloo || backend == "gloo";
  network = by_gloo ? NetworkChoice{.network = topology::kNetworkTcp, .reason = "gloo carries collectives"}
                    : comm::choose_network({.store = prefixed("network", store),
                                            .rank = environment.rank,
                                            .size = environment.world_size,
                                            .group_name = "world",
                                            .world_ranks = everybody,
                                            .host_ids = hosts_of(everybody),
                                            .interface_addr = interface_addr,
                                            .secret = environment.secret,
                                            .timeout_s = options.timeout_s},
                                           arrivals);
  if (environment.rank != 0) return;
  keep_network(*store, network);
  const std::string words = text("network between hosts: ", network.network, "; ", network.reason);
  network.is_news ? log.info(words) : log.debug(words);
}

void Context::State::fail_all(const std::string& cause) {
  failed = true;
  if (watcher) watcher->publish_failure(Watcher::kAllGroups, cause);
}

void Context::State::leave() {
  world.reset();
  self.reset();
  if (environment.world_size == 1) return;
  const bool in_failure = failed || (watcher && watcher->saw_failure());
  const bool is_store_lost = watcher && watcher->has_lost_store(kShortGoodbyeS / 2);
  watcher.reset();  // publishes remaining failures first
  if (in_failure && is_store_lost) return;
  const double patience_s = in_failure ? kShortGoodbyeS : options.timeout_s;
  try {
    leave_world(*store, environment.rank, patience_s);
    std::vector<int> missed;
    if (served) {
      // If a rank dies meanwhile, its connection ends too.
      missed = wait_until_left(*store, environment.world_size, patience_s,
                               [&] { return served->num_clients() <= 1; });
    }
    if (auto* own = dynamic_cast<WireStore*>(connection.get())) own->disconnect();
    if (missed.empty() || in_failure) return;
    log.warning(missed.size() == 1 ? "rank " : "ranks ", joined(missed), " did not leave within ",
                human_duration(patience_s), "; the store of the world ends with this process");
  } catch (const std::exception& error) {
    if (!in_failure) log.warning("could not say goodbye to the other ranks: ", error.what());
  }
}

int Context::State::torch_threads() const {
  if (options.torch_threads > 0) return options.torch_threads;
  const int available = available_cores();
  const bool has_quota = available < static_cast<int>(allowed_cores().size());
  // A sum of fractions may be slightly less than the exact integer.
  const int share =
      has_quota ? available / environment.local_world_size : static_cast<int>(share_of_cores().cores + 1e-6);
  // Replicas must use equal numbers of threads: otherwise their sums would differ.
  return std::max(1, fewest_pinned > 0 ? std::min(share, fewest_pinned) : share);
}

void Context::State::pin() {
  const auto of_rank = [&](int rank) -> Arrival& { return arrivals[static_cast<std::size_t>(rank)]; };
  std::vector<RankCores> here;
  for (int rank = 0; rank < environment.world_size; ++rank) {
    if (of_rank(rank).boot_id == of_rank(environment.rank).boot_id)
      here.push_back({rank, of_rank(rank).cores});
  }
  PinPlan plan =
      plan_pins(options.pin, here, [](std::span<const int> cores) { return topology::core_places(cores); });
  if (const std::string why = options.pin == "none" ? "" : why_not_pinned(environment); !why.empty())
    plan = {.words = text("comm.pin = \"", options.pin, "\": ", why, "; no rank is pinned"),
            .is_rejected = true};
  for (const RankCores& each : plan.pinned) {
    const int cores = static_cast<int>(each.cores.size());
    fewest_pinned = fewest_pinned == 0 ? cores : std::min(fewest_pinned, cores);
    of_rank(each.rank).cores = each.cores;
    if (each.rank == environment.rank) pinned = std::make_unique<PinnedThreads>(each.cores);
  }
  if (here.front().rank != environment.rank || plan.words.empty()) return;
  plan.is_rejected ? log.warning(plan.words) : log.info(plan.words);
}

CoreShare Context::State::share_of_cores() const {
  const std::string& here = arrivals[static_cast<std::size_t>(environment.rank)].boot_id;
  std::vector<std::vector<int>> allowed;
  std::size_t mine = 0;
  for (std::size_t rank = 0; rank < arrivals.size(); ++rank) {
    if (arrivals[rank].boot_id != here) continue;
    if (static_cast<int>(rank) == environment.rank) mine = allowed.size();
    allowed.push_back(arrivals[rank].cores);
  }
  return trireme::share_of_cores(allowed, mine);
}

c10::intrusive_ptr<c10d::Backend> Context::State::connect(const BackendRequest& request,
                                                          const std::string& by) const {
  const BackendRow& row = find_backend(by);
  if (device.is_cpu()) return row.make(request);
  if (row.carries == c10::kCPU) return make_device_backend(row.make(request), {});
  BackendRequest of_host = request;
  of_host.store = prefixed("host", request.store);
  return make_device_backend(find_backend(choose_host_backend(request.host_ids)).make(of_host),
                             row.make(request));
}

/// A part on one host uses shm directly, without the overhead of host levels.
std::string Context::State::backend_of_part(const std::vector<int>& world_ranks) const {
  return backend == "hierarchical" && is_one_host(hosts_of(world_ranks)) ? "shm" : backend;
}

std::vector<std::string> Context::State::hosts_of(const std::vector<int>& world_ranks) const {
  std::vector<std::string> host_ids;
  for (const int rank : world_ranks) host_ids.push_back(arrivals[static_cast<std::size_t>(rank)].host_id);
  return host_ids;
}

std::optional<Group> Context::State::make_group(const std::vector<int>& world_ranks, const std::string& name,
                                                const std::string& by) {
  const auto me = std::find(world_ranks.begin(), world_ranks.end(), environment.rank);
  if (me == world_ranks.end()) return std::nullopt;
  const double slow_timeout_s = std::max(options.timeout_s, options.slow_timeout_s);
  GroupParts parts{.name = name,
                   .backend_name = by,
                   .transport_of_device = find_backend(by).transport,
                   .backend = {},
                   .world_ranks = world_ranks,
                   .rank = static_cast<int>(me - world_ranks.begin()),
                   .timeout_s = options.timeout_s,
                   .slow_timeout_s = slow_timeout_s,
                   .status = status_line,
                   .watcher = watcher.get(),
                   .host_ids = hosts_of(world_ranks),
                   .make_group = [this](const std::vector<int>& members, const std::string& part) {
                     return *make_group(members, part, backend_of_part(members));
                   }};
  if (world_ranks.size() > 1) {
    const BackendRequest request{.store = prefixed(text("group/", name), store),
                                 .rank = parts.rank,
                                 .size = static_cast<int>(world_ranks.size()),
                                 .group_name = name,
                                 .world_ranks = world_ranks,
                                 .host_ids = hosts_of(world_ranks),
                                 .interface_addr = interface_addr,
                                 .ranks_on_cores = share_of_cores().num_processes,
                                 .secret = environment.secret,
                                 .all_reduce = options.all_reduce,
                                 .network = network.network,
                                 .all_reduce_book = all_reduces,
                                 .timeout_s = options.timeout_s,
                                 .operation_timeout_s = slow_timeout_s + kBackendMargin_s};
    parts.backend = connect(request, by);
  }
  auto group = std::make_shared<Group::State>(std::move(parts));
  if (trace != nullptr) group->set_trace(trace);
  if (watcher) watcher->watch(group);
  return Group(std::move(group));
}

std::optional<Group> Context::new_group(const std::vector<int>& world_ranks, const std::string& name) {
  require(!world_ranks.empty(), "new_group '", name, "': no ranks given");
  for (const int rank : world_ranks) {
    require(rank >= 0 && rank < world_size(), "new_group '", name, "': rank ", rank,
            " is not in the world of ", world_size(), " ranks");
    require(std::count(world_ranks.begin(), world_ranks.end(), rank) == 1, "new_group '", name, "': rank ",
            rank, " is listed twice");
  }
  require(state_->group_names.insert(name).second, "new_group: there is a group '", name, "' already");
  return state_->make_group(world_ranks, name, state_->backend_of_part(world_ranks));
}

std::string Context::free_group_name(const std::string& wish) const {
  std::string name = wish;
  for (int number = 2; state_->group_names.contains(name); ++number) name = text(wish, "#", number);
  return name;
}

std::string Context::all_reduce_choices() {
  if (state_->options.all_reduce != kAllReduceAuto || is_one_host(state_->hosts_of(world().world_ranks())))
    return "";
  std::set<std::string> lines;
  for (const std::string& of_rank : world().all_gather_text(state_->all_reduces->to_text())) {
    for (const std::string& line : split(of_rank, '\n'))
      if (!line.empty()) lines.insert(line + '\n');
  }
  return trireme::join(std::vector<std::string>(lines.begin(), lines.end()), "");
}

void Context::take_all_reduce_choices(const std::string& text) { state_->all_reduces->take_over(text); }

void Context::set_trace(telemetry::Trace* trace) {
  state_->trace = trace;
  world().state().set_trace(trace);
}

Context::~Context() { state_->leave(); }

void run_ranks_as_threads(int num_ranks, const std::function<void(Context&)>& body,
                          const ContextOptions& options) {
  require(num_ranks >= 1, "run_ranks_as_threads: ", num_ranks, " ranks; expected at least 1");
  ContextOptions chosen = options;
  if (chosen.backend == "auto") chosen.backend = is_available("threads") ? "threads" : "gloo";
  check_options(chosen);
  settle_vector_math();
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::exception_ptr first_error;
  const auto run_rank = [&](int rank) {
    at::set_num_threads(1);
    LaunchEnvironment environment;
    environment.launcher = "threads";
    environment.rank = environment.local_rank = rank;
    environment.world_size = environment.local_world_size = num_ranks;
    std::unique_ptr<Context> context;
    try {
      context.reset(new Context(Context::State::make(
          environment, chosen, [store](double) { return store; }, telemetry::StatusPage::make_private())));
      body(*context);
    } catch (const std::exception& error) {
      {
        const std::lock_guard lock(mutex);
        if (!first_error) first_error = std::current_exception();
      }
      if (context) context->state_->fail_all(text("rank ", rank, " failed: ", error.what()));
    }
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) ranks.emplace_back(run_rank, rank);
  for (auto& rank : ranks) rank.join();
  if (first_error) std::rethrow_exception(first_error);
}

int Context::rank() const { return state_->environment.rank; }
int Context::world_size() const { return state_->environment.world_size; }
int Context::local_rank() const { return state_->environment.local_rank; }
int Context::local_world_size() const { return state_->environment.local_world_size; }
c10::Device Context::device() const { return state_->device; }
const LaunchEnvironment& Context::environment() const { return state_->environment; }
Group& Context::world() { return *state_->world; }
Group& Context::self() { return *state_->self; }
const Log& Context::log() const { return state_->log; }
telemetry::StatusPage& Context::status() { return *state_->status; }
telemetry::Trace* Context::trace() const { return state_->trace; }
c10d::Store& Context::store() { return *state_->store; }

}  // namespace trireme::comm
