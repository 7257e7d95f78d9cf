#pragma once
// Cuts a row of things into consecutive parts so that the costliest part is as cheap as can be. Pure;
// thread-safe.

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace trireme {

/// Cost of a part, the `part`th from 0, of the things from `from` up to `to`; infinite when it may not be.
using CostOfPart = std::function<double(std::size_t part, std::size_t from, std::size_t to)>;

/// Where each of `num_parts` parts ends, the last after all `num_things`; among those with the least cost of
/// the costliest part the parts are even, as the sum of squares is kept low on the way. No part is empty.
/// Dynamic programming: num_parts * num_things^2 calls of `cost`. Empty when every choice has an infinite
/// cost.
std::vector<std::size_t> min_max_cuts(std::size_t num_things, std::size_t num_parts, const CostOfPart& cost);

/// The same for parts that cost the sum of their items: `cost[i]` is that of the i-th item.
std::vector<std::size_t> min_max_cuts(std::span<const double> costs, std::size_t num_parts);

}  // namespace trireme
