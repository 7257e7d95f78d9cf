// A rank that trains nothing. It runs a loop of reductions, reads data from a pipe, saves files, and has one
// fault.

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "bench/autopsy/fault.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/file_descriptor.h"
#include "trireme/base/run_main.h"
#include "trireme/comm/context.h"

namespace trireme::bench {
namespace {

/// Reads one byte per step from a pipe, on its own thread, as a loader does.
class Samples {
 public:
  explicit Samples(const std::string& pipe)
      : pipe_(::open(pipe.c_str(), O_RDONLY)), thread_([this] { run(); }) {
    ::pthread_setname_np(thread_.native_handle(), "load-0");
    thread_.detach();
  }
  void next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ready_ > 0; });
    --ready_;
    changed_.notify_all();
  }

 private:
  void run() {
    for (char sample = 0; ::read(pipe_, &sample, 1) == 1;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ready_ < 4; });
      ++ready_;
      changed_.notify_all();
    }
  }
  const int pipe_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int ready_ = 0;
  std::thread thread_;
};

void save(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  if (file < 0) throw DataError("cannot open " + path);
  const std::vector<char> content(4096, 'x');
  if (::pwrite(file, content.data(), content.size(), 0) < 0 || ::fsync(file) != 0) std::abort();
  ::close(file);
}

/// Touches pages of a file that is larger than the memory of the control group.
void thrash(const std::string& path) {
  constexpr std::size_t kBytes = std::size_t{96} << 20, kPage = 4096;
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ::ftruncate(file, kBytes) != 0) std::abort();
  auto* memory = static_cast<volatile char*>(::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, file, 0));
  unsigned random = 1;
  for (const auto end = Deadline::after_s(60); !end.expired();) {
    random = random * 1664525 + 1013904223;
    [[maybe_unused]] const char page = memory[random % (kBytes / kPage) * kPage];
  }
}

void allocate() {
  for (std::vector<std::unique_ptr<char[]>> blocks; blocks.size() < 4096;) {
    constexpr std::size_t kBytes = 1 << 20;
    blocks.push_back(std::make_unique<char[]>(kBytes));
    for (std::size_t at = 0; at < kBytes; at += 4096) const_cast<volatile char&>(blocks.back()[at]) = 1;
  }
}

void commit(const std::string& kind, const std::string& folder) {
  if (kind == "throw") throw std::runtime_error("the step is not implemented");
  if (kind == "libtorch") at::empty({2, 3}).view({7});
  if (kind == "data-error") throw DataError("sample 3: the text ends early");
  if (kind == "segv") ::raise(SIGSEGV);
  if (kind == "abort") std::abort();
  if (kind == "sleep") std::this_thread::sleep_for(std::chrono::seconds(60));
  if (kind == "lock") {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable never;
    never.wait(lock, [] { return false; });
  }
  if (kind == "spin") {
    volatile bool go_on = true;
    while (go_on) {
    }
  }
  if (kind == "memory-limit") allocate();
  if (kind == "swapping") thrash(folder + "/pages");
}

void loop(comm::Context& context, const RankArguments& arguments) {
  const int rank = context.rank(), size = context.world_size();
  const bool is_victim = rank == arguments.victim;
  // Never destroyed, even by an exception: its thread continues to read.
  auto& samples = *new Samples(arguments.folder + "/samples." + std::to_string(rank));
  auto tensor = at::empty({1 << 12}, at::kFloat).fill_(1), short_tensor = at::empty({7}, at::kFloat).fill_(1);
  for (int step = 0;; ++step) {
    context.status().set_action(text("step ", step, ": waiting for data"));
    {
      const telemetry::OwnWork work(context.status(), "waiting for data");
      samples.next();
    }
    context.status().set_action(text("step ", step, ": 0F0"));
    if (step % 10 == 5) {
      const std::string path = is_victim ? arguments.disk + "/state" : arguments.folder + "/state";
      const telemetry::OwnWork work(context.status(), "saving a checkpoint to " + path);
      save(path);
    }
    if (is_victim && step >= arguments.step && ::access((arguments.folder + "/now").c_str(), F_OK) == 0) {
      if (arguments.kind == "mismatch-size") context.world().all_reduce(short_tensor);
      if (arguments.kind == "mismatch-kind") context.world().broadcast(tensor, 0);
      if (arguments.kind == "deadlock") context.world().recv(tensor, (rank + 1) % size);
      commit(arguments.kind, arguments.folder);
    }
    context.world().all_reduce(tensor, comm::ReduceOp::kAverage);
    if (step == 20) {
      std::printf("step 20\n");
      std::fflush(stdout);
    }
  }
}

}  // namespace

int run_rank(const RankArguments& arguments) {
  const auto body = [&] {
    const auto context = comm::Context::from_environment({.timeout_s = 20});
    loop(*context, arguments);
  };
  // Half of the victims do not catch their exception.
  if (arguments.victim % 2 == 0) return body(), 0;
  return run_main(body);
}

}  // namespace trireme::bench
