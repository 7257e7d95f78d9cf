#include "cli/ps_chaos.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <thread>
#include <vector>

#include "cli/chaos/bounded_workers.h"
#include "cli/chaos/growth.h"
#include "cli/chaos/ledger.h"
#include "cli/chaos/link_relay.h"
#include "cli/chaos/pushing_worker.h"
#include "cli/chaos/report.h"
#include "cli/launch/parameter_cluster.h"
#include "cli/launch/temporary_folder.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/ps/checkpoint_file.h"
#include "trireme/ps/client.h"

namespace trireme::cli {
namespace {

constexpr double kHeal_s = 30;  // until all partitions have all their copies again
constexpr double kFrozen_s = 5;
constexpr int kBoundedWorkers = 3;

class Scene;
struct Kind {
  const char* name;
  void (Scene::*happen)();
};

/// One cluster, from its start to the comparison of all sums.
class Scene {
 public:
  Scene(std::uint64_t seed, const PsChaosOptions& options, std::vector<Kind> kinds,
        const std::filesystem::path& folder)
      : random_(seed, 1),
        kinds_(std::move(kinds)),
        folder_(folder),
        num_servers_(options.num_servers),
        bounded_(kBoundedWorkers),
        cluster_({.num_servers = options.num_servers,
                  .num_replicas = options.num_replicas,
                  .links = ClusterLinks::kTcp,
                  .folder = folder,
                  .server_options = {"--checkpoints", folder.string()}}),
        num_replicas_(static_cast<std::size_t>(options.num_replicas)) {
    for (int i = 0; i < options.num_workers; ++i)
      workers_.push_back(std::make_unique<PushingWorker>(seed, i, cluster_.address(), ledger_, faults_));
  }

  /// Runs each kind once.
  Outcome run_once() {
    return run([this] {
      wait_until_whole();
      for (; !kinds_.empty(); wait_until_whole()) {
        const auto next = kinds_.begin() + static_cast<std::ptrdiff_t>(random_.below(kinds_.size()));
        const Kind kind = *next;
        kinds_.erase(next);
        (this->*kind.happen)();
        if (kind.happen == &Scene::kill_worker) finish_bounded();
      }
    });
  }

  template <class Faulty>
  Outcome run(const Faulty& faulty) {
    Outcome outcome;
    try {
      faulty();
    } catch (const Error& error) {
      outcome.failure = error.what();
    }
    for (const auto& worker : workers_) {
      worker->stop();
      outcome.pushes += worker->num_pushes();
      if (outcome.failure.empty()) outcome.failure = worker->failure();
    }
    if (outcome.failure.empty()) compare(outcome);
    outcome.faults = faults_.all();
    return outcome;
  }

  /// Random faults for so long, in one cluster under mixed load: dense pushes and pulls, rows, checkpoints,
  /// and steps of bounded workers. The first server and two of those workers are never killed, so that growth
  /// of their memory is visible.
  Outcome run_for(double minutes) {
    spares_first_ = true;
    const Deadline deadline = Deadline::after_s(60 * minutes);
    const std::vector<Kind> all = kinds_;
    return run([&] {
      wait_until_whole();
      bounded_->start(cluster_.address());
      while (!deadline.expired()) {
        // A bounded worker can be killed only once, as it does not return.
        const Kind kind = all[random_.below(all.size())];
        if (kind.happen != &Scene::kill_worker || bounded_->pids().size() == kBoundedWorkers)
          (this->*kind.happen)();
        wait_until_whole();
        sleep(std::min(deadline.remaining_s(), 5.0 * random_.uniform()));
      }
      finish_bounded();
    });
  }
  const Lives& lives() const { return lives_; }

  void kill_one() {
    const int victim = any_server();
    kill(victim, "kill");
    sleep(0.2 + 0.6 * random_.uniform());
    start_again(victim);
  }

  /// A server joins, and another one is killed while partitions move to it.
  void kill_while_moving() {
    const int comes = num_servers_;
    send_away(comes);
    const int victim = any_server();
    cluster_.start_server(comes);
    sleep(0.1 + 0.3 * random_.uniform());
    kill(victim, "moving");
    sleep(0.5);
    start_again(victim);
  }

