// Remote references that workers create, pass on and drop while connections are cut and processes are
// stopped, at random: rpc_references [--references N] [--seed S] [--way shm|tcp]. Every item has a number. A
// holder of a reference must find its item, and every call must run exactly once. After all references are
// dropped, no item may remain. Exit code 0: all of this held.

#include <dirent.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/comm/context.h"
#include "trireme/remote/init.h"
#include "trireme/wire/internal/channel_address.h"

namespace {

using namespace trireme;

constexpr std::size_t kMaxHeld = 200, kMaxAtOnce = 3, kInFlight = 32, kThreads = 2;
constexpr std::uint64_t kLargeBytes = 512 << 10;  // more than a socket takes at once

void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

class Item {
 public:
  explicit Item(std::uint64_t number) : number_(number) { ++num_alive; }
  ~Item() { --num_alive; }
  Item(const Item&) = delete;
  Item& operator=(const Item&) = delete;
  std::uint64_t number() const { return number_; }
  static inline std::atomic<std::uint64_t> num_alive = 0;

 private:
  const std::uint64_t number_;
};

struct Held {
  rpc::RRef<Item> item = {};
  std::uint64_t number = 0;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.item, self.number);
  }
};

/// Counters of one worker, which are summed over workers.
struct Report {
  std::uint64_t num_made = 0, num_passed = 0, num_wrong = 0, num_twice = 0, num_cuts = 0;
  std::uint64_t num_values = 0, num_alive = 0, frames_sent = 0, frames_received = 0;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.num_made, self.num_passed, self.num_wrong, self.num_twice, self.num_cuts,
                    self.num_values, self.num_alive, self.frames_sent, self.frames_received);
  }
};

struct Worker {
  std::mutex mutex;
  std::vector<Held> held;
  std::set<std::uint64_t> calls;  ///< calls that have run here
  Report report;
  std::atomic<std::uint64_t> num_cuts = 0;
  std::atomic<int> num_at_work = kThreads;
  std::atomic<bool> ends = false;
} worker;

void complain(const std::string& what) {
  const std::lock_guard lock(worker.mutex);
  if (++worker.report.num_wrong <= 5) std::printf("NOT SO: %s\n", what.c_str());
}

void note_call(std::uint64_t call) {
  const std::lock_guard lock(worker.mutex);
  if (!worker.calls.insert(call).second) ++worker.report.num_twice;
}

void hold(const Held& held) {
  Held dropped;  // destroyed after the lock is released
  const std::lock_guard lock(worker.mutex);
  worker.held.push_back(held);
  if (worker.held.size() <= kMaxHeld) return;
  dropped = std::exchange(worker.held[held.number % kMaxHeld], worker.held.back());
  worker.held.pop_back();
}

Held any_held(std::uint64_t random) {
  const std::lock_guard lock(worker.mutex);
  return worker.held.empty() ? Held{} : worker.held[random % worker.held.size()];
}

std::shared_ptr<Item> make(std::uint64_t number) {
  note_call(number);
  return std::make_shared<Item>(number);
}
void take(std::uint64_t call, const std::vector<Held>& items, const std::string&) {
  note_call(call);
  for (const Held& each : items) hold(each);
}
Held give(std::uint64_t call) {
  note_call(call);
  return any_held(call);
}
std::int64_t pid() { return ::getpid(); }
bool works() { return worker.num_at_work > 0; }
bool ends() { return worker.ends; }
void drop_all() {
  std::vector<Held> dropped;
  const std::lock_guard lock(worker.mutex);
  dropped.swap(worker.held);
}
Report report() {
  const auto agent = rpc::this_agent();
  const auto counts = agent->channel_counts();
  const auto count = [&](const char* name) { return counts.contains(name) ? counts.at(name) : 0; };
  const std::lock_guard lock(worker.mutex);
  Report report = worker.report;
  report.num_cuts = worker.num_cuts;
  report.num_values = agent->num_values();
  report.num_alive = Item::num_alive;
  report.frames_sent = count("frames sent");
  report.frames_received = count("frames received");
  return report;
}
constexpr auto& kMake = rpc::function<"make", &make>;
constexpr auto& kTake = rpc::function<"take", &take>;
constexpr auto& kGive = rpc::function<"give", &give>;
constexpr auto& kNumber = rpc::function<"Item.number", &Item::number>;
constexpr auto& kPid = rpc::function<"pid", &pid>;
constexpr auto& kWorks = rpc::function<"works", &works>;
constexpr auto& kEnds = rpc::function<"ends", &ends>;
constexpr auto& kDropAll = rpc::function<"drop_all", &drop_all>;
constexpr auto& kReport = rpc::function<"report", &report>;

