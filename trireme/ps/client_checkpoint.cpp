#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/ps/checkpoint_file.h"
#include "trireme/ps/client.h"
#include "trireme/ps/internal/restored_rows.h"
#include "trireme/wire/fields.h"

namespace trireme::ps {
namespace {

namespace fs = std::filesystem;

using ChunkName = std::pair<std::string, std::uint64_t>;  ///< name of the table, number
using Tables = std::map<TableId, TableSpec>;              ///< by their ids in one file

/// The contents of a checkpoint according to its manifest. Every byte was read and verified.
struct Inventory {
  CheckpointManifest manifest;
  std::map<std::string, TableSpec> tables;  ///< by name, as they are created
  std::set<ChunkName> chunks;
  std::uint64_t num_chunks = 0;  ///< of all tables, including chunks that are not saved
  std::uint64_t num_rows = 0;    ///< including keys that are not admitted yet
};

void add(Inventory& inventory, const fs::path& path, TableSpec spec) {
  spec.id = 0;
  spec.rows.num_partitions = 0;
  try {
    check(spec);
  } catch (const InvalidArgument& error) {
    throw DataError(text(path.string(), ": ", error.what()));
  }
  const auto [found, is_new] = inventory.tables.emplace(spec.name, spec);
  if (!is_new && wire::encode(found->second) != wire::encode(spec))
    throw DataError(
        text(path.string(), ": table ", spec.name, " is another one than in the files before it"));
  if (is_new) inventory.num_chunks += spec.num_chunks();
}

Tables tables_of(const PartHeader& header) {
  Tables tables;
  for (const TableSpec& spec : header.tables) tables[spec.id] = spec;
  return tables;
}

void check_chunk(Inventory& inventory, const fs::path& path, const TableSpec& spec, const SavedChunk& chunk) {
  const bool is_there = chunk.chunk < spec.num_chunks();
  const std::uint64_t elements = is_there ? spec.elements_of(chunk.chunk) : 0;
  const std::uint64_t state = state_elements(spec, elements);
  if (!is_there || chunk.value_bytes != elements * sizeof(float) ||
      chunk.state_bytes != state * sizeof(float))
    throw DataError(
        text(path.string(), ": chunk ", chunk.chunk, " has not the size that table ", spec.name, " says"));
  if (!inventory.chunks.emplace(spec.name, chunk.chunk).second)
    throw DataError(text(path.string(), ": chunk ", chunk.chunk, " of table ", spec.name, " is there twice"));
}

void check_rows(Inventory& inventory, const fs::path& path, const TableSpec& spec, const SavedRows& rows) {
  const std::size_t row_bytes = restored_row_bytes(spec, rows.of_candidates);
  if (rows.num_bytes % row_bytes != 0)
    throw DataError(text(path.string(), ": rows of table ", spec.name, " have not the size that it says"));
  inventory.num_rows += rows.num_bytes / row_bytes;
}

Inventory read_all(const fs::path& folder) {
  Inventory inventory;
  inventory.manifest = read_manifest(folder);
  for (const TableSpec& spec : inventory.manifest.tables) add(inventory, folder / "manifest", spec);
  for (const SavedPart& saved : inventory.manifest.parts) {
    const fs::path path = folder / saved.file;
    Tables tables;
    read_part(
        folder, saved,
        {.begin =
             [&](const PartHeader& header) {
               tables = tables_of(header);
               for (const TableSpec& spec : header.tables) add(inventory, path, spec);
             },
         .chunk = [&](const SavedChunk& chunk,
                      const wire::Buffer&) { check_chunk(inventory, path, tables.at(chunk.table), chunk); },
         .rows = [&](const SavedRows& rows,
                     const wire::Buffer&) { check_rows(inventory, path, tables.at(rows.table), rows); }});
  }
  return inventory;
}

/// Sends contents to the servers, with a limit on the bytes in flight, so that memory stays small.
class Filling {
 public:
  explicit Filling(Client& client) : client_(client) {}

