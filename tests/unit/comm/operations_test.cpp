// One suite over every backend that supports ranks as threads. Each operation is compared with the serial
// result.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "trireme/base/error.h"
#include "trireme/comm/context.h"

namespace trireme::comm {
namespace {

constexpr std::int64_t kNumel = 1000;

struct Case {
  std::string backend;
  int num_ranks = 1;
};

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const auto& info : backend_infos()) {
    if (info.name == "nccl") continue;
    for (const int num_ranks : {1, 2, 3, 4}) result.push_back({info.name, num_ranks});
  }
  return result;
}

class Operations : public testing::TestWithParam<Case> {
 protected:
  void run(const std::function<void(Context&)>& body) {
    run_ranks_as_threads(GetParam().num_ranks, body, {.backend = GetParam().backend, .timeout_s = 20});
  }
};

INSTANTIATE_TEST_SUITE_P(EveryBackend, Operations, testing::ValuesIn(cases()), [](const auto& test) {
  return text(test.param.backend, "_", test.param.num_ranks);
});

// Small integers: every order of a sum gives the same bits in every dtype.
at::Tensor data_of(int rank, at::ScalarType dtype, std::int64_t numel = kNumel) {
  return at::arange(numel, at::kLong).add(rank * 3).remainder(7).add(1).to(dtype);
}

at::Tensor reduced(int num_ranks, ReduceOp op, at::ScalarType dtype, std::int64_t numel = kNumel) {
  at::Tensor result = data_of(0, dtype, numel);
  for (int rank = 1; rank < num_ranks; ++rank) {
    const at::Tensor next = data_of(rank, dtype, numel);
    switch (op) {
      case ReduceOp::kMin:
        result = result.minimum(next);
        break;
      case ReduceOp::kMax:
        result = result.maximum(next);
        break;
      case ReduceOp::kProduct:
        result = result.mul(next);
        break;
      default:
        result = result.add(next);
    }
  }
  return op == ReduceOp::kAverage ? result.div(num_ranks) : result;
}

constexpr ReduceOp kReduceOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                                   ReduceOp::kProduct};

TEST_P(Operations, CommonMemoryShowsWritesToAllRanks) {
  run([](Context& context) {
    Group& world = context.world();
    at::Tensor common = world.allocate_shared(world.size() * kNumel, at::kFloat);
    if (!common.defined()) return;  // ranks of this backend may be on several hosts
    EXPECT_EQ(common.count_nonzero().item<std::int64_t>(), 0);
    world.barrier();
    for (int use = 1; use <= 2; ++use) {
      common.narrow(0, world.rank() * kNumel, kNumel).fill_(use * 10 + world.rank());
      world.barrier();
      for (int rank = 0; rank < world.size(); ++rank)
        EXPECT_TRUE(common.narrow(0, rank * kNumel, kNumel).eq(use * 10 + rank).all().item<bool>());
      world.barrier();
    }
  });
}

TEST_P(Operations, FindCommonMemoryOnOneHost) {
  run([](Context& context) {
    Group& world = context.world();
    const std::string& backend = GetParam().backend;
    const bool is_one_host = backend == "shm" || backend == "threads" || world.size() == 1;
    EXPECT_EQ(world.allocate_shared(kNumel, at::kDouble).defined(), is_one_host);
  });
}

TEST_P(Operations, RejectUnknownDtypeAndContinue) {
  run([](Context& context) {
    Group& world = context.world();
    auto complex = at::zeros({kNumel}, at::kComplexFloat);
    auto unknown = at::zeros({kNumel}, at::kUInt32);
    if (context.world_size() == 1) {  // without a backend, no operation can be rejected
      EXPECT_NO_THROW(world.all_reduce(complex));
      return;
    }
    // Errors of one rank do not affect the others.
    for (int i = 0; i < context.rank(); ++i) EXPECT_THROW(world.all_reduce(complex), InvalidArgument);
    EXPECT_THROW(world.all_reduce_async(complex), InvalidArgument);
    EXPECT_THROW(world.broadcast(unknown, 0), InvalidArgument);
    EXPECT_THROW(world.send(unknown, (context.rank() + 1) % context.world_size()), InvalidArgument);
    auto tensor = data_of(context.rank(), at::kFloat);
    world.all_reduce(tensor);
    EXPECT_TRUE(tensor.equal(reduced(context.world_size(), ReduceOp::kSum, at::kFloat)));
    EXPECT_EQ(world.recent_operations().size(), 1U);
  });
}

