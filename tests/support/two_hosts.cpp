#include "tests/support/two_hosts.h"

#include <unistd.h>

#include <fstream>

#include "trireme/base/text.h"

namespace trireme::test {
namespace {

// Namespaces have addresses and ports to themselves.
constexpr const char* kAddresses[] = {"10.77.0.1", "10.77.0.2"};
constexpr const char* kPort = "29500";

}  // namespace

TwoHosts::TwoHosts() {
  unavailable_because_ = ::geteuid() == 0 ? create() : "network namespaces need root";
  std::ofstream(folder_ / "secret") << "the secret of two hosts\n";
  std::filesystem::permissions(folder_ / "secret", std::filesystem::perms(0600));
}

TwoHosts::~TwoHosts() {
  if (::geteuid() != 0) return;
  for (const int host : {0, 1}) run({"ip", "netns", "del", name(host)});
}

std::string TwoHosts::name(int host) const { return text("trireme-test-", ::getpid(), "-", host); }

std::string TwoHosts::create() const {
  std::vector<std::string> commands = {
      text("ip netns add ", name(0)),
      text("ip netns add ", name(1)),
      text("ip link add cable netns ", name(0), " type veth peer name cable netns ", name(1)),
  };
  for (const int host : {0, 1}) {
    const std::string ip = text("ip -n ", name(host));
    for (const char* rest : {" link set lo up", " link add aside type veth peer name nowhere",
                             " addr add 192.0.2.1/24 dev aside", " link set aside up"}) {
      commands.push_back(ip + rest);
    }
    commands.push_back(text(ip, " addr add ", kAddresses[host], "/24 dev cable"));
    commands.push_back(text(ip, " link set cable up"));
  }
  for (const auto& command : commands) {
    const auto result = run(split(command, ' '), {}, 20);
    if (result.exit_code != 0) return text("no network namespaces: '", command, "': ", result.err);
  }
  return {};
}

std::vector<std::unique_ptr<ChildProcess>> TwoHosts::launch(int ranks,
                                                            const std::vector<std::string>& command) const {
  std::vector<std::unique_ptr<ChildProcess>> launchers;
  for (const int host : {0, 1}) {
    std::vector<std::string> words = {"ip",
                                      "netns",
                                      "exec",
                                      name(host),
                                      bin("trireme"),
                                      "launch",
                                      "-n",
                                      text(ranks),
                                      "--nnodes",
                                      "2",
                                      "--node-rank",
                                      text(host),
                                      "--master-addr",
                                      kAddresses[0],
                                      "--master-port",
                                      kPort,
                                      "--secret-file",
                                      (folder_ / "secret").string(),
                                      "--"};
    words.insert(words.end(), command.begin(), command.end());
    // The namespaces share kernel and processes: only this tells the ranks that memory is not shared.
    launchers.push_back(std::make_unique<ChildProcess>(
        words, std::map<std::string, std::string>{{"TRIREME_HOST_ID", name(host)}}));
  }
  return launchers;
}

std::int64_t TwoHosts::bytes_sent(int host) const {
  const auto result =
      run({"ip", "netns", "exec", name(host), "cat", "/sys/class/net/cable/statistics/tx_bytes"}, {}, 20);
  return std::stoll(result.out);
}

void TwoHosts::cut_cable() const {
  // Frames to a wrong station are dropped without a word, as at a switch that has failed. An interface that
  // is switched off would tell the programs of its host.
  for (const int host : {0, 1}) {
    run({"ip", "-n", name(host), "neigh", "replace", kAddresses[1 - host], "lladdr", "02:00:00:00:00:99",
         "dev", "cable", "nud", "permanent"});
  }
}

}  // namespace trireme::test
