#include "trireme/comm/internal/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <numeric>
#include <sstream>
#include <thread>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/comm/internal/agent_meeting.h"
#include "trireme/comm/internal/wire_store.h"

namespace trireme::comm {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

wire::Endpoint master_of(const LaunchEnvironment& environment) {
  const bool rank_serves = environment.store_host != StoreHost::kLauncher;
  return {environment.one_host && rank_serves ? kLoopback : environment.master_addr, environment.master_port};
}

std::string where(const LaunchEnvironment& environment) { return master_of(environment).text(); }

/// The probable cause if no store answers.
std::string who_should_serve(const LaunchEnvironment& environment) {
  if (environment.store_host == StoreHost::kLauncher) {
    return "the launcher of the host with --node-rank 0 has not started or has ended, or --master-addr and "
           "--master-port are not the same on all hosts";
  }
  return text("rank 0 did not start, or MASTER_ADDR and MASTER_PORT are not those of rank 0",
              environment.one_host ? " (the launcher says that all ranks share this host)" : "");
}

StoreSource source_of(const LaunchEnvironment& environment, const wire::Endpoint& endpoint) {
  return [environment, endpoint](double timeout_s) -> c10::intrusive_ptr<c10d::Store> {
    const auto failed = [&](const std::string& why) {
      return CommError(text("rank ", environment.rank, " of ", environment.world_size,
                            " could not join the rendezvous: ", why));
    };
    try {
      return c10::make_intrusive<WireStore>(
          wire::StoreClientOptions{endpoint, environment.secret, timeout_s});
    } catch (const wire::NobodyServes& error) {
      throw failed(text(error.what(), ": ", who_should_serve(environment)));
    } catch (const CommError& error) {
      throw failed(error.what());
    }
  };
}

std::shared_ptr<wire::StoreServer> serve(const wire::Endpoint& endpoint, const wire::Secret& secret,
                                         const Log& log) {
  wire::secret_at(endpoint, secret);  // throws before a socket listens
  try {
    return std::make_shared<wire::StoreServer>(
        wire::listen_at(endpoint),
        wire::StoreServerOptions{.secret = secret,
                                 .complain = [log](const std::string& what) { log.warning(what); }});
  } catch (const CommError& error) {
    throw CommError(text("rank 0 cannot serve the rendezvous at ", endpoint.text(), ": ", error.what()));
  }
}

/// The stores that this process serves, by their rendezvous address. Never destroyed: ranks may be connected
/// until the process ends.
class ServedStores {
 public:
  static ServedStores& of_process() {
    static ServedStores& stores = *new ServedStores;
    return stores;
  }