TEST_P(Operations, AskingWhetherOneIsDoneNeverWaits) {
  run([](Context& context) {
    Group& world = context.world();
    if (context.rank() > 0) {
      auto token = at::zeros({1});
      world.recv(token, 0);  // not before rank 0 has polled
    }
    auto tensor = data_of(context.rank(), at::kFloat, 16 << 10);
    auto pending = world.all_reduce_async(tensor);
    if (context.rank() == 0 && context.world_size() > 1) {
      std::thread other([pending]() mutable {
        try {
          pending.wait();
        } catch (const CommError&) {
          // The wait below fails in the same way.
        }
      });
      for (int i = 0; i < 100; ++i) EXPECT_FALSE(pending.done());
      for (int peer = 1; peer < context.world_size(); ++peer) world.send(at::zeros({1}), peer);
      other.join();
    }
    pending.wait();
    EXPECT_TRUE(pending.done());
  });
}

TEST_P(Operations, AllReduceEqualsTheSerialReduction) {
  run([](Context& context) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong}) {
      for (const auto op : kReduceOps) {
        if (op == ReduceOp::kAverage && !at::isFloatingType(dtype)) continue;
        auto tensor = data_of(context.rank(), dtype);
        context.world().all_reduce(tensor, op);
        EXPECT_TRUE(tensor.equal(reduced(context.world_size(), op, dtype))) << dtype << " " << int(op);
      }
    }
  });
}

TEST_P(Operations, ReduceScatterGivesEachRankItsPart) {
  run([](Context& context) {
    const int size = context.world_size();
    for (const auto op : kReduceOps) {
      auto input = data_of(context.rank(), at::kFloat, size * kNumel);
      auto output = at::empty({kNumel});
      context.world().reduce_scatter(output, input, op);
      const auto all = reduced(size, op, at::kFloat, size * kNumel);
      EXPECT_TRUE(output.equal(all.narrow(0, context.rank() * kNumel, kNumel))) << int(op);
    }
  });
}

