// Question: how long do remote calls between two processes of a host take, how many bytes do they carry, and
// how many are possible per second?
//   bench_rpc_calls [--smoke] [--passes P] [--way shm|tcp] [--call empty|take|echo]
// "take" has a tensor as its argument and returns a number, "echo" returns the tensor. First one call at a
// time, then eight concurrent calls. A line of JSON for each pass, way, call and size: median and 95th
// percentile of the round trip, calls per second, and argument bytes per second. peers/rpc_calls.py does the
// same with torch.distributed.rpc and reads the lines.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/remote/tensor_field.h"
#include "trireme/rpc/agent.h"
#include "trireme/wire/store_server.h"

namespace {

using namespace trireme;

void nothing() {}
std::int64_t take(const at::Tensor& tensor) { return tensor.numel(); }
at::Tensor echo(at::Tensor tensor) { return tensor; }
constexpr auto& kNothing = rpc::function<"nothing", &nothing>;
constexpr auto& kTake = rpc::function<"take", &take>;
constexpr auto& kEcho = rpc::function<"echo", &echo>;

constexpr std::size_t kInFlight = 8;

struct Case {
  std::string call;
  std::int64_t bytes;
  int one_by_one, many;  ///< number of calls
};

std::shared_ptr<rpc::Agent> join(const std::string& name, const std::string& way,
                                 const wire::Endpoint& meet) {
  rpc::AgentOptions options{.name = name,
                            .directory = std::make_shared<rpc::StoreDirectory>(
                                wire::StoreClientOptions{.endpoint = meet, .secret = {}}),
                            .group = way};
  if (way == "tcp") {
    options.listen = {"tcp:127.0.0.1:0"};
    options.shares_memory = false;
  }
  return rpc::Agent::join(options);
}

/// A worker that serves until this object is destroyed.
class Server {
 public:
  Server(const std::string& way, const wire::Endpoint& meet) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      const auto agent = join("server", way, meet);
      while (true) ::pause();
    } catch (const std::exception& error) {
      std::cerr << error.what() << std::endl;
    }
    ::_exit(kExitComm);
  }
  ~Server() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

 private:
  pid_t pid_;
};

template <class Begin>
nlohmann::json measure(const Case& work, const Begin& begin) {
  for (int i = 0; i < std::max(work.one_by_one / 10, 2); ++i) begin().get();  // warm-up
  std::vector<double> us;
  for (int i = 0; i < work.one_by_one; ++i) {
    const double begin_s = now_s();
    begin().get();
    us.push_back(1e6 * (now_s() - begin_s));
  }
  std::ranges::sort(us);
  std::deque<decltype(begin())> on_their_way;
  const double begin_s = now_s();
  for (int i = 0; i < work.many; ++i) {
    if (on_their_way.size() == kInFlight) {
      on_their_way.front().get();
      on_their_way.pop_front();
    }
    on_their_way.push_back(begin());
  }
  for (const auto& each : on_their_way) each.get();
  const double calls_per_s = work.many / (now_s() - begin_s);
  return {{"median_us", us[us.size() / 2]},
          {"p95_us", us[us.size() * 95 / 100]},
          {"calls_per_s", calls_per_s},
          {"gb_per_s", 1e-9 * static_cast<double>(work.bytes) * calls_per_s}};
}

nlohmann::json measure_on(const rpc::Agent& agent, const Case& work) {
  const rpc::Callee server(agent.find("server"));
  const at::Tensor tensor = at::ones({work.bytes / 4}, at::kFloat);
  if (work.call == "empty") return measure(work, [&] { return agent.rpc_async(server, kNothing); });
  if (work.call == "take") return measure(work, [&] { return agent.rpc_async(server, kTake, tensor); });
  return measure(work, [&] { return agent.rpc_async(server, kEcho, tensor); });
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("How long remote calls take, and how much they carry.");
  int passes = 5;
  bool smoke = false;
  std::string only_way, only_call;
  app.add_option("--passes", passes)->check(CLI::PositiveNumber);
  app.add_option("--way", only_way)->check(CLI::IsMember({"shm", "tcp"}));
  app.add_option("--call", only_call)->check(CLI::IsMember({"empty", "take", "echo"}));
  app.add_flag("--smoke", smoke);
  CLI11_PARSE(app, argc, argv);

  constexpr std::int64_t kSmall = 4 << 10, kLarge = 4 << 20;
  std::vector<Case> cases = {{"empty", 0, 1000, 5000},
                             {"take", kSmall, 1000, 5000},
                             {"echo", kSmall, 1000, 5000},
                             {"take", kLarge, 60, 120},
                             {"echo", kLarge, 60, 120}};
  if (smoke) {
    passes = 1;
    for (Case& each : cases) each.one_by_one = each.many = 20;
  }
  wire::Socket listening = wire::listen_at({"127.0.0.1", 0});
  const wire::Endpoint meet = listening.local();
  // Forks before any thread exists.
  std::deque<Server> servers;
  std::vector<std::string> ways;
  for (const char* way : {"shm", "tcp"}) {
    if (!only_way.empty() && only_way != way) continue;
    ways.emplace_back(way);
    servers.emplace_back(way, meet);
  }
  const wire::StoreServer store(std::move(listening), {});
  at::set_num_threads(1);
  std::vector<std::shared_ptr<rpc::Agent>> agents;
  for (const std::string& way : ways) agents.push_back(join("caller", way, meet));
  for (int pass = 0; pass < passes; ++pass) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      for (const Case& work : cases) {
        if (!only_call.empty() && only_call != work.call) continue;
        nlohmann::json line = measure_on(*agents[i], work);
        line.update({{"system", "trireme"}, {"way", ways[i]}, {"call", work.call}, {"bytes", work.bytes}});
        std::cout << line.dump() << std::endl;
      }
    }
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return kExitComm;
}
