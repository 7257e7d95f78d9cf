#include "trireme/topology/all_reduce_steps.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "trireme/base/error.h"

namespace trireme::topology {
namespace {

/// Collects transfers, step by step.
class StepList {
 public:
  StepList(int ranks, std::int64_t numel) : ranks_(ranks), numel_(numel) {}

  void send(int from, int to, std::int64_t begin, std::int64_t end, bool adds) {
    if (begin < end) transfers_.push_back({step_, from, to, begin, end, adds});
  }
  void send_all(int from, int to, bool adds) { send(from, to, 0, numel_, adds); }
  void next_step() { ++step_; }

  void ring();
  void halving_doubling();
  void tree();
  void direct();
  void scatter_sums();
  void gather_parts();
  void by_levels(const Levels& levels);
  void parts_by_level(const Levels& levels, std::size_t level, bool adds);

  std::vector<Transfer> take() { return std::move(transfers_); }

 private:
  std::int64_t begin_of(int part, int parts) const { return part_begin(part, parts, numel_); }
  void send_part(int from, int to, int part, bool adds) {
    send(from, to, begin_of(part, ranks_), begin_of(part + 1, ranks_), adds);
  }

  const int ranks_;
  const std::int64_t numel_;
  int step_ = 0;
  std::vector<Transfer> transfers_;
};

void StepList::ring() {
  for (const bool adds : {true, false}) {
    // Rank r ends the first half with the complete sum of part r + 1. It sends this part first in the second
    // half.
    const int first = adds ? 0 : 1;
    for (int step = 0; step < ranks_ - 1; ++step) {
      for (int rank = 0; rank < ranks_; ++rank)
        send_part(rank, (rank + 1) % ranks_, (rank + first - step + ranks_) % ranks_, adds);
      next_step();
    }
  }
}

void StepList::halving_doubling() {
  const int core = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks_)));
  const int folded = ranks_ - core;
  // Of the first 2 * folded ranks, each odd rank folds into the rank before it.
  const auto rank_at = [&](int place) { return place < folded ? 2 * place : place + folded; };
  for (int place = 0; place < folded; ++place) send_all(2 * place + 1, 2 * place, true);
  if (folded > 0) next_step();
  // Each halving keeps the half that the place's bit selects, the highest bit first. Doubling reverses the
  // steps. Halving sends the half that the other rank keeps, doubling the half that this rank has kept.
  const auto send_half = [&](int place, int half, bool adds) {
    const int other = place ^ half;
    const int kept_by = adds ? other : place;
    int begin = 0;
    int parts = core;
    for (int bit = core / 2; bit >= half; bit /= 2) {
      parts /= 2;
      if (kept_by & bit) begin += parts;
    }
    send(rank_at(place), rank_at(other), begin_of(begin, core), begin_of(begin + parts, core), adds);
  };
  for (int half = core / 2; half > 0; half /= 2) {
    for (int place = 0; place < core; ++place) send_half(place, half, true);
    next_step();
  }
  for (int half = 1; half < core; half *= 2) {
    for (int place = 0; place < core; ++place) send_half(place, half, false);
    next_step();
  }
  for (int place = 0; place < folded; ++place) send_all(2 * place, 2 * place + 1, false);
}

void StepList::tree() {
  int distance = 1;
  for (; distance < ranks_; distance *= 2) {
    for (int rank = 0; rank + distance < ranks_; rank += 2 * distance) send_all(rank + distance, rank, true);
    next_step();
  }
  for (distance /= 2; distance > 0; distance /= 2) {
    for (int rank = 0; rank + distance < ranks_; rank += 2 * distance) send_all(rank, rank + distance, false);
    next_step();
  }
}

void StepList::direct() {
  for (int from = 0; from < ranks_; ++from) {
    for (int to = 0; to < ranks_; ++to) {
      if (to != from) send_all(from, to, true);
    }
  }
}

void StepList::scatter_sums() {
  for (int from = 0; from < ranks_; ++from) {
    for (int to = 0; to < ranks_; ++to) {
      if (to != from) send_part(from, to, to, true);
    }
  }
  next_step();
}

void StepList::gather_parts() {
  for (int from = 0; from < ranks_; ++from) {
    for (int to = 0; to < ranks_; ++to) {
      if (to != from) send_part(from, to, from, false);
    }
  }
  next_step();
}

/// Reduction: at each level a place keeps the part of its range that its number selects. Gathering: it sends
/// this part to the places that have the others.
void StepList::by_levels(const Levels& levels) {
  struct Range {
    std::int64_t begin, end;
    Range part(int number, int of) const {
      return {begin + (end - begin) * number / of, begin + (end - begin) * (number + 1) / of};
    }
  };
  const auto places = static_cast<std::size_t>(ranks_);
  std::vector<Range> ranges(places, {0, numel_});
  const auto for_each_pair = [&](int stride, int size, const auto& visit) {
    for (int from = 0; from < ranks_; ++from) {
      const int mine = from / stride % size;
      for (int other = 0; other < size; ++other) {
        if (other != mine) visit(from, mine, from + (other - mine) * stride, other);
      }
    }
  };
  const auto member = [&](int place) { return levels.members[static_cast<std::size_t>(place)]; };
  std::vector<std::vector<Range>> before;  // by level, innermost first
  int stride = 1;
  for (auto size = levels.sizes.rbegin(); size != levels.sizes.rend(); ++size) {
    before.push_back(ranges);
    for_each_pair(stride, *size, [&](int from, int, int to, int other) {
      const Range kept = ranges[static_cast<std::size_t>(from)].part(other, *size);
      send(member(from), member(to), kept.begin, kept.end, true);
    });
    for (int place = 0; place < ranks_; ++place) {
      Range& mine = ranges[static_cast<std::size_t>(place)];
      mine = mine.part(place / stride % *size, *size);
    }
    next_step();
    stride *= *size;
  }
  for (const int size : levels.sizes) {
    stride /= size;
    for_each_pair(stride, size, [&](int from, int, int to, int) {
      const Range mine = ranges[static_cast<std::size_t>(from)];
      send(member(from), member(to), mine.begin, mine.end, false);
    });
    ranges = std::move(before.back());
    before.pop_back();
    next_step();
  }
}

