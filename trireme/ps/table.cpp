#include "trireme/ps/table.h"

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/ps/fields.h"
#include "trireme/ps/internal/hash.h"

namespace trireme::ps {

void check(const TableSpec& spec) {
  constexpr std::uint32_t kMostChunkElements = 256 << 10;
  const auto demand = [&](bool holds, const auto&... message) {
    require(holds, "table ", spec.name, ": ", message...);
  };
  demand(!spec.name.empty() && spec.name.size() <= 256, "its name must have 1 to 256 letters");
  demand(spec.num_elements > 0, "a table needs num_elements above 0");
  demand(spec.num_elements < std::uint64_t{1} << 48, "num_elements must be below 2^48, not ",
         spec.num_elements);
  demand(spec.chunk_elements > 0 && spec.chunk_elements <= kMostChunkElements, "chunk_elements must be 1 to ",
         kMostChunkElements, ", not ", spec.chunk_elements);
  demand(spec.apply_at == ApplyAt::kArrival || spec.staleness == 0,
         "sums in worker order need staleness 0, not ", spec.staleness);
  demand(std::isfinite(spec.initial_range) && spec.initial_range >= 0,
         "initial_range must be a number of at least 0, not ", spec.initial_range);
  check(spec.optimizer);
  demand(spec.num_chunks() == 1 || !optimizer_rule(spec.optimizer.name).looks_at_whole(), spec.optimizer.name,
         " looks at a whole tensor, and this one is cut into ", spec.num_chunks(),
         " chunks: give each tensor a table of at most ", kMostChunkElements, " elements");
}

std::uint64_t hash_of(const TableSpec& spec) {
  TableSpec nameless = spec;
  nameless.name.clear();
  nameless.id = 0;
  const std::vector<std::byte> bytes = encode(nameless);
  return hash_bytes(bytes);
}

float initial_value(const TableSpec& spec, std::uint64_t key, std::uint32_t index) {
  if (spec.initial_range == 0) return 0;
  Random random(spec.seed, key, index);
  return (2 * random.uniform() - 1) * spec.initial_range;
}

}  // namespace trireme::ps
