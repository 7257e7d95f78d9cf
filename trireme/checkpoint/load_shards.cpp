#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "trireme/base/bounded_file.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/checkpoint/internal/checkpoint_folder.h"
#include "trireme/checkpoint/internal/manifest.h"
#include "trireme/checkpoint/shard_reader.h"
#include "trireme/checkpoint/shared_folder.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/comm/on_every_rank.h"

namespace trireme::checkpoint {
namespace {
namespace fs = std::filesystem;

void move_aside_and_say(const fs::path& checkpoint, const std::string& problem, const Log& log) {
  const fs::path aside = move_aside(checkpoint);
  log.warning("the checkpoint ", checkpoint.string(), " is damaged and now lies in ", aside.string(), ": ",
              problem);
}

/// An older version's weights are valid, but its sample order differs.
void warn_of_another_order(const fs::path& checkpoint, const Manifest& manifest, const Log& log) {
  if (manifest.version >= kFirstInThisOrder || manifest.batch == 0) return;
  log.warning(checkpoint.string(),
              " was written by a version that shuffled in another way: in the rest of epoch ", manifest.epoch,
              " samples come in the order of this version, some for the second time, others not");
}

/// The newest checkpoint with a valid manifest.
std::optional<FoundCheckpoint> newest_candidate(const fs::path& folder, const Log& log) {
  const std::vector<fs::path> all = list_checkpoints(folder);
  for (auto path = all.rbegin(); path != all.rend(); ++path) {
    try {
      const Manifest manifest = read_manifest(*path);
      warn_of_another_order(*path, manifest, log);
      return FoundCheckpoint{
          .folder = *path, .head = {.step = manifest.step, .epoch = manifest.epoch, .batch = manifest.batch}};
    } catch (const DamagedCheckpoint& error) {
      move_aside_and_say(*path, error.what(), log);
    } catch (const ForeignFolder& error) {
      log.warning("passed over ", path->string(), ": ", error.what());
    }
  }
  return std::nullopt;
}

/// The same result on all ranks, without the configuration.
std::optional<FoundCheckpoint> agreed_candidate(comm::Group& group, const fs::path& folder, const Log& log) {
  std::optional<FoundCheckpoint> found;
  comm::on_every_rank(group, [&] {
    if (group.rank() == 0) found = newest_candidate(folder, log);
  });
  std::string told;
  if (found)
    told = text(found->folder.filename().string(), "\n", found->head.step, "\n", found->head.epoch, "\n",
                found->head.batch);
  told = group.all_gather_text(told).front();
  if (told.empty()) return std::nullopt;
  const std::vector<std::string> fields = split(told, '\n');
  return FoundCheckpoint{
      .folder = folder / fields[0],
      .head = {
          .step = std::stoll(fields[1]), .epoch = std::stoull(fields[2]), .batch = std::stoll(fields[3])}};
}

/// The files that this rank verifies. All ranks that see the files read about the same number of bytes.
std::vector<FileRecord> share_of(std::vector<FileRecord> files, int rank, const std::vector<bool>& sees) {
  std::stable_sort(files.begin(), files.end(),
                   [](const FileRecord& a, const FileRecord& b) { return a.bytes > b.bytes; });
  std::vector<std::uint64_t> load(sees.size(), 0);
  std::vector<FileRecord> mine;
  for (const FileRecord& file : files) {
    std::size_t reader = 0;
    for (std::size_t other = 1; other < sees.size(); ++other) {
      if (sees[other] && load[other] < load[reader]) reader = other;
    }
    load[reader] += file.bytes;
    if (static_cast<int>(reader) == rank) mine.push_back(file);
  }
  return mine;
}

/// The damage of the checkpoint; empty: none.
std::string shared_problem_of(comm::Group& group, const fs::path& checkpoint, const std::vector<bool>& sees) {
  std::string problem;
  comm::on_every_rank(group, [&] {
    if (!sees[static_cast<std::size_t>(group.rank())]) return;
    for (const FileRecord& record : share_of(read_manifest(checkpoint).files, group.rank(), sees)) {
      if (const std::string found = problem_of(checkpoint, record); !found.empty() && problem.empty())
        problem = text((checkpoint / record.name).string(), " ", found);
    }
  });
  for (const std::string& each : group.all_gather_text(problem)) {
    if (!each.empty()) return each;
  }
  return "";
}

/// Offloaded values are read piece by piece.
void read(ShardReader& reader, const Shard& shard) {
  if (!shard.offloaded_storage) return reader.read(shard.name, shard.box(), shard.tensor);
  const at::TensorOptions options(shard.tensor.scalar_type());
  for (const Box& piece : pieces_of(shard.box(), shard.tensor.element_size(), kPieceBytes)) {
    const at::Tensor values = at::empty(piece.sizes, options);
    reader.read(shard.name, piece, values);
    shard.place_of(piece).set(values);
  }
}

/// Shards that ranks without access to the files receive from ranks with access.
class Deliveries {
 public:
  Deliveries(comm::Group& group, const Shards& mine, const std::vector<bool>& sees)
      : group_(group), wanted_(group, sees[static_cast<std::size_t>(group.rank())] ? Shards() : mine) {
    for (std::size_t rank = 0; rank < sees.size(); ++rank) {
      if (sees[rank]) readers_.push_back(static_cast<int>(rank));
    }
  }