/// One thread of a worker that uses references at random.
class Actor {
 public:
  Actor(const rpc::Agent& agent, std::uint64_t workers, std::uint64_t rank, std::uint64_t thread,
        std::uint64_t seed)
      : agent_(agent),
        workers_(workers),
        rank_(rank),
        next_call_((rank * kThreads + thread + 1) << 40),
        random_(seed, rank, thread) {}

  void run(std::uint64_t num_references) {
    while (num_made_ < num_references) {
      act();
      if (under_way_.size() >= kInFlight) wait_for_one();
    }
    while (!under_way_.empty()) wait_for_one();
    const std::lock_guard lock(worker.mutex);
    worker.report.num_made += num_made_;
    worker.report.num_passed += num_passed_;
  }

 private:
  std::string anybody() { return text("worker", random_.below(workers_)); }
  std::string another() { return text("worker", (rank_ + 1 + random_.below(workers_ - 1)) % workers_); }

  void act() {
    const std::uint64_t which = random_.below(10), call = ++next_call_;
    if (which < 3) {
      hold({agent_.remote(anybody(), kMake, call), call});
      ++num_made_;
    } else if (which < 6) {
      std::vector<Held> items;
      for (std::uint64_t i = 0; i <= random_.below(kMaxAtOnce); ++i) {
        if (auto held = any_held(random_.bits()); held.item) items.push_back(std::move(held));
      }
      num_passed_ += items.size();
      const std::string bytes(random_.below(16) == 0 ? random_.below(kLargeBytes) : 0, 'x');
      follow(agent_.rpc_async(another(), kTake, call, items, bytes), [](rpc::Nothing) {});
    } else if (which < 7) {
      follow(agent_.rpc_async(another(), kGive, call), [](const Held& held) {
        if (held.item) hold(held);
      });
    } else if (which < 9) {
      const Held held = any_held(random_.bits());
      if (!held.item) return;
      follow(agent_.rpc_async(held.item.owner(), kNumber, held.item), [held](std::uint64_t found) {
        if (found != held.number) complain(text("item ", held.number, " is ", found));
      });
    } else {
      Held dropped;
      const std::lock_guard lock(worker.mutex);
      if (worker.held.empty()) return;
      dropped = std::exchange(worker.held[random_.below(worker.held.size())], worker.held.back());
      worker.held.pop_back();
    }
  }

  template <class T, class Use>
  void follow(const rpc::Future<T>& future, const Use& use) {
    under_way_.push_back([future, use] {
      if constexpr (std::is_void_v<T>) {
        future.get();
        use({});
      } else {
        use(future.get());
      }
    });
  }
  void wait_for_one() {
    const auto finish = std::move(under_way_.front());
    under_way_.pop_front();
    try {
      finish();
    } catch (const std::exception& error) {
      complain(error.what());
    }
  }

  const rpc::Agent& agent_;
  const std::uint64_t workers_, rank_;
  std::uint64_t next_call_, num_made_ = 0, num_passed_ = 0;
  Random random_;
  std::deque<std::function<void()>> under_way_;
};

/// Shuts down a random incoming connection of this worker, at any point within a message.
void cut_one(const std::vector<wire::Address>& addresses, Random& random) {
  std::vector<int> connections;
  DIR* const all = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(all)) {
    const int fd = std::atoi(entry->d_name);
    int listens = 0;
    socklen_t length = sizeof listens;
    const bool is_socket = ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0;
    if (!is_socket || listens != 0) continue;
    const std::string near = wire::near_end(fd);
    for (const auto& each : addresses) {
      if (near == each) connections.push_back(fd);
    }
  }
  ::closedir(all);
  if (connections.empty()) return;
  if (::shutdown(connections[random.below(connections.size())], SHUT_RDWR) == 0) ++worker.num_cuts;
}