  void kill_while_saving() {
    ps::Client& client = workers_.front()->client();
    const std::filesystem::path folder = folder_ / "checkpoints";
    std::filesystem::create_directories(folder);
    std::vector<std::uint64_t> least(ledger_.acknowledged.begin(), ledger_.acknowledged.end());
    auto saved = std::async(std::launch::async, [&] { return client.checkpoint(folder); });
    sleep(0.03 * random_.uniform());
    const int victim = any_server();
    kill(victim, "checkpoint");
    check_checkpoint(saved.get(), least);
    start_again(victim);
    wait_until_whole();
    least.assign(ledger_.acknowledged.begin(), ledger_.acknowledged.end());
    check_checkpoint(client.checkpoint(folder), least);
  }

  /// Kills the second server while the first is still down. Copies were made in between.
  void kill_two() {
    const int first = any_server();
    kill(first, "first of two");
    wait_until_known_down(first);
    wait_until_whole();
    const int second = any_server();
    kill(second, "second of two");
    sleep(0.2 + 0.6 * random_.uniform());
    cluster_.start_server(first);
    start_again(second);
  }

  /// The other workers wait for it, and continue once the cluster has given it up.
  void kill_worker() {
    constexpr std::uint64_t kSteps = 4;  // more steps than staleness allows without the killed worker
    if (!bounded_->is_started()) bounded_->start(cluster_.address());
    const auto wait_for_steps = [&](int worker, std::uint64_t steps) {
      const Deadline deadline = Deadline::after_s(kHeal_s);
      while (bounded_->steps(worker) < steps) {
        if (deadline.expired()) throw CommError(text("bounded worker ", worker, " did not continue"));
        sleep(0.005);
      }
    };
    for (int worker = 0; worker < bounded_->count(); ++worker) wait_for_steps(worker, kSteps);
    const int victim = static_cast<int>(random_.below(static_cast<std::uint64_t>(bounded_->count())));
    faults_.add({.kind = "worker"});
    bounded_->kill(victim);
    const double killed_s = now_s();
    for (int worker = 0; worker < bounded_->count(); ++worker) {
      if (worker != victim) wait_for_steps(worker, bounded_->steps(worker) + kSteps);
    }
    faults_.note_wait(now_s() - killed_s);
  }

  void finish_bounded() {
    bounded_->stop();
    const std::string difference = bounded_->compare(workers_.front()->client());
    if (!difference.empty()) throw InternalError(difference);
  }

  /// A running server cannot be reached, or does not answer. Then the links recover, and it is killed.
  void fail_links() {
    const int behind = num_servers_ + 1;
    const std::string name = text("unix:@", folder_.filename().string(), "-", ::getpid(), "-", ++num_relays_);
    const std::string before = name + "-relay", there = name + "-behind";
    LinkRelay relay(before, there);
    // Shared memory would bypass the relay.
    cluster_.start_server(behind, {"--listen", there, "--advertise", before, "--no-shared-memory"});
    sleep(0.5);
    wait_until_whole();
    const bool cuts = random_.below(2) == 0;
    faults_.add({.kind = cuts ? "cut links" : "silent links"});
    relay.set(cuts ? LinkRelay::State::kCut : LinkRelay::State::kStalled);
    sleep(0.2 + 2 * random_.uniform());
    relay.set(LinkRelay::State::kPassing);
    sleep(0.3);
    wait_until_whole();
    relay.set(LinkRelay::State::kCut);
    sleep(0.05);  // no process may find the relay at the server's address
    kill(behind, "behind links");
    sleep(0.3);
    wait_until_whole();
  }

  void freeze_one() {
    const int victim = any_server();
    faults_.add({.kind = "freeze"});
    cluster_.send_signal(victim, SIGSTOP);
    sleep(kFrozen_s);
    cluster_.send_signal(victim, SIGCONT);
    sleep(0.3);
  }

  void restart_coordinator() {
    faults_.add({.kind = "coordinator"});
    cluster_.send_signal(ParameterCluster::kCoordinator, SIGKILL);
    sleep(1);
    cluster_.start_coordinator();
    sleep(0.5);
  }

