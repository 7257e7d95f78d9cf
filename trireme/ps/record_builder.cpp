#include "trireme/ps/internal/record_builder.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <set>

#include "trireme/compress/codec.h"
#include "trireme/ps/internal/float_bytes.h"
#include "trireme/ps/internal/row_batch.h"

namespace trireme::ps {
namespace {

constexpr std::size_t kMostBytes = 8 << 20;  // of values that a record merges
constexpr WorkerClock kEnded = std::numeric_limits<WorkerClock>::max();

/// One worker's requests that have arrived without a gap.
struct Line {
  std::vector<const WaitingRequest*> requests;
  WorkerClock clock = 0;  ///< the worker's clock after them
};

/// Sums of pushes to one chunk or one row, in the order of their addition.
class Merger {
 public:
  void push(const WaitingRequest& waiting, const TableSpec& spec, WorkerClock clock) {
    // Not merged: each push is compensated at the values that it updates.
    if (spec.delay.lambda > 0) return add(waiting, waiting.body.size());
    const Key key = {clock, waiting.request.table, waiting.request.chunk, waiting.request.lr};
    const auto open = open_.find(key);
    const compress::Codec* encoding =
        spec.kind == TableKind::kDense ? compress::codec(spec.compression.push) : nullptr;
    if (open == open_.end()) {
      open_[key] = updates_.size();
      if (encoding == nullptr) return add(waiting, waiting.body.size());
      std::vector<float> sum(spec.elements_of(waiting.request.chunk));
      encoding->decode(waiting.body.bytes(), sum);
      add(waiting, std::as_bytes(std::span(sum)).size());
      updates_.back().sum = std::move(sum);
      return;
    }
    Update& update = updates_[open->second];
    if (spec.kind == TableKind::kSparse) {
      update.batches.push_back(waiting.body);
      num_bytes_ += waiting.body.size();
      return;
    }
    if (encoding != nullptr) return encoding->add(waiting.body.bytes(), update.sum);
    if (update.sum.empty()) {
      const AlignedFloats first(update.body.bytes());
      update.sum.assign(first.get().begin(), first.get().end());
    }
    const AlignedFloats more(waiting.body.bytes());
    for (std::size_t i = 0; i < update.sum.size(); ++i) update.sum[i] += more.get()[i];
  }

  /// Also restores.
  void assign(const WaitingRequest& waiting) {
    // Later pushes must not be added to those before the assignment.
    std::erase_if(open_, [&](const auto& open) {
      const auto& [clock, table, chunk, lr] = open.first;
      return table == waiting.request.table && chunk == waiting.request.chunk;
    });
    add(waiting, waiting.body.size());
  }

  std::size_t num_bytes() const { return num_bytes_; }

  LogEntry entry(LogRecord record) {
    for (Update& update : updates_) {
      if (update.batches.size() < 2) continue;
      update.body = merged(update.batches);
      update.logged.num_bytes = update.body.size();
    }
    if (updates_.size() == 1) {
      Update& only = updates_.front();
      record.updates.push_back(only.logged);
      return LogEntry::of(std::move(record), only.sum.empty() ? only.body : in_buffer(std::move(only.sum)));
    }
    std::vector<std::span<const std::byte>> values;
    for (const Update& update : updates_) {
      record.updates.push_back(update.logged);
      values.push_back(update.sum.empty() ? update.body.bytes() : std::as_bytes(std::span(update.sum)));
    }
    return LogEntry::of(std::move(record), values);
  }

 private:
  /// Pushes that are applied together have the same learning rate.
  using Key = std::tuple<WorkerClock, TableId, std::uint64_t, double>;
  struct Update {
    LoggedUpdate logged;
    wire::Buffer body;                  ///< of a single push
    std::vector<float> sum;             ///< of several pushes to a chunk, or of a decoded push
    std::vector<wire::Buffer> batches;  ///< all pushes to a sparse table
  };

  /// Adds an update of `num_bytes` bytes.
  void add(const WaitingRequest& waiting, std::size_t num_bytes) {
    num_bytes_ += num_bytes;
    updates_.push_back({.logged = {.table = waiting.request.table,
                                   .op = waiting.request.op,
                                   .chunk = waiting.request.chunk,
                                   .num_bytes = num_bytes,
                                   .lr = waiting.request.lr,
                                   .num_updates = waiting.request.num_updates},
                        .body = waiting.body,
                        .sum = {},
                        .batches = {waiting.body}});
  }

  std::vector<Update> updates_;
  std::map<Key, std::size_t> open_;
  std::size_t num_bytes_ = 0;
};

class Builder {
 public:
  Builder(const PartitionState& state, const ClusterMap& map, const WaitingRequests& waiting)
      : state_(state), map_(map), expected_(state.expected()) {
    find_removed();
    find_lines(waiting);
    find_min_clock();
  }