  void check(const ShardReader& reader, const char* what) const {
    for (const ShardCatalogue::Entry& entry : wanted_.entries())
      reader.check(entry.name, entry.global_sizes, entry.type, what);
  }

  void run(ShardReader* reader, const Shards& mine) {
    std::size_t next = 0;
    for (const ShardCatalogue::Entry& entry : wanted_.entries()) {
      const int source = readers_[next++ % readers_.size()];
      for (const Box& piece : pieces_of(entry.box, c10::elementSize(entry.type), kPieceBytes))
        deliver(entry, piece, source, reader, mine);
    }
  }

 private:
  void deliver(const ShardCatalogue::Entry& entry, const Box& piece, int source, ShardReader* reader,
               const Shards& mine) {
    at::Tensor buffer;
    if (group_.rank() == source) {
      buffer = at::empty(piece.sizes, at::TensorOptions(entry.type));
      reader->read(entry.name, piece, buffer);
    }
    for (const int rank : entry.holders) {
      const bool is_mine = rank == group_.rank();
      carry(group_, {.tensor = buffer}, source,
            is_mine ? place_in(mine, entry.name, entry.box, piece) : Place(), rank);
    }
  }

  comm::Group& group_;
  const ShardCatalogue wanted_;
  std::vector<int> readers_;
};

}  // namespace

std::optional<FoundCheckpoint> find_latest_checkpoint(comm::Group group, const fs::path& folder,
                                                      const std::vector<bool>& sees, const Log& log) {
  while (std::optional<FoundCheckpoint> found = agreed_candidate(group, folder, log)) {
    const std::string problem = shared_problem_of(group, found->folder, sees);
    comm::on_every_rank(group, [&] {
      if (group.rank() != 0) return;
      if (problem.empty()) {
        found->head.config = read_bounded_file(found->folder / kConfigFile, kMaxConfigBytes, "configuration");
      } else {
        move_aside_and_say(found->folder, problem, log);
      }
    });
    if (problem.empty()) return found;
  }
  return std::nullopt;
}

void load_shards(comm::Group group, const fs::path& checkpoint_folder, const Shards& mine,
                 const std::vector<bool>& sees, const char* what) {
  const bool reads = sees[static_cast<std::size_t>(group.rank())];
  Deliveries deliveries(group, mine, sees);
  std::optional<ShardReader> reader;
  comm::on_every_rank(group, [&] {
    if (!reads) return;
    reader.emplace(checkpoint_folder);
    for (const Shard& shard : mine)
      reader->check(shard.name, shard.global_sizes, shard.tensor.scalar_type(), what);
    deliveries.check(*reader, what);
  });
  comm::on_every_rank(group, [&] {
    if (!reads) return;
    for (const Shard& shard : mine) read(*reader, shard);
  });
  deliveries.run(reader ? &*reader : nullptr, mine);
}

}  // namespace trireme::checkpoint
