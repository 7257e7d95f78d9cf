#include "trireme/ps/checkpoint_file.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/ps/internal/hash.h"
#include "trireme/wire/fields.h"

namespace trireme::ps {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kManifestMagic = "TRIPSMF2", kPartMagic = "TRIPSPT2";
constexpr std::string_view kManifest = "manifest", kFolder = "checkpoint-";
constexpr std::size_t kPreamble = 24;  // magic, size, hash

[[noreturn]] void damaged(const fs::path& path, const std::string& what) {
  throw DataError(text(path.string(), ": ", what, "; take another checkpoint"));
}

std::vector<std::byte> preamble_of(std::string_view magic, std::span<const std::byte> body) {
  std::vector<std::byte> bytes(kPreamble);
  const std::uint64_t size = body.size(), hash = hash_bytes(body);
  std::memcpy(bytes.data(), magic.data(), magic.size());
  std::memcpy(bytes.data() + 8, &size, sizeof size);
  std::memcpy(bytes.data() + 16, &hash, sizeof hash);
  return bytes;
}

struct Opened {
  std::span<const std::byte> body, rest;
  std::uint64_t hash = 0;
};

Opened open_body(const fs::path& path, std::string_view magic, std::span<const std::byte> bytes) {
  if (bytes.size() < kPreamble) damaged(path, text("is truncated: it has ", bytes.size(), " bytes"));
  if (std::memcmp(bytes.data(), magic.data(), magic.size()) != 0)
    damaged(path, text("is no file of this kind: it does not begin with ", magic));
  std::uint64_t size = 0, hash = 0;
  std::memcpy(&size, bytes.data() + 8, sizeof size);
  std::memcpy(&hash, bytes.data() + 16, sizeof hash);
  if (size > bytes.size() - kPreamble)
    damaged(path, text("is truncated: its header has ", size, " bytes, the file ", bytes.size() - kPreamble));
  const auto body = bytes.subspan(kPreamble, size);
  if (hash_bytes(body) != hash) damaged(path, "is damaged: its header has another checksum");
  return {body, bytes.subspan(kPreamble + size), hash};
}

std::uint64_t hash_of(const wire::Buffer& values, const wire::Buffer& state) {
  return hash_bytes(values.bytes(), hash_bytes(state.bytes()));
}

std::optional<std::uint64_t> number_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kFolder)) return std::nullopt;
  std::uint64_t number = 0;
  const char* end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + kFolder.size(), end, number);
  return read.ec == std::errc{} && read.ptr == end ? std::optional(number) : std::nullopt;
}

std::map<std::uint64_t, fs::path> checkpoints_in(const fs::path& folder) {
  std::map<std::uint64_t, fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (const auto number = number_of(entry.path())) found[*number] = entry.path();
  }
  if (error) throw DataError(text("cannot read the folder ", folder.string(), ": ", error.message()));
  return found;
}

}  // namespace

SavedPart write_part(PartContents part) {
  const fs::path folder = part.folder;
  if (!folder.is_absolute() || !number_of(folder) || !fs::is_directory(folder))
    throw DataError(
        text(part.folder, " is no folder that a checkpoint was begun in, as this server sees it"));
  PartHeader& header = part.header;
  SavedPart saved = {header.partition, header.version, header.clock, {}, 0, 0};
  if (header.chunks.empty()) return saved;
  for (std::size_t i = 0; i < part.chunks.size(); ++i) {
    const PartContents::Chunk& chunk = part.chunks[i];
    header.chunks[i].hash = hash_of(chunk.values, chunk.state);
    saved.num_bytes += chunk.values.size() + chunk.state.size();
  }
  const std::vector<std::byte> body = wire::encode(header);
  const std::vector<std::byte> preamble = preamble_of(kPartMagic, body);
  saved.num_bytes += preamble.size() + body.size();
  saved.hash = hash_bytes(body);
  // Of this epoch: one that was deposed while it wrote does not replace what its successor has written.
  saved.file = text(header.partition, "-", header.epoch, "-", header.version, ".part");
  write_file_atomic(folder / saved.file, [&](const FileSink& sink) {
    sink(preamble);
    sink(body);
    for (const PartContents::Chunk& chunk : part.chunks) {
      sink(chunk.values.bytes());
      sink(chunk.state.bytes());
    }
  });
  return saved;
}

