#pragma once
// The format of a parameter server's checkpoint on disk: a folder "checkpoint-N" with one file for each
// partition that holds something, and a manifest, which is written last. Little endian:
//
//   manifest  "TRIPSMF3", size and XXH3 of the rest (u64 each), CheckpointManifest.
//   *.part    "TRIPSPT3", size and XXH3 of the header (u64 each), PartHeader, then its pieces without gaps:
//             for each chunk its values and its optimizer's state, f32, then pages of rows of sparse tables.
//
// A row begins with its key (u64) and the clock of its last push (u32). Then come a count (31 bits) and its
// mark (1 bit). The count is that of its updates or, for a candidate, of its occurrences. Its values and its
// optimizer's state (f32) follow, and zeros up to a multiple of 16 bytes. Files of version 2, which had no
// sparse tables, can be read as well.
//
// Structures are written as in fields.h. The manifest has every header's hash, a header every piece's, so the
// manifest vouches for every byte. A table is known by its name: ids and partitions are of one cluster.
// Functions without state; files appear whole, under their names, or not at all.

#include <filesystem>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "trireme/base/open_folder.h"
#include "trireme/ps/ids.h"
#include "trireme/ps/table.h"
#include "trireme/wire/buffer.h"

namespace trireme::ps {

struct SavedChunk {
  TableId table = 0;  ///< of the header's tables
  std::uint64_t chunk = 0;
  std::uint64_t num_updates = 0;
  std::uint64_t value_bytes = 0, state_bytes = 0;
  std::uint64_t hash = 0;  ///< of the values, seeded with that of the state
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.table, self.chunk, self.num_updates, self.value_bytes, self.state_bytes, self.hash);
  }
};

/// A page of rows of a sparse table, or of candidates: keys that are not admitted yet.
struct SavedRows {
  TableId table = 0;  ///< of the header's tables
  bool of_candidates = false;
  std::uint64_t num_bytes = 0;
  std::uint64_t hash = 0;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.table, self.of_candidates, self.num_bytes, self.hash);
  }
};

/// The header of a *.part file: the version and partition of its state, and its pieces.
struct PartHeader {
  PartitionId partition = 0;
  Epoch epoch = 0;
  Version version = 0;    ///< of the partition: the state that all pieces are of
  WorkerClock clock = 0;  ///< every worker had ended so many steps
  std::vector<TableSpec> tables;
  std::vector<SavedChunk> chunks;
  std::vector<SavedRows> rows;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.partition, self.epoch, self.version, self.clock, self.tables, self.chunks,
                    self.rows);
  }
};

/// A manifest's entry of a part.
struct SavedPart {
  PartitionId partition = 0;
  Version version = 0;
  WorkerClock clock = 0;
  std::string file;
  std::uint64_t num_bytes = 0;
  std::uint64_t hash = 0;  ///< of the header
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.partition, self.version, self.clock, self.file, self.num_bytes, self.hash);
  }
};

/// The manifest's content: it makes a folder with files a checkpoint.
struct CheckpointManifest {
  std::uint64_t number = 0;
  std::uint32_t num_partitions = 0;  ///< of the cluster that saved it
  bool is_at_one_clock = false;      ///< all parts are of the same clock
  std::vector<TableSpec> tables;     ///< also those without a push
  std::vector<SavedPart> parts;
  template <class Self>
  static auto fields(Self& self) {
    return std::tie(self.number, self.num_partitions, self.is_at_one_clock, self.tables, self.parts);
  }
};

/// A part that is to be written: the header's hashes are still 0.
struct PartContents {
  std::string folder;
  PartHeader header;
  /// Values of a chunk, and the optimizer's state that belongs to them.
  struct Chunk {
    wire::Buffer values, state;
  };
  std::vector<Chunk> chunks;       ///< as in the header
  std::vector<wire::Buffer> rows;  ///< as in the header
};

/// The folder below which a server writes, for any folder that a worker names. A value.
class CheckpointRoot {
 public:
  /// A relative one is below the folder that the process is in now. Of "/", which bounds nothing, no folder
  /// is opened.
  explicit CheckpointRoot(const std::filesystem::path& folder);
  /// The folder "checkpoint-N" of this absolute path. Throws DataError if it is not below the root, or if no
  /// checkpoint was begun in it. Also if ".." or a symbolic link below the root would lead to it.
  OpenFolder open(const std::string& folder) const;

 private:
  std::filesystem::path given_;
};

/// An empty part has no file, and no file name. Throws DataError that names the file, and the exceptions of
/// `root` for the part's folder.
SavedPart write_part(PartContents part, const CheckpointRoot& root);
void write_manifest(const std::filesystem::path& folder, const CheckpointManifest& manifest);

/// Of a folder "checkpoint-N". Throws DataError that names the file and its fault: missing, truncated,
/// damaged, not of this kind.
CheckpointManifest read_manifest(const std::filesystem::path& folder);

/// Receivers of the pieces of a part. The checksum of each piece is verified before.
struct PartReading {
  std::function<void(const PartHeader&)> begin = [](const PartHeader&) {};
  /// Values and state, one after the other.
  std::function<void(const SavedChunk&, wire::Buffer)> chunk = [](const SavedChunk&, const wire::Buffer&) {};
  std::function<void(const SavedRows&, wire::Buffer)> rows = [](const SavedRows&, const wire::Buffer&) {};
};
/// Reads and checks all of a part, piece by piece: memory is for its header and one piece, of at most 32 MiB.
/// Throws DataError that names the file, where it is missing, short or changed, and the exceptions of
/// `reading`.
void read_part(const std::filesystem::path& folder, const SavedPart& part, const PartReading& reading);

/// Makes the next folder "checkpoint-N" in `folder`; no other process has it.
std::filesystem::path begin_checkpoint(const std::filesystem::path& folder);
/// The last whole one in `folder`, or `folder` itself where it is one. Throws DataError where there is none.
std::filesystem::path last_checkpoint(const std::filesystem::path& folder);
/// Removes all but the last `keep` whole ones, and incomplete ones before them.
void remove_old_checkpoints(const std::filesystem::path& folder, std::size_t keep);

}  // namespace trireme::ps
