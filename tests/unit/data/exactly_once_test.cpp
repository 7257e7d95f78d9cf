// Each sample comes exactly once per epoch with any reader, in random cases of a seed.

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "trireme/base/clock.h"
#include "trireme/base/random.h"
#include "trireme/data/loader.h"

namespace trireme::data {
namespace {

/// The method of reading a batch.
enum class Reading {
  kAtOnce,
  kByRow,  ///< some rows are so expensive that several threads read them
};

/// Sample i is the number i.
class Numbers : public Dataset {
 public:
  Numbers(std::vector<std::int64_t> shard_ends, Reading reading)
      : ends_(std::move(shard_ends)), reading_(reading) {}
  std::int64_t size() const override { return ends_.back(); }
  Example get(std::int64_t index) const override {
    for (const double began_s = now_s(); index % 16 == 0 && now_s() - began_s < 60e-6;) continue;
    return {Fields(), at::scalar_tensor(index, at::kLong)};
  }
  Example get_batch(std::span<const std::int64_t> indices) const override {
    if (reading_ == Reading::kByRow) return Dataset::get_batch(indices);
    Example batch = {Fields(), at::empty({static_cast<std::int64_t>(indices.size())}, at::kLong)};
    std::copy(indices.begin(), indices.end(), batch.target->data_ptr<std::int64_t>());
    return batch;
  }
  double cost(std::int64_t index) const override { return static_cast<double>(index * index % 17); }
  std::vector<std::int64_t> shard_ends() const override { return ends_; }

 private:
  const std::vector<std::int64_t> ends_;
  const Reading reading_;
};

struct World {
  int ranks = 1, workers = 1, prefetch = 4;
};

struct Case {
  std::vector<std::int64_t> shard_ends;
  StreamOptions options;
  /// Range of steps of the tested epoch, and the step before which everything restarts.
  std::int64_t begin = 0, end = 0, restart = 0;
  World before, after;
  Reading reading = Reading::kAtOnce;

  explicit Case(Random random) {
    const auto from_to = [&](std::int64_t least, std::int64_t most) {
      return least + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most - least + 1)));
    };
    const auto world = [&] {
      return World{.ranks = static_cast<int>(from_to(1, 8)),
                   .workers = static_cast<int>(from_to(0, 4)),
                   .prefetch = static_cast<int>(from_to(1, 5))};
    };
    before = world();
    after = world();
    std::int64_t samples = 0;
    for (std::int64_t shards = from_to(1, 6); shards > 0; --shards) {
      samples += from_to(shards == 1 && samples == 0 ? 8 : 1, 60);
      shard_ends.push_back(samples);
    }
    while (shard_ends.back() < 8) shard_ends.push_back(shard_ends.back() + from_to(4, 8));
    options.num_microbatches = static_cast<int>(from_to(1, 3));
    options.global_batch = from_to(8 * options.num_microbatches, 70);
    // Batches grow in one of the first epochs, or in several of them.
    const bool grows = from_to(0, 1) == 0;
    for (std::int64_t phases = grows ? from_to(1, 3) : 0, until = 0; phases > 0; --phases) {
      until += from_to(1, 40);
      options.ramp.push_back({.until = until, .size = from_to(8 * options.num_microbatches, 70)});
    }
    options.seed = random.bits();
    options.order = from_to(0, 9) == 0 ? Order::kSequential : Order::kShuffled;
    options.open_shards = from_to(0, 3);
    options.balance = static_cast<Balance>(from_to(0, 2));
    std::int64_t largest = options.global_batch;
    for (const BatchPhase& phase : options.ramp) largest = std::max(largest, phase.size);
    if (from_to(0, 2) == 0 && largest <= samples) options.last_batch = LastBatch::kDropped;
    const auto epoch = static_cast<std::uint64_t>(from_to(0, grows ? 6 : 1'000'000));
    const BatchLayout layout = layout_of(options, shard_ends.back());
    begin = layout.first_step_of(epoch);
    end = layout.first_step_of(epoch + 1);
    restart = from_to(begin, end - 1);
    reading = from_to(0, 3) == 0 ? Reading::kByRow : Reading::kAtOnce;
  }
};

