#pragma once
// A table: its kind and size, its initial values, the use of pushes, how far workers may be
// apart. A value; the same everywhere from its creation on.

#include <algorithm>
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

/// How elements of a table are named: by their place, or by keys.
enum class TableKind : std::uint8_t {
  kDense,   ///< num_elements, in chunks
  kSparse,  ///< a row for any 64-bit key (ADR 0040)
  kLast = kSparse,
};

/// Of a sparse table: the form of a row, admission of keys, eviction of rows. Clocks are those that all
/// workers have ended.
struct RowSpec {
  std::uint32_t elements = 0;        ///< f32
  std::uint32_t admit_after = 1;     ///< a key gets its row with the push that names it for so many times
  double admit_probability = 1;      ///< from then on: the chance of each naming, by seed, key and count
  std::uint32_t evict_after = 0;     ///< steps without a push after which a row counts as gone; 0: never
  std::uint64_t most_rows = 0;       ///< of the table; 0: no bound
  std::uint32_t num_partitions = 0;  ///< that share them; given by the coordinator

  /// Each partition's share of most_rows, rounded up.
  std::uint64_t most_in_partition() const {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 31;  // that an index numbers
    if (most_rows == 0 || num_partitions == 0) return kMost;
    return std::min(most_rows / num_partitions + (most_rows % num_partitions != 0 ? 1 : 0), kMost);
  }
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.elements, self.admit_after, self.admit_probability, self.evict_after, self.most_rows,
                    self.num_partitions);
  }
};

/// How values of a table are made smaller, for both ways (compress/codec.h). Assignments, states of
/// optimizers and checkpoints are never encoded.
struct CompressionSpec {
  std::string push = "none";  ///< codec of pushes
  std::string pull = "none";  ///< codec of pulls
  double fraction = 0.005;    ///< top-k: of the elements of a chunk, that a push names
  double unused = 0;          ///< 8 bytes of messages and checkpoints: those of a codec that was removed

  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.push, self.pull, self.fraction, self.unused);
  }
};

/// Delay compensation (Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML
/// 2017). A gradient g that was computed at older values w_bak is applied at the values w as
///
///   g + l g g (w - w_bak),   l = lambda (eq. 10), or lambda / sqrt(MeanSquare + eps) (DC-ASGD-a)
///
/// element by element. MeanSquare = decay MeanSquare + (1 - decay) g g starts at 0.
struct DelaySpec {
  double lambda = 0;         ///< 0: gradients are applied as they come
  bool is_adaptive = false;  ///< l follows the size of gradients; costs one f32 of state for each element
  double decay = 0.95;
  double eps = 1e-7;

  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.lambda, self.is_adaptive, self.decay, self.eps);
  }
};

/// A table's definition: all workers that open it pass the same.
struct TableSpec {
  TableId id = 0;  ///< given by the coordinator
  std::string name;
  TableKind kind = TableKind::kDense;
  std::uint64_t num_elements = 0;  ///< f32, in chunks; 0 where it is sparse
  /// 1 MiB, the most there is; lamb and rowwise_adagrad take a tensor of up to 8 MiB as one.
  std::uint32_t chunk_elements = 256 << 10;
  RowSpec rows = {};            ///< where it is sparse
  std::uint32_t staleness = 0;  ///< 0: bulk-synchronous; kAsynchronous: no bound
  ApplyAt apply_at = ApplyAt::kArrival;
  OptimizerSpec optimizer = {};
  float initial_range = 0;  ///< values begin uniform in [-range, range), a function of seed and element
  std::uint64_t seed = 0;
  CompressionSpec compression = {};  ///< of pushes and pulls
  DelaySpec delay = {};              ///< of a dense table that applies updates on arrival

  std::uint64_t num_chunks() const { return (num_elements + chunk_elements - 1) / chunk_elements; }
  /// How many elements that chunk has: the last one of a dense table may be shorter.
  std::uint32_t elements_of(std::uint64_t chunk) const {
    const std::uint64_t left = num_elements - chunk * chunk_elements;
    return left < chunk_elements ? static_cast<std::uint32_t>(left) : chunk_elements;
  }
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.id, self.name, self.kind, self.num_elements, self.chunk_elements, self.rows,
                    self.staleness, self.apply_at, self.optimizer, self.initial_range, self.seed,
                    self.compression, self.delay);
  }
};

/// Number of f32 of state for so many values of a chunk: the optimizer's, then those of delay compensation.
std::size_t state_elements(const TableSpec& spec, std::size_t num_values);

/// Throws InvalidArgument that names the table and the field.
void check(const TableSpec& spec);

/// Of everything but its name and the values that the coordinator sets: the same on every machine.
std::uint64_t hash_of(const TableSpec& spec);

/// Element `index` of chunk or row `key` before anything was pushed to it.
float initial_value(const TableSpec& spec, std::uint64_t key, std::uint32_t index);

}  // namespace trireme::ps