// More than one piece on each backend with pieces, and an odd remainder.
TEST_P(Operations, PartsMayBeInsideWholeTensor) {
  run([](Context& context) {
    const int size = context.world_size(), me = context.rank();
    for (const std::int64_t numel : {std::int64_t{5}, std::int64_t{700'001}}) {
      auto input = data_of(me, at::kFloat, size * numel);
      const auto others = input.clone();
      auto part = input.narrow(0, me * numel, numel);
      context.world().reduce_scatter(part, input);
      const auto all = reduced(size, ReduceOp::kSum, at::kFloat, size * numel);
      EXPECT_TRUE(part.equal(all.narrow(0, me * numel, numel))) << numel;
      for (int rank = 0; rank < size; ++rank) {
        if (rank == me) continue;
        EXPECT_TRUE(input.narrow(0, rank * numel, numel).equal(others.narrow(0, rank * numel, numel)));
      }
      context.world().all_gather(input, part);
      EXPECT_TRUE(input.equal(all)) << numel;
    }
  });
}

TEST_P(Operations, AllGatherKeepsRankOrder) {
  run([](Context& context) {
    const int size = context.world_size();
    auto output = at::empty({size * kNumel}, at::kLong);
    context.world().all_gather(output, data_of(context.rank(), at::kLong));
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_TRUE(output.narrow(0, rank * kNumel, kNumel).equal(data_of(rank, at::kLong)));
    }
  });
}

// Only the number of elements matters, and not the shape.
TEST_P(Operations, ShardCollectivesTakeTensorsOfSeveralDims) {
  run([](Context& context) {
    const int size = context.world_size();
    auto all = at::empty({size, 2, 3}, at::kFloat), part = at::empty({2, 3}, at::kFloat);
    context.world().all_gather(all, at::full({2, 3}, context.rank() + 1.0F));
    for (int rank = 0; rank < size; ++rank) EXPECT_TRUE(all[rank].eq(rank + 1).all().item<bool>());
    context.world().reduce_scatter(part, all);
    EXPECT_TRUE(part.eq(size * (context.rank() + 1)).all().item<bool>());
  });
}

TEST_P(Operations, BroadcastAndReduceSupportEveryRoot) {
  run([](Context& context) {
    for (int root = 0; root < context.world_size(); ++root) {
      auto tensor = data_of(context.rank(), at::kFloat);
      context.world().broadcast(tensor, root);
      EXPECT_TRUE(tensor.equal(data_of(root, at::kFloat)));
      for (const auto op : kReduceOps) {
        tensor = data_of(context.rank(), at::kFloat);
        context.world().reduce(tensor, root, op);
        if (context.rank() == root) {
          EXPECT_TRUE(tensor.equal(reduced(context.world_size(), op, at::kFloat)));
        }
      }
    }
  });
}

TEST_P(Operations, GatherAndScatterAreInverse) {
  run([](Context& context) {
    const int size = context.world_size();
    for (int root = 0; root < size; ++root) {
      const auto mine = data_of(context.rank(), at::kDouble);
      auto all = context.rank() == root ? at::empty({size * kNumel}, at::kDouble) : at::Tensor();
      context.world().gather(all, mine, root);
      if (context.rank() == root) {
        for (int rank = 0; rank < size; ++rank) {
          EXPECT_TRUE(all.narrow(0, rank * kNumel, kNumel).equal(data_of(rank, at::kDouble)));
        }
      }
      auto back = at::empty({kNumel}, at::kDouble);
      context.world().scatter(back, all, root);
      EXPECT_TRUE(back.equal(mine));
    }
  });
}

TEST_P(Operations, AllToAllTransposes) {
  run([](Context& context) {
    const int size = context.world_size();
    auto input = at::arange(size, at::kLong).add(context.rank() * 100).repeat_interleave(5);
    auto output = at::empty_like(input);
    context.world().all_to_all(output, input);
    const auto expected = at::arange(size, at::kLong).mul(100).add(context.rank()).repeat_interleave(5);
    EXPECT_TRUE(output.equal(expected));
  });
}

/// Rank r sends r + j rows to rank j: none from rank 0 to itself.
TEST_P(Operations, AllToAllExchangesUnequalRows) {
  run([](Context& context) {
    const int size = context.world_size(), rank = context.rank();
    for (const auto type : {at::kLong, at::kFloat}) {
      RowSplits rows;
      std::vector<at::Tensor> sent, expected;
      for (int peer = 0; peer < size; ++peer) {
        rows.to.push_back(rank + peer);
        rows.from.push_back(rank + peer);
        sent.push_back(at::full({rank + peer, 3}, 100 * rank + peer, type));
        expected.push_back(at::full({rank + peer, 3}, 100 * peer + rank, type));
      }
      const at::Tensor input = at::cat(sent);
      at::Tensor output = at::empty_like(input);
      context.world().all_to_all(output, input, rows);
      EXPECT_TRUE(output.equal(at::cat(expected))) << "rank " << rank;
      at::Tensor later = at::empty_like(input);
      Pending pending = context.world().all_to_all_async(later, input, rows);
      pending.wait();
      EXPECT_TRUE(later.equal(output));
    }
  });
}

TEST_P(Operations, AllToAllRejectsWrongSplitSum) {
  run([](Context& context) {
    const auto size = static_cast<std::size_t>(context.world_size());
    const std::vector<std::int64_t> ones(size, 1), twos(size, 2), one_more(size + 1, 1);
    at::Tensor input = at::ones({context.world_size(), 2}), output = at::empty_like(input);
    EXPECT_THROW(context.world().all_to_all(output, input, {.to = twos, .from = ones}), InvalidArgument);
    EXPECT_THROW(context.world().all_to_all(output, input, {.to = one_more, .from = ones}), InvalidArgument);
    if (size > 1) {
      std::vector<std::int64_t> others = ones;
      others[static_cast<std::size_t>(context.rank())] = 0;
      others[static_cast<std::size_t>((context.rank() + 1) % context.world_size())] = 2;
      EXPECT_THROW(context.world().all_to_all(output, input, {.to = ones, .from = others}), InvalidArgument)
          << "it sends itself another number than it expects";
    }
    at::Tensor wider = at::empty({context.world_size(), 3});
    EXPECT_THROW(context.world().all_to_all(wider, input, {.to = ones, .from = ones}), InvalidArgument);
    context.world().all_to_all(output, input, {.to = ones, .from = ones});
    EXPECT_TRUE(output.equal(input)) << "the group goes on";
  });
}

/// Pairs of several types and sizes: rows of two numbers except for rank 0, equal parts, and no rows at all.
std::vector<TensorExchange> exchanges_of(int rank, int size) {
  std::vector<TensorExchange> pairs;
  for (const at::ScalarType type : {at::kLong, at::kBFloat16, at::kBool}) {
    RowSplits rows;
    std::vector<at::Tensor> sent;
    for (int peer = 0; peer < size; ++peer) {
      rows.to.push_back(rank * peer);
      rows.from.push_back(rank * peer);
      sent.push_back(at::full({rank * peer, 2}, 10 * rank + peer, at::kLong).to(type));
    }
    const at::Tensor input = at::cat(sent);
    pairs.push_back({.output = at::zeros_like(input), .input = input, .rows = rows});
  }
  const at::Tensor parts = at::arange(size, at::kDouble).add(100 * rank).repeat_interleave(3);
  pairs.push_back({.output = at::zeros_like(parts), .input = parts});
  const std::vector<std::int64_t> none(static_cast<std::size_t>(size), 0);
  const at::Tensor empty = at::empty({0, 5});
  pairs.push_back({.output = at::empty({0, 5}), .input = empty, .rows = {.to = none, .from = none}});
  return pairs;
}

void expect_one_by_one(Group& group, const std::vector<TensorExchange>& pairs) {
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto& [output, input, rows] = pairs[i];
    at::Tensor alone = at::zeros_like(output);
    const bool is_equal = rows.to.empty();
    is_equal ? group.all_to_all(alone, input) : group.all_to_all(alone, input, rows);
    EXPECT_TRUE(output.equal(alone)) << "pair " << i << " of rank " << group.rank();
  }
}

