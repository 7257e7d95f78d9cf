#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <utility>

#include "trireme/base/files.h"
#include "trireme/ps/checkpoint_file.h"
#include "trireme/ps/internal/file_preamble.h"
#include "trireme/ps/internal/older_checkpoint.h"
#include "trireme/wire/fields.h"

namespace trireme::ps {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kMagic = "TRIPSPT3", kOlderMagic = "TRIPSPT2";
/// A chunk has at most 8 MiB of values, a row at most 64 KiB; optimizer states are a few times that.
constexpr std::uint64_t kMostPieceBytes = 32 << 20;  // of a chunk: 24 MiB with two states

std::uint64_t hash_of_chunk(std::span<const std::byte> values, std::span<const std::byte> state) {
  return hash_bytes(values, hash_bytes(state));
}

/// Reads a file from its beginning to its end.
class PartStream {
 public:
  explicit PartStream(fs::path path) : path_(std::move(path)), stream_(path_, std::ios::binary) {
    std::error_code error;
    num_bytes_ = left_ = fs::file_size(path_, error);
    if (error || !stream_) throw DataError(text("cannot open ", path_.string(), ": ", error.message()));
  }
  std::uint64_t num_bytes() const { return num_bytes_; }
  std::uint64_t left() const { return left_; }
  /// The next `count` bytes, or all that are left.
  std::vector<std::byte> read(std::uint64_t count) {
    std::vector<std::byte> bytes(std::min(count, left_));
    stream_.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!stream_) throw DataError(text("cannot read ", path_.string(), " to its end"));
    left_ -= bytes.size();
    return bytes;
  }

 private:
  fs::path path_;
  std::ifstream stream_;
  std::uint64_t num_bytes_ = 0, left_ = 0;
};

PartHeader read_header(const fs::path& path, PartStream& stream, const SavedPart& part) {
  const FilePreamble preamble =
      FilePreamble::of(path, stream.read(FilePreamble::kBytes), stream.num_bytes(), kMagic, kOlderMagic);
  const std::vector<std::byte> body = stream.read(preamble.size);
  preamble.check(path, body);
  if (stream.num_bytes() != part.num_bytes)
    damaged(path, text("is truncated or of another checkpoint: it has ", stream.num_bytes(),
                       " bytes, the manifest says ", part.num_bytes));
  if (preamble.hash != part.hash)
    damaged(path, "is of another checkpoint: the manifest has another checksum");
  auto header =
      preamble.is_older ? decode_older<PartHeader, OlderPartHeader>(body) : wire::decode<PartHeader>(body);
  if (!header) damaged(path, "is damaged: its header is none");
  return std::move(*header);
}

/// Checks that the file has these bytes left, and that they are one piece of a table of the header.
class PieceCheck {
 public:
  PieceCheck(const fs::path& path, const PartHeader& header) : path_(path) {
    for (const TableSpec& spec : header.tables) kinds_[spec.id] = spec.kind;
  }
  void operator()(TableId table, TableKind kind, std::uint64_t left,
                  std::initializer_list<std::uint64_t> bytes, const std::string& what) const {
    const auto found = kinds_.find(table);
    bool fits = found != kinds_.end() && found->second == kind;
    std::uint64_t sum = 0;
    for (const std::uint64_t each : bytes)
      fits = fits && each <= kMostPieceBytes - std::exchange(sum, sum + each);
    if (!fits || sum > left) damaged(path_, text("is damaged: its header does not fit at ", what));
  }

 private:
  const fs::path& path_;
  std::map<TableId, TableKind> kinds_;
};

SavedPart write_header(PartContents& part) {
  PartHeader& header = part.header;
  SavedPart saved = {header.partition, header.version, header.clock, {}, 0, 0};
  for (std::size_t i = 0; i < part.chunks.size(); ++i) {
    const PartContents::Chunk& chunk = part.chunks[i];
    header.chunks[i].hash = hash_of_chunk(chunk.values.bytes(), chunk.state.bytes());
    saved.num_bytes += chunk.values.size() + chunk.state.size();
  }
  for (std::size_t i = 0; i < part.rows.size(); ++i) {
    header.rows[i].hash = hash_bytes(part.rows[i].bytes());
    saved.num_bytes += part.rows[i].size();
  }
  return saved;
}

}  // namespace

SavedPart write_part(PartContents part, const CheckpointRoot& root) {
  const OpenFolder folder = root.open(part.folder);
  SavedPart saved = write_header(part);
  const PartHeader& header = part.header;
  if (header.chunks.empty() && header.rows.empty()) return saved;
  const std::vector<std::byte> body = wire::encode(header);
  const std::vector<std::byte> preamble = FilePreamble::before(kMagic, body);
  saved.num_bytes += preamble.size() + body.size();
  saved.hash = hash_bytes(body);
  // The name has the epoch: a deposed primary, which may still be writing, does not replace its successor's
  // file.
  saved.file = text(header.partition, "-", header.epoch, "-", header.version, ".part");
  folder.write_atomic(saved.file, [&](const FileSink& sink) {
    sink(preamble);
    sink(body);
    for (const PartContents::Chunk& chunk : part.chunks) {
      sink(chunk.values.bytes());
      sink(chunk.state.bytes());
    }
    for (wire::Buffer& page : part.rows) {
      sink(page.bytes());
      page = {};  // frees the copy as early as possible
    }
  });
  return saved;
}

void read_part(const fs::path& folder, const SavedPart& part, const PartReading& reading) {
  const fs::path path = folder / part.file;
  if (!is_file_name(part.file)) damaged(path, "is not in the folder of its manifest");
  PartStream stream(path);
  const PartHeader header = read_header(path, stream, part);
  reading.begin(header);
  const PieceCheck check(path, header);
  for (const SavedChunk& chunk : header.chunks) {
    const std::string what = text("chunk ", chunk.chunk, " of table ", chunk.table);
    check(chunk.table, TableKind::kDense, stream.left(), {chunk.value_bytes, chunk.state_bytes}, what);
    const auto piece = wire::Buffer::of(stream.read(chunk.value_bytes + chunk.state_bytes));
    if (hash_of_chunk(piece.bytes().first(chunk.value_bytes), piece.bytes().subspan(chunk.value_bytes)) !=
        chunk.hash)
      damaged(path, text("is damaged: ", what, " has another checksum"));
    reading.chunk(chunk, piece);
  }
  for (const SavedRows& rows : header.rows) {
    const std::string what = text("rows of table ", rows.table);
    check(rows.table, TableKind::kSparse, stream.left(), {rows.num_bytes}, what);
    const auto piece = wire::Buffer::of(stream.read(rows.num_bytes));
    if (hash_bytes(piece.bytes()) != rows.hash)
      damaged(path, text("is damaged: ", what, " have another checksum"));
    reading.rows(rows, piece);
  }
  if (stream.left() != 0) damaged(path, "is damaged: it has bytes after its last piece");
}

}  // namespace trireme::ps
