#include "trireme/topology/exchange.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/topology/internal/exchange_step.h"
#include "trireme/topology/internal/members.h"
#include "trireme/wire/group_error.h"

namespace trireme::topology {
namespace {

/// Of what all ranks have to agree about: the number, and a hash of the rest.
std::uint64_t tag_of(std::uint32_t number, const Exchange::AllReduce& what) {
  std::uint64_t hash = what.data.size();
  for (const auto part :
       {static_cast<int>(what.algorithm), static_cast<int>(what.element), static_cast<int>(what.reduction)}) {
    hash = (hash ^ static_cast<std::uint64_t>(part + 1)) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 33;
  }
  return static_cast<std::uint64_t>(number) << 32 | (hash & 0xffffffffu);
}

}  // namespace

Exchange::Exchange(const wire::Socket& listening, const Membership& membership, const Deadline& deadline)
    : rank_(membership.rank),
      names_(membership.names),
      sockets_(connect_members(listening, membership, deadline)) {}

void Exchange::all_reduce(const AllReduce& what, const Deadline& deadline) {
  require(wire::reducible(what.element), "elements of type ", wire::name(what.element),
          " cannot be reduced (f32, f64, bf16, f16, i32 and i64 can)");
  require(what.reduction != wire::Reduction::kAverage,
          "lists of transfers add up: divide the sum for an average");
  if (!failure_.empty()) give_up(failure_);
  try {
    carry_out(what, deadline);
  } catch (const CommError& error) {
    failure_ = aborted_ ? "the operation was aborted" : error.what();
    give_up(failure_);
  }
}

void Exchange::carry_out(const AllReduce& what, const Deadline& deadline) {
  const std::size_t bytes_of = wire::bytes_of(what.element);
  const auto numel = static_cast<std::int64_t>(what.data.size() / bytes_of);
  std::vector<Transfer> mine = all_reduce_steps(what.algorithm, size(), numel);
  std::erase_if(mine, [&](const Transfer& each) { return each.from != rank_ && each.to != rank_; });
  Connections connections(sockets_, names_, tag_of(++number_, what));
  for (auto first = mine.begin(); first != mine.end();) {
    const auto last =
        std::find_if(first, mine.end(), [&](const auto& each) { return each.step != first->step; });
    ExchangeStep step(
        {first, last},
        {.rank = rank_, .data = what.data, .element = what.element, .reduction = what.reduction}, connections,
        scratch_);
    step.carry_out(deadline);
    first = last;
  }
}

void Exchange::give_up(const std::string& why) const {
  throw wire::GroupError(wire::GroupError::Kind::kGivenUp, /*group=*/"", why);
}

void Exchange::abort() {
  aborted_ = true;
  for (const auto& socket : sockets_) {
    if (socket.fd() >= 0) ::shutdown(socket.fd(), SHUT_RDWR);
  }
}

}  // namespace trireme::topology
