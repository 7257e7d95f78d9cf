#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/ps/checkpoint_file.h"
#include "trireme/ps/client.h"
#include "trireme/wire/fields.h"

namespace trireme::ps {
namespace {

namespace fs = std::filesystem;

using ChunkName = std::pair<std::string, std::uint64_t>;  ///< of the table, number

/// What a checkpoint says it holds; every byte of it was read.
struct Inventory {
  CheckpointManifest manifest;
  std::map<std::string, TableSpec> tables;  ///< by name, as they are created
  std::set<ChunkName> chunks;
  std::uint64_t num_chunks = 0;  ///< of all tables, with those that are not saved
};

void add(Inventory& inventory, const fs::path& path, TableSpec spec) {
  spec.id = 0;
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

std::map<TableId, TableSpec> tables_of(const LoadedPart& part) {
  std::map<TableId, TableSpec> tables;
  for (const TableSpec& spec : part.header.tables) tables[spec.id] = spec;
  return tables;
}

void check_chunk(Inventory& inventory, const fs::path& path, const TableSpec& spec, const SavedChunk& chunk) {
  const bool is_there = chunk.chunk < spec.num_chunks();
  const std::uint64_t elements = is_there ? spec.elements_of(chunk.chunk) : 0;
  const std::uint64_t state = optimizer_rule(spec.optimizer.name).state_elements(elements);
  if (!is_there || chunk.value_bytes != elements * sizeof(float) ||
      chunk.state_bytes != state * sizeof(float))
    throw DataError(
        text(path.string(), ": chunk ", chunk.chunk, " has not the size that table ", spec.name, " says"));
  if (!inventory.chunks.emplace(spec.name, chunk.chunk).second)
    throw DataError(text(path.string(), ": chunk ", chunk.chunk, " of table ", spec.name, " is there twice"));
}

Inventory read_all(const fs::path& folder) {
  Inventory inventory;
  inventory.manifest = read_manifest(folder);
  for (const TableSpec& spec : inventory.manifest.tables) add(inventory, folder / "manifest", spec);
  for (const SavedPart& saved : inventory.manifest.parts) {
    const fs::path path = folder / saved.file;
    const LoadedPart part = read_part(folder, saved);
    for (const TableSpec& spec : part.header.tables) add(inventory, path, spec);
    const auto tables = tables_of(part);
    for (const SavedChunk& chunk : part.header.chunks)
      check_chunk(inventory, path, tables.at(chunk.table), chunk);
  }
  return inventory;
}

/// Pushes chunks, so many at a time that memory stays small.
class Filling {
 public:
  explicit Filling(Client& client) : client_(client) {}

  void add(TableId table, std::uint64_t chunk, wire::Buffer contents, std::uint64_t num_updates) {
    constexpr std::size_t kMostUnderWay = 64;
    under_way_.push_back(client_.restore_chunk(table, chunk, std::move(contents), num_updates));
    if (under_way_.size() == kMostUnderWay) finish();
  }
  void finish() {
    for (const Pending& pending : std::exchange(under_way_, {})) {
      pending.get();
      ++num_done_;
    }
  }
  std::uint64_t num_done() const { return num_done_; }

 private:
  Client& client_;
  std::vector<Pending> under_way_;
  std::uint64_t num_done_ = 0;
};

/// What nobody had pushed to is as it was at first.
wire::Buffer first_values(const TableSpec& spec, std::uint64_t chunk) {
  const auto values = std::make_shared<std::vector<float>>(spec.elements_of(chunk));
  for (std::uint32_t i = 0; i < values->size(); ++i) (*values)[i] = initial_value(spec, chunk, i);
  return wire::Buffer(values, std::as_bytes(std::span(*values)));
}

void fill(Filling& filling, const fs::path& folder, const Inventory& inventory,
          const std::map<std::string, TableId>& ids) {
  for (const SavedPart& saved : inventory.manifest.parts) {
    const LoadedPart part = read_part(folder, saved);
    const auto tables = tables_of(part);
    for (std::size_t i = 0; i < part.chunks.size(); ++i) {
      const SavedChunk& chunk = part.header.chunks[i];
      filling.add(ids.at(tables.at(chunk.table).name), chunk.chunk, part.chunks[i], chunk.num_updates);
    }
    filling.finish();
  }
  for (const auto& [name, spec] : inventory.tables) {
    for (std::uint64_t chunk = 0; chunk < spec.num_chunks(); ++chunk) {
      if (!inventory.chunks.contains({name, chunk}))
        filling.add(ids.at(name), chunk, first_values(spec, chunk), 0);
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
  std::map<std::string, TableId> ids;
  for (const auto& [name, spec] : inventory.tables) ids[name] = open_table(spec);
  Filling filling(*this);
  try {
    fill(filling, path, inventory, ids);
  } catch (const Error& error) {
    throw CommError(text("the restore from ", path.string(), " stopped after ", filling.num_done(), " of ",
                         inventory.num_chunks, " chunks, so tables have old and new values: restore again (",
                         error.what(), ")"));
  }
  return path;
}

}  // namespace trireme::ps