TEST_P(Operations, AllToAllCoalescedMatchesSingleExchanges) {
  run([](Context& context) {
    Group& world = context.world();
    const auto waited = exchanges_of(context.rank(), context.world_size());
    world.all_to_all_coalesced(waited);
    expect_one_by_one(world, waited);
    const auto later = exchanges_of(context.rank(), context.world_size()),
               last = exchanges_of(context.rank(), context.world_size());
    Pending first = world.all_to_all_coalesced_async(later), second = world.all_to_all_coalesced_async(last);
    second.wait();
    first.wait();
    first.wait();
    expect_one_by_one(world, later);
    expect_one_by_one(world, last);
  });
}

TEST_P(Operations, AllToAllCoalescedAcceptsEmptyList) {
  run([](Context& context) {
    context.world().all_to_all_coalesced({});
    EXPECT_EQ(context.world().recent_operations().back().operation, "all_to_all_coalesced");
    context.world().barrier();
  });
}

TEST_P(Operations, AllToAllCoalescedNamesInvalidPair) {
  run([](Context& context) {
    const int size = context.world_size();
    const std::vector<std::int64_t> ones(static_cast<std::size_t>(size), 1);
    const at::Tensor right = at::ones({size, 2});
    const TensorExchange good{.output = at::empty_like(right), .input = right};
    const auto expect = [&](const TensorExchange& second, const char* what) {
      EXPECT_THAT(
          [&] {
            context.world().all_to_all_coalesced({good, second});
          },
          testing::ThrowsMessage<InvalidArgument>(testing::AllOf(testing::HasSubstr("all_to_all_coalesced"),
                                                                 testing::HasSubstr("of pair 1"),
                                                                 testing::HasSubstr(what))));
    };
    const RowSplits by_one{.to = ones, .from = ones};
    expect({.output = at::Tensor(), .input = right}, "'output of pair 1' is undefined");
    expect({.output = right, .input = at::ones({2, 3}).t()}, "not contiguous: pass tensor.contiguous()");
    expect({.output = right.to(at::kInt), .input = right}, "of i32, but 'input' has");
    expect({.output = at::ones({size, 3}), .input = right, .rows = by_one}, "rows of 'output' are [3]");
    expect({.output = at::ones({size + 1, 2}), .input = right, .rows = by_one}, "add up to");
    expect({.output = right, .input = right, .rows = {.to = ones, .from = {}}}, "0 splits of 'output'");
    if (size > 1) expect({.output = at::ones({size + 1}), .input = at::ones({size + 1})}, "equal parts");
    context.world().all_to_all_coalesced({good, good});
    EXPECT_TRUE(good.output.equal(right)) << "the group goes on";
  });
}

