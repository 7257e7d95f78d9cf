#include "tests/support/namespace_hosts.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "trireme/base/text.h"

namespace trireme::test {
namespace {

// Each namespace has its own addresses and ports.
constexpr const char* kPort = "29500";

/// A new prefix for every object of the process, because ranks of one may still run when the next begins.
std::string next_prefix() {
  static std::atomic<int> count{0};
  return text("trireme-test-", ::getpid(), "-", count++);
}

}  // namespace

NamespaceHosts::NamespaceHosts(int num_hosts, std::string network)
    : num_hosts_(num_hosts), network_(std::move(network)), prefix_(next_prefix()) {
  std::ofstream(folder_ / "secret") << "the secret of these hosts\n";
  std::filesystem::permissions(folder_ / "secret", std::filesystem::perms(0600));
}

std::string NamespaceHosts::name(int host) const { return text(prefix_, "-", host); }

std::vector<std::unique_ptr<ChildProcess>> NamespaceHosts::launch(
    int ranks, const std::vector<std::string>& command) const {
  std::vector<std::unique_ptr<ChildProcess>> launchers;
  for (int host = 0; host < num_hosts_; ++host)
    launchers.push_back(launch_on(host, ranks, {"--nnodes", text(num_hosts_)}, command));
  return launchers;
}

std::unique_ptr<ChildProcess> NamespaceHosts::launch_on(int host, int ranks,
                                                        const std::vector<std::string>& options,
                                                        const std::vector<std::string>& command) const {
  std::vector<std::string> words = {
      bin("trireme"), "launch",        "-n",  text(ranks),     "--node-rank", text(host), "--master-addr",
      address(0),     "--master-port", kPort, "--secret-file", secret_file()};
  words.insert(words.end(), options.begin(), options.end());
  words.push_back("--");
  words.insert(words.end(), command.begin(), command.end());
  return start_on(host, words);
}

std::unique_ptr<ChildProcess> NamespaceHosts::start_on(int host,
                                                       const std::vector<std::string>& command) const {
  std::vector<std::string> words = entrance(host);
  words.insert(words.end(), command.begin(), command.end());
  // The namespaces share kernel and processes. Only this variable makes the ranks treat memory as not shared.
  return std::make_unique<ChildProcess>(words,
                                        std::map<std::string, std::string>{{"TRIREME_HOST_ID", name(host)}});
}

void NamespaceHosts::on_host(int host, const std::function<void()>& body) const {
  std::exception_ptr failure;
  std::thread([&] {
    try {
      const int there = ::open(("/run/netns/" + name(host)).c_str(), O_RDONLY | O_CLOEXEC);
      const int entered = there < 0 ? -1 : ::setns(there, CLONE_NEWNET);
      if (there >= 0) ::close(there);
      if (entered != 0) throw std::runtime_error(text("cannot enter ", name(host)));
      body();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

std::int64_t NamespaceHosts::bytes_sent(int host) const {
  const auto result =
      run({"ip", "netns", "exec", name(host), "cat", "/sys/class/net/cable/statistics/tx_bytes"}, {}, 20);
  return std::stoll(result.out);
}

}  // namespace trireme::test
