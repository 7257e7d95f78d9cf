#include "trireme/telemetry/curve.h"

#include <algorithm>

namespace trireme::telemetry {
namespace {

Point mean(Curve::const_iterator begin, Curve::const_iterator end) {
  Point sum;
  for (auto point = begin; point != end; ++point) {
    sum.step += point->step;
    sum.value += point->value;
  }
  const auto count = static_cast<double>(end - begin);
  return {sum.step / count, sum.value / count};
}

bool is_lower(const Point& a, const Point& b) { return a.value < b.value; }

}  // namespace

Curve thinned(const Curve& curve, std::size_t most) {
  if (curve.size() <= most) return curve;
  const std::size_t spans = (most - 2) / 2, inner = curve.size() - 2;
  Curve result = {curve.front()};
  for (std::size_t span = 0; span < spans; ++span) {
    const auto at = [&](std::size_t s) { return curve.begin() + 1 + static_cast<long>(s * inner / spans); };
    auto [first, second] = std::minmax_element(at(span), at(span + 1), is_lower);
    if (second < first) std::swap(first, second);
    result.push_back(*first);
    if (first != second) result.push_back(*second);
  }
  result.push_back(curve.back());
  return result;
}

Curve averaged(const Curve& curve, std::size_t most) {
  if (curve.size() <= most) return curve;
  Curve result;
  for (std::size_t span = 0; span < most; ++span) {
    const auto at = [&](std::size_t s) { return curve.begin() + static_cast<long>(s * curve.size() / most); };
    result.push_back(mean(at(span), at(span + 1)));
  }
  return result;
}

Curve smoothed(const Curve& curve, std::size_t window) {
  // Prefix sums: the mean over a window is a difference of two.
  std::vector<double> sums = {0};
  for (const Point& point : curve) sums.push_back(sums.back() + point.value);
  Curve result;
  for (std::size_t i = 0; i < curve.size(); ++i) {
    const std::size_t reach = std::min({window / 2, i, curve.size() - 1 - i});
    const auto count = static_cast<double>(2 * reach + 1);
    result.push_back({curve[i].step, (sums[i + reach + 1] - sums[i - reach]) / count});
  }
  return result;
}

}  // namespace trireme::telemetry
