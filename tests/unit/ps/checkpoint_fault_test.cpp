// Checkpoints of clusters in the simulator, under load, while servers crash, freeze and are disconnected.

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>

#include "tests/support/simulation.h"
#include "tests/unit/ps/cluster.h"
#include "trireme/base/text.h"
#include "trireme/ps/internal/restored_rows.h"

namespace trireme::ps {
namespace {

/// The files that were written, and the duration of a write.
struct Shelf {
  test::Simulation* simulation = nullptr;
  std::map<std::string, PartContents> files;
  int num_cut_short = 0;  ///< because their servers ended
};

class SlowParts final : public PartSink {
 public:
  explicit SlowParts(Shelf& shelf) : shelf_(shelf) {}
  void save(PartContents part, std::function<void(SaveOutcome)> done) override {
    const double takes_s = 0.5 * shelf_.simulation->random().uniform();
    shelf_.simulation->at(takes_s, [&shelf = shelf_, alive = std::weak_ptr(alive_), part, done] {
      if (alive.expired()) {
        ++shelf.num_cut_short;
        return;
      }
      const PartHeader& header = part.header;
      const std::string file = text(header.partition, "-", header.epoch, "-", header.version);
      shelf.files[file] = part;
      done({ErrorKind::kNone, "", {header.partition, header.version, header.clock, file, 0, 0}});
    });
  }

 private:
  Shelf& shelf_;
  std::shared_ptr<int> alive_ = std::make_shared<int>();
};

constexpr int kChunks = 6, kRows = 6, kPlaces = kChunks + kRows, kWorkers = 3, kSteps = 40;

/// In step n, each worker's push adds 1 to one element of its own and n + 1 to another. This is done in every
/// chunk and every row. The counts and sums show whether the values are exactly the first pushes of each
/// worker.
class SavingRun {
 public:
  explicit SavingRun(std::uint64_t seed)
      : random_(seed, 2),
        cluster_(seed,
                 {.num_workers = kWorkers, .parts = [this] { return std::make_unique<SlowParts>(shelf_); }}) {
    shelf_.simulation = &cluster_.simulation;
    constexpr std::uint32_t kStaleness[] = {0, 0, 2, kAsynchronous};
    spec_.name = "sums";
    spec_.chunk_elements = 2 * kWorkers;
    spec_.num_elements = kChunks * spec_.chunk_elements;
    spec_.staleness = kStaleness[seed % 4];
    if (seed % 4 == 0) spec_.apply_at = ApplyAt::kClock;
    sparse_ = spec_;
    sparse_.name = "rows";
    sparse_.kind = TableKind::kSparse;
    sparse_.num_elements = 0;
    sparse_.rows.elements = spec_.chunk_elements;
    for (std::uint64_t i = 0; i < kRows; ++i) keys_.push_back(i * 0x9e3779b97f4a7c15);
  }

  void run() {
    table_ = cluster_.create(0, spec_);
    rows_ = cluster_.create(0, sparse_);
    ASSERT_TRUE(table_ != 0 && rows_ != 0 && cluster_.settles(60));
    for (int worker = 0; worker < kWorkers; ++worker) {
      cluster_.wait([&](Done done) { cluster_.worker(worker).wait_until_member(std::move(done)); });
      cluster_.simulation.run_until([&] { return cluster_.worker(worker).map().tables.contains(rows_); }, 60);
      cluster_.wait([&](Done done) { cluster_.worker(worker).join(rows_, std::move(done)); });
    }
    for (int worker = 0; worker < kWorkers; ++worker) step(worker);
    ASSERT_TRUE(cluster_.simulation.run_until([&] { return was_asked_; }, 60));
    break_something();
    const auto is_over = [&] {
      return saved_ && cluster_.worker(0).clock() == kSteps && cluster_.worker(1).clock() == kSteps &&
             cluster_.worker(2).clock() == kSteps && num_under_way_ == 0;
    };
    ASSERT_TRUE(cluster_.simulation.run_until(is_over, 120)) << "it did not get to its end";
    check_parts();
    check_sums();
    restore_rows();
  }
  int num_cut_short() const { return shelf_.num_cut_short; }

