// Random programs of operations compared with a serial model. A program is a function of its seed. Every rank
// draws the same one, with all kinds of operations and sizes, in several groups at once, and computes the
// result of each rank. Values are small integers, so that every order of a sum gives the same bits. More
// programs: TRIREME_TEST_SEEDS=1000 unit_comm --gtest_filter='*RandomCollectives*'. One again: with
// TRIREME_TEST_FIRST_SEED=17 TRIREME_TEST_SEEDS=1.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <random>
#include <thread>

#include "trireme/base/error.h"
#include "trireme/comm/context.h"

namespace trireme::comm {
namespace {

enum class Kind {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kAllToAllCoalesced,
  kMessage,
  kBarrier,
};
constexpr std::array kNames{
    "all_reduce", "reduce_scatter", "all_gather",           "broadcast",  "reduce", "gather",
    "scatter",    "all_to_all",     "all_to_all_coalesced", "send, recv", "barrier"};
constexpr std::array kOps{ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
constexpr std::array kDtypes{at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong};
constexpr std::array<std::int64_t, 12> kSizes{0, 1, 2, 3, 17, 1000, 4095, 4096, 4097, 30011, 65537, 400000};

/// The handling of an issued operation.
enum class Fate { kWaitedFor, kWaitedForLater, kPolled, kDropped };
enum class Memory { kPrivate, kOfTheGroup, kSlice };

struct Step {
  int number;
  std::size_t group;
  Kind kind;
  at::ScalarType dtype;
  ReduceOp op;
  std::int64_t numel;  ///< of a rank's part
  int root;
  int peer;  ///< of a message from `root`
  Fate fate;
  std::uint64_t own_seed;  ///< for the choices of each rank
};

struct Program {
  std::vector<std::vector<int>> groups;  ///< world ranks, in group order
  std::vector<Step> steps;
};

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::size_t below(std::size_t limit) { return random_() % limit; }
  template <class Values>
  auto of(const Values& values) {
    return values[below(values.size())];
  }

 private:
  std::mt19937_64 random_;
};

Program draw_program(std::uint64_t seed, int num_ranks, int num_steps) {
  Draw draw(seed);
  Program program;
  for (int i = 0; i < 3; ++i) {
    std::vector<int> ranks(static_cast<std::size_t>(num_ranks));
    std::iota(ranks.begin(), ranks.end(), 0);
    for (std::size_t at = ranks.size() - 1; at > 0; --at) std::swap(ranks[at], ranks[draw.below(at + 1)]);
    if (i > 0) ranks.resize(1 + draw.below(ranks.size()));
    program.groups.push_back(ranks);
  }
  for (int number = 0; number < num_steps; ++number) {
    const std::size_t group = draw.below(program.groups.size());
    const std::size_t size = program.groups[group].size();
    Step step{.number = number,
              .group = group,
              .kind = static_cast<Kind>(draw.below(kNames.size())),
              .dtype = draw.of(kDtypes),
              .op = draw.of(kOps),
              .numel = draw.of(kSizes),
              .root = static_cast<int>(draw.below(size)),
              .peer = static_cast<int>(draw.below(size)),
              .fate = static_cast<Fate>(draw.below(4)),
              .own_seed = draw.below(1U << 30)};
    if (step.kind == Kind::kMessage && step.peer == step.root) step.kind = Kind::kBarrier;
    program.steps.push_back(step);
  }
  return program;
}

/// The input of the rank: 1 and 2, whose product over five ranks is exact in every dtype.
at::Tensor input_of(const Step& step, int rank, std::int64_t numel) {
  return at::arange(numel, at::kLong)
      .mul(rank + 2)
      .add(step.number + rank)
      .remainder(5)
      .remainder(2)
      .add(1)
      .to(step.dtype);
}

at::Tensor reduced(const Step& step, int size, std::int64_t numel) {
  at::Tensor result = input_of(step, 0, numel);
  for (int rank = 1; rank < size; ++rank) {
    const at::Tensor next = input_of(step, rank, numel);
    result = step.op == ReduceOp::kMin       ? result.minimum(next)
             : step.op == ReduceOp::kMax     ? result.maximum(next)
             : step.op == ReduceOp::kProduct ? result.mul(next)
                                             : result.add(next);
  }
  return result;
}

/// One rank that executes a program.
class Rank {
 public:
  Rank(Context& context, const Program& program) : program_(program) {
    for (std::size_t i = 0; i < program.groups.size(); ++i)
      groups_.push_back(context.new_group(program.groups[i], text("random", i)));
  }

