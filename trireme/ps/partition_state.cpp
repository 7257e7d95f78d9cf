#include "trireme/ps/internal/partition_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "trireme/ps/internal/float_bytes.h"
#include "trireme/ps/internal/hash.h"

namespace trireme::ps {

namespace {

std::uint64_t bytes_of_values(const TableSpec& spec, std::uint64_t chunk) {
  return spec.elements_of(chunk) * sizeof(float);
}

/// After the values, an assignment may have the optimizer state. A push may have the values at which it was
/// computed.
bool has_size(const TableSpec& spec, std::uint64_t chunk, bool assigns, std::uint64_t num_bytes) {
  const std::uint64_t values = bytes_of_values(spec, chunk);
  if (num_bytes == values) return true;
  if (!assigns) return spec.delay.lambda > 0 && num_bytes == 2 * values;
  return num_bytes == values + state_elements(spec, spec.elements_of(chunk)) * sizeof(float);
}

}  // namespace

/// The parts of a snapshot other than the contents of tables.
struct PartitionState::Meta {
  WorkerClock min_clock = 0;
  std::map<TableId, TableSpec> tables;
  std::map<WorkerLife, WorkerState> workers;
  ExpectedWorkers expected;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.min_clock, self.tables, self.workers, self.expected);
  }
};

const WorkerState* PartitionState::worker(const WorkerLife& life) const {
  const auto found = workers_.find(life);
  return found == workers_.end() ? nullptr : &found->second;
}

const TableSpec* PartitionState::table(TableId id, const std::vector<TableSpec>& more) const {
  if (const auto found = tables_.find(id); found != tables_.end()) return &found->second;
  const auto found =
      std::find_if(more.begin(), more.end(), [&](const TableSpec& spec) { return spec.id == id; });
  return found == more.end() ? nullptr : &*found;
}

bool PartitionState::fits(const LogRecord& record, const wire::Buffer& body) const {
  std::span<const std::byte> left = body.bytes();
  for (const LoggedUpdate& update : record.updates) {
    const TableSpec* spec = table(update.table, record.tables);
    if (spec == nullptr || update.num_bytes > left.size()) return false;
    const std::span<const std::byte> values = left.first(update.num_bytes);
    if (rejection(*spec, update.op, update.chunk, values) != ErrorKind::kNone) return false;
    left = left.subspan(update.num_bytes);
  }
  return left.empty();
}

void PartitionState::apply(const LogRecord& record, const wire::Buffer& body) {
  ++version_;
  for (const TableSpec& spec : record.tables) tables_.emplace(spec.id, spec);
  std::span<const std::byte> left = body.bytes();
  for (const LoggedUpdate& update : record.updates) {
    apply_update(update, left.first(update.num_bytes));
    left = left.subspan(update.num_bytes);
  }
  take_joins(record);
  for (const LoggedRequest& request : record.requests) apply_request(request);
  for (const WorkerLife& life : record.removed) workers_.erase(life);
  raise_min_clock();
}

void PartitionState::apply_update(const LoggedUpdate& update, std::span<const std::byte> bytes) {
  const TableSpec& spec = tables_.at(update.table);
  if (spec.kind == TableKind::kSparse) return apply_rows(update, spec, bytes);
  const ChunkKey key = {update.table, update.chunk};
  auto found = chunks_.find(key);
  if (found == chunks_.end()) found = chunks_.emplace(key, DenseChunk(spec, update.chunk)).first;
  const bool has_state = bytes.size() != bytes_of_values(spec, update.chunk);
  const bool assigns = update.op == RequestOp::kAssign;
  if (assigns && (has_state || found->second.state().empty())) {
    found->second.restore(bytes, version_, update.num_updates);
    return;
  }
  const AlignedFloats floats(bytes);
  if (assigns) return found->second.assign(spec, floats.get(), version_);
  const std::size_t count = spec.elements_of(update.chunk);
  found->second.update(spec, floats.get().first(count), floats.get().subspan(count), update.lr, version_);
}

void PartitionState::apply_rows(const LoggedUpdate& update, const TableSpec& spec,
                                std::span<const std::byte> bytes) {
  SparseTable& table = sparse_.try_emplace(spec.id, spec).first->second;
  if (update.op == RequestOp::kRestoreRows) return table.restore(RestoredRows(bytes), min_clock_);
  const RowBatch batch(bytes);
  if (update.op == RequestOp::kAssign)
    table.assign(batch, min_clock_);
  else
    table.push(batch, update.lr, min_clock_);
}