 private:
  void step(int worker) {
    ClientNode& client = cluster_.worker(worker);
    const auto number = client.clock();
    if (number == kSteps) return;
    std::vector<float> values(2 * kWorkers);
    values[2 * static_cast<std::size_t>(worker)] = 1;
    values[2 * static_cast<std::size_t>(worker) + 1] = static_cast<float>(number + 1);
    for (std::uint64_t chunk = 0; chunk < kChunks; ++chunk) {
      ++num_under_way_;
      client.push_chunk(table_, chunk, floats(values), [this](const Result& result) {
        EXPECT_EQ(result.error, ErrorKind::kNone) << result.message;
        --num_under_way_;
      });
    }
    std::vector<float> rows;
    for (int i = 0; i < kRows; ++i) rows.insert(rows.end(), values.begin(), values.end());
    ++num_under_way_;
    client.push_rows(rows_, keys_, rows, [this](const Result& result) {
      EXPECT_EQ(result.error, ErrorKind::kNone) << result.message;
      --num_under_way_;
    });
    client.tick();
    if (worker == 0 && number + 1 == kAskedAt) ask();
    client.pull_chunk(table_, random_.below(kChunks), 0, [this, worker](const Result& result) {
      EXPECT_EQ(result.error, ErrorKind::kNone) << result.message;
      cluster_.simulation.at(0.05 * random_.uniform(), [this, worker] { step(worker); });
    });
  }
  void ask() {
    was_asked_ = true;
    cluster_.worker(0).save("a folder", [this](const Result& result, const std::vector<SavedPart>& parts) {
      EXPECT_EQ(result.error, ErrorKind::kNone) << result.message;
      saved_ = parts;
    });
  }
  void break_something() {
    const std::string name = Cluster::server_name(static_cast<int>(random_.below(3)));
    cluster_.simulation.run_for(0.4 * random_.uniform());
    switch (random_.below(4)) {
      case 0:
        cluster_.simulation.crash(name);
        cluster_.simulation.run_for(3 * random_.uniform());
        return cluster_.simulation.start(name);
      case 1:
        cluster_.simulation.freeze(name);
        cluster_.simulation.run_for(4 * random_.uniform());
        return cluster_.simulation.thaw(name);
      case 2:
        cluster_.simulation.cut(name, "worker0");
        cluster_.simulation.run_for(4 * random_.uniform());
        return cluster_.simulation.heal_all();
      default:
        return cluster_.server(static_cast<int>(random_.below(3))).leave();
    }
  }

