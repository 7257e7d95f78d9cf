#include "tests/support/etcd_cluster.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "tests/support/ports.h"
#include "trireme/base/clock.h"
#include "trireme/base/text.h"

namespace trireme::test {
namespace {

constexpr int kTries = 3;  // another process may take a free port before etcd listens at it
constexpr double kStart_s = 30;
constexpr const char* kTaken = "address already in use";
constexpr const char* kReady = "ready to serve client requests";

std::string content(const std::filesystem::path& path) {
  std::ostringstream all;
  all << std::ifstream(path).rdbuf();
  return all.str();
}

}  // namespace

bool EtcdCluster::is_installed() {
  const char* path = std::getenv("PATH");
  for (const std::string& folder : split(path == nullptr ? "" : path, ':')) {
    if (::access((folder + "/etcd").c_str(), X_OK) == 0) return true;
  }
  return false;
}

EtcdCluster::EtcdCluster(int num_members, std::string address, std::vector<std::string> entrance)
    : address_(std::move(address)), entrance_(std::move(entrance)) {
  for (int i = 0; i < kTries; ++i) {
    if (starts(num_members)) return;
  }
  throw std::runtime_error("etcd did not start: " + content(folder_ / "0.log"));
}

std::string EtcdCluster::at(int port) const { return text("http://", address_, ":", port); }

bool EtcdCluster::starts(int num_members) {
  members_.clear();
  ports_.clear();
  std::vector<int> peer_ports;
  std::vector<std::string> peers;
  {
    std::vector<std::unique_ptr<TakenPort>> taken;  // all held at once, so that they differ
    for (int i = 0; i < 2 * num_members; ++i) taken.push_back(std::make_unique<TakenPort>());
    for (int i = 0; i < num_members; ++i) {
      const auto first = 2 * static_cast<std::size_t>(i);
      ports_.push_back(taken[first]->number());
      peer_ports.push_back(taken[first + 1]->number());
      peers.push_back(text("m", i, "=", at(peer_ports.back())));
    }
  }
  for (int i = 0; i < num_members; ++i) {
    const std::string client = at(ports_[static_cast<std::size_t>(i)]);
    const std::string peer = at(peer_ports[static_cast<std::size_t>(i)]);
    const std::string data = (folder_ / text(i)).string();
    std::filesystem::remove_all(data);
    // Output goes to a file, because no process reads a pipe while the test continues.
    const std::string line = text("exec etcd --name m", i, " --data-dir '", data, "' --listen-client-urls ",
                                  client, " --advertise-client-urls ", client, " --listen-peer-urls ", peer,
                                  " --initial-advertise-peer-urls ", peer, " --initial-cluster ",
                                  join(peers, ","), " >'", data, ".log' 2>&1");
    std::vector<std::string> words = entrance_;
    words.insert(words.end(), {"sh", "-c", line});
    members_.push_back(std::make_unique<ChildProcess>(words));
  }
  const auto deadline = Deadline::after_s(kStart_s);
  for (int i = 0; i < num_members; ++i) {
    while (true) {
      const std::string log = content(folder_ / text(i, ".log"));
      if (log.find(kReady) != std::string::npos) break;
      if (deadline.expired() || log.find(kTaken) != std::string::npos) return false;
      std::this_thread::sleep_for(Seconds(0.02));
    }
  }
  return true;
}

std::string EtcdCluster::member(int i) const {
  return text(address_, ":", ports_.at(static_cast<std::size_t>(i)));
}

std::string EtcdCluster::address(const std::string& prefix) const {
  std::vector<std::string> all;
  for (int i = 0; i < size(); ++i) all.push_back(member(i));
  return text("etcd://", join(all, ","), "/", prefix);
}

void EtcdCluster::kill(int i) {
  ChildProcess& member = *members_.at(static_cast<std::size_t>(i));
  member.send_signal(SIGKILL);
  member.wait(10);
}

}  // namespace trireme::test
