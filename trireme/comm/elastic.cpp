#include "trireme/comm/elastic.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/run_main.h"
#include "trireme/comm/internal/context_state.h"
#include "trireme/wire/elastic_world.h"
#include "trireme/wire/store_client.h"

namespace trireme::comm {
namespace {

constexpr auto kLookForWorld = std::chrono::milliseconds(10);
// For a store that another one may replace: calls end soon. The launcher needs less than kStoreMoves_s to
// find the next one.
constexpr double kMovableStoreCall_s = 2, kStoreMoves_s = 120;

/// The successive worlds of a job, as seen by one of its processes.
class Worlds {
 public:
  explicit Worlds(const ElasticOptions& options, LaunchEnvironment environment)
      : options_(options), environment_(std::move(environment)) {}

  const LaunchEnvironment& environment() const { return environment_; }

  /// Waits for the next world in which this process has a rank. `cause`: why the previous world was lost.
  /// Returns false if a stop was requested.
  bool wait_for_next(const std::string& cause) {
    if (sizes_.empty() && !environment_.is_spare) find_sizes();
    do {
      has_registered_ = false;
      std::optional<wire::ElasticWorld> next;
      while (!(next = look_for_next(cause))) {
        if (options_.stop != nullptr && options_.stop->signal() != 0) return false;
        std::this_thread::sleep_for(kLookForWorld);
      }
      take(*next);
    } while (environment_.is_spare);
    return true;
  }

 private:
  /// The next world, if it exists already. A store that may move is retried until the launcher has had time
  /// to find it.
  std::optional<wire::ElasticWorld> look_for_next(const std::string& cause) {
    try {
      find_store();
      const double timeout_s = store_->options().timeout_s;
      if (!has_registered_) wait_in_store(cause, timeout_s);
      const int next = environment_.restart_count + 1;
      auto told = store_->get(wire::elastic_world_key(next), timeout_s);
      if (!told && !environment_.store_file.empty()) told = later_world(next, timeout_s);
      silent_since_s_ = 0;
      return told ? std::optional(wire::parse_elastic_world(*told)) : std::nullopt;
    } catch (const CommError&) {
      if (silent_since_s_ == 0) silent_since_s_ = now_s();
      if (environment_.store_file.empty() || now_s() - silent_since_s_ > kStoreMoves_s) throw;
      return std::nullopt;
    }
  }

  /// After a change of leader, the store begins with the world that was current then.
  std::optional<std::string> later_world(int next, double timeout_s) {
    const auto told = store_->get(wire::kJobStateKey, timeout_s);
    if (!told) return std::nullopt;
    const int present = wire::parse_job_state(*told).generation;
    return present > next ? store_->get(wire::elastic_world_key(present), timeout_s) : std::nullopt;
  }

  /// Uses the store address that the launcher has published last.
  void find_store() {
    std::string address;
    if (!environment_.store_file.empty()) std::getline(std::ifstream(environment_.store_file), address);
    if (!address.empty()) {
      const wire::Endpoint endpoint = parse_store(address);
      const bool has_moved =
          endpoint.host != environment_.master_addr || endpoint.port != environment_.master_port;
      if (has_moved) store_.reset();
      environment_.master_addr = endpoint.host;
      environment_.master_port = endpoint.port;
    }
    if (store_) return;
    const double most_s = options_.context.timeout_s;
    store_ = std::make_unique<wire::StoreClient>(wire::StoreClientOptions{
        .endpoint = {environment_.master_addr, environment_.master_port},
        .secret = environment_.secret,
        .timeout_s = environment_.store_file.empty() ? most_s : std::min(most_s, kMovableStoreCall_s)});
    has_registered_ = false;
  }

  /// An invalid address becomes a CommError, so that the file is read again: the launcher rewrites a damaged
  /// file.
  wire::Endpoint parse_store(const std::string& address) const {
    try {
      return wire::Endpoint::parse(address, environment_.store_file);
    } catch (const InvalidArgument& error) {
      throw CommError(error.what());
    }
  }

  void wait_in_store(const std::string& cause, double timeout_s) {
    const int generation = environment_.restart_count + 1;
    store_->set(wire::waiting_member_key(generation, environment_.member),
                to_text(wire::WaitingMember{.sizes = sizes_, .cause = cause}), timeout_s);
    if (!environment_.is_spare) store_->set(wire::lost_world_key(generation - 1), cause, timeout_s);
    has_registered_ = true;
  }

  void find_sizes() {
    for (int size = 1; options_.can_run_on && size <= environment_.most_ranks; ++size) {
      if (options_.can_run_on(size)) sizes_.push_back(size);
    }
  }
  void take(const wire::ElasticWorld& world) {
    environment_.restart_count = world.generation;
    const int rank = world.rank_of(environment_.member);
    environment_.is_spare = rank < 0;
    if (environment_.is_spare) return;
    environment_.rank = rank;
    environment_.world_size = world.size();
    environment_.local_rank = world.local_rank_of(rank);
    environment_.local_world_size = world.local_size_of(rank);
    environment_.one_host = environment_.local_world_size == environment_.world_size;
  }

  const ElasticOptions& options_;
  LaunchEnvironment environment_;
  std::vector<int> sizes_;  ///< sizes of worlds that the program supports; found when it has lost one
  std::unique_ptr<wire::StoreClient> store_;
  bool has_registered_ = false;  ///< in the store, as waiting for the next world
  double silent_since_s_ = 0;    ///< time since which the store is silent; 0: it answers
};

}  // namespace

bool next_world_is_asked(Context& context) {
  const LaunchEnvironment& environment = context.environment();
  const int asked = context.status().asked_generation() & ~wire::kHostLeaves;
  return !environment.member.empty() && asked > environment.restart_count;
}

bool host_leaves(Context& context) { return (context.status().asked_generation() & wire::kHostLeaves) != 0; }

void run_elastic(const ElasticOptions& options, const std::function<void(Context&)>& body) {
  const LaunchEnvironment first = read_launch_environment();
  if (first.member.empty()) return body(*Context::join(first, options.context));
  Worlds worlds(options, first);
  if (first.is_spare && !worlds.wait_for_next("")) return;
  for (;;) {
    std::shared_ptr<Context> context;
    std::exception_ptr error;
    try {
      context = Context::join(worlds.environment(), options.context);
      return body(*context);
    } catch (...) {
      error = std::current_exception();
    }
    const Failure failure = failure_of(error);
    // The other ranks may be waiting for this rank, whose process continues.
    if (context) context->state_->fail_all(text("rank ", context->rank(), " failed: ", failure.message));
    context.reset();
    if (failure.exit_code != kExitComm || !worlds.wait_for_next(failure.message))
      std::rethrow_exception(error);
  }
}

}  // namespace trireme::comm
