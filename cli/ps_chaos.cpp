#include "cli/ps_chaos.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <ostream>
#include <thread>
#include <vector>

#include "cli/launch/parameter_cluster.h"
#include "cli/launch/temporary_folder.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/ps/client.h"

namespace trireme::cli {
namespace {

constexpr std::uint32_t kChunks = 64, kChunkElements = 1024;
constexpr std::size_t kUnderWay = 8;  // pushes of a worker
constexpr double kHeal_s = 30;        // for every partition to have all its copies again
constexpr double kFrozen_s = 5;

/// What an element of a push is: integers, so that sums are exact in any order.
float element_of(std::uint32_t amount, std::uint32_t index) { return static_cast<float>(amount + index % 3); }

/// What all workers together have begun to push, and what each has.
struct Ledger {
  std::array<std::atomic<std::uint64_t>, kChunks> amounts{}, pushes{};
};

struct Fault {
  std::string what;
  double at_s = 0;
  double longest_wait_s = 0;  ///< of a push that was answered before the next fault
};

class Faults {
 public:
  void add(const std::string& what) {
    const std::lock_guard lock(mutex_);
    faults_.push_back({what, now_s()});
  }
  void note_wait(double waited_s) {
    const std::lock_guard lock(mutex_);
    if (!faults_.empty()) faults_.back().longest_wait_s = std::max(faults_.back().longest_wait_s, waited_s);
  }
  std::vector<Fault> all() const {
    const std::lock_guard lock(mutex_);
    return faults_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Fault> faults_;
};

/// Pushes until it is told to stop, and looks now and then whether a pull has what it must have.
class Worker {
 public:
  Worker(std::uint64_t seed, int number, const std::string& coordinator, Ledger& ledger, Faults& faults)
      : random_(seed, 100 + static_cast<std::uint64_t>(number)),
        client_({.worker = static_cast<ps::WorkerId>(number), .host = "here", .coordinator = coordinator}),
        ledger_(ledger),
        faults_(faults),
        own_amounts_(kChunks) {
    ps::TableSpec spec;
    spec.name = "sums";
    spec.num_elements = std::uint64_t{kChunks} * kChunkElements;
    spec.chunk_elements = kChunkElements;
    spec.staleness = ps::kAsynchronous;
    table_ = client_.open_table(spec);
    thread_ = std::thread([this] { work(); });
  }
  ~Worker() { stop(); }

  void stop() {
    stops_ = true;
    if (thread_.joinable()) thread_.join();
  }

  ps::Client& client() { return client_; }
  ps::TableId table() const { return table_; }
  std::uint64_t num_pushes() const { return num_pushes_; }
  const std::string& failure() const { return failure_; }

 private:
  struct Sent {
    ps::Pending pending;
    double at_s;
  };

  void work() {
    try {
      while (!stops_) {
        push();
        if (random_.below(64) == 0) check_pull();
        if (random_.below(256) == 0) client_.tick();
        while (under_way_.size() >= kUnderWay) take_answer();
      }
      while (!under_way_.empty()) take_answer();
    } catch (const std::exception& error) {
      failure_ = error.what();
    }
  }

  void push() {
    const auto chunk = static_cast<std::uint32_t>(random_.below(kChunks));
    const auto amount = static_cast<std::uint32_t>(1 + random_.below(4));
    std::vector<float> values(kChunkElements);
    for (std::uint32_t i = 0; i < kChunkElements; ++i) values[i] = element_of(amount, i);
    std::vector<std::byte> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    own_amounts_[chunk] += amount;
    ledger_.amounts[chunk] += amount;
    ++ledger_.pushes[chunk];
    ++num_pushes_;
    under_way_.push_back({client_.push_chunk(table_, chunk, wire::Buffer::of(std::move(bytes))), now_s()});
  }

  void take_answer() {
    under_way_.front().pending.get();
    faults_.note_wait(now_s() - under_way_.front().at_s);
    under_way_.pop_front();
  }

