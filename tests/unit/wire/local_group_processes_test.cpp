// The same engine between real processes. Memory is shared through /proc, and ranks die and freeze.

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"
#include "tests/unit/wire/group_of_threads.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme::wire {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Ranks as children of the test. Each writes the text of its exception to a file.
class Processes {
 public:
  using Body = std::function<void(LocalGroup&, int)>;
  Processes(int size, const Body& body)
      : memory_(SharedMemory::create(ControlBlock::bytes(BlockLayout::for_size(size)))) {
    const std::string address = memory_->address();
    for (int r = 0; r < size; ++r) {
      const pid_t pid = ::fork();
      if (pid == 0) ::_exit(run(r, size, address, body));
      pids_.push_back(pid);
    }
  }
  ~Processes() {
    for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
    for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
  }

  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  /// Waits for the rank's end. Returns the text of its exception ("" for none).
  std::string error(int rank) {
    int status = 0;
    ::waitpid(pid(rank), &status, 0);
    const std::filesystem::path file = folder_ / text("error", rank);
    return std::filesystem::exists(file) ? read_file(file) : WIFEXITED(status) ? "" : "killed";
  }

 private:
  int run(int rank, int size, const std::string& address, const Body& body) {
    try {
      const auto memory = SharedMemory::attach(address);
      LocalGroup::enter(*memory, rank, size);
      meet(*memory, size);
      LocalGroup group(memory,
                       Membership{.rank = rank, .size = size, .rank_names = {}, .ranks_on_cores = size});
      body(group, rank);
    } catch (const std::exception& error) {
      write_file_atomic(folder_ / text("error", rank), error.what());
    }
    return 0;
  }
  static void meet(SharedMemory& memory, int size) {
    const ControlBlock block(memory.shared_from_this(), BlockLayout::for_size(size));
    for (int r = 0; r < size; ++r)
      while (block.rank(r).pid.load() == 0) ::usleep(100);
  }

  test::TemporaryFolder folder_;
  std::shared_ptr<SharedMemory> memory_;
  std::vector<pid_t> pids_;
};

/// Flags that processes forked later share with this one.
class SharedFlags {
 public:
  SharedFlags() : flags_(reinterpret_cast<std::atomic<bool>*>(memory_->data())) {}
  void set(int flag) const { flags_[flag].store(true); }
  void await(int flag) const {
    const Deadline deadline = Deadline::after_s(60);
    while (!flags_[flag].load() && !deadline.expired()) ::usleep(1000);
    require(flags_[flag].load(), "flag ", flag, " was never set");
  }

 private:
  std::shared_ptr<SharedMemory> memory_ = SharedMemory::create(4096);
  std::atomic<bool>* flags_;
};

constexpr std::size_t kNumFloats = 300000;

/// all_reduce of ones in memory of the arena. Checks the sum.
void all_reduce_ones(LocalGroup& group, float* values, double timeout_s) {
  std::fill(values, values + kNumFloats, 1.0F);
  const Call call{.kind = CallKind::kAllReduce,
                  .element = Element::kF32,
                  .count = kNumFloats,
                  .input = bytes(values),
                  .output = bytes(values)};
  group.wait(*group.issue(call, Issue::kSync, timeout_s));
  const auto size = static_cast<float>(group.membership().size);
  require(std::all_of(values, values + kNumFloats, [&](float value) { return value == size; }), "wrong sum");
}

/// Ranks that reduce until one of them fails. All have run some operations.
class ReducingProcesses : public Processes {
 public:
  ReducingProcesses(int size, double timeout_s, const SharedFlags& flags = {})
      : Processes(size, [flags, timeout_s](LocalGroup& group, int rank) {
          auto* values = reinterpret_cast<float*>(group.arena()->allocate(kNumFloats * sizeof(float)));
          all_reduce_ones(group, values, 60);
          flags.set(rank);
          while (true) all_reduce_ones(group, values, timeout_s);
        }) {
    for (int rank = 0; rank < size; ++rank) flags.await(rank);
  }
};

TEST(LocalGroupProcesses, ReduceInAnyMemoryWithManyRanks) {
  Processes ranks(8, [](LocalGroup& group, int) {
    std::vector<float> own(kNumFloats);
    auto* shared = reinterpret_cast<float*>(group.arena()->allocate(kNumFloats * sizeof(float)));
    for (int i = 0; i < 3; ++i) {
      all_reduce_ones(group, shared, 30);
      all_reduce_ones(group, own.data(), 30);
    }
  });
  for (int r = 0; r < 8; ++r) EXPECT_EQ(ranks.error(r), "") << "rank " << r;
}

TEST(LocalGroupProcesses, AttachSegmentsThatComeAndGo) {
  Processes ranks(2, [](LocalGroup& group, int rank) {
    for (int i = 0; i < 10; ++i) {
      // The ranks allocate different numbers of segments with different lifetimes.
      std::byte* more = rank == i % 2 ? group.arena()->allocate(5 << 20) : nullptr;
      std::byte* block = group.arena()->allocate(kNumFloats * sizeof(float));
      all_reduce_ones(group, reinterpret_cast<float*>(block), 30);
      group.arena()->free(block);
      if (more != nullptr) group.arena()->free(more);
    }
  });
  for (int r = 0; r < 2; ++r) EXPECT_EQ(ranks.error(r), "") << "rank " << r;
}