void cut_connections(const rpc::Agent& agent, Random random) {
  while (!worker.ends) {
    sleep_s(0.04 * random.uniform());
    cut_one(agent.core()->info().addresses, random);
  }
}

/// Stops a process for so long that messages to it are resent.
void freeze_workers(std::vector<pid_t> pids, Random random) {
  while (!worker.ends) {
    const pid_t pid = pids[random.below(pids.size())];
    ::kill(pid, SIGSTOP);
    sleep_s(1.2);
    ::kill(pid, SIGCONT);
    for (const double until_s = now_s() + 2 + 3 * random.uniform(); !worker.ends && now_s() < until_s;)
      sleep_s(0.05);
  }
}

/// The sum over all workers.
Report sum(const rpc::Agent& agent, std::uint64_t workers) {
  Report all;
  for (std::uint64_t i = 0; i < workers; ++i) {
    Report one = agent.rpc_sync(text("worker", i), kReport);
    std::apply(
        [&](auto&... to) {
          std::apply([&](const auto&... from) { ((to += from), ...); }, Report::fields(one));
        },
        Report::fields(all));
  }
  return all;
}

/// Waits for all threads of all workers, then drops everything and checks that nothing remains.
bool finish(const rpc::Agent& agent, std::uint64_t workers) {
  for (std::uint64_t i = 0; i < workers; ++i) {
    while (agent.rpc_sync(text("worker", i), kWorks)) sleep_s(0.05);
  }
  for (std::uint64_t i = 0; i < workers; ++i) agent.rpc_sync(text("worker", i), kDropAll);
  Report all = sum(agent, workers);
  for (const double until_s = now_s() + 30; all.num_values + all.num_alive > 0 && now_s() < until_s;) {
    sleep_s(0.1);
    all = sum(agent, workers);
  }
  std::printf(
      "%lu references over %lu workers, handed on %lu times; %lu connections cut, %lu frames lost: "
      "%lu leaked, %lu not there or wrong, %lu calls run twice\n",
      all.num_made, workers, all.num_passed, all.num_cuts, all.frames_sent - all.frames_received,
      all.num_values + all.num_alive, all.num_wrong, all.num_twice);
  return all.num_values + all.num_alive + all.num_wrong + all.num_twice == 0;
}

int run(int argc, char** argv) {
  std::uint64_t references = 1000, seed = 1;
  std::string way = "shm";
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--references") references = std::stoul(argv[i + 1]);
    if (std::string(argv[i]) == "--seed") seed = std::stoul(argv[i + 1]);
    if (std::string(argv[i]) == "--way") way = argv[i + 1];
  }
  const auto context = comm::Context::from_environment();
  const auto rank = static_cast<std::uint64_t>(context->rank());
  const auto workers = static_cast<std::uint64_t>(context->world_size());
  rpc::AgentOptions options{.num_workers = workers, .lost_after_s = 30};
  if (way == "tcp") {
    options.listen = {"tcp:127.0.0.1:0"};
    options.shares_memory = false;
  }
  const auto agent = remote::init(*context, text("worker", rank), options);

  std::vector<std::thread> threads;
  const std::uint64_t share = (references + workers * kThreads - 1) / (workers * kThreads);
  for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      Actor(*agent, workers, rank, thread, seed).run(share);
      --worker.num_at_work;
    });
  }
  threads.emplace_back(cut_connections, std::cref(*agent), Random(seed, rank, 100));
  bool was_so = true;
  if (context->is_main()) {
    std::vector<pid_t> pids;
    for (std::uint64_t i = 1; i < workers; ++i) {
      pids.push_back(static_cast<pid_t>(agent->rpc_sync(text("worker", i), kPid)));
    }
    std::thread freezer(freeze_workers, pids, Random(seed, 101));
    was_so = finish(*agent, workers);
    worker.ends = true;
    freezer.join();
  } else {
    while (!agent->rpc_sync("worker0", kEnds)) sleep_s(0.1);
    worker.ends = true;
  }
  for (auto& each : threads) each.join();
  agent->leave();
  return was_so ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
