// Question: how many rows per second does one core pull and push in the storage of a sparse table (no
// messages, no log), compared with std::unordered_map?
//   bench_ps_sparse [--smoke] [--rows N] [--batch KEYS] [--passes P]
// One partition holds all rows, of 16 elements. Every pass pulls and pushes each row once, in another order
// than that of creation. Keys rise within a batch, as a client sends them. The map has a row in each node. It
// finds the row, and copies it or adds to it. In each pass the two take turns. A line of JSON for each rule;
// ratios are medians over the passes. Processor time.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "bench/spread.h"
#include "trireme/base/random.h"
#include "trireme/ps/internal/sparse_table.h"

namespace {

using namespace trireme;
using namespace trireme::ps;
using bench::ratio;
using bench::spread;

constexpr std::uint32_t kDim = 16;

struct Workload {
  std::vector<wire::Buffer> pushes, pulls;  ///< bodies of messages
};

/// Batches of all keys, in their order.
Workload work_of(std::vector<std::uint64_t> keys, std::size_t batch_keys) {
  Workload work;
  for (std::size_t first = 0; first < keys.size(); first += batch_keys) {
    const std::size_t count = std::min(batch_keys, keys.size() - first);
    const std::span batch(keys.data() + first, count);
    std::ranges::sort(batch);
    RowBatchWriter writer(count, kDim);
    for (std::size_t i = 0; i < count; ++i) std::ranges::fill(writer.put(i, batch[i], 1), 1.0F);
    work.pushes.push_back(std::move(writer).buffer());
    work.pulls.push_back(key_batch(batch, kDim));
  }
  return work;
}

/// Millions of rows per second of processor time. Other work on the core counts only by its effect on caches
/// and memory.
template <class Act>
double rate_of(const std::vector<wire::Buffer>& bodies, std::size_t num_rows, const Act& act) {
  const std::clock_t begin = std::clock();
  for (const wire::Buffer& body : bodies) act(body);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  return 1e-6 * static_cast<double>(num_rows) / seconds;
}

class Map {
 public:
  void push(const RowBatch& batch) {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      Row& row = rows_.try_emplace(batch.key(i)).first->second;
      const std::span<const float> more = batch.row(i);
      for (std::size_t e = 0; e < kDim; ++e) row[e] += more[e];
    }
  }
  void read(const KeyBatch& keys, std::span<float> out) const {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto found = rows_.find(keys.key(i));
      if (found != rows_.end()) std::memcpy(out.data() + i * kDim, found->second.data(), sizeof(Row));
    }
  }

 private:
  using Row = std::array<float, kDim>;
  std::unordered_map<std::uint64_t, Row> rows_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("How fast a sparse table's storage is beside std::unordered_map.");
  std::size_t num_rows = 4'000'000, batch_keys = 8192;
  int passes = 5;
  bool smoke = false;
  app.add_option("--rows", num_rows)->check(CLI::PositiveNumber);
  app.add_option("--batch", batch_keys)->check(CLI::PositiveNumber);
  app.add_option("--passes", passes)->check(CLI::PositiveNumber);
  app.add_flag("--smoke", smoke);
  CLI11_PARSE(app, argc, argv);
  if (smoke) {
    num_rows = 20'000;
    passes = 1;
  }
  std::vector<std::uint64_t> keys(num_rows);
  Random random(1);
  for (std::uint64_t& key : keys) key = random.bits();
  const Workload creation = work_of(keys, batch_keys);
  for (std::size_t left = num_rows; left > 1; --left) std::swap(keys[left - 1], keys[random.below(left)]);
  const Workload work = work_of(keys, batch_keys);
  std::vector<float> out(batch_keys * kDim);
  Map map;
  const auto push_map = [&](const wire::Buffer& body) { map.push(RowBatch(body.bytes())); };
  const auto pull_map = [&](const wire::Buffer& body) { map.read(KeyBatch(body.bytes()), out); };
  const double map_create = rate_of(creation.pushes, num_rows, push_map);
  for (const char* rule : {"sum", "rowwise_adagrad", "adagrad", "adam"}) {
    TableSpec spec;
    spec.name = "rows";
    spec.kind = TableKind::kSparse;
    spec.rows.elements = kDim;
    spec.initial_range = 0.01F;
    spec.optimizer = {.name = rule, .lr = 0.01};
    SparseTable table(spec);
    const auto push = [&](const wire::Buffer& body) { table.push(RowBatch(body.bytes()), kTableRate, 0); };
    const auto pull = [&](const wire::Buffer& body) { table.read(KeyBatch(body.bytes()), 0, out); };
    const double create = rate_of(creation.pushes, num_rows, push);
    std::vector<double> pulled, pushed, map_pulled, map_pushed;
    for (int pass = 0; pass < passes; ++pass) {
      pulled.push_back(rate_of(work.pulls, num_rows, pull));
      map_pulled.push_back(rate_of(work.pulls, num_rows, pull_map));
      pushed.push_back(rate_of(work.pushes, num_rows, push));
      map_pushed.push_back(rate_of(work.pushes, num_rows, push_map));
    }
    std::cout << nlohmann::json{{"rule", rule},
                                {"rows", num_rows},
                                {"dim", kDim},
                                {"pull", spread(pulled)},
                                {"push", spread(pushed)},
                                {"create", create},
                                {"map_pull", spread(map_pulled)},
                                {"map_add", spread(map_pushed)},
                                {"map_create", map_create},
                                {"pull_over_map", ratio(pulled, map_pulled)},
                                {"push_over_map", ratio(pushed, map_pushed)}}
                     .dump()
              << std::endl;
  }
  return 0;
}