TEST(LocalGroupProcesses, SurvivorsNameTheRankThatWasKilled) {
  ReducingProcesses ranks(4, 30);
  ::kill(ranks.pid(2), SIGKILL);
  for (const int r : {0, 1, 3})
    EXPECT_THAT(ranks.error(r),
                AllOf(HasSubstr("all_reduce #"), HasSubstr("of group world: rank 2 (pid"), HasSubstr("died")))
        << "rank " << r;
}

TEST(LocalGroupProcesses, SurvivorsNameRankThatDiedEarly) {
  const SharedFlags flags;
  Processes ranks(3, [&](LocalGroup& group, int rank) {
    auto* values = reinterpret_cast<float*>(group.arena()->allocate(kNumFloats * sizeof(float)));
    if (rank == 2) {
      const Call call{.kind = CallKind::kAllReduce,
                      .element = Element::kF32,
                      .count = kNumFloats,
                      .input = bytes(values),
                      .output = bytes(values)};
      const auto operation = group.issue(call, Issue::kAsync, 30);
      ::usleep(200000);  // usually it has arrived by then, and it cannot finish alone
      ::kill(::getpid(), SIGKILL);
    }
    flags.await(0);
    all_reduce_ones(group, values, 30);
  });
  EXPECT_EQ(ranks.error(2), "killed");
  flags.set(0);
  for (const int r : {0, 1})
    EXPECT_THAT(ranks.error(r),
                AllOf(HasSubstr("all_reduce #1 of group world: rank 2 (pid"), HasSubstr("died")))
        << "rank " << r;
}

TEST(LocalGroupProcesses, ShareNothingWithPersistentName) {
  ReducingProcesses ranks(2, 30);
  for (const int r : {0, 1}) {
    const std::string maps = read_file(text("/proc/", ranks.pid(r), "/maps"));
    EXPECT_THAT(maps, AllOf(HasSubstr("/memfd:"), Not(HasSubstr("/dev/shm")))) << "rank " << r;
  }
}

TEST(LocalGroupProcesses, SurvivorsNameStoppedRankAtDeadline) {
  ReducingProcesses ranks(3, 2);
  ::kill(ranks.pid(1), SIGSTOP);
  const std::string first = ranks.error(0);
  EXPECT_THAT(first, AllOf(HasSubstr("of group world: rank 1 (pid"), HasSubstr("stopped)"),
                           HasSubstr("did not arrive within 2.0 s")));
  EXPECT_EQ(ranks.error(2), first);
}

TEST(LocalGroupProcesses, OrderlyEndIsNotDeath) {
  // Rank 1 ends right after it has sent. Its message is still available.
  Processes ranks(2, [](LocalGroup& group, int rank) {
    std::vector<float> values(100, 7.0F);
    Transfer message{Transfer::Direction::kSend, 0, Element::kF32, 100, 0, bytes(values.data())};
    if (rank == 0) {
      ::usleep(50000);
      message = {Transfer::Direction::kReceive, 1, Element::kF32, 100, 0, bytes(values.data())};
      values.assign(100, 0.0F);
    }
    group.wait(*group.issue(message, Issue::kSync, 10));
    require(values[99] == 7.0F, "wrong value");
  });
  for (int r = 0; r < 2; ++r) EXPECT_EQ(ranks.error(r), "") << "rank " << r;
}

TEST(LocalGroupProcesses, MessagesOfDepartedRankArrive) {
  constexpr double kTimeout_s = 20;
  const auto receive = [](LocalGroup& group, int peer, std::vector<float>& values) {
    const Transfer message{Transfer::Direction::kReceive, peer, Element::kF32, values.size(), 0,
                           bytes(values.data())};
    return group.issue(message, Issue::kAsync, kTimeout_s);
  };
  const SharedFlags flags;
  Processes ranks(3, [&](LocalGroup& group, int rank) {
    // The message of rank 2 is so large that rank 0's progress thread handles messages from the beginning.
    std::vector<float> large(100000, 2.0F);
    std::vector<float> small(1000, 1.0F);
    const auto send = [&](std::vector<float>& values) {
      const Transfer message{Transfer::Direction::kSend, 0, Element::kF32, values.size(), 0,
                             bytes(values.data())};
      group.wait(*group.issue(message, Issue::kSync, kTimeout_s));
    };
    if (rank == 0) {
      const auto from_two = receive(group, 2, large);
      const auto from_one = receive(group, 1, small);
      flags.set(0);
      group.wait(*from_two);
      group.wait(*from_one);
      return;
    }
    flags.await(rank);
    send(rank == 1 ? small : large);
    group.shutdown();
    flags.set(rank + 2);
  });
  flags.await(0);
  ::usleep(50000);
  // Rank 0 finds the message and the departure in one check.
  ::kill(ranks.pid(0), SIGSTOP);
  flags.set(1);
  flags.await(3);
  ::kill(ranks.pid(0), SIGCONT);
  ::usleep(50000);
  flags.set(2);
  for (int r = 0; r < 3; ++r) EXPECT_EQ(ranks.error(r), "") << "rank " << r;
}

}  // namespace
}  // namespace trireme::wire