  void run() {
    for (const Step& step : program_.steps) {
      if (groups_[step.group]) carry_out(step, *groups_[step.group]);
      if (later_.size() > 4) finish_one();
    }
    while (!later_.empty()) finish_one();
    for (auto& group : groups_)
      if (group) group->barrier();
  }

 private:
  struct Later {
    Step step;
    Pending pending;
    at::Tensor result, expected;
    std::vector<at::Tensor> results = {}, all_expected = {};  ///< of a coalesced exchange
  };

  at::Tensor room(const Step& step, Group& group, std::int64_t numel) {
    const auto options = at::TensorOptions(step.dtype);
    switch (static_cast<Memory>(own_->below(3))) {
      case Memory::kOfTheGroup:
        return group.allocate(numel, options);
      case Memory::kSlice:
        return at::zeros({numel + 13}, options)
            .narrow(0, 1 + static_cast<std::int64_t>(own_->below(12)), numel);
      case Memory::kPrivate:
        break;
    }
    return at::zeros({numel}, options);
  }

  at::Tensor filled(const Step& step, Group& group, const at::Tensor& values) {
    return room(step, group, values.numel()).copy_(values);
  }

  void carry_out(const Step& step, Group& group) {
    const int me = group.rank(), size = group.size();
    own_.emplace(step.own_seed + static_cast<std::uint64_t>(me));
    const std::int64_t all = step.numel * size;
    const auto part_of = [&](const at::Tensor& whole, int part) {
      return whole.narrow(0, part * step.numel, step.numel);
    };
    const bool is_root = me == step.root;
    at::Tensor in, out, expected;
    Pending pending;
    switch (step.kind) {
      case Kind::kAllReduce:
        out = filled(step, group, input_of(step, me, step.numel));
        pending = group.all_reduce_async(out, step.op);
        expected = reduced(step, size, step.numel);
        break;
      case Kind::kReduceScatter:
        in = filled(step, group, input_of(step, me, all));
        out = room(step, group, step.numel);
        pending = group.reduce_scatter_async(out, in, step.op);
        expected = part_of(reduced(step, size, all), me);
        break;
      case Kind::kAllGather:
        in = filled(step, group, input_of(step, me, step.numel));
        out = room(step, group, all);
        pending = group.all_gather_async(out, in);
        expected = gathered(step, size);
        break;
      case Kind::kBroadcast:
        out = filled(step, group, input_of(step, me, step.numel));
        pending = group.broadcast_async(out, step.root);
        expected = input_of(step, step.root, step.numel);
        break;
      case Kind::kReduce:
        out = filled(step, group, input_of(step, me, step.numel));
        pending = group.reduce_async(out, step.root, step.op);
        if (is_root) expected = reduced(step, size, step.numel);
        break;
      case Kind::kGather:
        in = filled(step, group, input_of(step, me, step.numel));
        if (is_root) out = room(step, group, all);
        pending = group.gather_async(out, in, step.root);
        if (is_root) expected = gathered(step, size);
        break;
      case Kind::kScatter:
        if (is_root) in = filled(step, group, input_of(step, me, all));
        out = room(step, group, step.numel);
        pending = group.scatter_async(out, in, step.root);
        expected = part_of(input_of(step, step.root, all), me);
        break;
      case Kind::kAllToAll: {
        in = filled(step, group, input_of(step, me, all));
        out = room(step, group, all);
        pending = group.all_to_all_async(out, in);
        expected = at::empty({all}, step.dtype);
        for (int from = 0; from < size; ++from)
          part_of(expected, from).copy_(part_of(input_of(step, from, all), me));
        break;
      }
      case Kind::kAllToAllCoalesced:
        return settle(exchange(step, group));
      case Kind::kMessage:
        if (is_root) {
          in = filled(step, group, input_of(step, me, step.numel));
          pending = group.send_async(in, step.peer);
        } else if (me == step.peer) {
          out = room(step, group, step.numel);
          pending = group.recv_async(out, step.root);
          expected = input_of(step, step.root, step.numel);
        }
        break;
      case Kind::kBarrier:
        group.barrier();
        break;
    }
    inputs_.push_back(in);  // a dropped operation may still read it
    settle({step, std::move(pending), out, expected});
  }

