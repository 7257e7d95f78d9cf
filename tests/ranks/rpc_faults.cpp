// Workers that are killed and stopped during RPC: rpc_faults. The caller starts two workers of this program,
// w1 and w2. It applies each fault to w1 and prints what it observed. Exit code 0: everything was as
// docs/rpc.md promises.

#include <signal.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>
#include <thread>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/remote/autograd.h"
#include "trireme/remote/tensor_field.h"
#include "trireme/wire/store_server.h"

namespace {

using namespace trireme;

at::Tensor twice(const at::Tensor& x) { return x * 2; }
constexpr auto& kTwice = rpc::function<"twice", &twice>;

at::Tensor die(const at::Tensor&) {
  ::raise(SIGKILL);
  return {};
}
constexpr auto& kDie = rpc::function<"die", &die>;

struct DiesInBackward : torch::autograd::Function<DiesInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    ::raise(SIGKILL);
    return {};
  }
};
at::Tensor die_later(const at::Tensor& x) { return DiesInBackward::apply(x); }
constexpr auto& kDieLater = rpc::function<"die_later", &die_later>;

std::int64_t pid() { return ::getpid(); }
constexpr auto& kPid = rpc::function<"pid", &pid>;
std::int64_t contexts() { return static_cast<std::int64_t>(remote::num_contexts()); }
constexpr auto& kContexts = rpc::function<"contexts", &contexts>;

std::shared_ptr<rpc::Agent> join(const wire::Endpoint& store, const std::string& name) {
  rpc::AgentOptions options;
  options.name = name;
  options.directory =
      std::make_shared<rpc::StoreDirectory>(wire::StoreClientOptions{.endpoint = store, .secret = {}});
  options.lost_after_s = 1;
  return remote::join(options);
}

int serve(const std::string& port, const std::string& name) {
  const auto agent = join({"127.0.0.1", std::stoi(port)}, name);
  while (::getppid() != 1) ::usleep(50'000);  // until the caller has ended
  return 0;
}

int failures = 0;
void expect(bool condition, const std::string& what) {
  std::printf("%s: %s\n", condition ? "ok" : "NOT SO", what.c_str());
  if (!condition) ++failures;
}

std::string thrown_by(const std::function<void()>& work) {
  try {
    work();
  } catch (const CommError& error) {
    return error.what();
  } catch (const std::exception& error) {
    return text("another error: ", error.what());
  }
  return "nothing was thrown";
}

pid_t start(int port, const std::string& name) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl("/proc/self/exe", "rpc_faults", std::to_string(port).c_str(), name.c_str(), nullptr);
    ::_exit(127);
  }
  return child;
}

void check_all() {
  const wire::StoreServer server(wire::listen_at({"127.0.0.1", 0}), {.secret = {}});
  const int port = server.endpoint().port;
  pid_t w1 = start(port, "w1");
  const pid_t w2 = start(port, "w2");
  const auto agent = join(server.endpoint(), "caller");
  const at::Tensor x = torch::arange(4, torch::kFloat32);
  const auto works = [&](const std::string& name) {
    return torch::equal(agent->rpc_sync(name, kTwice, x), x * 2);
  };
  const auto restart = [&] {
    ::waitpid(w1, nullptr, 0);
    w1 = start(port, "w1");
    while (agent->rpc_sync("w1", rpc::CallOptions{.tries = 5}, kPid) != w1) ::usleep(10'000);
  };
  expect(works("w1") && works("w2"), "calls work");

  std::string message = thrown_by([&] { agent->rpc_sync("w1", kDie, x); });
  expect(message.find("'die' was under way: worker 'w1' has ended") != std::string::npos,
         "killed in mid-call: " + message);
  expect(works("w2"), "the other one lives");
  restart();
  expect(works("w1"), "a new process took the name over");

  {
    remote::Context context(*agent);
    const at::Tensor leaf = x.clone().requires_grad_(true);
    const at::Tensor y = agent->rpc_sync("w2", kTwice, agent->rpc_sync("w1", kDieLater, leaf));
    message = thrown_by([&] { context.backward({y.sum()}); });
    expect(message.find("worker 'w1' has ended") != std::string::npos, "killed in backward: " + message);
  }
  restart();
  {
    remote::Context context(*agent);
    const at::Tensor leaf = x.clone().requires_grad_(true);
    context.backward({agent->rpc_sync("w2", kTwice, agent->rpc_sync("w1", kTwice, leaf)).sum()});
    const auto gradients = context.gradients();
    expect(gradients.size() == 1 && torch::equal(gradients[0].second, torch::full({4}, 4.0F)),
           "and the next backward works");
  }

  const auto reference = agent->remote("w1", kTwice, x);
  expect(torch::equal(reference.to_here(), x * 2), "a reference to its value works");
  ::kill(w1, SIGSTOP);
  ::waitpid(w1, nullptr, WUNTRACED);
  message = thrown_by([&] { agent->rpc_sync("w1", rpc::CallOptions{.timeout_s = 0.5}, kTwice, x); });
  expect(message.find("'twice' on worker 'w1' has not answered within 0.5 s") != std::string::npos,
         "frozen: " + message);
  ::kill(w1, SIGCONT);
  expect(works("w1"), "it goes on when it wakes");
  ::kill(w1, SIGKILL);
  message = thrown_by([&] { reference.to_here(); });
  expect(message.find("worker 'w1' has ended") != std::string::npos, "the owner of a reference: " + message);
  restart();
  message = thrown_by([&] { reference.to_here(); });
  expect(message.find("worker 'w1' has ended") != std::string::npos, "also when another has its name");
  bool forgotten = false;
  for (int i = 0; i < 400 && !forgotten; ++i) {
    forgotten = remote::num_contexts() == 0 && agent->rpc_sync("w2", kContexts) == 0;
    ::usleep(50'000);
  }
  expect(forgotten, "no context is left behind");
  ::kill(w1, SIGKILL);
  ::kill(w2, SIGKILL);
  ::waitpid(w1, nullptr, 0);
  ::waitpid(w2, nullptr, 0);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 3) return serve(argv[1], argv[2]);
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    check_all();
    return failures == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
