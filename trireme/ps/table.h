#pragma once
// What a table is: its size, how it begins, what happens to what is pushed, how far workers may be apart.
// A value; the same everywhere from its creation on.

#include <cstdint>
#include <string>
#include <tuple>

#include "trireme/ps/ids.h"
#include "trireme/ps/optimizer.h"

namespace trireme::ps {

/// A pull by a worker that has ended c steps waits until every live worker has ended c - staleness.
inline constexpr std::uint32_t kAsynchronous = UINT32_MAX;

enum class ApplyAt : std::uint8_t {
  kArrival,  ///< as pushes come, several at once
  kClock,    ///< when all workers have ended the step: summed in worker order, the same bits each time
  kLast = kClock,
};

struct TableSpec {
  TableId id = 0;  ///< given by the coordinator
  std::string name;
  std::uint64_t num_elements = 0;            ///< f32, in chunks
  std::uint32_t chunk_elements = 256 << 10;  ///< 1 MiB, the most there is
  std::uint32_t staleness = 0;               ///< 0: bulk-synchronous; kAsynchronous: no bound
  ApplyAt apply_at = ApplyAt::kArrival;
  OptimizerSpec optimizer;
  float initial_range = 0;  ///< values begin uniform in [-range, range), a function of seed and element
  std::uint64_t seed = 0;

  std::uint64_t num_chunks() const { return (num_elements + chunk_elements - 1) / chunk_elements; }
  std::uint32_t elements_of(std::uint64_t chunk) const {
    const std::uint64_t left = num_elements - chunk * chunk_elements;
    return left < chunk_elements ? static_cast<std::uint32_t>(left) : chunk_elements;
  }
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.id, self.name, self.num_elements, self.chunk_elements, self.staleness, self.apply_at,
                    self.optimizer, self.initial_range, self.seed);
  }
};

/// Throws InvalidArgument that names the table and the field.
void check(const TableSpec& spec);

/// Of everything but its name and id: the same on every machine.
std::uint64_t hash_of(const TableSpec& spec);

/// Element `index` of chunk `key` before anything was pushed to it.
float initial_value(const TableSpec& spec, std::uint64_t key, std::uint32_t index);

}  // namespace trireme::ps