 private:
  /// Samples the processes meanwhile.
  void sleep(double seconds) {
    constexpr double kLook_s = 1;
    if (now_s() > looked_s_ + kLook_s) {
      looked_s_ = now_s();
      lives_.look("the client", ::getpid(), looked_s_);
      for (const auto& [number, pid] : cluster_.processes())
        lives_.look(number == ParameterCluster::kCoordinator ? "coordinator" : text("server ", number), pid,
                    looked_s_);
      for (const pid_t pid : bounded_->pids()) lives_.look("bounded worker", pid, looked_s_);
    }
    const double now = std::min(seconds, kLook_s);
    std::this_thread::sleep_for(std::chrono::duration<double>(std::max(now, 0.0)));
    if (seconds > now) sleep(seconds - now);
  }
  /// A server that may die.
  int any_server() {
    std::vector<int> all = cluster_.servers();
    if (spares_first_) std::erase(all, 0);
    return all[random_.below(all.size())];
  }
  /// A running server hands over its partitions, and ends.
  void send_away(int server) {
    const auto is_there = [&] {
      const std::vector<int> all = cluster_.servers();
      return std::find(all.begin(), all.end(), server) != all.end();
    };
    if (!is_there()) return;
    faults_.add({.kind = "leaving"});
    cluster_.send_signal(server, SIGTERM);
    const Deadline deadline = Deadline::after_s(kHeal_s);
    for (; is_there(); cluster_.ended()) {
      if (deadline.expired()) throw CommError(text("server", server, " did not leave in ", kHeal_s, " s"));
      sleep(0.02);
    }
    wait_until_whole();
  }

  /// Waits until every partition has as many copies as possible, and nothing moves.
  void wait_until_whole() {
    const Deadline deadline = Deadline::after_s(kHeal_s);
    while (true) {
      for (const auto& worker : workers_) {
        if (!worker->failure().empty()) throw CommError(worker->failure());
      }
      const ps::ClusterMap map = workers_.front()->client().map();
      const auto num_up = static_cast<std::size_t>(
          std::count_if(map.servers.begin(), map.servers.end(),
                        [](const auto& server) { return server.second.may_hold(); }));
      const auto is_whole = [&](const ps::PartitionEntry& entry) {
        return entry.chain.size() == std::min(num_replicas_, num_up) && entry.learner == ps::kNoServer &&
               !entry.draining;
      };
      if (std::all_of(map.partitions.begin(), map.partitions.end(), is_whole)) return;
      if (deadline.expired())
        throw CommError(text("some partitions were still not whole after ", kHeal_s, " s"));
      sleep(0.02);
    }
  }

  /// A map from before the server's death may still call all partitions whole.
  void wait_until_known_down(int number) {
    const std::string name = text("server", number);
    const Deadline deadline = Deadline::after_s(kHeal_s);
    const auto is_up = [&] {
      const ps::ClusterMap map = workers_.front()->client().map();
      return std::any_of(map.servers.begin(), map.servers.end(), [&](const auto& server) {
        return server.second.name == name && server.second.may_hold();
      });
    };
    while (is_up()) {
      if (deadline.expired())
        throw CommError(text(name, " was killed, and no process noticed in ", kHeal_s, " s"));
      sleep(0.005);
    }
  }

  void kill(int server, const std::string& kind) {
    faults_.add({.kind = kind, .kills_server = true});
    cluster_.send_signal(server, SIGKILL);
  }
  void start_again(int server) {
    cluster_.start_server(server);
    sleep(0.3);
  }

  /// Checks that every byte matches the manifest. Every sum must consist of whole pushes, including all that
  /// were acknowledged before.
  void check_checkpoint(const std::filesystem::path& folder, const std::vector<std::uint64_t>& least) {
    std::vector<std::uint64_t> missing = least;
    for (const ps::SavedPart& saved : ps::read_manifest(folder).parts) {
      if (saved.file.empty()) continue;
      const auto check = [&](const ps::SavedChunk& chunk, const wire::Buffer& contents) {
        if (chunk.table != workers_.front()->table()) return;
        missing[chunk.chunk] = 0;
        std::vector<float> values(kChunkElements);
        std::memcpy(values.data(), contents.bytes().data(), values.size() * sizeof(float));
        if (!ledger_.may_hold(static_cast<std::uint32_t>(chunk.chunk), values.data(), least[chunk.chunk]))
          throw InternalError(text("chunk ", chunk.chunk, " of ", folder.string(), " is no sum of pushes"));
      };
      ps::read_part(folder, saved, {.chunk = check});
    }
    // A chunk without a push is not in the checkpoint.
    for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      if (missing[chunk] > 0) throw InternalError(text(folder.string(), " lacks chunk ", chunk));
    }
  }

