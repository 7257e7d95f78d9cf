#include "trireme/wire/local_group.h"

#include <gmock/gmock.h>

#include <atomic>
#include <limits>
#include <numeric>

#include "tests/unit/wire/group_of_threads.h"
#include "trireme/base/error.h"

namespace trireme::wire {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

std::vector<float> values_of(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = 0.1F * static_cast<float>(i % 97) + 1.7F * static_cast<float>(rank);
  return values;
}

std::vector<float> serial_sum(int size, std::size_t count) {
  std::vector<float> sum = values_of(0, count);
  for (int r = 1; r < size; ++r) {
    const std::vector<float> next = values_of(r, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += next[i];
  }
  return sum;
}

void all_reduce(LocalGroup& group, std::vector<float>& values) {
  group.wait(*group.issue(all_reduce_call(values, Element::kF32), Issue::kSync, kTimeout_s));
}

TEST(LocalGroupAllReduce, GivesSerialSumInRankOrder) {
  for (const int size : {1, 2, 3, 4, 8}) {
    for (const std::size_t count : {0UL, 1UL, 7UL, 1000UL, 4097UL, 100003UL}) {
      const std::vector<float> expected = serial_sum(size, count);
      const auto errors = run_ranks(size, [&](LocalGroup& group, int rank) {
        for (int repeat = 0; repeat < 3; ++repeat) {
          std::vector<float> values = values_of(rank, count);
          all_reduce(group, values);
          require(values == expected, "rank ", rank, " has other values");
        }
      });
      EXPECT_THAT(errors, Each("")) << size << " ranks, " << count << " elements";
    }
  }
}

TEST(LocalGroupAllReduce, GivesSameBitsInAnyMemory) {
  for (const int size : {2, 3, 5}) {
    for (const std::size_t count : {5000UL, 70001UL, 400003UL}) {
      const std::vector<float> expected = serial_sum(size, count);
      for (const int num_shared : {0, 1, size}) {
        const auto body = [&](LocalGroup& group, int rank) {
          std::vector<float> values = values_of(rank, count);
          float* place = values.data();
          if (rank < num_shared) {
            place = reinterpret_cast<float*>(group.arena()->allocate(count * sizeof(float)));
            std::copy(values.begin(), values.end(), place);
          }
          const Call call{.kind = CallKind::kAllReduce,
                          .element = Element::kF32,
                          .count = count,
                          .input = bytes(place),
                          .output = bytes(place)};
          group.wait(*group.issue(call, Issue::kSync, kTimeout_s));
          require(std::equal(expected.begin(), expected.end(), place), "rank ", rank, " has other values");
          if (rank < num_shared) group.arena()->free(bytes(place));
        };
        EXPECT_THAT(run_ranks(size, body, Tensors::kAsProcesses), Each(""))
            << size << " ranks, " << count << " elements, " << num_shared << " shared";
      }
    }
  }
}

TEST(LocalGroupAllReduce, RunsOperationsInOrderIssued) {
  const auto errors = run_ranks(3, [](LocalGroup& group, int rank) {
    std::vector<std::vector<float>> values;
    std::vector<std::shared_ptr<Operation>> operations;
    for (std::size_t i = 0; i < 20; ++i) values.push_back(values_of(rank, i % 3 == 0 ? 70000 : 10 * i));
    for (auto& each : values)
      operations.push_back(group.issue(all_reduce_call(each, Element::kF32), Issue::kAsync, kTimeout_s));
    for (std::size_t i = operations.size(); i-- > 0;) group.wait(*operations[(i + 7) % operations.size()]);
    for (const auto& each : values)
      require(each == serial_sum(3, each.size()), "rank ", rank, " has other values");
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(LocalGroupAllReduce, ConsecutiveOperationsOfTensorBuildOn) {
  for (const std::size_t count : {10UL, 20000UL}) {
    const auto errors = run_ranks(2, [&](LocalGroup& group, int rank) {
      std::vector<float> values(count, 1.0F);
      std::vector<std::shared_ptr<Operation>> operations;
      for (int i = 0; i < 8; ++i)
        operations.push_back(group.issue(all_reduce_call(values, Element::kF32), Issue::kAsync, kTimeout_s));
      for (const auto& operation : operations) group.wait(*operation);
      require(values == std::vector<float>(count, 256.0F), "rank ", rank, " has ", values[0]);
    });
    EXPECT_THAT(errors, Each("")) << count << " elements";
  }
}

TEST(LocalGroupAllReduce, CallbackRunsWithoutWait) {
  const auto errors = run_ranks(2, [](LocalGroup& group, int rank) {
    std::vector<float> values = values_of(rank, 5);
    std::atomic<bool> heard{false};
    const auto operation = group.issue(all_reduce_call(values, Element::kF32), Issue::kAsync, kTimeout_s);
    group.when_done(*operation, [&] { heard = true; });
    const Deadline deadline = Deadline::after_s(kTimeout_s);
    while (!heard && !deadline.expired()) std::this_thread::yield();
    require(heard && values == serial_sum(2, 5), "rank ", rank, " heard nothing");
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(LocalGroupAllReduce, NamesBothSidesWhenSizesDiffer) {
  const auto errors = run_ranks(3, [](LocalGroup& group, int rank) {
    std::vector<float> values = values_of(rank, rank == 2 ? 512 : 1024);
    all_reduce(group, values);
  });
  EXPECT_THAT(errors,
              Each("all_reduce #1 of group world: rank 0 issues all_reduce of 1024 f32, rank 2 issues "
                   "all_reduce of 512 f32"));
}

TEST(LocalGroupAllReduce, NamesBothSidesWhenReductionsDiffer) {
  const auto errors = run_ranks(2, [](LocalGroup& group, int rank) {
    std::vector<float> values = values_of(rank, 8);
    const Call call = all_reduce_call(values, Element::kF32, rank == 0 ? Reduction::kSum : Reduction::kMax);
    group.wait(*group.issue(call, Issue::kSync, kTimeout_s));
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 0 issues all_reduce of 8 f32 (sum)"),
                                 HasSubstr("rank 1 issues all_reduce of 8 f32 (max)"))));
}

TEST(LocalGroupAllReduce, NamesTheRankThatDoesNotArrive) {
  std::atomic<bool> over{false};
  const auto errors = run_ranks(3, [&](LocalGroup& group, int rank) {
    if (rank == 1) {
      while (!over) std::this_thread::yield();
      return;
    }
    std::vector<float> values = values_of(rank, 8);
    try {
      group.wait(*group.issue(all_reduce_call(values, Element::kF32), Issue::kSync, 0.2));
    } catch (const CommError&) {
      over = true;
      throw;
    }
  });
  const auto message =
      AllOf(HasSubstr("all_reduce #1 of group world: rank 1"), HasSubstr("did not arrive within"));
  EXPECT_THAT(errors[0], message);
  EXPECT_EQ(errors[2], errors[0]) << "there is one first cause";
}

TEST(LocalGroup, AwaitsLateRankUnderLongTimeout) {
  for (const double timeout_s : {1e10, 1e11, std::numeric_limits<double>::infinity()}) {
    const auto errors = run_ranks(2, [&](LocalGroup& group, int rank) {
      // Long enough for rank 0 to check its deadlines.
      const auto come_late = [&] {
        if (rank == 1) std::this_thread::sleep_for(Seconds(0.1));
      };
      std::vector<float> values(40000, 1.0F);
      come_late();
      group.wait(*group.issue(all_reduce_call(values, Element::kF32), Issue::kSync, timeout_s));
      come_late();
      const auto operation = group.issue(all_reduce_call(values, Element::kF32), Issue::kAsync, timeout_s);
      group.wait(*operation, timeout_s);
      require(values[0] == 4.0F, "wrong sum");
      come_late();
      const Transfer message{rank == 0 ? Transfer::Direction::kReceive : Transfer::Direction::kSend,
                             1 - rank,
                             Element::kF32,
                             values.size(),
                             0,
                             bytes(values.data())};
      group.wait(*group.issue(message, Issue::kAsync, timeout_s), timeout_s);
    });
    EXPECT_THAT(errors, Each("")) << timeout_s;
  }
}

TEST(LocalGroupAllReduce, NamesDepartedRankInLaterErrors) {
  const auto errors = run_ranks(2, [](LocalGroup& group, int rank) {
    std::vector<float> values = values_of(rank, 8);
    all_reduce(group, values);
    if (rank == 1) return;
    std::string first;
    try {
      all_reduce(group, values);
    } catch (const CommError& error) {
      first = error.what();
    }
    try {
      all_reduce(group, values);
    } catch (const CommError& error) {
      require(first == error.what(), "first '", first, "', then '", error.what(), "'");
      throw;
    }
  });
  EXPECT_THAT(errors[0],
              AllOf(HasSubstr("all_reduce #2 of group world: rank 1"), HasSubstr("has left the group")));
}

TEST(LocalGroupAllReduce, AbortFailsWaitingRanks) {
  const auto errors = run_ranks(2, [](LocalGroup& group, int rank) {
    if (rank == 1) {
      group.abort("group world: a neutron hit rank 1");
      return;
    }
    std::vector<float> values = values_of(rank, 8);
    all_reduce(group, values);
  });
  EXPECT_EQ(errors[0], "group world: a neutron hit rank 1");
}

TEST(LocalGroupErrors, NameTheirGroupAndCause) {
  for (const auto kind : {GroupError::Kind::kFailure, GroupError::Kind::kGivenUp}) {
    const auto errors = run_ranks(2, [&](LocalGroup& group, int rank) {
      if (rank == 1) {
        if (kind == GroupError::Kind::kGivenUp) group.abort("for a reason told elsewhere");
        return;  // leaves the group otherwise
      }
      std::vector<float> values = values_of(rank, 8);
      try {
        all_reduce(group, values);
      } catch (const GroupError& error) {
        require(error.kind() == kind && error.group() == "world", "another kind or group: ", error.what());
        throw;
      }
    });
    EXPECT_THAT(errors[0], HasSubstr(kind == GroupError::Kind::kGivenUp ? "told elsewhere" : "has left"));
  }
}

TEST(LocalGroupMessages, ArriveInOrderWhenBothSendFirst) {
  const auto errors = run_ranks(2, [](LocalGroup& group, int rank) {
    for (const std::size_t count : {0UL, 3UL, 5000UL}) {
      std::vector<float> mine = values_of(rank, count);
      std::vector<float> other(count);
      const Transfer send{Transfer::Direction::kSend, 1 - rank, Element::kF32, count, 0, bytes(mine.data())};
      const Transfer receive{
          Transfer::Direction::kReceive, 1 - rank, Element::kF32, count, 0, bytes(other.data())};
      group.wait(*group.issue(send, Issue::kSync, kTimeout_s));
      group.wait(*group.issue(receive, Issue::kSync, kTimeout_s));
      require(other == values_of(1 - rank, count), "rank ", rank, " received other values");
    }
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(LocalGroupMessages, LargeMessagesPassDuringCollectives) {
  constexpr std::size_t kCount = 300000;
  const auto errors = run_ranks(2, [](LocalGroup& group, int rank) {
    std::vector<float> mine = values_of(rank, kCount);
    std::vector<float> other(kCount);
    std::vector<float> reduced = values_of(rank, 60000);
    const auto receive = group.issue(
        Transfer{Transfer::Direction::kReceive, 1 - rank, Element::kF32, kCount, 0, bytes(other.data())},
        Issue::kAsync, kTimeout_s);
    const auto send = group.issue(
        Transfer{Transfer::Direction::kSend, 1 - rank, Element::kF32, kCount, 0, bytes(mine.data())},
        Issue::kAsync, kTimeout_s);
    all_reduce(group, reduced);
    group.wait(*receive);
    group.wait(*send);
    require(other == values_of(1 - rank, kCount), "rank ", rank, " received other values");
    require(reduced == serial_sum(2, 60000), "rank ", rank, " reduced other values");
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(LocalGroupMessages, WaitForMessageRunsNoUnissuedCollective) {
  const auto errors = run_ranks(2, [](LocalGroup& group, int rank) {
    std::vector<float> reduced = values_of(rank, 10);
    std::vector<float> token(1, 5);
    const Transfer receive{Transfer::Direction::kReceive, 1 - rank, Element::kF32, 1, 0, bytes(token.data())};
    const Transfer send{Transfer::Direction::kSend, 1 - rank, Element::kF32, 1, 0, bytes(token.data())};
    std::shared_ptr<Operation> early;
    if (rank == 0) early = group.issue(all_reduce_call(reduced, Element::kF32), Issue::kAsync, kTimeout_s);
    group.wait(*group.issue(rank == 0 ? receive : send, Issue::kSync, kTimeout_s));
    group.wait(*group.issue(rank == 0 ? send : receive, Issue::kSync, kTimeout_s));
    if (rank == 1) early = group.issue(all_reduce_call(reduced, Element::kF32), Issue::kAsync, kTimeout_s);
    group.wait(*early);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(LocalGroupMessages, MismatchedSizesFailAndNameBothSides) {
  const auto errors = run_ranks(2, [](LocalGroup& group, int rank) {
    std::vector<float> values(10);
    const Transfer message{rank == 0 ? Transfer::Direction::kSend : Transfer::Direction::kReceive,
                           1 - rank,
                           Element::kF32,
                           rank == 0 ? 10U : 7U,
                           0,
                           bytes(values.data())};
    group.wait(*group.issue(message, Issue::kSync, kTimeout_s));
    all_reduce(group, values);
  });
  EXPECT_THAT(errors, Each("recv #1 of group world: rank 0 sends 10 f32, rank 1 receives 7 f32"));
}

}  // namespace
}  // namespace trireme::wire
