// References that are created, passed on and dropped, in any order that links permit.

#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "tests/unit/rpc/simulated_workers.h"
#include "trireme/rpc/internal/protocol.h"
#include "trireme/rpc/internal/reference_table.h"

namespace trireme::rpc {
namespace {

using test::SimulatedWorkers;

/// A reference that a worker holds: its item, and the worker that introduced it.
struct Held {
  RefId id;
  WorkerId introducer;
};

constexpr std::uint16_t kMakeKind = 100, kPassKind = 101;

struct PassHead {
  RefId id;
  WorkerId introducer = kNobody;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.id, self.introducer);
  }
};

/// Workers that use references at random, as agents do.
class ReferenceRun {
 public:
  ReferenceRun(WorkerId count, std::uint64_t seed) : count_(count), random_(seed), workers_(count, seed) {
    for (WorkerId worker = 1; worker <= count; ++worker) tables_.emplace(worker, worker);
    workers_.on_message = [this](WorkerId at, WorkerId from, const wire::Message& message) {
      receive(at, from, message);
    };
  }

  SimulatedWorkers& workers() { return workers_; }

  void act() {
    const auto worker = static_cast<WorkerId>(1 + random_.below(count_));
    auto& held = held_[worker];
    const std::uint64_t choice = random_.below(10);
    if (held.empty() || choice < 3) return make(worker);
    const std::size_t which = random_.below(held.size());
    if (choice < 7) return pass(worker, held[which], static_cast<WorkerId>(1 + random_.below(count_)));
    drop(worker, which);
  }

  void drop_all() {
    for (auto& [worker, held] : held_) {
      while (!held.empty()) drop(worker, held.size() - 1);
    }
  }

  std::size_t num_values() const {
    std::size_t values = 0;
    for (const auto& each : tables_) values += each.second.size();
    return values;
  }
  std::size_t num_held() const {
    std::size_t all = 0;
    for (const auto& each : held_) all += each.second.size();
    return all;
  }
  std::uint64_t num_made() const { return num_made_; }
  /// Checks that every referenced item exists. Items whose creation is in flight are skipped.
  void check_that_nothing_is_gone() {
    for (const auto& [worker, held] : held_) {
      for (const Held& each : held) {
        ASSERT_NE(tables_.at(each.id.owner).find(each.id), nullptr)
            << "worker " << worker << " holds what is gone: " << each.id.creator << "/" << each.id.owner
            << "/" << each.id.number;
      }
    }
  }

 private:
  void send(WorkerId from, WorkerId to, std::uint16_t kind, std::vector<std::byte> head) {
    workers_[from].endpoint().send(to, {.kind = kind, .head = std::move(head)});
  }

  void make(WorkerId worker) {
    const auto owner = static_cast<WorkerId>(1 + random_.below(count_));
    ++num_made_;
    if (owner == worker) {
      held_[worker].push_back({tables_.at(worker).make_own(), worker});
      return;
    }
    const RefId id{worker, owner, ++last_[{worker, owner}]};
    held_[worker].push_back({id, worker});
    send(worker, owner, kMakeKind, wire::encode(id));
  }

  void pass(WorkerId from, const Held& held, WorkerId to) {
    if (from == to) return;
    if (held.id.owner == from) {
      ASSERT_EQ(tables_.at(from).introduced(held.id, from, to), nullptr);
    } else if (held.id.owner != to) {
      send(from, held.id.owner, static_cast<std::uint16_t>(MessageKind::kIntroduced),
           wire::encode(IntroducedHead{held.id, to}));
    }
    send(from, to, kPassKind, wire::encode(PassHead{held.id, from}));
  }

  void drop(WorkerId worker, std::size_t which) {
    const Held held = held_[worker][which];
    held_[worker].erase(held_[worker].begin() + static_cast<std::ptrdiff_t>(which));
    if (held.id.owner == worker) {
      [[maybe_unused]] const auto freed = tables_.at(worker).release_here(held.id);
    } else {
      send(worker, held.id.owner, static_cast<std::uint16_t>(MessageKind::kDropped),
           wire::encode(DroppedHead{held.id, held.introducer}));
    }
  }

  void receive(WorkerId at, WorkerId from, const wire::Message& message) {
    ReferenceTable& table = tables_.at(at);
    if (message.kind == kMakeKind) return table.arrived(*wire::decode<RefId>(message.head));
    if (message.kind == kPassKind) {
      const auto head = *wire::decode<PassHead>(message.head);
      if (head.id.owner == at) {
        ASSERT_NE(table.find(head.id), nullptr) << "what comes home is gone";
        table.hold_here(head.id);
      }
      held_[at].push_back({head.id, head.introducer});
      return;
    }
    if (message.kind == static_cast<std::uint16_t>(MessageKind::kIntroduced)) {
      const auto head = *wire::decode<IntroducedHead>(message.head);
      [[maybe_unused]] const auto freed = table.introduced(head.id, from, head.holder);
      return;
    }
    const auto head = *wire::decode<DroppedHead>(message.head);
    [[maybe_unused]] const auto freed = table.dropped(head.id, head.introducer, from);
  }

  const WorkerId count_;
  Random random_;
  SimulatedWorkers workers_;
  std::map<WorkerId, ReferenceTable> tables_;
  std::map<WorkerId, std::deque<Held>> held_;
  std::map<std::pair<WorkerId, WorkerId>, std::uint64_t> last_;
  std::uint64_t num_made_ = 0;
};