  template <class Serve>
  std::shared_ptr<wire::StoreServer> find_or(const std::string& place, const Serve& serve) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<wire::StoreServer>& found = stores_[text(::getpid(), " ", place)];
    if (found == nullptr) found = serve();
    return found;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<wire::StoreServer>> stores_;
};

/// The address at which rank 0 serves if it may use any port.
wire::Endpoint any_port(const LaunchEnvironment& environment) {
  return {environment.one_host ? kLoopback : interface_towards(environment), 0};
}

/// Example: "0 1 2".
std::string in_words(const std::vector<int>& cores) {
  std::string words;
  for (const int core : cores) words += text(words.empty() ? "" : " ", core);
  return words;
}

std::vector<int> cores_from(const std::string& words) {
  std::istringstream in(words);
  return {std::istream_iterator<int>(in), {}};
}

std::string encode(const Arrival& arrival) {
  return text(arrival.world_size, "\n", arrival.version, "\n", arrival.backend, "\n", arrival.device, "\n",
              arrival.all_reduce, "\n", arrival.network, "\n", arrival.host_id, "\n", arrival.pid, "\n",
              arrival.boot_id, "\n", in_words(arrival.cores), "\n", arrival.process, "\n", arrival.attempt,
              "\n", split(arrival.not_ucx_because, '\n').front());
}

Arrival decode(const std::string& encoded) {
  const auto fields = split(encoded, '\n');
  Arrival arrival;
  arrival.world_size = std::stoi(fields.at(0));
  arrival.version = fields.at(1);
  arrival.process.clear();
  arrival.pid = std::stoi(fields.at(7));
  if (fields.size() < 13) return arrival;  // of another version
  arrival.backend = fields[2];
  arrival.device = fields[3];
  arrival.all_reduce = fields[4];
  arrival.network = fields[5];
  arrival.host_id = fields[6];
  arrival.boot_id = fields[8];
  arrival.cores = cores_from(fields[9]);
  arrival.process = fields[10];
  arrival.not_ucx_because = fields[12];
  return arrival;
}

std::string arrival_key(int rank) { return text("arrival/", rank); }

// The outcome of a rendezvous, set by the first rank that finds it.
constexpr const char* kOutcomeKey = "rendezvous_outcome";
constexpr const char* kComplete = "complete";
// Ranks that start together arrive together. The polling interval grows for a rank that takes longer.
constexpr auto kFirstLook = std::chrono::milliseconds(2);
constexpr auto kLastLook = std::chrono::milliseconds(50);

/// The first difference between `mine` and `theirs`; empty if there is none.
std::string disagreement(int rank, const Arrival& mine, int other, const Arrival& theirs) {
  const auto differ = [&](const char* what, const auto& my_value, const auto& their_value) {
    return text("ranks disagree about the world: rank ", rank, " (pid ", mine.pid, ") has ", what, " ",
                my_value, ", rank ", other, " (pid ", theirs.pid, ") has ", what, " ", their_value,
                ": start all ranks of a world in the same way");
  };
  if (mine.version != theirs.version) return differ("protocol version", mine.version, theirs.version);
  if (mine.world_size != theirs.world_size) return differ("WORLD_SIZE", mine.world_size, theirs.world_size);
  if (mine.backend != theirs.backend) return differ("backend", mine.backend, theirs.backend);
  if (mine.device != theirs.device) return differ("device", mine.device, theirs.device);
  if (mine.all_reduce != theirs.all_reduce)
    return differ("comm.all_reduce", mine.all_reduce, theirs.all_reduce);
  if (mine.network != theirs.network) return differ("comm.network", mine.network, theirs.network);
  return {};
}

/// Sets the outcome to `wish`, unless another rank has set it before. Throws CommError unless it is complete.
/// Rank 0 keeps the store open for a while, so that the others can read the outcome.
void settle(c10d::Store& store, const LaunchEnvironment& environment, const std::string& wish) {
  const std::string outcome = store.compareSet(kOutcomeKey, "", wish);
  if (outcome == kComplete) return;
  if (environment.rank == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
  throw CommError(outcome);
}

std::string who_is_missing(c10d::Store& store, const LaunchEnvironment& environment, double timeout_s) {
  std::vector<std::string> missing;
  std::vector<std::string> arrived;
  for (int rank = 0; rank < environment.world_size; ++rank) {
    if (store.check({arrival_key(rank)})) {
      arrived.push_back(text(rank, " (pid ", decode(store.get_to_str(arrival_key(rank))).pid, ")"));
    } else {
      missing.push_back(std::to_string(rank));
    }
  }
  return text(missing.size() == 1 ? "rank " : "ranks ", trireme::join(missing), " of ",
              environment.world_size, " did not arrive within ", human_duration(timeout_s), " at ",
              where(environment), "; arrived: ", trireme::join(arrived),
              ". See why the missing did not start, or raise the timeout");
}

std::string left_key(int rank) { return text("left/", rank); }

}  // namespace

WorldStore open_world_store(const LaunchEnvironment& environment, const Log& log, double timeout_s) {
  WorldStore result{.endpoint = master_of(environment), .source = {}};
  const bool at_agent = environment.store_host == StoreHost::kRankZeroAtPort;
  if (environment.rank == 0 && environment.store_host != StoreHost::kLauncher) {
    const wire::Endpoint wanted = at_agent ? any_port(environment) : result.endpoint;
    result.served =
        ServedStores::of_process().find_or(text(at_agent ? "agent " : "", result.endpoint.text()),
                                           [&] { return serve(wanted, environment.secret, log); });
    result.endpoint = result.served->endpoint();
    if (at_agent) tell_through_agent(environment, result.endpoint, timeout_s);
  } else if (at_agent) {
    result.endpoint = learn_from_agent(environment, timeout_s);
    // The key is not authenticated: on one host, connect to loopback only.
    if (environment.one_host) result.endpoint.host = kLoopback;
  }
  result.source = source_of(environment, result.endpoint);
  return result;
}

std::string own_process() {
  static const wire::Nonce nonce = wire::random_nonce();
  std::uint64_t number = 0;
  std::memcpy(&number, nonce.data(), sizeof number);
  return text(::getpid(), "/", number);  // a forked child has the same nonce
}

std::uint64_t next_attempt() {
  static std::atomic<std::uint64_t> attempts = 0;
  return ++attempts;
}

std::string claim_place(c10d::Store& store, const LaunchEnvironment& environment, const Arrival& mine) {
  const std::string claim = encode(mine);
  for (int world = 0;; ++world) {
    const std::string end = world == 0 ? "" : text("/world-", world);
    // A prefix and a key are joined by '/'.
    const std::string key =
        end.empty() ? arrival_key(environment.rank) : text(end.substr(1), "/", arrival_key(environment.rank));
    const std::string there = store.compareSet(key, "", claim);
    if (there == claim) return end;
    const Arrival first = decode(there);
    if (first.process == mine.process) continue;  // another context of this process, or a failed attempt
    throw CommError(text("two processes say that they are rank ", environment.rank, " of ",
                         environment.world_size, ": one (pid ", first.pid, ") and this one (pid ", mine.pid,
                         "): give each its own RANK, and each run its own MASTER_PORT"));
  }
}

std::vector<Arrival> arrive(c10d::Store& store, const LaunchEnvironment& environment, const Arrival& mine,
                            double timeout_s) {
  const auto deadline = Deadline::after_s(timeout_s);
  std::vector<Arrival> arrivals;
  for (int rank = 0; rank < environment.world_size; ++rank) {
    auto next_look = kFirstLook;
    while (!store.check({arrival_key(rank)})) {
      if (store.check({kOutcomeKey})) settle(store, environment, kComplete);
      if (deadline.expired()) settle(store, environment, who_is_missing(store, environment, timeout_s));
      std::this_thread::sleep_for(next_look);
      next_look = std::min(2 * next_look, kLastLook);
    }
    const Arrival theirs = decode(store.get_to_str(arrival_key(rank)));
    const std::string differs = disagreement(environment.rank, mine, rank, theirs);
    if (!differs.empty()) settle(store, environment, differs);
    arrivals.push_back(theirs);
  }
  settle(store, environment, kComplete);
  return arrivals;
}

void leave_world(c10d::Store& store, int rank, double timeout_s) {
  store.setTimeout(whole_milliseconds(timeout_s));
  store.set(left_key(rank), "1");
}

std::vector<int> wait_until_left(c10d::Store& store, int world_size, double timeout_s,
                                 const std::function<bool()>& is_alone) {
  const auto deadline = Deadline::after_s(timeout_s);
  std::vector<int> here(static_cast<std::size_t>(world_size));
  std::iota(here.begin(), here.end(), 0);
  auto next_look = kFirstLook;
  while (true) {
    std::erase_if(here, [&](int rank) { return store.check({left_key(rank)}); });
    if (here.empty() || is_alone()) return {};
    if (deadline.expired()) return here;
    std::this_thread::sleep_for(next_look);
    next_look = std::min(2 * next_look, kLastLook);
  }
}

std::string interface_towards(const LaunchEnvironment& environment) {
  if (environment.world_size == 1) return environment.master_addr;
  const wire::Endpoint master = master_of(environment);
  const std::string local = wire::local_address_towards(master);
  if (local.empty()) {
    throw CommError(text("this host has no way to ", master.text(), ": check MASTER_ADDR and the network"));
  }
  return local;
}

}  // namespace trireme::comm
