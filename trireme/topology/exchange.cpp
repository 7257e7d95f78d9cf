#include "trireme/topology/exchange.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/topology/internal/connections.h"
#include "trireme/topology/internal/exchange_step.h"
#include "trireme/wire/group_error.h"

namespace trireme::topology {
namespace {

enum class Kind { kAllReduce, kReduceScatter, kAllGather };

/// Hash of everything that all members have to agree on in an operation.
std::uint32_t hash_of(Kind kind, std::size_t bytes, wire::Element element, wire::Reduction reduction,
                      Algorithm algorithm) {
  std::uint64_t hash = bytes;
  for (const auto part : {static_cast<int>(kind), static_cast<int>(element), static_cast<int>(reduction),
                          static_cast<int>(algorithm)}) {
    hash = (hash ^ static_cast<std::uint64_t>(part + 1)) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 33;
  }
  return static_cast<std::uint32_t>(hash);
}

void require_reducible(wire::Element element, wire::Reduction reduction) {
  require(wire::reducible(element), "elements of type ", wire::name(element),
          " cannot be reduced (f32, f64, bf16, f16, i32 and i64 can)");
  require(reduction != wire::Reduction::kAverage, "lists of transfers add up: divide the sum for an average");
}

std::int64_t numel_of(std::span<const std::byte> bytes, wire::Element element) {
  return static_cast<std::int64_t>(bytes.size() / wire::bytes_of(element));
}

}  // namespace

Exchange::Exchange(const wire::Socket& listening, const Membership& membership, const Deadline& deadline)
    : rank_(membership.rank),
      names_(membership.names),
      levels_(membership.hosts.empty() ? one_level(static_cast<int>(names_.size()))
                                       : levels_of(membership.hosts)),
      connections_(make_connections(listening, membership, deadline)) {}

Exchange::~Exchange() = default;

int Exchange::num_lanes() const { return connections_->num_lanes(); }

void Exchange::set_lanes(int lanes, const wire::Socket& listening, const Membership& membership,
                         const Deadline& deadline) {
  require(lanes >= 1 && lanes <= kMaxLanes, lanes, " connections between two members: expected 1 to ",
          kMaxLanes);
  // After this all-reduce, all members have called set_lanes().
  std::int32_t here = 0;
  all_reduce({.algorithm = Algorithm::kDirect,
              .element = wire::Element::kI32,
              .data = std::as_writable_bytes(std::span(&here, 1))},
             deadline);
  connections_->set_lanes(lanes, listening, membership, deadline);
}

void Exchange::all_reduce(const AllReduce& what, const Deadline& deadline) {
  require_reducible(what.element, what.reduction);
  const std::int64_t numel = numel_of(what.data, what.element);
  const bool by_levels = what.algorithm == Algorithm::kLevels;
  run(by_levels ? all_reduce_steps(levels_, numel) : all_reduce_steps(what.algorithm, size(), numel),
      {.rank = rank_,
       .held = what.data,
       .result = what.data,
       .element = what.element,
       .reduction = what.reduction},
      hash_of(Kind::kAllReduce, what.data.size(), what.element, what.reduction, what.algorithm), deadline);
}

void Exchange::reduce_scatter(const ReduceScatter& what, const Deadline& deadline) {
  require_reducible(what.element, what.reduction);
  require(what.parts.size() == what.sum.size() * names_.size(), "a reduce-scatter of ", what.parts.size(),
          " bytes over ", size(), " members into ", what.sum.size(),
          ": expected a part of that size for each");
  const std::int64_t numel = numel_of(what.sum, what.element);
  const std::uint32_t hash =
      hash_of(Kind::kReduceScatter, what.sum.size(), what.element, what.reduction, Algorithm::kDirect);
  if (levels_.sizes.size() > 1) {
    partial_sums_.assign(what.parts.begin(), what.parts.end());
    run(reduce_scatter_steps(levels_, numel * size()),
        {.rank = rank_,
         .held = partial_sums_,
         .result = partial_sums_,
         .element = what.element,
         .reduction = what.reduction},
        hash, deadline);
    const auto mine = std::span(partial_sums_).subspan(static_cast<std::size_t>(rank_) * what.sum.size());
    return (void)std::ranges::copy(mine.first(what.sum.size()), what.sum.begin());
  }
  run(reduce_scatter_steps(size(), numel * size()),
      {.rank = rank_,
       .held = what.parts,
       .result = what.sum,
       .result_begin = numel * rank_,
       .element = what.element,
       .reduction = what.reduction},
      hash, deadline);
}

void Exchange::all_gather(std::span<std::byte> parts, const Deadline& deadline) {
  require(parts.size() % names_.size() == 0, "an all-gather into ", parts.size(), " bytes over ", size(),
          " members: expected a part of the same size for each");
  constexpr wire::Element kByte = wire::Element::kU8;
  run(all_gather_steps(levels_, numel_of(parts, kByte)),
      {.rank = rank_, .held = parts, .result = parts, .element = kByte},
      hash_of(Kind::kAllGather, parts.size(), kByte, wire::Reduction::kSum, Algorithm::kDirect), deadline);
}

void Exchange::run(std::vector<Transfer> steps, const StepData& on, std::uint32_t hash,
                   const Deadline& deadline) {
  if (!failure_.empty()) give_up(failure_);
  std::erase_if(steps, [&](const Transfer& each) { return each.from != rank_ && each.to != rank_; });
  try {
    connections_->begin(std::uint64_t{++number_} << 32 | hash);
    for (auto first = steps.begin(); first != steps.end();) {
      const auto last =
          std::find_if(first, steps.end(), [&](const auto& each) { return each.step != first->step; });
      ExchangeStep(std::span(first, last), on, *connections_, scratch_).carry_out(deadline);
      first = last;
    }
    connections_->end();
  } catch (const CommError& error) {
    connections_->drop();
    failure_ = aborted_ ? "the operation was aborted" : error.what();
    give_up(failure_);
  }
}

void Exchange::give_up(const std::string& why) const {
  throw wire::GroupError(wire::GroupError::Kind::kGivenUp, /*group=*/"", why);
}

void Exchange::abort() {
  aborted_ = true;
  connections_->abort();
}

}  // namespace trireme::topology
