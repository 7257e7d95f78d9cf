#include "trireme/parallel/tensor/cut.h"

#include "trireme/base/error.h"

namespace trireme::parallel {

std::vector<Range> DimCut::ranges(int rank, int ranks) const {
  const std::int64_t of_part = size / parts;
  const Range units = part_of_rank(of_part / unit, rank, ranks);
  std::vector<Range> all;
  for (std::int64_t part = 0; part < parts; ++part)
    all.push_back({.begin = part * of_part + units.begin * unit, .size = units.size * unit});
  return all;
}

std::int64_t DimCut::size_on(int rank, int ranks) const {
  return parts * unit * part_of_rank(size / parts / unit, rank, ranks).size;
}

void DimCut::check(const char* who) const {
  require(size >= 1 && parts >= 1 && unit >= 1, who, " is ", size, " features in ", parts,
          " parts of units of ", unit, "; expected at least 1 of each");
  require(size % (parts * unit) == 0, who, " is ", size, " features, which are no ", parts,
          " equal parts of whole units of ", unit, "; expected a multiple of ", parts * unit);
}

}  // namespace trireme::parallel
