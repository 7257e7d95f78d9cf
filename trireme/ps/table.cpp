#include "trireme/ps/table.h"

#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/compress/codec.h"
#include "trireme/ps/internal/hash.h"
#include "trireme/wire/fields.h"

namespace trireme::ps {
namespace {

constexpr std::uint32_t kMostChunkElements = 256 << 10;
// For a tensor in one chunk, because its optimizer needs the whole tensor: 8 MiB, as much as one record
// merges.
constexpr std::uint32_t kMostWholeElements = 2 << 20;
constexpr std::uint32_t kMostRowElements = 16 << 10;

template <class Demand>
void check_dense(const TableSpec& spec, const Demand& demand) {
  demand(spec.num_elements > 0, "a table needs num_elements above 0");
  demand(spec.num_elements < std::uint64_t{1} << 48, "num_elements must be below 2^48, not ",
         spec.num_elements);
  demand(wire::encode(spec.rows) == wire::encode(RowSpec{}),
         "rows are options of sparse tables, and this one is dense");
  demand(spec.num_chunks() == 1 || !optimizer_rule(spec.optimizer.name).looks_at_whole(), spec.optimizer.name,
         " looks at a whole tensor, and this one is cut into ", spec.num_chunks(),
         " chunks: give each tensor a table of at most ", kMostWholeElements,
         " elements, and set chunk_elements to as many");
}

template <class Demand>
void check_sparse(const TableSpec& spec, const Demand& demand) {
  const RowSpec& rows = spec.rows;
  demand(spec.num_elements == 0, "a sparse table has no num_elements, but rows.elements, and here are ",
         spec.num_elements);
  demand(rows.elements > 0 && rows.elements <= kMostRowElements, "rows.elements must be 1 to ",
         kMostRowElements, ", not ", rows.elements);
  demand(rows.admit_after > 0, "rows.admit_after must be at least 1: the first push, not ", rows.admit_after);
  demand(rows.admit_probability > 0 && rows.admit_probability <= 1,
         "rows.admit_probability must be above 0 and at most 1, not ", rows.admit_probability);
  demand(rows.evict_after < std::uint32_t{1} << 30, "rows.evict_after must be below 2^30 steps, not ",
         rows.evict_after);
  demand(optimizer_rule(spec.optimizer.name).fits_rows(), spec.optimizer.name,
         " scales the step of a whole tensor, and a row of a sparse table is none: choose another "
         "optimizer, adam for example");
}

template <class Demand>
void check_compression(const TableSpec& spec, const Demand& demand) {
  const CompressionSpec& compression = spec.compression;
  const compress::Codec* push = compress::codec(compression.push);
  const compress::Codec* pull = compress::codec(compression.pull);
  demand(
      spec.kind == TableKind::kDense || push == nullptr || !push->leaves_out(), "rows cannot be pushed with ",
      compression.push,
      ": a worker would have to keep what it leaves out for every key it ever met; choose int8, for example");
  demand(pull == nullptr || !pull->leaves_out(), "values cannot be pulled with ", compression.pull,
         ", which leaves most of them out: choose int8, for example");
  demand(compression.fraction > 0 && compression.fraction <= 0.5,
         "compression.fraction must be above 0 and at most 0.5, not ", compression.fraction);
}

template <class Demand>
void check_delay(const TableSpec& spec, const Demand& demand) {
  const DelaySpec& delay = spec.delay;
  demand(std::isfinite(delay.lambda) && delay.lambda >= 0,
         "delay.lambda must be a number of at least 0, not ", delay.lambda);
  if (delay.lambda == 0) return demand(!delay.is_adaptive, "delay.is_adaptive needs a delay.lambda above 0");
  demand(delay.decay >= 0 && delay.decay < 1, "delay.decay must be in [0, 1), not ", delay.decay);
  demand(std::isfinite(delay.eps) && delay.eps > 0, "delay.eps must be a number above 0, not ", delay.eps);
  demand(
      spec.kind == TableKind::kDense,
      "delays are compensated in dense tables: a worker would have to keep the rows of every key it pulled");
  demand(spec.apply_at == ApplyAt::kArrival,
         "pushes that are held until all have ended a step have no delay to compensate: set apply_at to "
         "arrival");
  demand(spec.optimizer.name != "sum",
         "delays of gradients are compensated, and sum adds what is no gradient: choose another optimizer");
  demand(spec.compression.push == "none",
         "a push that is compensated carries values with its gradient and is not encoded: "
         "compression.push must be none, not ",
         spec.compression.push);
}

}  // namespace

std::size_t state_elements(const TableSpec& spec, std::size_t num_values) {
  return optimizer_rule(spec.optimizer.name).state_elements(num_values) +
         (spec.delay.is_adaptive ? num_values : 0);
}

void check(const TableSpec& spec) {
  const auto demand = [&](bool holds, const auto&... message) {
    require(holds, "table ", spec.name, ": ", message...);
  };
  demand(!spec.name.empty() && spec.name.size() <= 256, "its name must have 1 to 256 letters");
  check(spec.optimizer);
  const bool is_whole =
      spec.kind == TableKind::kDense && optimizer_rule(spec.optimizer.name).looks_at_whole();
  const std::uint32_t most_elements = is_whole ? kMostWholeElements : kMostChunkElements;
  demand(spec.chunk_elements > 0 && spec.chunk_elements <= most_elements, "chunk_elements must be 1 to ",
         most_elements, ", not ", spec.chunk_elements);
  demand(spec.apply_at == ApplyAt::kArrival || spec.staleness == 0,
         "sums in worker order need staleness 0, not ", spec.staleness);
  demand(std::isfinite(spec.initial_range) && spec.initial_range >= 0,
         "initial_range must be a number of at least 0, not ", spec.initial_range);
  check_compression(spec, demand);
  check_delay(spec, demand);
  if (spec.kind == TableKind::kDense)
    check_dense(spec, demand);
  else
    check_sparse(spec, demand);
}

std::uint64_t hash_of(const TableSpec& spec) {
  TableSpec nameless = spec;
  nameless.name.clear();
  nameless.id = 0;
  nameless.rows.num_partitions = 0;
  const std::vector<std::byte> bytes = wire::encode(nameless);
  return hash_bytes(bytes);
}

float initial_value(const TableSpec& spec, std::uint64_t key, std::uint32_t index) {
  if (spec.initial_range == 0) return 0;
  Random random(spec.seed, key, index);
  return (2 * random.uniform() - 1) * spec.initial_range;
}

}  // namespace trireme::ps