/// Transfers between places that differ at this level only. They move the parts of all members with the same
/// place in their blocks. One step for each block.
void StepList::parts_by_level(const Levels& levels, std::size_t level, bool adds) {
  int inside = 1, outside = 1;
  for (std::size_t l = 0; l < levels.sizes.size(); ++l) (l < level ? outside : inside) *= levels.sizes[l];
  inside /= levels.sizes[level];
  const int size = levels.sizes[level];
  const auto member = [&](int place) { return levels.members[static_cast<std::size_t>(place)]; };
  const int block = inside * size;  // places with the same place on all outer levels
  for (int other_block = 0; other_block < outside; ++other_block) {
    for (int from = 0; from < ranks_; ++from) {
      const int mine = from / inside % size;
      for (int there = 0; there < size; ++there) {
        if (there == mine) continue;
        const int to = from + (there - mine) * inside;
        // Sums are of the receiver's part, copies of the sender's.
        const int of = (adds ? to : from) % block + other_block * block;
        send_part(member(from), member(to), member(of), adds);
      }
    }
    next_step();
  }
}

StepList list_for(const char* what, int ranks, std::int64_t numel) {
  require(ranks >= 1 && numel >= 0, what, " of ", numel, " elements over ", ranks,
          " ranks: expected at least one rank and no negative size");
  return {ranks, numel};
}

}  // namespace

std::int64_t part_begin(int rank, int ranks, std::int64_t numel) { return numel * rank / ranks; }

std::vector<Transfer> reduce_scatter_steps(int ranks, std::int64_t numel) {
  StepList list = list_for("a reduce-scatter", ranks, numel);
  list.scatter_sums();
  return list.take();
}

std::vector<Transfer> reduce_scatter_steps(const Levels& levels, std::int64_t numel) {
  StepList list = list_for("a reduce-scatter", static_cast<int>(levels.members.size()), numel);
  for (std::size_t level = levels.sizes.size(); level-- > 0;) list.parts_by_level(levels, level, true);
  return list.take();
}

std::vector<Transfer> all_gather_steps(const Levels& levels, std::int64_t numel) {
  StepList list = list_for("an all-gather", static_cast<int>(levels.members.size()), numel);
  for (std::size_t level = 0; level < levels.sizes.size(); ++level) list.parts_by_level(levels, level, false);
  return list.take();
}

std::vector<Transfer> all_gather_steps(int ranks, std::int64_t numel) {
  StepList list = list_for("an all-gather", ranks, numel);
  list.gather_parts();
  return list.take();
}

std::vector<Transfer> all_reduce_steps(Algorithm algorithm, int ranks, std::int64_t numel) {
  StepList list = list_for("an all-reduce", ranks, numel);
  switch (algorithm) {
    case Algorithm::kRing:
      list.ring();
      break;
    case Algorithm::kHalvingDoubling:
      list.halving_doubling();
      break;
    case Algorithm::kTree:
      list.tree();
      break;
    case Algorithm::kDirect:
      list.direct();
      break;
    case Algorithm::kTwoShot:
      list.scatter_sums();
      list.gather_parts();
      break;
    case Algorithm::kLevels:
      list.by_levels(one_level(ranks));
      break;
  }
  return list.take();
}

std::vector<Transfer> all_reduce_steps(const Levels& levels, std::int64_t numel) {
  StepList list = list_for("an all-reduce", static_cast<int>(levels.members.size()), numel);
  list.by_levels(levels);
  return list.take();
}

double seconds_of(const std::vector<Transfer>& steps, int ranks, double bytes_per_element,
                  const MessageCost& cost) {
  struct Load {
    std::int64_t sent = 0, received = 0, added = 0;
  };
  double seconds = 0;
  for (auto first = steps.begin(); first != steps.end();) {
    std::vector<Load> loads(static_cast<std::size_t>(ranks));
    auto each = first;
    for (; each != steps.end() && each->step == first->step; ++each) {
      const std::int64_t numel = each->end - each->begin;
      Load& receiver = loads[static_cast<std::size_t>(each->to)];
      loads[static_cast<std::size_t>(each->from)].sent += numel;
      receiver.received += numel;
      if (each->adds) receiver.added += numel;
    }
    first = each;
    Load busiest;
    for (const Load& load : loads) {
      busiest.sent = std::max({busiest.sent, load.sent, load.received});
      busiest.added = std::max(busiest.added, load.added);
    }
    seconds +=
        cost.alpha_s + bytes_per_element * (static_cast<double>(busiest.sent) * cost.beta_s_per_byte +
                                            static_cast<double>(busiest.added) * cost.gamma_s_per_byte);
  }
  return seconds;
}

}  // namespace trireme::topology
