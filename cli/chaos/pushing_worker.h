#pragma once
// A worker on a thread of its own, which pushes to random chunks and looks now and then at what is there.

#include <atomic>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "cli/chaos/ledger.h"
#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/ps/client.h"

namespace trireme::cli {

/// Pushes until it is told to stop, and looks now and then whether a pull has what it must have.
class PushingWorker {
 public:
  PushingWorker(std::uint64_t seed, int number, const std::string& coordinator, Ledger& ledger,
                Faults& faults)
      : random_(seed, 100 + static_cast<std::uint64_t>(number)),
        client_({.worker = static_cast<ps::WorkerId>(number), .host = "here", .coordinator = coordinator}),
        ledger_(ledger),
        faults_(faults),
        own_amounts_(kChunks) {
    ps::TableSpec spec;
    spec.name = "sums";
    spec.num_elements = std::uint64_t{kChunks} * kChunkElements;
    spec.chunk_elements = kChunkElements;
    spec.staleness = ps::kAsynchronous;
    table_ = client_.open_table(spec);
    open_rows();
    thread_ = std::thread([this] { work(); });
  }
  ~PushingWorker() { stop(); }

  void stop() {
    stops_ = true;
    if (thread_.joinable()) thread_.join();
  }

  ps::Client& client() { return client_; }
  ps::TableId table() const { return table_; }
  ps::TableId rows() const { return rows_; }
  std::uint64_t num_pushes() const { return num_pushes_; }
  const std::string& failure() const { return failure_; }

 private:
  static constexpr std::size_t kMostUnderWay = 8;
  struct Sent {
    ps::Pending pending;
    double at_s;
    std::uint32_t chunk, amount;
  };

  void work() {
    try {
      while (!stops_) {
        push();
        if (random_.below(64) == 0) check_pull();
        if (random_.below(64) == 0) push_rows();
        if (random_.below(256) == 0) client_.tick();
        while (under_way_.size() >= kMostUnderWay) take_answer();
      }
      while (!under_way_.empty()) take_answer();
    } catch (const std::exception& error) {
      failure_ = error.what();
    }
  }

  void push() {
    const auto chunk = static_cast<std::uint32_t>(random_.below(kChunks));
    const auto amount = static_cast<std::uint32_t>(1 + random_.below(4));
    std::vector<float> values(kChunkElements);
    for (std::uint32_t i = 0; i < kChunkElements; ++i) values[i] = element_of(amount, i);
    std::vector<std::byte> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    own_amounts_[chunk] += amount;
    ledger_.amounts[chunk] += amount;
    ++ledger_.pushes[chunk];
    ++num_pushes_;
    under_way_.push_back(
        {client_.push_chunk(table_, chunk, wire::Buffer::of(std::move(bytes))), now_s(), chunk, amount});
  }

  void open_rows() {
    ps::TableSpec sparse;
    sparse.name = "rows";
    sparse.kind = ps::TableKind::kSparse;
    sparse.rows.elements = kRowElements;
    sparse.staleness = ps::kAsynchronous;
    rows_ = client_.open_table(sparse);
  }

  void push_rows() {
    constexpr std::uint32_t kAtOnce = 16;
    const auto first = static_cast<std::uint32_t>(random_.below(kRows - kAtOnce));
    std::vector<std::uint64_t> keys;
    for (std::uint32_t row = first; row < first + kAtOnce; ++row) {
      keys.push_back(key_of(row));
      ++ledger_.row_amounts[row];
    }
    const std::vector<float> ones(std::size_t{kAtOnce} * kRowElements, 1);
    ++num_pushes_;
    under_way_.push_back({client_.push_rows(rows_, keys, ones), now_s(), 0, 0});
  }

  void take_answer() {
    const Sent& first = under_way_.front();
    first.pending.get();
    ledger_.acknowledged[first.chunk] += first.amount;
    faults_.note_wait(now_s() - first.at_s);
    under_way_.pop_front();
  }

  void check_pull() {
    const auto chunk = static_cast<std::uint32_t>(random_.below(kChunks));
    const std::uint64_t least = own_amounts_[chunk];
    const ps::Result result = client_.pull_chunk(table_, chunk).get();
    float first = 0;
    std::memcpy(&first, result.values.bytes().data(), sizeof first);
    const std::uint64_t most = ledger_.amounts[chunk];
    if (first >= static_cast<float>(least) && first <= static_cast<float>(most)) return;
    throw InternalError(text("a pull of chunk ", chunk, " brought ", first, "; this worker alone had pushed ",
                             least, ", all together ", most));
  }

  Random random_;
  ps::Client client_;
  Ledger& ledger_;
  Faults& faults_;
  ps::TableId table_ = 0, rows_ = 0;
  std::vector<std::uint64_t> own_amounts_;
  std::deque<Sent> under_way_;
  std::uint64_t num_pushes_ = 0;
  std::string failure_;
  std::atomic<bool> stops_ = false;
  std::thread thread_;
};

}  // namespace trireme::cli