  void check_pull() {
    const auto chunk = static_cast<std::uint32_t>(random_.below(kChunks));
    const std::uint64_t least = own_amounts_[chunk];
    const ps::Result result = client_.pull_chunk(table_, chunk).get();
    float first = 0;
    std::memcpy(&first, result.values.bytes().data(), sizeof first);
    const std::uint64_t most = ledger_.amounts[chunk];
    if (first >= static_cast<float>(least) && first <= static_cast<float>(most)) return;
    throw InternalError(text("a pull of chunk ", chunk, " brought ", first, "; this worker alone had pushed ",
                             least, ", all together ", most));
  }

  Random random_;
  ps::Client client_;
  Ledger& ledger_;
  Faults& faults_;
  ps::TableId table_ = 0;
  std::vector<std::uint64_t> own_amounts_;
  std::deque<Sent> under_way_;
  std::uint64_t num_pushes_ = 0;
  std::string failure_;
  std::atomic<bool> stops_ = false;
  std::thread thread_;
};

struct Outcome {
  std::vector<Fault> faults;
  std::uint64_t pushes = 0, lost = 0, doubled = 0;  ///< lost, doubled: elements
  std::string failure;
};

/// One cluster, from its start to the comparison of all sums.
class Scene {
 public:
  Scene(std::uint64_t seed, const PsChaosOptions& options, const std::filesystem::path& folder)
      : random_(seed, 1),
        num_servers_(options.num_servers),
        cluster_({.num_servers = options.num_servers, .folder = folder}) {
    for (int i = 0; i < options.num_workers; ++i)
      workers_.push_back(std::make_unique<Worker>(seed, i, cluster_.address(), ledger_, faults_));
  }