TEST_P(Operations, SendsAndReceivesMatchInOrder) {
  run([](Context& context) {
    const int size = context.world_size();
    if (size == 1) return;
    const int next = (context.rank() + 1) % size;
    const int previous = (context.rank() + size - 1) % size;
    std::vector<Pending> pending;
    std::vector<at::Tensor> received;
    for (int i = 0; i < 3; ++i) {
      received.push_back(at::empty({kNumel + i}));
      pending.push_back(context.world().recv_async(received.back(), previous));
    }
    for (int i = 0; i < 3; ++i) {
      pending.push_back(
          context.world().send_async(data_of(context.rank() + i, at::kFloat, kNumel + i), next));
    }
    for (auto& each : pending) each.wait();
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(received[i].equal(data_of(previous + i, at::kFloat, kNumel + i)));
    }
  });
}

TEST_P(Operations, PendingOperationsEndInAnyOrder) {
  run([](Context& context) {
    std::vector<at::Tensor> tensors;
    std::vector<Pending> pending;
    for (int i = 0; i < 10; ++i) {
      tensors.push_back(at::full({kNumel}, context.rank() + i));
      pending.push_back(context.world().all_reduce_async(tensors.back()));
    }
    for (int i = 9; i >= 0; --i) pending[static_cast<std::size_t>(i)].wait();
    const int size = context.world_size();
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(tensors[static_cast<std::size_t>(i)][7].item<double>(), size * i + size * (size - 1) / 2);
      EXPECT_TRUE(pending[static_cast<std::size_t>(i)].done());
    }
  });
}

TEST_P(Operations, EmptyTensorsAndLongTextPass) {
  run([](Context& context) {
    auto nothing = at::empty({0});
    context.world().all_reduce(nothing);
    context.world().barrier();
    const auto texts = context.world().all_gather_text(std::string(context.rank() * 5, 'x'));
    for (int rank = 0; rank < context.world_size(); ++rank) {
      EXPECT_EQ(texts[rank], std::string(rank * 5, 'x'));
    }
  });
}

TEST_P(Operations, AllocatedMemoryIsZeroAndReducible) {
  run([](Context& context) {
    auto bucket = context.world().allocate(kNumel, at::kFloat);
    EXPECT_TRUE(bucket.equal(at::zeros({kNumel})));
    bucket.copy_(data_of(context.rank(), at::kFloat));
    context.world().all_reduce(bucket, ReduceOp::kAverage);
    EXPECT_TRUE(bucket.equal(reduced(context.world_size(), ReduceOp::kAverage, at::kFloat)));
  });
}

TEST_P(Operations, TheRingHoldsTheLastOperations) {
  run([](Context& context) {
    const auto before = context.world().recent_operations().size();
    auto tensor = at::zeros({4});
    for (int i = 0; i < 70; ++i) context.world().all_reduce(tensor);
    const auto records = context.world().recent_operations();
    ASSERT_EQ(records.size(), 64u);
    EXPECT_EQ(records.back().number, before + 70);
    EXPECT_EQ(records.back().operation, "all_reduce");
    EXPECT_EQ(records.back().dtype, "f32");
    EXPECT_EQ(records.back().numel, 4);
    EXPECT_EQ(records.back().state, OperationRecord::State::kDone);
    EXPECT_EQ(records.front().number, records.back().number - 63);
    EXPECT_THAT(context.status().read().operation,
                testing::HasSubstr(text("all_reduce #", before + 70, " of group world, 4 f32, done")));
  });
}

TEST_P(Operations, BadArgumentsAreRejectedBeforeAnythingMoves) {
  run([](Context& context) {
    Group& world = context.world();
    at::Tensor undefined;
    at::Tensor matrix = at::zeros({4, 4});
    at::Tensor strided = matrix.t();
    at::Tensor whole = at::zeros({4}, at::kInt);
    EXPECT_THROW(world.all_reduce(undefined), InvalidArgument);
    EXPECT_THROW(world.all_reduce(strided), InvalidArgument);
    EXPECT_THROW(world.all_reduce(whole, ReduceOp::kAverage), InvalidArgument);
    EXPECT_THROW(world.broadcast(matrix, context.world_size()), InvalidArgument);
    EXPECT_THROW(world.broadcast(matrix, -1), InvalidArgument);
    EXPECT_THROW(world.all_gather(whole, matrix), InvalidArgument);
    EXPECT_THROW(world.send(matrix, context.rank()), InvalidArgument);
    world.all_reduce(matrix);  // the group still works
  });
}

}  // namespace
}  // namespace trireme::comm