/// Counts joins exactly as the record's maker did (record_builder.cpp): by the workers before it.
void PartitionState::take_joins(const LogRecord& record) {
  const bool is_alone = std::ranges::all_of(workers_, [&](const auto& worker) {
    return std::ranges::find(record.removed, worker.first) != record.removed.end();
  });
  for (const LoggedRequest& request : record.requests)
    if (request.op == RequestOp::kJoin) expected_.join(request.life.worker, request.num_workers, is_alone);
}

void PartitionState::apply_request(const LoggedRequest& request) {
  if (request.op == RequestOp::kJoin) {
    // The worker joins after the steps that all have ended: otherwise others would wait for steps that it
    // never ends.
    workers_[request.life] = {.window = {}, .clock = min_clock_, .registered_at = request.registered_at};
  }
  const auto found = workers_.find(request.life);
  if (found == workers_.end()) return;
  found->second.window.take(request.sequence);
  if (request.op == RequestOp::kTick) found->second.clock = std::max(found->second.clock, request.clock);
  if (request.op == RequestOp::kLeave) workers_.erase(found);
}

void PartitionState::raise_min_clock() {
  if (workers_.empty() || !expected_.have_joined()) return;
  WorkerClock least = UINT64_MAX;
  for (const auto& [life, worker_state] : workers_) least = std::min(least, worker_state.clock);
  const WorkerClock before = std::exchange(min_clock_, std::max(min_clock_, least));
  if (min_clock_ == before) return;
  for (auto& [id, table] : sparse_) table.advance(before, min_clock_);
}

ErrorKind PartitionState::rejection(const TableSpec& spec, RequestOp op, std::uint64_t chunk,
                                    std::span<const std::byte> body) {
  if (!changes_values(op)) return ErrorKind::kMalformed;
  if (spec.kind == TableKind::kSparse) {
    if (chunk != 0) return ErrorKind::kOutOfRange;
    return op == RequestOp::kRestoreRows ? RestoredRows::rejection(spec, body)
                                         : row_rejection(body, spec.rows.elements);
  }
  if (chunk >= spec.num_chunks() || op == RequestOp::kRestoreRows) return ErrorKind::kOutOfRange;
  return has_size(spec, chunk, op == RequestOp::kAssign, body.size()) ? ErrorKind::kNone
                                                                      : ErrorKind::kMalformed;
}

ErrorKind PartitionState::rejection(const TableSpec& spec, const Pull& pull,
                                    std::span<const std::byte> body) {
  if (spec.kind == TableKind::kSparse)
    return pull.chunk == 0 && !pull.with_state ? key_rejection(body, spec.rows.elements)
                                               : ErrorKind::kOutOfRange;
  if (!body.empty()) return ErrorKind::kMalformed;
  return pull.chunk < spec.num_chunks() ? ErrorKind::kNone : ErrorKind::kOutOfRange;
}

PartitionState::Contents PartitionState::read(const TableSpec& spec, const Pull& pull,
                                              const wire::Buffer& keys) const {
  if (spec.kind == TableKind::kSparse) return read_rows(spec, KeyBatch(keys.bytes()));
  const auto contents = [&](const DenseChunk& chunk) -> Contents {
    return {pull.with_state ? wire::Buffer::of(chunk.flat()) : chunk.share(), chunk.changed_at(),
            chunk.num_updates()};
  };
  const auto found = chunks_.find({spec.id, pull.chunk});
  return contents(found != chunks_.end() ? found->second : DenseChunk(spec, pull.chunk));
}

PartitionState::Contents PartitionState::read_rows(const TableSpec& spec, const KeyBatch& keys) const {
  const auto rows = std::make_shared<std::vector<float>>(std::size_t{keys.size()} * keys.row_elements());
  const auto found = sparse_.find(spec.id);
  if (found != sparse_.end())
    found->second.read(keys, min_clock_, *rows);
  else
    SparseTable(spec).read(keys, min_clock_, *rows);
  return {wire::Buffer(rows, std::as_bytes(std::span(*rows))), version_};
}

std::vector<std::byte> PartitionState::Part::flat() const {
  if (const auto* bytes = std::get_if<std::vector<std::byte>>(&contents)) return *bytes;
  if (const auto* chunk = std::get_if<DenseChunk>(&contents)) return chunk->flat();
  return std::get<SparseTable::Part>(contents).flat();
}