  static std::vector<float> floats_of(std::span<const std::byte> bytes) {
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  /// The counts of each place in a part: chunks, then rows, in the order in which a step reaches them.
  std::vector<std::pair<std::uint64_t, std::vector<int>>> counts_in(const PartContents& part) const {
    std::vector<std::pair<std::uint64_t, std::vector<int>>> counts;
    for (std::size_t i = 0; i < part.chunks.size(); ++i)
      counts.emplace_back(part.header.chunks[i].chunk, counts_of(floats_of(part.chunks[i].values.bytes())));
    const std::size_t row_bytes = restored_row_bytes(sparse_, false);
    for (const wire::Buffer& page : part.rows) {
      for (auto left = page.bytes(); !left.empty(); left = left.subspan(row_bytes)) {
        RowHead head;
        std::memcpy(&head, left.data(), sizeof head);
        const auto place = std::ranges::find(keys_, head.key) - keys_.begin();
        counts.emplace_back(
            kChunks + place,
            counts_of(floats_of(left.subspan(sizeof head, sparse_.rows.elements * sizeof(float)))));
      }
    }
    return counts;
  }
  /// The number of pushes of each worker. They must be its first pushes.
  static std::vector<int> counts_of(const std::vector<float>& values) {
    std::vector<int> counts;
    for (std::size_t i = 0; i < values.size(); i += 2) {
      EXPECT_EQ(values[i + 1], values[i] * (values[i] + 1) / 2) << "not the first pushes of a worker";
      counts.push_back(static_cast<int>(values[i]));
    }
    return counts;
  }

  void check_parts() {
    std::map<std::uint64_t, std::vector<int>>& counts = saved_counts_;
    ASSERT_EQ(saved_->size(), cluster_.options().num_partitions);
    for (const SavedPart& saved : *saved_) {
      const PartContents& part = shelf_.files.at(saved.file);
      EXPECT_EQ(part.header.version, saved.version);
      const std::vector<int>* before = nullptr;
      for (const auto& [place, of_place] : counts_in(part)) {
        counts[place] = of_place;
        if (spec_.staleness != kAsynchronous) {
          EXPECT_EQ(saved.clock, kAskedAt);
        }
        // All of one version: a worker's pushes of a step reach the places in order.
        for (std::size_t worker = 0; before != nullptr && worker < kWorkers; ++worker) {
          EXPECT_GE((*before)[worker], of_place[worker]);
          EXPECT_LE((*before)[worker], of_place[worker] + 1);
        }
        before = &counts[place];
      }
    }
    ASSERT_EQ(counts.size(), static_cast<std::size_t>(kPlaces));
    for (const auto& [place, of_workers] : counts) {
      EXPECT_EQ(of_workers[0], kAskedAt) << "what the asker had pushed before, and nothing more";
      for (const int count : of_workers) {
        if (spec_.apply_at == ApplyAt::kClock) {
          EXPECT_EQ(count, kAskedAt);
        } else if (spec_.staleness != kAsynchronous) {
          EXPECT_GE(count, kAskedAt);
        }
      }
    }
  }
  void check_sums() {
    for (std::uint64_t chunk = 0; chunk < kChunks; ++chunk) {
      const Result pulled =
          cluster_.wait([&](Done done) { cluster_.worker(0).pull_chunk(table_, chunk, 0, std::move(done)); });
      EXPECT_EQ(counts_of(floats_of(pulled.values.bytes())), std::vector<int>(kWorkers, kSteps));
    }
    for (const std::vector<int>& counts : counts_of_rows())
      EXPECT_EQ(counts, std::vector<int>(kWorkers, kSteps));
  }
  std::vector<std::vector<int>> counts_of_rows() {
    std::vector<float> rows(kRows * 2 * kWorkers);
    const Result pulled =
        cluster_.wait([&](Done done) { cluster_.worker(0).pull_rows(rows_, keys_, rows, std::move(done)); });
    EXPECT_EQ(pulled.error, ErrorKind::kNone) << pulled.message;
    std::vector<std::vector<int>> counts;
    for (auto row = rows.begin(); row != rows.end(); row += 2 * kWorkers)
      counts.push_back(counts_of({row, row + 2 * kWorkers}));
    return counts;
  }

  /// Restores each partition's rows while a server ends. Afterwards the partition has exactly the saved rows.
  void restore_rows() {
    const auto row_bytes = static_cast<std::uint32_t>(restored_row_bytes(sparse_, false));
    const std::uint64_t other = 12345;
    const std::vector<float> more(2 * kWorkers, 1);
    cluster_.wait([&](Done done) {
      cluster_.worker(0).push_rows(rows_, {&other, 1}, more, std::move(done));
    });
    ASSERT_TRUE(cluster_.settles(60));
    const std::string ends = Cluster::server_name(static_cast<int>(random_.below(3)));
    std::uint64_t before_it_ends = random_.below(saved_->size());
    int num_left = 0;
    for (const SavedPart& saved : *saved_) {
      std::vector<std::byte> rows;
      for (const wire::Buffer& page : shelf_.files.at(saved.file).rows)
        rows.insert(rows.end(), page.bytes().begin(), page.bytes().end());
      ++num_left;
      cluster_.worker(0).restore_rows(
          rows_, saved.partition,
          wire::Buffer::of(RestoredRows::write({.row_bytes = row_bytes, .begins = 1}, rows)),
          [&num_left](const Result& result) {
            EXPECT_EQ(result.error, ErrorKind::kNone) << result.message;
            --num_left;
          });
      cluster_.simulation.run_for(0.002 * random_.uniform());
      if (before_it_ends-- == 0 && cluster_.simulation.is_running(ends)) cluster_.simulation.crash(ends);
    }
    ASSERT_TRUE(cluster_.simulation.run_until([&] { return num_left == 0; }, 120)) << "restoring did not end";
    const std::vector<std::vector<int>> counts = counts_of_rows();
    for (std::size_t i = 0; i < kRows; ++i) EXPECT_EQ(counts[i], saved_counts_.at(kChunks + i));
    std::vector<float> gone(2 * kWorkers);
    cluster_.wait([&](Done done) {
      cluster_.worker(0).pull_rows(rows_, {&other, 1}, gone, std::move(done));
    });
    EXPECT_EQ(gone, std::vector<float>(2 * kWorkers)) << "a row that was not saved is there";
  }

  static constexpr int kAskedAt = 8;
  Random random_;
  Shelf shelf_;
  Cluster cluster_;
  TableSpec spec_;
  TableSpec sparse_;
  TableId table_ = 0, rows_ = 0;
  std::vector<std::uint64_t> keys_;
  std::map<std::uint64_t, std::vector<int>> saved_counts_;  ///< by place
  bool was_asked_ = false;
  int num_under_way_ = 0;
  std::optional<std::vector<SavedPart>> saved_;
};

TEST(CheckpointFaults, SaveFirstPushesAtOneVersion) {
  int num_cut_short = 0;
  for (std::uint64_t seed = 1; seed <= 200 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(text("seed ", seed));
    SavingRun run(seed);
    run.run();
    num_cut_short += run.num_cut_short();
  }
  EXPECT_GT(num_cut_short, 20) << "servers did not end while they wrote";
}

}  // namespace
}  // namespace trireme::ps
