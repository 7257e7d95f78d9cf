#include "trireme/data/internal/shard_set.h"

#include <optional>
#include <system_error>

#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme::data {
namespace {
namespace fs = std::filesystem;

/// Whether the name is one of a packed data set, complete or partial: "train-00000.trr",
/// "train-00000.trr.part1234", "dataset.json".
bool is_ours(const fs::path& path) {
  const std::string name = path.filename().string();
  const auto begins = [&](const std::string& with) {
    return name == with || name.starts_with(with + ".part");
  };
  if (begins(kManifestFile)) return true;
  const auto extension = name.find(kShardExtension);
  return extension != std::string::npos && begins(name.substr(0, extension) + kShardExtension);
}

void remove_ours(const fs::path& folder) {
  std::error_code error;
  // The manifest first: shards without a manifest are not a data set.
  fs::remove(folder / kManifestFile, error);
  std::vector<fs::path> found;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (is_ours(entry->path())) found.push_back(entry->path());
  }
  for (const fs::path& path : found) fs::remove(path, error);
}

void check_free(const PackOptions& options) {
  std::error_code error;
  const fs::path& folder = options.folder;
  if (!fs::exists(folder, error)) return;
  require(fs::is_directory(folder, error), folder.string(), " is no folder; name a new one to pack into");
  if (fs::exists(folder / kManifestFile, error)) {
    require(options.force, folder.string(),
            " holds packed data already; choose another folder, or replace them with --force");
    return;
  }
  fs::directory_iterator entry(folder, error);
  if (error) throw DataError(text("cannot list ", folder.string(), ": ", error.message()));
  require(entry == fs::directory_iterator(), folder.string(), " holds other files (",
          entry == fs::directory_iterator() ? std::string() : entry->path().filename().string(),
          "); name a new or an empty folder to pack into");
}

}  // namespace

ShardSet::ShardSet(const PackOptions& options, const std::string& source)
    : folder_(options.folder), shard_bytes_(options.shard_bytes) {
  require(!folder_.empty(), "name a folder to pack into");
  require(shard_bytes_ > 0, "a shard has to have some bytes");
  check_free(options);
  std::error_code error;
  made_ = !fs::exists(folder_, error);
  make_folder(folder_);
  try {
    remove_ours(folder_);
    write_unfinished_manifest(folder_, source);
  } catch (...) {
    clear();
    throw;
  }
}

ShardSet::~ShardSet() {
  if (!finished_) clear();
}

void ShardSet::clear() const {
  remove_ours(folder_);
  std::error_code ignored;
  if (made_) fs::remove(folder_, ignored);
}

void ShardSet::start_over() const {
  std::error_code ignored;
  std::vector<fs::path> shards;
  for (const auto& entry : fs::directory_iterator(folder_, ignored)) {
    if (is_ours(entry.path()) && entry.path().filename() != kManifestFile) shards.push_back(entry.path());
  }
  for (const fs::path& path : shards) fs::remove(path, ignored);
}

PackedSplit ShardSet::write(const std::string& split, const NextRecord& next) const {
  PackedSplit written;
  std::string record;
  bool more = next(record);
  while (more) {
    const std::string name = name_of_shard(split, written.shards.size());
    ShardSummary summary;
    write_file_atomic(folder_ / name, [&](const FileSink& sink) {
      ShardWriter writer(sink);
      do {
        writer.add(record);
        record.clear();
        more = next(record);
      } while (more && writer.bytes_with(record.size()) <= shard_bytes_);
      summary = writer.finish();
    });
    summary.file = name;
    written.samples += summary.records;
    written.shards.push_back(summary);
  }
  return written;
}

PackedSize size_of(const PackedManifest& manifest) {
  PackedSize size{.is_text = manifest.tokens.has_value()};
  for (const PackedSplit* split : {&manifest.train, manifest.test ? &*manifest.test : nullptr}) {
    if (split == nullptr) continue;
    size.samples += split->samples;
    size.shards += split->shards.size();
    size.bytes += split->bytes();
  }
  return size;
}

void ShardSet::finish(const PackedManifest& manifest) {
  write_manifest(folder_, manifest);
  finished_ = true;
}

}  // namespace trireme::data