  /// One to four pairs, most with unequal rows, and some without rows.
  Later exchange(const Step& step, Group& group) {
    const int me = group.rank(), size = group.size();
    const std::size_t num_pairs = 1 + static_cast<std::size_t>(step.root);
    std::vector<TensorExchange> pairs;
    Later left{step, {}, {}, {}};
    for (std::size_t i = 0; i < num_pairs; ++i) {
      Step of_pair = step;
      of_pair.number += static_cast<int>(i);
      of_pair.dtype = kDtypes[(static_cast<std::size_t>(step.op) + i) % kDtypes.size()];
      const std::int64_t rows_of_one =
          std::min<std::int64_t>(step.numel, 5000) / static_cast<std::int64_t>(1 + i);
      const bool is_equal = i == 3;
      const auto rows_between = [&](int from, int to) {
        return is_equal ? rows_of_one : rows_of_one * ((from + 2 * to + static_cast<int>(i)) % 3);
      };
      RowSplits rows;
      std::vector<at::Tensor> sent, expected;
      const auto rows_of = [&](int from, int to) {
        return input_of(of_pair, from + 3 * to, 2 * rows_between(from, to)).view({-1, 2});
      };
      for (int peer = 0; peer < size; ++peer) {
        rows.to.push_back(rows_between(me, peer));
        rows.from.push_back(rows_between(peer, me));
        sent.push_back(rows_of(me, peer));
        expected.push_back(rows_of(peer, me));
      }
      const at::Tensor in = at::cat(sent), out = at::cat(expected);
      pairs.push_back({.output = room(of_pair, group, out.numel()).view_as(out),
                       .input = filled(of_pair, group, in.view({-1})).view_as(in),
                       .rows = is_equal ? RowSplits{} : rows});
      left.results.push_back(pairs.back().output);
      left.all_expected.push_back(out);
      inputs_.push_back(pairs.back().input);
    }
    left.pending = group.all_to_all_coalesced_async(pairs);
    return left;
  }

  void settle(Later left) {
    const Step& step = left.step;
    switch (step.fate) {
      case Fate::kDropped:
        return;
      case Fate::kWaitedForLater:
        later_.push_back(std::move(left));
        return;
      case Fate::kPolled:
        while (!left.pending.done()) std::this_thread::yield();
        [[fallthrough]];
      case Fate::kWaitedFor:
        finish(left);
    }
  }

  at::Tensor gathered(const Step& step, int size) {
    at::Tensor whole = at::empty({step.numel * size}, step.dtype);
    for (int from = 0; from < size; ++from)
      whole.narrow(0, from * step.numel, step.numel).copy_(input_of(step, from, step.numel));
    return whole;
  }

  /// Not in the order of issue.
  void finish_one() {
    const std::size_t which = own_->below(later_.size());
    finish(later_[which]);
    later_.erase(later_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  void finish(Later& left) {
    left.pending.wait();
    const Step& step = left.step;
    for (std::size_t i = 0; i < left.results.size(); ++i)
      require(left.results[i].equal(left.all_expected[i]), "step ", step.number, ", pair ", i,
              " of an exchange: other values than the serial model's");
    if (!left.expected.defined()) return;
    require(left.result.equal(left.expected), "step ", step.number, ", ",
            kNames[static_cast<std::size_t>(step.kind)], " of ", step.numel, " ", c10::toString(step.dtype),
            " in group ", step.group, " of ", program_.groups[step.group].size(),
            " ranks: other values than the serial model's");
  }

  const Program& program_;
  std::vector<std::optional<Group>> groups_;
  std::vector<Later> later_;
  std::vector<at::Tensor> inputs_;
  std::optional<Draw> own_;
};

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* given = std::getenv(name);
  return given == nullptr ? otherwise : std::strtoull(given, nullptr, 10);
}

struct SeededBackend {
  std::string backend;
  int num_ranks = 2;
};

std::vector<SeededBackend> seeded_backends() {
  std::vector<SeededBackend> result;
  for (const auto& info : backend_infos()) {
    if (info.name == "nccl") continue;
    for (const int num_ranks : {2, 3, 4, 5}) result.push_back({info.name, num_ranks});
  }
  return result;
}

class RandomCollectives : public testing::TestWithParam<SeededBackend> {};

TEST_P(RandomCollectives, EqualASerialModel) {
  constexpr int kSteps = 40;
  const std::uint64_t first = from_environment("TRIREME_TEST_FIRST_SEED", 1);
  const std::uint64_t count = from_environment("TRIREME_TEST_SEEDS", 2);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const auto& [backend, num_ranks] = GetParam();
    const Program program = draw_program(seed, num_ranks, kSteps);
    ASSERT_NO_THROW(run_ranks_as_threads(num_ranks, [&](Context& context) { Rank(context, program).run(); },
                                         {.backend = backend}))
        << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryBackend, RandomCollectives, testing::ValuesIn(seeded_backends()),
                         [](const auto& test) {
                           return text(test.param.backend, "_", test.param.num_ranks);
                         });

}  // namespace
}  // namespace trireme::comm