  std::optional<NextRecord> build() {
    add_rounds();
    for (const auto& [life, line] : lines_) add_arrived(line);
    if (record_.requests.empty() && record_.removed.empty()) return std::nullopt;
    // Each worker's requests in its own order: its join counts before all others.
    std::sort(record_.requests.begin(), record_.requests.end(),
              [](const LoggedRequest& a, const LoggedRequest& b) {
                return std::tie(a.life, a.sequence) < std::tie(b.life, b.sequence);
              });
    for (const TableId id : tables_) {
      if (!state_.knows(id)) record_.tables.push_back(map_.tables.at(id));
    }
    return NextRecord{merger_.entry(std::move(record_)), std::move(taken_)};
  }

 private:
  bool is_held(const Request& request) const {
    return request.op == RequestOp::kPush && map_.tables.at(request.table).apply_at == ApplyAt::kClock;
  }

  void find_removed() {
    for (const auto& [life, worker_state] : state_.workers()) {
      if (!map_.lives(life) && worker_state.registered_at <= map_.version) record_.removed.push_back(life);
    }
  }
  bool is_removed(const WorkerLife& life) const {
    return std::find(record_.removed.begin(), record_.removed.end(), life) != record_.removed.end();
  }

  void find_lines(const WaitingRequests& waiting) {
    for (const auto& [life, worker_state] : state_.workers()) {
      if (!is_removed(life)) lines_[life].clock = worker_state.clock;
    }
    Sequence expected = 0;
    const WorkerLife* current = nullptr;
    for (const auto& [key, request] : waiting) {
      const auto& [life, sequence] = key;
      if (is_removed(life)) continue;
      const WorkerState* worker_state = state_.worker(life);
      if (current == nullptr || *current != life) {
        current = &life;
        expected = worker_state == nullptr ? 1 : worker_state->window.contiguous() + 1;
        if (worker_state == nullptr) {
          if (request.request.op != RequestOp::kJoin) continue;
          lines_[life].clock = state_.min_clock();
        }
      }
      if (!lines_.contains(life)) continue;
      while (worker_state != nullptr && worker_state->window.contains(expected)) ++expected;
      if (sequence != expected) continue;  // an earlier request has not arrived
      ++expected;
      Line& line = lines_[life];
      line.requests.push_back(&request);
      if (request.request.op == RequestOp::kJoin)
        expected_.join(life.worker, request.request.num_workers,
                       record_.removed.size() == state_.workers().size());
      if (request.request.op == RequestOp::kTick) line.clock = std::max(line.clock, request.request.clock);
      if (request.request.op == RequestOp::kLeave) line.clock = kEnded;
    }
  }

  void find_min_clock() {
    if (!expected_.have_joined()) {
      min_clock_ = state_.min_clock();
      return;
    }
    for (const auto& [life, line] : lines_) min_clock_ = std::min(min_clock_, line.clock);
  }

  /// Adds the pushes of steps that all workers have ended: step by step, in worker order.
  void add_rounds() {
    std::vector<const WaitingRequest*> due;
    for (const auto& [life, line] : lines_) {
      for (const WaitingRequest* waiting : line.requests) {
        if (is_held(waiting->request) && waiting->request.clock < min_clock_) due.push_back(waiting);
      }
    }
    std::stable_sort(due.begin(), due.end(), [](const WaitingRequest* a, const WaitingRequest* b) {
      return a->request.clock < b->request.clock;
    });
    for (const WaitingRequest* waiting : due) {
      merger_.push(*waiting, map_.tables.at(waiting->request.table), waiting->request.clock);
      take(waiting->request);
    }
  }

  void add_arrived(const Line& line) {
    bool holds = false;  // a push of this worker waits for others
    for (const WaitingRequest* waiting : line.requests) {
      const Request& request = waiting->request;
      if (is_held(request)) {
        holds = holds || request.clock >= min_clock_;
      } else if (changes_values(request.op)) {
        if (merger_.num_bytes() > kMostBytes) return;
        if (request.op == RequestOp::kPush)
          merger_.push(*waiting, map_.tables.at(request.table), kEnded);
        else
          merger_.assign(*waiting);
        take(request);
      } else if (!holds) {
        take(request);
      }
    }
  }

  void take(const Request& request) {
    if (changes_values(request.op)) tables_.insert(request.table);
    record_.requests.push_back({.life = request.life,
                                .sequence = request.sequence,
                                .op = request.op,
                                .clock = request.clock,
                                .registered_at = request.registered_at,
                                .num_workers = request.num_workers});
    taken_.emplace_back(request.life, request.sequence);
  }

  const PartitionState& state_;
  const ClusterMap& map_;
  ExpectedWorkers expected_;  ///< after the record
  std::map<WorkerLife, Line> lines_;
  WorkerClock min_clock_ = kEnded;
  LogRecord record_;
  Merger merger_;
  std::set<TableId> tables_;
  std::vector<std::pair<WorkerLife, Sequence>> taken_;
};

}  // namespace

std::optional<NextRecord> next_record(const PartitionState& state, const ClusterMap& map,
                                      const WaitingRequests& waiting) {
  return Builder(state, map, waiting).build();
}

}  // namespace trireme::ps