  void chunk(TableId table, std::uint64_t chunk, wire::Buffer contents, std::uint64_t num_updates) {
    const std::size_t num_bytes = contents.size();
    add(client_.restore_chunk(table, chunk, std::move(contents), num_updates), 1, num_bytes);
  }
  void rows(TableId table, PartitionId partition, RestoredHead head, std::span<const std::byte> rows) {
    add(client_.call(
            [=, body = wire::Buffer::of(RestoredRows::write(head, rows))](ClientNode& node, Done done) {
              node.restore_rows(table, partition, body, std::move(done));
            }),
        rows.size() / head.row_bytes, rows.size());
  }
  void finish() {
    num_bytes_ = 0;
    for (const auto& [pending, count] : std::exchange(under_way_, {})) {
      pending.get();
      num_done_ += count;
    }
  }
  std::uint64_t num_done() const { return num_done_; }

 private:
  void add(Pending pending, std::uint64_t count, std::size_t num_bytes) {
    constexpr std::size_t kMostUnderWay = 64, kMostBytes = 64 << 20;
    under_way_.emplace_back(std::move(pending), count);
    num_bytes_ += num_bytes;
    if (under_way_.size() == kMostUnderWay || num_bytes_ >= kMostBytes) finish();
  }

  Client& client_;
  std::vector<std::pair<Pending, std::uint64_t>> under_way_;
  std::size_t num_bytes_ = 0;  ///< bytes in flight
  std::uint64_t num_done_ = 0;
};

/// Collects rows of all files by their partition in this cluster.
class RowSpread {
 public:
  RowSpread(const ClusterMap& map, Filling& filling) : map_(map), filling_(filling) {}

  /// Adds the rows of a page, of a partition at this clock. Expired rows are skipped.
  void add(const TableSpec& spec, const SavedRows& saved, WorkerClock clock,
           std::span<const std::byte> page) {
    const std::size_t row_bytes = restored_row_bytes(spec, saved.of_candidates);
    for (; !page.empty(); page = page.subspan(row_bytes)) {
      RowHead head;
      std::memcpy(&head, page.data(), sizeof head);
      if (RowStore::is_expired(head, static_cast<std::uint32_t>(clock), spec.rows.evict_after)) continue;
      head.last_clock = static_cast<std::uint32_t>(clock) - head.last_clock;
      const Place place = {spec.id, saved.of_candidates, map_.partition_of(spec.id, head.key)};
      std::vector<std::byte>& gathered = gathered_[place];
      gathered.insert(gathered.end(), page.begin(), page.begin() + static_cast<std::ptrdiff_t>(row_bytes));
      std::memcpy(gathered.data() + gathered.size() - row_bytes, &head, sizeof head);
      num_bytes_ += row_bytes;
      if (gathered.size() >= kMostOfOne) send(place, row_bytes);
      if (num_bytes_ >= kMostOfAll) finish();
    }
  }
  void finish() {
    for (const auto& [place, rows] : gathered_) {
      const auto& [table, of_candidates, partition] = place;
      if (!rows.empty()) send(place, restored_row_bytes(map_.tables.at(table), of_candidates));
    }
    gathered_.clear();
  }

 private:
  using Place = std::tuple<TableId, bool, PartitionId>;
  static constexpr std::size_t kMostOfOne = 1 << 20, kMostOfAll = 64 << 20;

  void send(const Place& place, std::size_t row_bytes) {
    std::vector<std::byte>& rows = gathered_.at(place);
    const auto& [table, of_candidates, partition] = place;
    filling_.rows(
        table, partition,
        {.row_bytes = static_cast<std::uint32_t>(row_bytes), .of_candidates = of_candidates ? 1U : 0U}, rows);
    num_bytes_ -= rows.size();
    rows.clear();
  }

