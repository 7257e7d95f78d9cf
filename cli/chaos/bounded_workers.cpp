#include "cli/chaos/bounded_workers.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

constexpr int kMostWorkers = 8;
constexpr std::uint32_t kChunks = 8;
constexpr ps::WorkerId kFirstWorker = 1000;
constexpr auto kLook = std::chrono::milliseconds(2);

/// Element W of each chunk counts the pushes of worker W to it.
ps::TableSpec table_spec() {
  ps::TableSpec spec;
  spec.name = "bounded";
  spec.num_elements = std::uint64_t{kChunks} * kMostWorkers;
  spec.chunk_elements = kMostWorkers;
  spec.staleness = 1;
  return spec;
}

}  // namespace

struct BoundedWorkers::Shared {
  enum State : int { kWait, kGo, kStop };
  struct Each {
    std::array<std::atomic<std::uint64_t>, kChunks> begun, acknowledged;
    std::atomic<std::uint64_t> steps;
    std::array<char, 512> failure;
  };
  std::atomic<int> state;
  std::array<char, 256> coordinator;
  std::array<Each, kMostWorkers> workers;
};

BoundedWorkers::BoundedWorkers(int count) {
  require(count >= 2 && count <= kMostWorkers, "bounded workers are 2 to ", kMostWorkers, ", not ", count);
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw InternalError(text("no shared memory: ", std::strerror(errno)));
  shared_ = new (memory) Shared{};
  const pid_t parent = ::getpid();
  for (int worker = 0; worker < count; ++worker) {
    const pid_t pid = ::fork();
    if (pid < 0) throw InternalError(text("no process for a worker: ", std::strerror(errno)));
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(127);
      work(worker);
    }
    children_.push_back(pid);
  }
}

BoundedWorkers::~BoundedWorkers() {
  for (const pid_t pid : children_) {
    if (pid == 0) continue;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  ::munmap(shared_, sizeof(Shared));
}

void BoundedWorkers::work(int worker) {
  Shared::Each& own = shared_->workers[static_cast<std::size_t>(worker)];
  while (shared_->state == Shared::kWait) std::this_thread::sleep_for(kLook);
  try {
    ps::Client client({.worker = kFirstWorker + static_cast<ps::WorkerId>(worker),
                       .host = "here",
                       .coordinator = shared_->coordinator.data()});
    const ps::TableId table = client.open_table(table_spec());
    while (shared_->state == Shared::kGo) {
      std::vector<ps::Pending> pushed;
      for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        std::vector<std::byte> bytes(kMostWorkers * sizeof(float));
        const float one = 1;
        std::memcpy(bytes.data() + static_cast<std::size_t>(worker) * sizeof one, &one, sizeof one);
        ++own.begun[chunk];
        pushed.push_back(client.push_chunk(table, chunk, wire::Buffer::of(std::move(bytes))));
      }
      for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
        pushed[chunk].get();
        ++own.acknowledged[chunk];
      }
      client.tick();
      client.pull_chunk(table, static_cast<std::uint32_t>(own.steps % kChunks)).get();
      ++own.steps;
    }
    client.leave().get();
  } catch (const std::exception& error) {
    std::strncpy(own.failure.data(), error.what(), own.failure.size() - 1);
  }
  ::_exit(0);
}

void BoundedWorkers::start(const std::string& coordinator) {
  std::strncpy(shared_->coordinator.data(), coordinator.c_str(), shared_->coordinator.size() - 1);
  shared_->state = Shared::kGo;
  is_started_ = true;
}

std::vector<pid_t> BoundedWorkers::pids() const {
  std::vector<pid_t> result;
  for (const pid_t pid : children_) {
    if (pid != 0) result.push_back(pid);
  }
  return result;
}

std::uint64_t BoundedWorkers::steps(int worker) const {
  return shared_->workers[static_cast<std::size_t>(worker)].steps;
}

void BoundedWorkers::kill(int worker) {
  pid_t& pid = children_[static_cast<std::size_t>(worker)];
  ::kill(pid, SIGKILL);
  ::waitpid(std::exchange(pid, 0), nullptr, 0);
  killed_ = worker;
}

void BoundedWorkers::stop() {
  shared_->state = Shared::kStop;
  for (pid_t& pid : children_) {
    if (pid != 0) ::waitpid(std::exchange(pid, 0), nullptr, 0);
  }
}

std::string BoundedWorkers::compare(ps::Client& client) const {
  std::vector<float> sums(std::size_t{kChunks} * kMostWorkers);
  client.pull(client.open_table(table_spec()), sums).get();
  for (int worker = 0; worker < count(); ++worker) {
    const Shared::Each& each = shared_->workers[static_cast<std::size_t>(worker)];
    if (each.failure[0] != 0) return text("bounded worker ", worker, ": ", each.failure.data());
    for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      const auto found = static_cast<std::uint64_t>(
          sums[std::size_t{chunk} * kMostWorkers + static_cast<std::size_t>(worker)]);
      const std::uint64_t least = each.acknowledged[chunk];
      const std::uint64_t most = worker == killed_ ? each.begun[chunk].load() : least;
      if (found < least || found > most)
        return text("chunk ", chunk, " has ", found, " pushes of bounded worker ", worker, ", which may be ",
                    least, " to ", most);
    }
  }
  return "";
}

}  // namespace trireme::cli
