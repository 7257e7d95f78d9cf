#include "trireme/wire/reduce.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "trireme/base/error.h"
#include "trireme/base/short_floats.h"

namespace trireme::wire {
namespace {

constexpr std::size_t kTile = 1024;  // accumulators that stay in the L1 cache

template <class Stored>
struct Accumulator {
  using Type = Stored;
};
template <>
struct Accumulator<Bf16> {
  using Type = float;
};
template <>
struct Accumulator<F16> {
  using Type = float;
};

template <class Stored>
TRIREME_INLINE Stored widen(Stored value) {
  return value;
}

template <class Stored>
TRIREME_INLINE void narrow(Stored value, Stored& to) {
  to = value;
}

template <Reduction op, class T>
TRIREME_INLINE T combine(T sum, T value) {
  if constexpr (op == Reduction::kSum) {
    // Unsigned, so that integers wrap around instead of being undefined.
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(sum) + static_cast<U>(value));
    } else {
      return sum + value;
    }
  } else if constexpr (op == Reduction::kProduct) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(sum) * static_cast<U>(value));
    } else {
      return sum * value;
    }
  } else if constexpr (op == Reduction::kMin) {
    return ((value < sum) | (value != value)) ? value : sum;
  } else {
    return ((value > sum) | (value != value)) ? value : sum;
  }
}

struct Job {
  const std::byte* const* sources;
  std::size_t num_sources;
  std::byte* const* targets;
  std::size_t num_targets;
  std::size_t count;
};

/// Scale of a sum. Multiplying by the inverse is exact if the number of sources is a power of two.
enum class Scale { kNone, kMultiply, kDivide };

template <Scale scale, class T>
TRIREME_INLINE T scaled(T sum, T factor) {
  if constexpr (scale == Scale::kMultiply) return sum * factor;
  if constexpr (scale == Scale::kDivide) return sum / factor;
  return sum;
}

/// Computes each value once and writes it into two targets at the same time. A separate pass for the second
/// one would stall on memory. The value at i may read a target only at i.
template <class Stored, Scale scale, class Value>
TRIREME_INLINE void write_tile(const Job& job, std::size_t first, std::size_t length, const Value& value) {
  using T = typename Accumulator<Stored>::Type;
  const T num_sources = static_cast<T>(job.num_sources);
  const T factor = scale == Scale::kMultiply ? 1 / num_sources : num_sources;
  const auto target = [&](std::size_t t) { return reinterpret_cast<Stored*>(job.targets[t]) + first; };
  Stored* to = target(0);
  if (job.num_targets == 1) {
    TRIREME_NO_CARRIED_DEPENDENCE
    for (std::size_t i = 0; i < length; ++i) narrow(scaled<scale, T>(value(i), factor), to[i]);
    return;
  }
  Stored* also = target(1);
  TRIREME_NO_CARRIED_DEPENDENCE
  for (std::size_t i = 0; i < length; ++i) {
    Stored result;
    narrow(scaled<scale, T>(value(i), factor), result);
    to[i] = result;
    also[i] = result;
  }
  for (std::size_t t = 2; t < job.num_targets; ++t) std::memcpy(target(t), to, length * sizeof(Stored));
}

template <class Stored, Reduction op, Scale scale>
TRIREME_INLINE void reduce_tile(const Job& job, std::size_t first, std::size_t length) {
  using T = typename Accumulator<Stored>::Type;
  const auto source = [&](std::size_t s) { return reinterpret_cast<const Stored*>(job.sources[s]) + first; };
  const std::size_t last = job.num_sources - 1;
  const Stored* a = source(0);
  if (last == 0)
    return write_tile<Stored, scale>(job, first, length, [a](std::size_t i) { return widen(a[i]); });
  const Stored* b = source(1);
  const auto first_two = [a, b](std::size_t i) { return combine<op, T>(widen(a[i]), widen(b[i])); };
  if (last == 1) return write_tile<Stored, scale>(job, first, length, first_two);
  alignas(64) T sums[kTile];
  for (std::size_t i = 0; i < length; ++i) sums[i] = first_two(i);
  for (std::size_t s = 2; s < last; ++s) {
    const Stored* from = source(s);
    for (std::size_t i = 0; i < length; ++i) sums[i] = combine<op, T>(sums[i], widen(from[i]));
  }
  const Stored* from = source(last);
  write_tile<Stored, scale>(job, first, length,
                            [&sums, from](std::size_t i) { return combine<op, T>(sums[i], widen(from[i])); });
}

template <class Stored, Reduction op, Scale scale>
TRIREME_INLINE void reduce_all(const Job& job) {
  for (std::size_t first = 0; first < job.count; first += kTile)
    reduce_tile<Stored, op, scale>(job, first, std::min(kTile, job.count - first));
}

template <class Stored, Reduction op, Scale scale = Scale::kNone>
void reduce_with(const Job& job) {
  run_vectorised([&]() TRIREME_INLINE_BODY { reduce_all<Stored, op, scale>(job); });
}

template <class Stored>
void average_with(const Job& job) {
  constexpr bool kFloating = std::is_floating_point_v<typename Accumulator<Stored>::Type>;
  if (kFloating && std::has_single_bit(job.num_sources))
    return reduce_with<Stored, Reduction::kSum, Scale::kMultiply>(job);
  return reduce_with<Stored, Reduction::kSum, Scale::kDivide>(job);
}

template <class Stored>
void reduce_elements(Reduction reduction, const Job& job) {
  switch (reduction) {
    case Reduction::kSum:
      return reduce_with<Stored, Reduction::kSum>(job);
    case Reduction::kAverage:
      return average_with<Stored>(job);
    case Reduction::kMin:
      return reduce_with<Stored, Reduction::kMin>(job);
    case Reduction::kMax:
      return reduce_with<Stored, Reduction::kMax>(job);
    case Reduction::kProduct:
      return reduce_with<Stored, Reduction::kProduct>(job);
  }
}

}  // namespace

void reduce(Element element, Reduction reduction, std::span<const std::byte* const> sources,
            std::span<std::byte* const> targets, std::size_t count) {
  require(!sources.empty() && !targets.empty(), "a reduction needs a source and a target");
  const Job job{sources.data(), sources.size(), targets.data(), targets.size(), count};
  switch (element) {
    case Element::kF32:
      return reduce_elements<float>(reduction, job);
    case Element::kF64:
      return reduce_elements<double>(reduction, job);
    case Element::kBf16:
      return reduce_elements<Bf16>(reduction, job);
    case Element::kF16:
      return reduce_elements<F16>(reduction, job);
    case Element::kI32:
      return reduce_elements<std::int32_t>(reduction, job);
    case Element::kI64:
      return reduce_elements<std::int64_t>(reduction, job);
    default:
      throw InvalidArgument(text("elements of type ", name(element),
                                 " cannot be reduced (f32, f64, bf16, f16, i32 and i64 can)"));
  }
}

}  // namespace trireme::wire