TEST(References, NoReferenceIsLeakedOrFreedEarly) {
  std::uint64_t num_made = 0;
  for (std::uint64_t seed = 1; num_made < 100'000; ++seed) {
    ReferenceRun run(4, seed);
    run.workers().simulation().set_faults({.drop = 0.02, .duplicate = 0.05, .reorder = 0.02});
    for (int i = 0; i < 20'000; ++i) {
      run.act();
      if (i % 20 == 0) run.workers().simulation().run_for(0.001);
      if (i % 1000 == 0) run.check_that_nothing_is_gone();
      if (HasFatalFailure()) FAIL() << "seed " << seed << ", action " << i;
    }
    run.workers().simulation().set_faults({});
    // Messages in flight arrive before the drop.
    run.workers().simulation().run_for(30);
    run.check_that_nothing_is_gone();
    if (HasFatalFailure()) FAIL() << "seed " << seed;
    run.drop_all();
    ASSERT_TRUE(run.workers().simulation().run_until([&] { return run.num_values() == 0; }, 60))
        << run.num_values() << " values are still there, seed " << seed;
    ASSERT_EQ(run.num_held(), 0u);
    num_made += run.num_made();
  }
}

TEST(References, HandOverMayOvertakeNoticeOfOwner) {
  ReferenceTable owner(1);
  const RefId id{2, 1, 1};
  owner.arrived(id);                               // worker 2 created it
  EXPECT_EQ(owner.dropped(id, 2, 3), nullptr);     // 3 has dropped the reference that 2 passed on
  EXPECT_EQ(owner.introduced(id, 2, 3), nullptr);  // and now comes the report of that
  EXPECT_NE(owner.dropped(id, 2, 2), nullptr);
  EXPECT_EQ(owner.size(), 0u);
}

TEST(References, LateNoticesOfHandOversFreeNothing) {
  ReferenceTable owner(1);
  const RefId id{2, 1, 1};
  owner.arrived(id);                               // worker 2 created it,
  EXPECT_EQ(owner.introduced(id, 2, 3), nullptr);  // and passed it to 3
  EXPECT_EQ(owner.introduced(id, 2, 4), nullptr);  // and to 4.
  EXPECT_EQ(owner.dropped(id, 4, 3), nullptr);     // 4 passed it to 3 as well, which dropped that one,
  EXPECT_EQ(owner.dropped(id, 3, 4), nullptr);     // and 3 to 4, which did the same.
  EXPECT_EQ(owner.dropped(id, 2, 2), nullptr) << "3 and 4 have those that 2 gave them";
  EXPECT_EQ(owner.introduced(id, 4, 3), nullptr);  // Now the owner gets the reports of these two.
  EXPECT_EQ(owner.introduced(id, 3, 4), nullptr);
  EXPECT_EQ(owner.dropped(id, 2, 3), nullptr);
  EXPECT_NE(owner.dropped(id, 2, 4), nullptr);
}

TEST(References, AUseMayOvertakeTheCreation) {
  ReferenceTable owner(1);
  const RefId id{2, 1, 5};
  const auto early = owner.find(id);
  ASSERT_NE(early, nullptr);
  owner.arrived(id);
  EXPECT_EQ(owner.find(id), early);
  EXPECT_NE(owner.dropped(id, 2, 2), nullptr);
  EXPECT_EQ(owner.find(id), nullptr) << "what is gone is not to come";
}

TEST(References, ReferenceWithoutCallLeavesNothing) {
  ReferenceTable owner(1);
  const RefId id{2, 1, 1};
  const auto value = owner.find(id);  // a caller waits for it
  EXPECT_NE(owner.dropped(id, 2, 2), nullptr);
  EXPECT_THROW(value->future().get(), CommError);
  EXPECT_EQ(owner.size(), 0u);
}

TEST(References, CallsOfThreadsArriveInAnyOrder) {
  ReferenceTable owner(1);
  owner.arrived({2, 1, 2});
  owner.arrived({2, 1, 1});
  EXPECT_NE(owner.dropped({2, 1, 2}, 2, 2), nullptr);
  EXPECT_EQ(owner.find({2, 1, 2}), nullptr) << "what is gone is not to come";
}

TEST(References, ReferencesOfALostWorkerAreReleased) {
  ReferenceTable owner(1);
  const RefId id = owner.make_own();
  EXPECT_EQ(owner.introduced(id, 1, 2), nullptr);
  EXPECT_EQ(owner.introduced(id, 1, 3), nullptr);
  EXPECT_EQ(owner.release_here(id), nullptr);
  EXPECT_TRUE(owner.worker_gone(2, "killed").empty());
  EXPECT_EQ(owner.worker_gone(3, "killed").size(), 1u);
  EXPECT_EQ(owner.introduced(RefId{1, 1, 1}, 1, 3), nullptr) << "the dead get nothing";
}

TEST(References, WaitForValueOfDeadCreatorFails) {
  ReferenceTable owner(1);
  const auto value = owner.find({2, 1, 1});
  [[maybe_unused]] const auto freed = owner.worker_gone(2, "killed by signal 9");
  EXPECT_THROW(
      try { value->future().get(); } catch (const CommError& error) {
        EXPECT_NE(std::string(error.what()).find("killed by signal 9"), std::string::npos);
        throw;
      },
      CommError);
  EXPECT_EQ(owner.size(), 0u);
}

}  // namespace
}  // namespace trireme::rpc