  Outcome run() {
    Outcome outcome;
    try {
      wait_until_whole();
      kill_one();
      kill_while_moving();
      random_.below(2) == 0 ? freeze_one() : restart_coordinator();
      kill_one();
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

 private:
  static void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }
  int any_server() {
    const std::vector<int> all = cluster_.servers();
    return all[random_.below(all.size())];
  }

  /// Every partition has two copies and nothing moves.
  void wait_until_whole() {
    const Deadline deadline = Deadline::after_s(kHeal_s);
    while (true) {
      for (const auto& worker : workers_) {
        if (!worker->failure().empty()) throw CommError(worker->failure());
      }
      const ps::ClusterMap map = workers_.front()->client().map();
      const auto is_whole = [](const ps::PartitionEntry& entry) {
        return entry.chain.size() == 2 && entry.learner == ps::kNoServer && !entry.draining;
      };
      if (std::all_of(map.partitions.begin(), map.partitions.end(), is_whole)) return;
      if (deadline.expired())
        throw CommError(text("some partitions still had no two copies after ", kHeal_s, " s"));
      sleep(0.02);
    }
  }

  void kill(int server, const std::string& what) {
    faults_.add(what);
    cluster_.send_signal(server, SIGKILL);
  }

  void kill_one() {
    const int victim = any_server();
    kill(victim, "kill");
    sleep(0.2 + 0.6 * random_.uniform());
    cluster_.start_server(victim);
    sleep(0.3);
    wait_until_whole();
  }

  /// One comes, and one of the others dies while partitions move to it.
  void kill_while_moving() {
    const int comes = num_servers_;
    const int victim = any_server();
    cluster_.start_server(comes);
    sleep(0.1 + 0.3 * random_.uniform());
    kill(victim, "kill while moving");
    sleep(0.5);
    cluster_.start_server(victim);
    sleep(0.3);
    wait_until_whole();
  }

  void freeze_one() {
    const int victim = any_server();
    faults_.add("freeze");
    cluster_.send_signal(victim, SIGSTOP);
    sleep(kFrozen_s);
    cluster_.send_signal(victim, SIGCONT);
    sleep(0.3);
    wait_until_whole();
  }

  void restart_coordinator() {
    faults_.add("coordinator");
    cluster_.send_signal(ParameterCluster::kCoordinator, SIGKILL);
    sleep(1);
    cluster_.start_coordinator();
    sleep(0.5);
    wait_until_whole();
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
  }

  Random random_;
  const int num_servers_;
  ParameterCluster cluster_;
  Ledger ledger_;
  Faults faults_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

bool closes_connections(const Fault& fault) { return fault.what.starts_with("kill"); }

/// The pause that 95 % of them do not exceed; 0 without any.
double p95(std::vector<double> pauses) {
  if (pauses.empty()) return 0;
  std::sort(pauses.begin(), pauses.end());
  return pauses[(pauses.size() * 95 + 99) / 100 - 1];
}

class Report {
 public:
  void add(std::uint64_t seed, const Outcome& outcome) {
    nlohmann::json faults = nlohmann::json::array();
    double longest_s = 0;
    for (const Fault& fault : outcome.faults) {
      pauses_.push_back(fault.longest_wait_s);
      if (closes_connections(fault)) pauses_of_kills_.push_back(fault.longest_wait_s);
      longest_s = std::max(longest_s, fault.longest_wait_s);
      faults.push_back({{"what", fault.what}, {"longest_pause_s", fault.longest_wait_s}});
    }
    lost_ += outcome.lost;
    doubled_ += outcome.doubled;
    pushes_ += outcome.pushes;
    failed_ += outcome.failure.empty() && outcome.lost + outcome.doubled == 0 ? 0 : 1;
    rows_.push_back({{"seed", seed},
                     {"pushes", outcome.pushes},
                     {"faults", faults},
                     {"lost", outcome.lost},
                     {"doubled", outcome.doubled},
                     {"longest_pause_s", longest_s},
                     {"failure", outcome.failure}});
  }

  std::string last_line() const {
    const nlohmann::json& row = rows_.back();
    std::vector<std::string> waits;
    for (const auto& fault : row["faults"])
      waits.push_back(text(fault["what"].get<std::string>(), " ", human_duration(fault["longest_pause_s"])));
    const std::string failure = row["failure"];
    return text("seed ", row["seed"].get<std::uint64_t>(), ": ", row["pushes"].get<std::uint64_t>(),
                " pushes, lost ", row["lost"].get<std::uint64_t>(), ", doubled ",
                row["doubled"].get<std::uint64_t>(), "; longest waits: ", join(waits),
                failure.empty() ? "" : "; FAILED: " + failure);
  }

  nlohmann::json all() const {
    return {{"seeds", rows_},
            {"pushes", pushes_},
            {"kills", pauses_of_kills_.size()},
            {"lost", lost_},
            {"doubled", doubled_},
            {"failed", failed_},
            {"pause_p95_s", p95(pauses_)},
            {"pause_of_kills_p95_s", p95(pauses_of_kills_)}};
  }

  std::string summary() const {
    return text(rows_.size(), " seeds: ", pushes_, " pushes, ", pauses_of_kills_.size(), " kills, lost ",
                lost_, ", doubled ", doubled_, ", failed ", failed_, "; 95 % of pauses at most ",
                human_duration(p95(pauses_)), ", of kills ", human_duration(p95(pauses_of_kills_)));
  }
  bool is_as_promised() const { return failed_ == 0; }

 private:
  nlohmann::json rows_ = nlohmann::json::array();
  std::uint64_t pushes_ = 0, lost_ = 0, doubled_ = 0, failed_ = 0;
  std::vector<double> pauses_, pauses_of_kills_;
};

}  // namespace

int run_ps_chaos(const PsChaosOptions& options, std::ostream& out) {
  require(options.num_servers >= 3, "--servers is ", options.num_servers,
          "; with one of them dead there have to be two");
  require(options.num_workers >= 1 && options.num_seeds >= 1, "ps-chaos needs a worker and a seed at least");
  Report report;
  for (int i = 0; i < options.num_seeds; ++i) {
    const std::uint64_t seed = options.first_seed + static_cast<std::uint64_t>(i);
    const TemporaryFolder folder;
    report.add(seed, Scene(seed, options, folder.path()).run());
    if (!options.json) out << report.last_line() << std::endl;
  }
  out << (options.json ? report.all().dump(2) : report.summary()) << std::endl;
  return report.is_as_promised() ? kExitOk : kExitInternal;
}

}  // namespace trireme::cli