  void compare(Outcome& outcome) {
    std::vector<float> sums(std::size_t{kChunks} * kChunkElements);
    workers_.front()->client().pull(workers_.front()->table(), sums).get();
    for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      for (std::uint32_t i = 0; i < kChunkElements; ++i) {
        const std::uint64_t expected = ledger_.amounts[chunk] + ledger_.pushes[chunk] * (i % 3);
        const auto found = static_cast<std::uint64_t>(sums[std::size_t{chunk} * kChunkElements + i]);
        outcome.lost += found < expected;
        outcome.doubled += found > expected;
      }
    }
    compare_rows(outcome);
    outcome.is_compared = true;
  }

  void compare_rows(Outcome& outcome) {
    std::vector<std::uint64_t> keys(kRows);
    for (std::uint32_t row = 0; row < kRows; ++row) keys[row] = key_of(row);
    std::vector<float> rows(std::size_t{kRows} * kRowElements);
    workers_.front()->client().pull_rows(workers_.front()->rows(), keys, rows).get();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::uint64_t expected = ledger_.row_amounts[i / kRowElements];
      outcome.lost += static_cast<std::uint64_t>(rows[i]) < expected;
      outcome.doubled += static_cast<std::uint64_t>(rows[i]) > expected;
    }
  }

  Random random_;
  std::vector<Kind> kinds_;
  const std::filesystem::path folder_;
  const int num_servers_;
  std::optional<BoundedWorkers> bounded_;  ///< forks, so it is constructed before any threads exist
  ParameterCluster cluster_;
  const std::size_t num_replicas_;
  int num_relays_ = 0;
  bool spares_first_ = false;
  Lives lives_;
  double looked_s_ = 0;
  Ledger ledger_;
  Faults faults_;
  std::vector<std::unique_ptr<PushingWorker>> workers_;
};

constexpr Kind kKinds[] = {{"kill", &Scene::kill_one},
                           {"moving", &Scene::kill_while_moving},
                           {"checkpoint", &Scene::kill_while_saving},
                           {"two", &Scene::kill_two},
                           {"worker", &Scene::kill_worker},
                           {"links", &Scene::fail_links},
                           {"freeze", &Scene::freeze_one},
                           {"coordinator", &Scene::restart_coordinator}};

std::vector<std::string> all_kinds() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

std::vector<Kind> chosen(const std::string& names) {
  std::vector<Kind> kinds;
  for (const std::string& name : split(names, ',')) {
    const auto* found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                     [&](const Kind& kind) { return name == kind.name; });
    require(found != std::end(kKinds), "--kinds has '", name, "'", suggest(name, all_kinds()),
            "; expected some of ", join(all_kinds(), ","));
    kinds.push_back(*found);
  }
  return kinds;
}

}  // namespace

int run_ps_chaos(const PsChaosOptions& options, std::ostream& out) {
  require(options.num_servers >= 3, "--servers is ", options.num_servers,
          "; with one of them dead there have to be two");
  require(options.num_replicas >= 2 && options.num_replicas <= options.num_servers, "--replicas is ",
          options.num_replicas, "; expected 2 to ", options.num_servers, ", which is --servers");
  require(options.num_workers >= 1 && options.num_seeds >= 1, "ps-chaos needs a worker and a seed at least");
  const std::vector<Kind> kinds =
      options.kinds.empty() ? std::vector(std::begin(kKinds), std::end(kKinds)) : chosen(options.kinds);
  require(options.minutes >= 0 && (options.minutes == 0 || options.num_seeds == 1), "--minutes is ",
          options.minutes, " and --seeds ", options.num_seeds, "; --minutes is about one cluster");
  Report report;
  for (int i = 0; i < options.num_seeds; ++i) {
    const std::uint64_t seed = options.first_seed + static_cast<std::uint64_t>(i);
    const TemporaryFolder folder;
    Scene scene(seed, options, kinds, folder.path());
    report.add(seed, options.minutes > 0 ? scene.run_for(options.minutes) : scene.run_once());
    if (options.minutes > 0) report.add(scene.lives());
    if (!options.json) out << report.last_line() << std::endl;
  }
  out << (options.json ? report.all().dump(2) : report.summary()) << std::endl;
  return report.is_as_promised() ? kExitOk : kExitInternal;
}

}  // namespace trireme::cli
