#include "trireme/comm/context.h"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "trireme/base/error.h"
#include "trireme/base/host.h"
#include "trireme/comm/internal/context_state.h"
#include "trireme/comm/internal/rendezvous.h"

namespace trireme::comm {
namespace {

constexpr const char* kVersion = "1";

std::string choose_backend(const std::string& wanted, const std::vector<std::string>& host_ids) {
  if (wanted != "auto") return find_backend(wanted).name;
  const bool one_host =
      std::all_of(host_ids.begin(), host_ids.end(), [&](const auto& id) { return id == host_ids[0]; });
  const std::string best = one_host ? "shm" : "hierarchical";
  for (const auto& row : backend_table()) {
    if (row.name == best && row.unavailable_because().empty()) return best;
  }
  return "gloo";
}

std::string backend_for_threads() {
  for (const auto& row : backend_table()) {
    if (row.name == "threads") return row.name;
  }
  return "gloo";
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
  const auto deadline = Deadline::after_s(options.timeout_s);
  auto store = environment.world_size == 1
                   ? c10::intrusive_ptr<c10d::Store>(c10::make_intrusive<c10d::HashStore>())
                   : connect_store(environment, deadline, options.timeout_s);
  auto state = State::make(environment, options, std::move(store), telemetry::StatusPage::from_environment());
  at::set_num_threads(state->torch_threads());
  return std::shared_ptr<Context>(new Context(std::move(state)));
}

std::unique_ptr<Context::State> Context::State::make(const LaunchEnvironment& environment,
                                                     const ContextOptions& options,
                                                     c10::intrusive_ptr<c10d::Store> store,
                                                     std::shared_ptr<telemetry::StatusPage> status) {
  const auto deadline = Deadline::after_s(options.timeout_s);
  require(options.timeout_s > 0, "the communication timeout is ", options.timeout_s,
          " s; expected more than 0");
  if (options.backend != "auto") find_backend(options.backend);
  auto state = std::make_unique<State>();
  state->environment = environment;
  state->options = options;
  state->log = Log(text("trireme[rank ", environment.rank, "]"));
  state->status = std::move(status);
  state->status->set_rank(environment.rank);
  state->store = prefixed(text("trireme/", environment.restart_count), std::move(store));
  const Arrival mine{.world_size = environment.world_size,
                     .version = kVersion,
                     .backend = options.backend,
                     .host_id = host_id(),
                     .pid = ::getpid()};
  std::vector<int> everybody;
  for (const auto& arrival : arrive(*state->store, environment, mine, deadline, options.timeout_s)) {
    everybody.push_back(static_cast<int>(everybody.size()));
    state->host_ids.push_back(arrival.host_id);
  }
  state->backend = choose_backend(options.backend, state->host_ids);
  state->interface_addr = "127.0.0.1";
  state->world = state->make_group(everybody, "world");
  return state;
}

int Context::State::torch_threads() const {
  if (options.torch_threads > 0) return options.torch_threads;
  return std::max(1, available_cores() / environment.local_world_size);
}

std::optional<Group> Context::State::make_group(const std::vector<int>& world_ranks,
                                                const std::string& name) {
  const auto me = std::find(world_ranks.begin(), world_ranks.end(), environment.rank);
  if (me == world_ranks.end()) return std::nullopt;
  GroupParts parts{.name = name,
                   .backend_name = backend,
                   .backend = {},
                   .world_ranks = world_ranks,
                   .rank = static_cast<int>(me - world_ranks.begin()),
                   .timeout_s = options.timeout_s,
                   .status = status,
                   .publish_failure = {},
                   .explain_stall = {}};
  if (world_ranks.size() > 1) {
    BackendRequest request{.store = prefixed(text("group/", name), store),
                           .rank = parts.rank,
                           .size = static_cast<int>(world_ranks.size()),
                           .group_name = name,
                           .world_ranks = world_ranks,
                           .host_ids = {},
                           .interface_addr = interface_addr,
                           .timeout_s = options.timeout_s};
    for (const int rank : world_ranks) request.host_ids.push_back(host_ids[static_cast<std::size_t>(rank)]);
    parts.backend = find_backend(backend).make(request);
  }
  auto group = std::make_shared<Group::State>(std::move(parts));
  groups.push_back(group);
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
  return state_->make_group(world_ranks, name);
}

Context::~Context() = default;

void run_ranks_as_threads(int num_ranks, const std::function<void(Context&)>& body,
                          const ContextOptions& options) {
  require(num_ranks >= 1, "run_ranks_as_threads: ", num_ranks, " ranks; expected at least 1");
  const auto store = c10::make_intrusive<c10d::HashStore>();
  ContextOptions chosen = options;
  if (chosen.backend == "auto") chosen.backend = backend_for_threads();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(num_ranks));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        LaunchEnvironment environment;
        environment.launcher = "threads";
        environment.rank = environment.local_rank = rank;
        environment.world_size = environment.local_world_size = num_ranks;
        Context context(
            Context::State::make(environment, chosen, store, telemetry::StatusPage::make_private()));
        body(context);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

int Context::rank() const { return state_->environment.rank; }
int Context::world_size() const { return state_->environment.world_size; }
int Context::local_rank() const { return state_->environment.local_rank; }
int Context::local_world_size() const { return state_->environment.local_world_size; }
const LaunchEnvironment& Context::environment() const { return state_->environment; }
Group& Context::world() { return *state_->world; }
const Log& Context::log() const { return state_->log; }
telemetry::StatusPage& Context::status() { return *state_->status; }
c10d::Store& Context::store() { return *state_->store; }

}  // namespace trireme::comm