std::vector<PartitionState::Part> PartitionState::snapshot() const {
  std::vector<Part> parts(1);
  parts[0].contents = wire::encode(Meta{min_clock_, tables_, workers_, expected_});
  for (const auto& [key, chunk] : chunks_) {
    Part& part = parts.emplace_back();
    part.head.table = key.table;
    part.head.chunk = key.chunk;
    part.head.changed_at = chunk.changed_at();
    part.head.num_updates = chunk.num_updates();
    part.contents = chunk;
  }
  for (const auto& [id, table] : sparse_) {
    for (SparseTable::Part& rows : table.snapshot()) {
      Part& part = parts.emplace_back();
      part.head.table = id;
      part.contents = std::move(rows);
    }
  }
  for (std::uint32_t i = 0; i < parts.size(); ++i) {
    parts[i].head.version = version_;
    parts[i].head.number = i;
    parts[i].head.num_parts = static_cast<std::uint32_t>(parts.size());
  }
  return parts;
}

PartContents PartitionState::contents() const {
  PartContents contents;
  contents.header.version = version_;
  contents.header.clock = min_clock_;
  for (const auto& [id, spec] : tables_) contents.header.tables.push_back(spec);
  for (const auto& [key, chunk] : chunks_) {
    contents.header.chunks.push_back({.table = key.table,
                                      .chunk = key.chunk,
                                      .num_updates = chunk.num_updates(),
                                      .value_bytes = chunk.values().size_bytes(),
                                      .state_bytes = chunk.state().size_bytes()});
    contents.chunks.push_back({chunk.share(), chunk.share_state()});
  }
  for (const auto& [id, table] : sparse_) {
    for (const bool of_candidates : {false, true}) {
      for (wire::Buffer& page : table.lease(of_candidates)) {
        contents.header.rows.push_back(
            {.table = id, .of_candidates = of_candidates, .num_bytes = page.size()});
        contents.rows.push_back(std::move(page));
      }
    }
  }
  return contents;
}

bool PartitionState::install(const SnapshotPart& head, const wire::Buffer& body) {
  if (head.number == 0) {
    auto meta = wire::decode<Meta>(body.bytes());
    if (!meta) return false;
    version_ = head.version;
    min_clock_ = meta->min_clock;
    tables_ = std::move(meta->tables);
    workers_ = std::move(meta->workers);
    expected_ = std::move(meta->expected);
    return true;
  }
  const auto spec = tables_.find(head.table);
  if (spec == tables_.end()) return false;
  if (spec->second.kind == TableKind::kSparse)
    return sparse_.try_emplace(head.table, spec->second).first->second.install(body.bytes());
  if (head.chunk >= spec->second.num_chunks()) return false;
  DenseChunk chunk(spec->second, head.chunk);
  if (!chunk.restore(body.bytes(), head.changed_at, head.num_updates)) return false;
  chunks_.insert_or_assign({head.table, head.chunk}, std::move(chunk));
  return true;
}

PartitionState::Size PartitionState::size() const {
  Size size;
  for (const auto& [key, chunk] : chunks_) {
    size.elements += chunk.values().size();
    size.bytes += chunk.values().size_bytes() + chunk.state().size_bytes();
  }
  for (const auto& [id, table] : sparse_) {
    const TableSpec& spec = tables_.at(id);
    const std::uint64_t elements = std::uint64_t{table.num_rows()} * spec.rows.elements;
    const std::size_t state = optimizer_rule(spec.optimizer.name).state_elements(spec.rows.elements);
    size.rows += table.num_rows();
    size.elements += elements;
    size.bytes += (elements + table.num_rows() * state) * sizeof(float);
  }
  return size;
}

std::uint64_t PartitionState::digest() const {
  const std::vector<std::byte> meta = wire::encode(Meta{min_clock_, tables_, workers_, expected_});
  std::uint64_t digest = hash_bytes(meta, version_);
  for (const auto& [key, chunk] : chunks_) {
    const std::uint64_t numbers[] = {key.table, key.chunk, chunk.changed_at(), chunk.num_updates()};
    digest = hash_bytes(std::as_bytes(std::span(numbers)), digest);
    const std::vector<std::byte> bytes = chunk.flat();
    digest = hash_bytes(bytes, digest);
  }
  // Empty tables do not count: a copy has only tables with rows.
  for (const auto& [id, table] : sparse_) {
    if (!table.empty()) digest = table.digest(hash_number(id, digest));
  }
  return digest;
}

}  // namespace trireme::ps