/// Random shares: between one sample for each micro-batch and all that the others leave.
Shares any_shares(const StreamOptions& options, Random& random) {
  Shares shares(static_cast<std::size_t>(options.world_size), options.num_microbatches);
  for (std::int64_t left = options.global_batch - std::int64_t{options.world_size} * options.num_microbatches;
       left > 0; --left)
    ++shares[random.below(shares.size())];
  return shares;
}

/// The samples that the ranks of a world get in the steps [begin, end), in rank order. Dynamic
/// shares sometimes change, a few steps ahead or, if prefetching permits, at once.
void read(const Case& drawn, const std::shared_ptr<const Dataset>& numbers, const World& world,
          std::int64_t begin, std::int64_t end, std::vector<std::int64_t>& seen) {
  std::vector<std::unique_ptr<Loader>> loaders;
  for (int rank = 0; rank < world.ranks && begin < end; ++rank) {
    StreamOptions options = drawn.options;
    options.rank = rank;
    options.world_size = world.ranks;
    options.workers = world.workers;
    options.prefetch = world.prefetch;
    loaders.push_back(std::make_unique<Loader>(numbers, options));
    loaders.back()->seek(static_cast<std::uint64_t>(begin));
  }
  Random random(21, static_cast<std::int64_t>(drawn.options.seed >> 1));
  StreamOptions of_world = drawn.options;
  of_world.world_size = world.ranks;
  for (std::int64_t step = begin; step < end; ++step) {
    if (of_world.balance == Balance::kDynamic && random.below(3) == 0) {
      const auto from = static_cast<std::uint64_t>(step) + random.below(6);
      const Shares shares = any_shares(of_world, random);
      for (const auto& loader : loaders) loader->assign_shares(from, shares);
    }
    for (const auto& loader : loaders) {
      for (const Example& part : loader->next().microbatches) {
        const auto* samples = part.target->const_data_ptr<std::int64_t>();
        seen.insert(seen.end(), samples, samples + part.rows());
      }
    }
  }
}

std::int64_t num_cases() {
  const char* asked = std::getenv("TRIREME_CASES");
  return asked == nullptr ? 500 : std::atoll(asked);
}

/// Number of samples of the batches of [begin, end), which are full if the last batch is dropped.
std::int64_t samples_of(const Case& drawn) {
  const BatchLayout layout = layout_of(drawn.options, drawn.shard_ends.back());
  std::int64_t samples = 0;
  for (std::int64_t step = drawn.begin; step < drawn.end; ++step) {
    const BatchPlace place = layout.at(static_cast<std::uint64_t>(step));
    EXPECT_TRUE(drawn.options.last_batch == LastBatch::kSmaller || place.size == place.full)
        << "step " << step;
    samples += place.size;
  }
  return samples;
}

TEST(Loader, SamplesComeOnceAfterAnyRestart) {
  std::int64_t dropped = 0;
  for (std::int64_t seed = 0; seed < num_cases(); ++seed) {
    const Case drawn(Random(20, seed));
    const auto numbers = std::make_shared<Numbers>(drawn.shard_ends, drawn.reading);
    std::vector<std::int64_t> seen, alone;
    read(drawn, numbers, drawn.before, drawn.begin, drawn.restart, seen);
    read(drawn, numbers, drawn.after, drawn.restart, drawn.end, seen);
    read(drawn, numbers, {}, drawn.begin, drawn.end, alone);
    if (drawn.options.balance != Balance::kCost) {
      ASSERT_EQ(seen, alone) << "case " << seed << ": the order of one rank";
    }
    std::sort(seen.begin(), seen.end());
    std::vector<std::int64_t> all(static_cast<std::size_t>(numbers->size()));
    std::iota(all.begin(), all.end(), 0);
    if (drawn.options.last_batch == LastBatch::kSmaller) {
      ASSERT_EQ(seen, all) << "case " << seed;
    }
    ASSERT_EQ(std::ssize(seen), samples_of(drawn)) << "case " << seed;
    ASSERT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end())
        << "case " << seed << ": a sample twice";
    dropped += numbers->size() - std::ssize(seen);
  }
  EXPECT_GT(dropped, 0) << "no case drops a batch";
}

}  // namespace
}  // namespace trireme::data