  const ClusterMap& map_;
  Filling& filling_;
  std::map<Place, std::vector<std::byte>> gathered_;
  std::size_t num_bytes_ = 0;
};

/// Chunks without a push have their initial values.
wire::Buffer first_values(const TableSpec& spec, std::uint64_t chunk) {
  const auto values = std::make_shared<std::vector<float>>(spec.elements_of(chunk));
  for (std::uint32_t i = 0; i < values->size(); ++i) (*values)[i] = initial_value(spec, chunk, i);
  return wire::Buffer(values, std::as_bytes(std::span(*values)));
}

/// Removes existing rows first, because the checkpoint may not have them.
void empty_sparse_tables(Filling& filling, const ClusterMap& map, const Inventory& inventory) {
  for (const auto& [name, spec] : inventory.tables) {
    if (spec.kind == TableKind::kDense) continue;
    const auto row_bytes = static_cast<std::uint32_t>(restored_row_bytes(spec, false));
    for (PartitionId id = 0; id < map.partitions.size(); ++id)
      filling.rows(map.table(name)->id, id, {.row_bytes = row_bytes, .begins = 1}, {});
  }
  filling.finish();
}

void fill(Filling& filling, const fs::path& folder, const Inventory& inventory, const ClusterMap& map) {
  empty_sparse_tables(filling, map, inventory);
  RowSpread spread(map, filling);
  for (const SavedPart& saved : inventory.manifest.parts) {
    Tables tables;
    WorkerClock clock = 0;
    read_part(folder, saved,
              {.begin =
                   [&](const PartHeader& header) {
                     tables = tables_of(header);
                     clock = header.clock;
                   },
               .chunk =
                   [&](const SavedChunk& chunk, wire::Buffer contents) {
                     const TableId here = map.table(tables.at(chunk.table).name)->id;
                     filling.chunk(here, chunk.chunk, std::move(contents), chunk.num_updates);
                   },
               .rows =
                   [&](const SavedRows& rows, const wire::Buffer& page) {
                     spread.add(*map.table(tables.at(rows.table).name), rows, clock, page.bytes());
                   }});
  }
  spread.finish();
  for (const auto& [name, spec] : inventory.tables) {
    for (std::uint64_t chunk = 0; chunk < spec.num_chunks(); ++chunk) {
      if (!inventory.chunks.contains({name, chunk}))
        filling.chunk(map.table(name)->id, chunk, first_values(spec, chunk), 0);
    }
  }
  filling.finish();
}

}  // namespace

fs::path Client::checkpoint(const fs::path& folder, std::size_t keep) {
  const fs::path path = begin_checkpoint(folder);
  const auto parts = std::make_shared<std::vector<SavedPart>>();
  call([path, parts](ClientNode& node, Done done) {
    node.save(path.string(), [parts, done = std::move(done)](const Result& result, const auto& saved) {
      *parts = saved;
      done(result);
    });
  }).get();
  const ClusterMap now = map();
  CheckpointManifest manifest;
  const std::string name = path.filename().string();
  manifest.number = std::stoull(name.substr(name.find('-') + 1));
  manifest.num_partitions = static_cast<std::uint32_t>(now.partitions.size());
  for (const auto& [id, spec] : now.tables) manifest.tables.push_back(spec);
  std::ranges::copy_if(*parts, std::back_inserter(manifest.parts),
                       [](const SavedPart& part) { return !part.file.empty(); });
  std::ranges::sort(manifest.parts, {}, &SavedPart::partition);
  manifest.is_at_one_clock = std::ranges::all_of(
      manifest.parts, [&](const SavedPart& part) { return part.clock == manifest.parts.front().clock; });
  write_manifest(path, manifest);
  if (keep != 0) remove_old_checkpoints(folder, keep);
  return path;
}

fs::path Client::restore(const fs::path& folder) {
  const fs::path path = last_checkpoint(folder);
  const Inventory inventory = read_all(path);
  call([](ClientNode& node, Done done) { node.begin_anew(std::move(done)); }).get();
  for (const auto& [name, spec] : inventory.tables) open_table(spec);
  const ClusterMap now = map();
  Filling filling(*this);
  try {
    fill(filling, path, inventory, now);
  } catch (const Error& error) {
    throw CommError(text("the restore from ", path.string(), " stopped after ", filling.num_done(), " of ",
                         inventory.num_chunks + inventory.num_rows,
                         " chunks and rows, so tables have old and new values: restore again (", error.what(),
                         ")"));
  }
  return path;
}

}  // namespace trireme::ps
