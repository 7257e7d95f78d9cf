#include "trireme/checkpoint/checkpoint_part.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/open_file.h"
#include "trireme/base/synced_file.h"
#include "trireme/checkpoint/internal/boxes_in_file.h"
#include "trireme/checkpoint/internal/checkpoint_folder.h"
#include "trireme/checkpoint/internal/manifest.h"
#include "trireme/checkpoint/internal/synced_safetensors.h"
#include "trireme/checkpoint/shard_exchange.h"
#include "trireme/checkpoint/training_checkpoint.h"

namespace trireme::checkpoint {
namespace {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// A writer's report on its part: its files, or the reason why there are none.
struct PartRecord {
  std::vector<FileRecord> files = {};
  std::string failure = {};
};

fs::path working_folder(const fs::path& folder, const CheckpointPart& part) {
  return temporary_of(folder, part.head.step, part.attempt.name);
}

/// For all writers. Another process that may write here could have put a symbolic link in its place.
void make_working_folder(const fs::path& temporary) {
  make_folder(temporary);
  std::error_code error;
  if (fs::symlink_status(temporary, error).type() != fs::file_type::directory)
    throw DataError(text("cannot write a checkpoint in ", temporary.string(),
                         ": expected a folder, found a symbolic link; remove it"));
}

fs::path record_path(const fs::path& temporary, int number) {
  return temporary / text("part-", number, ".json");
}

void write_record(const fs::path& temporary, int number, const PartRecord& record) {
  Json json = {{"failure", record.failure}, {"files", Json::object()}};
  for (const FileRecord& file : record.files)
    json["files"][file.name] = {{"bytes", file.bytes}, {"xxh3", file.xxh3}};
  // The reason may contain a path, which need not be UTF-8.
  const std::string content = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  // Readers see the complete file or none. No sync: it is needed only for this save.
  const fs::path path = record_path(temporary, number), unfinished = path.string() + ".part";
  if (const FileDescriptor file = create_file(unfinished); !file.is_open() || !file.write(content))
    throw DataError(text("cannot write ", unfinished.string(), ": ", std::strerror(errno)));
  std::error_code error;
  fs::rename(unfinished, path, error);
  if (error) throw DataError(text("cannot rename to ", path.string(), ": ", error.message()));
}

/// nullopt: there is none yet. A record that cannot be parsed counts as a failed part.
std::optional<PartRecord> read_record(const fs::path& temporary, int number) {
  const fs::path path = record_path(temporary, number);
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  try {
    const Json json = Json::parse(read_file(path));
    PartRecord record{.failure = json.at("failure").get<std::string>()};
    for (const auto& [name, file] : json.at("files").items())
      record.files.push_back({.name = name,
                              .bytes = file.at("bytes").get<std::uint64_t>(),
                              .xxh3 = file.at("xxh3").get<std::string>()});
    return record;
  } catch (const Json::exception&) {
    return PartRecord{.failure = "its writer could not say why"};
  }
}

/// Writes one tensor after the other. Offloaded values are written piece by piece.
FileDigest write_entries(const fs::path& path, const std::map<std::string, const Shard*>& entries,
                         const std::map<std::string, std::string>& metadata) {
  std::vector<TensorLayout> layouts;
  for (const auto& [name, shard] : entries) {
    check_dense(name, shard->tensor);
    layouts.push_back(
        {.name = name, .type = shard->tensor.scalar_type(), .shape = shard->tensor.sizes().vec()});
  }
  return write_safetensors_synced(
      path, layouts, metadata, [&](const TensorLayout& layout, const FileSink& sink) {
        const Shard& shard = *entries.at(layout.name);
        if (!shard.offloaded_storage) return sink_values(shard.tensor, sink);
        for (const Box& piece : pieces_of(shard.box(), shard.tensor.element_size(), kPieceBytes))
          sink_values(shard.place_of(piece).values(), sink);
      });
}

/// Writes the files of the part's shards. The first writer also writes the configuration.
PartRecord write_files(const fs::path& temporary, const CheckpointPart& part) {
  std::array<Shards, 2> shards;  // of model and optimizer
  const std::string_view of_optimizer = kOptimizerPrefix;
  for (Shard shard : part.shards) {
    const bool is_model = !shard.name.starts_with(of_optimizer);
    if (!is_model) shard.name.erase(0, of_optimizer.size());
    shards[is_model ? 0 : 1].push_back(std::move(shard));
  }
  PartRecord record;
  for (const FileKind kind : {FileKind::kModel, FileKind::kOptimizer}) {
    const Shards& mine = shards[kind == FileKind::kModel ? 0 : 1];
    std::map<std::string, const Shard*> entries;
    for (const Shard& shard : mine) entries.emplace(entry_name(shard), &shard);
    std::map<std::string, std::string> metadata = metadata_of(mine);
    metadata.emplace("step", std::to_string(part.head.step));
    const std::string name = name_of_file(kind, part.number, part.attempt.num_parts);
    const FileDigest digest = write_entries(temporary / name, entries, metadata);
    record.files.push_back({.name = name, .bytes = digest.bytes, .xxh3 = digest.xxh3});
  }
  if (part.number != 0) return record;
  write_file_synced(temporary / kConfigFile,
                    [&](const FileSink& sink) { sink(std::as_bytes(std::span(part.head.config))); });
  record.files.push_back(record_of(temporary, kConfigFile));
  return record;
}

/// The records of all parts. Throws DataError if one is missing after the wait or reports a failure.
std::vector<FileRecord> files_of_all(const fs::path& temporary, const CheckpointPart& part,
                                     const std::function<bool()>& wait) {
  std::vector<FileRecord> files;
  for (int number = 0; number < part.attempt.num_parts; ++number) {
    std::optional<PartRecord> record = read_record(temporary, number);
    while (!record && wait()) record = read_record(temporary, number);
    if (!record) {
      throw DataError(text("the checkpoint of step ", part.head.step, " is given up: writer ", number + 1,
                           " of ", part.attempt.num_parts, " has not come to the end of its part in ",
                           temporary.string()));
    }
    if (!record->failure.empty()) throw DataError(record->failure);
    for (FileRecord& file : record->files) {
      std::error_code error;
      if (const auto bytes = fs::file_size(temporary / file.name, error); error || bytes != file.bytes)
        throw DataError(text((temporary / file.name).string(), " is not as its writer has left it"));
      files.push_back(std::move(file));
    }
  }
  std::stable_sort(files.begin(), files.end(), [](const FileRecord& a, const FileRecord& b) {
    return *kind_of(a.name) < *kind_of(b.name);
  });
  return files;
}

void make_whole(const fs::path& temporary, const CheckpointPart& part, std::vector<FileRecord> files) {
  std::error_code ignored;
  for (int number = 0; number < part.attempt.num_parts; ++number)
    fs::remove(record_path(temporary, number), ignored);
  write_manifest(temporary, {.step = part.head.step,
                             .epoch = part.head.epoch,
                             .batch = part.head.batch,
                             .files = std::move(files)});
}

}  // namespace

void write_part(const fs::path& folder, const CheckpointPart& part) {
  require(part.head.step >= 0, "a checkpoint cannot be of step ", part.head.step);
  const fs::path temporary = working_folder(folder, part);
  make_folder(folder);
  if (part.number == 0) {
    remove_leftovers(folder, part.attempt.prefix);
    holds_checkpoint(folder / name_of(part.head.step));  // throws if the target cannot be replaced
  }
  make_working_folder(temporary);
  write_record(temporary, part.number, write_files(temporary, part));
}

void reject_part(const fs::path& folder, const CheckpointPart& part, const std::string& reason) {
  if (part.number == 0) return;  // the finisher needs no record
  const fs::path temporary = working_folder(folder, part);
  std::error_code ignored;
  for (const FileKind kind : {FileKind::kModel, FileKind::kOptimizer})
    fs::remove(temporary / name_of_file(kind, part.number, part.attempt.num_parts), ignored);
  try {
    make_working_folder(temporary);
  } catch (const DataError&) {
    return;  // no record can be written there
  }
  try {
    write_record(temporary, part.number, {.failure = reason});
  } catch (const DataError&) {
    // A disk may be full and still take an empty file.
    create_file(record_path(temporary, part.number));
  }
}

fs::path finish_checkpoint(const fs::path& folder, const CheckpointPart& part, int keep,
                           const std::function<bool()>& wait) {
  require(keep >= 0, "the number of checkpoints to keep must not be negative: ", keep);
  fs::path target = folder / name_of(part.head.step);
  const fs::path temporary = working_folder(folder, part);
  bool all_have_ended = false;
  try {
    std::vector<FileRecord> files = files_of_all(temporary, part, wait);
    all_have_ended = true;
    make_whole(temporary, part, std::move(files));
    put_in_place(temporary, target);
  } catch (...) {
    abandon_checkpoint(folder, part, [&] { return !all_have_ended && wait(); });
    throw;
  }
  remove_outdated(folder, part.head.step, keep);
  return target;
}

void abandon_checkpoint(const fs::path& folder, const CheckpointPart& part,
                        const std::function<bool()>& wait) noexcept {
  const fs::path temporary = working_folder(folder, part);
  std::error_code ignored;
  // A writer that is still running would leave files behind after the folder is removed.
  for (int number = 1; number < part.attempt.num_parts; ++number) {
    while (!fs::exists(record_path(temporary, number), ignored) && wait()) {
    }
  }
  fs::remove_all(temporary, ignored);
}

}  // namespace trireme::checkpoint