void write_manifest(const fs::path& folder, const CheckpointManifest& manifest) {
  const std::vector<std::byte> body = wire::encode(manifest);
  write_file_atomic(folder / kManifest, [&](const FileSink& sink) {
    sink(preamble_of(kManifestMagic, body));
    sink(body);
  });
}

CheckpointManifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifest;
  const std::string content = read_file(path);
  const Opened opened = open_body(path, kManifestMagic, std::as_bytes(std::span(content)));
  auto manifest = wire::decode<CheckpointManifest>(opened.body);
  if (!manifest || !opened.rest.empty()) damaged(path, "is damaged: it says more or less than a manifest");
  return std::move(*manifest);
}

LoadedPart read_part(const fs::path& folder, const SavedPart& part) {
  const fs::path path = folder / part.file;
  if (fs::path(part.file).filename() != part.file) damaged(path, "is not in the folder of its manifest");
  auto content = std::make_shared<const std::string>(read_file(path));
  const wire::Buffer file(content, std::as_bytes(std::span(*content)));
  const Opened opened = open_body(path, kPartMagic, file.bytes());
  if (file.size() != part.num_bytes)
    damaged(path, text("is truncated or of another checkpoint: it has ", file.size(),
                       " bytes, the manifest says ", part.num_bytes));
  if (opened.hash != part.hash) damaged(path, "is of another checkpoint: the manifest has another checksum");
  auto header = wire::decode<PartHeader>(opened.body);
  if (!header) damaged(path, "is damaged: its header is none");
  std::set<TableId> tables;
  for (const TableSpec& spec : header->tables) tables.insert(spec.id);
  LoadedPart loaded = {std::move(*header), {}};
  std::size_t at = file.size() - opened.rest.size();
  for (const SavedChunk& chunk : loaded.header.chunks) {
    const std::uint64_t left = file.size() - at;
    if (!tables.contains(chunk.table) || chunk.value_bytes > left ||
        chunk.state_bytes > left - chunk.value_bytes)
      damaged(path, text("is damaged: its header does not fit at chunk ", chunk.chunk));
    const wire::Buffer values = file.part(at, chunk.value_bytes);
    const wire::Buffer state = file.part(at + chunk.value_bytes, chunk.state_bytes);
    if (hash_of(values, state) != chunk.hash)
      damaged(path,
              text("is damaged: chunk ", chunk.chunk, " of table ", chunk.table, " has another checksum"));
    loaded.chunks.push_back(file.part(at, chunk.value_bytes + chunk.state_bytes));
    at += chunk.value_bytes + chunk.state_bytes;
  }
  if (at != file.size()) damaged(path, "is damaged: it goes on behind its last chunk");
  return loaded;
}

fs::path begin_checkpoint(const fs::path& folder) {
  make_folder(folder);
  const auto there = checkpoints_in(folder);
  for (std::uint64_t number = there.empty() ? 1 : there.rbegin()->first + 1;; ++number) {
    const fs::path path = fs::absolute(folder / text(kFolder, number));
    std::error_code error;
    if (fs::create_directory(path, error)) return path;
    if (error) throw DataError(text("cannot create the folder ", path.string(), ": ", error.message()));
  }
}

fs::path last_checkpoint(const fs::path& folder) {
  if (fs::exists(folder / kManifest)) return folder;
  const auto there = checkpoints_in(folder);
  for (auto each = there.rbegin(); each != there.rend(); ++each) {
    if (fs::exists(each->second / kManifest)) return each->second;
  }
  throw DataError(text("there is no whole checkpoint in ", folder.string()));
}

void remove_old_checkpoints(const fs::path& folder, std::size_t keep) {
  const auto there = checkpoints_in(folder);
  std::size_t num_whole = 0;
  for (auto each = there.rbegin(); each != there.rend(); ++each) {
    if (num_whole < keep) {
      num_whole += fs::exists(each->second / kManifest) ? 1 : 0;
      continue;
    }
    // The manifest goes first: what is left of a removal that was cut short is no checkpoint.
    std::error_code error;
    fs::remove(each->second / kManifest, error);
    fs::remove_all(each->second, error);
    if (error) throw DataError(text("cannot remove ", each->second.string(), ": ", error.message()));
  }
}

}  // namespace trireme::ps
