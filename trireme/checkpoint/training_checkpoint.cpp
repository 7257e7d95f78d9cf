#include "trireme/checkpoint/training_checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/internal/manifest.h"

namespace trireme::checkpoint {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kTemporary = ".writing-";
constexpr std::string_view kAverages = "ema/average/";  // docs/checkpoint-format.md

std::string name_of(std::int64_t step) {
  std::array<char, 32> name;
  std::snprintf(name.data(), name.size(), "step-%08lld", static_cast<long long>(step));
  return name.data();
}

/// The step in a folder's name; empty when it is not the name of a checkpoint.
std::optional<std::int64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size();
  const auto [stopped, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || stopped != end || name_of(step) != name) return std::nullopt;
  return step;
}

[[noreturn]] void fail(std::string_view what, const fs::path& path, const std::error_code& error) {
  throw DataError(text("cannot ", what, " ", path.string(), ": ", error.message()));
}

void sync_folder(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = descriptor >= 0 && ::fsync(descriptor) == 0;
  const std::error_code error(errno, std::generic_category());
  if (descriptor >= 0) ::close(descriptor);
  if (!synced) fail("sync the folder", folder, error);
}

void write_files(const TrainingCheckpoint& checkpoint, const fs::path& folder) {
  Manifest manifest{
      .step = checkpoint.step, .epoch = checkpoint.epoch, .batch = checkpoint.batch, .files = {}};
  const std::map<std::string, std::string> metadata = {{"step", std::to_string(checkpoint.step)}};
  const auto save = [&](const char* name, const TensorMap& tensors) {
    const FileDigest digest = save_safetensors(folder / name, tensors, metadata);
    manifest.files.push_back({.name = name, .bytes = digest.bytes, .xxh3 = digest.xxh3});
  };
  save(kModelFile, checkpoint.model);
  save(kOptimizerFile, checkpoint.optimizer);
  write_file_atomic(folder / kConfigFile, checkpoint.config);
  manifest.files.push_back(record_of(folder, kConfigFile));
  write_manifest(folder, manifest);
}

void rename_folder(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail("rename to", to, error);
}

/// Renames a damaged checkpoint to NAME.damaged-1, or the next free number, so that it is never taken for one
/// and never removed. Returns the new path.
fs::path move_aside(const fs::path& checkpoint) {
  std::error_code error;
  fs::path aside;
  for (int number = 1; aside.empty() || fs::exists(aside, error); ++number)
    aside = text(checkpoint.string(), ".damaged-", number);
  rename_folder(checkpoint, aside);
  sync_folder(checkpoint.parent_path());
  return aside;
}

/// Whether a checkpoint stands at `place`, to be replaced. A damaged one is moved aside. Throws DataError
/// where something stands that is not ours, or not known to be.
bool holds_checkpoint(const fs::path& place) {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(place, error).type();
  if (type == fs::file_type::not_found) return false;
  try {
    if (type != fs::file_type::directory) throw DataError(text(place.string(), " is no folder"));
    read_manifest(place);
    return true;
  } catch (const DamagedCheckpoint&) {
    move_aside(place);
    return false;
  } catch (const DataError& problem) {
    throw DataError(text("cannot save a checkpoint as ", place.string(),
                         ": something else stands there, which is left alone; move it away (", problem.what(),
                         ")"));
  }
}

/// Renames `from` to `to`. A checkpoint that stands there already changes places with it in one step, where
/// the file system can do that, and is removed afterwards.
void put_in_place(const fs::path& from, const fs::path& to) {
  std::error_code ignored;
  if (holds_checkpoint(to)) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
      sync_folder(to.parent_path());
      fs::remove_all(from, ignored);
      return;
    }
    fs::remove_all(to, ignored);
  }
  rename_folder(from, to);
  sync_folder(to.parent_path());
}

/// What writers of ours left: nothing else has such a name.
void remove_leftovers(const fs::path& folder) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kTemporary) && step_of(name.substr(kTemporary.size())))
      fs::remove_all(entry.path(), error);
  }
}

void remove_checkpoint(const fs::path& checkpoint) {
  // Renamed first, so that a half-removed checkpoint is never taken for one.
  const fs::path doomed =
      checkpoint.parent_path() / (std::string(kTemporary) + checkpoint.filename().string());
  std::error_code error;
  fs::rename(checkpoint, doomed, error);
  if (!error) fs::remove_all(doomed, error);
  if (error) fail("remove the old checkpoint", checkpoint, error);
}

bool has_our_manifest(const fs::path& folder) {
  try {
    read_manifest(folder);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

/// Those that may be removed, oldest step first. What is damaged, foreign or newer is nobody's to remove.
std::vector<fs::path> removable(const fs::path& folder) {
  std::vector<fs::path> ours;
  for (fs::path& path : list_checkpoints(folder)) {
    if (has_our_manifest(path)) ours.push_back(std::move(path));
  }
  return ours;
}

/// Later steps than the one just saved were made by a run that has since gone back behind them: they go
/// whatever `keep` says, or they would count as the newest.
void remove_outdated(const fs::path& folder, std::int64_t saved_step, int keep) {
  const std::vector<fs::path> all = removable(folder);
  const auto later = std::partition_point(all.begin(), all.end(),
                                          [&](const fs::path& path) { return *step_of(path) <= saved_step; });
  std::for_each(later, all.end(), remove_checkpoint);
  if (keep == 0 || later - all.begin() <= keep) return;
  std::for_each(all.begin(), later - keep, remove_checkpoint);
}

/// Throws DamagedCheckpoint where the file is not what the manifest says.
void check_file(const fs::path& folder, const FileRecord& record) {
  if (const std::string problem = problem_of(folder, record); !problem.empty())
    throw DamagedCheckpoint(text((folder / record.name).string(), " ", problem));
}

/// Reads the tensors and the checksum in one pass; what is wrong with the file comes before what is wrong
/// with its content.
TensorMap load_checked(const fs::path& folder, const FileRecord& record) {
  try {
    SafetensorsFile file = load_safetensors(folder / record.name);
    if (file.digest.bytes == record.bytes && file.digest.xxh3 == record.xxh3) return std::move(file.tensors);
  } catch (const DataError&) {
    check_file(folder, record);
    throw;
  }
  check_file(folder, record);
  throw DataError(text((folder / record.name).string(), " changes while it is read"));
}

}  // namespace

fs::path save_checkpoint(const fs::path& folder, const TrainingCheckpoint& checkpoint, int keep) {
  require(keep >= 0, "the number of checkpoints to keep must not be negative: ", keep);
  require(checkpoint.step >= 0, "a checkpoint cannot be of step ", checkpoint.step);
  make_folder(folder);
  remove_leftovers(folder);
  fs::path target = folder / name_of(checkpoint.step);
  const fs::path temporary = folder / (std::string(kTemporary) + name_of(checkpoint.step));
  holds_checkpoint(target);  // what cannot be put in place is not written first
  try {
    make_folder(temporary);
    write_files(checkpoint, temporary);
    put_in_place(temporary, target);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  remove_outdated(folder, checkpoint.step, keep);
  return target;
}

void keep_newest(const fs::path& folder, int keep) {
  require(keep >= 1, "at least the newest checkpoint is kept, not ", keep);
  const std::vector<fs::path> all = removable(folder);
  if (std::ssize(all) > keep) std::for_each(all.begin(), all.end() - keep, remove_checkpoint);
}

std::vector<fs::path> list_checkpoints(const fs::path& folder) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const auto step = step_of(entry->path());
    if (!step) continue;
    const bool is_folder = entry->is_directory(error);
    if (error) fail("look at", entry->path(), error);
    if (is_folder) found.emplace_back(*step, entry->path());
  }
  if (error && error != std::errc::no_such_file_or_directory) fail("list", folder, error);
  std::sort(found.begin(), found.end());
  std::vector<fs::path> result;
  for (auto& [step, path] : found) result.push_back(std::move(path));
  return result;
}

TrainingCheckpoint load_checkpoint(const fs::path& checkpoint_folder) {
  const Manifest manifest = read_manifest(checkpoint_folder);
  TrainingCheckpoint loaded{.step = manifest.step, .epoch = manifest.epoch, .batch = manifest.batch};
  for (const FileRecord& record : manifest.files) {
    if (record.name == kModelFile) {
      loaded.model = load_checked(checkpoint_folder, record);
    } else if (record.name == kOptimizerFile) {
      loaded.optimizer = load_checked(checkpoint_folder, record);
    } else {
      check_file(checkpoint_folder, record);
    }
  }
  loaded.config = read_file(checkpoint_folder / kConfigFile);
  return loaded;
}

TensorMap weights_of(const TrainingCheckpoint& checkpoint) {
  TensorMap weights = checkpoint.model;
  for (auto& [name, tensor] : weights) {
    const auto average = checkpoint.optimizer.find(std::string(kAverages) + name);
    if (average != checkpoint.optimizer.end()) tensor = average->second;
  }
  return weights;
}

std::optional<TrainingCheckpoint> load_latest_checkpoint(const fs::path& folder, const Log& log) {
  const std::vector<fs::path> all = list_checkpoints(folder);
  for (auto path = all.rbegin(); path != all.rend(); ++path) {
    try {
      return load_checkpoint(*path);
    } catch (const DamagedCheckpoint& error) {
      const fs::path aside = move_aside(*path);
      log.warning("the checkpoint ", path->string(), " is damaged and now lies in ", aside.string(), ": ",
                  error.what());
    } catch (const ForeignFolder& error) {
      log.warning("passed over ", path->string(), ": ", error.what());
    }
  }
  return std::nullopt;
}

}  // namespace trireme::checkpoint
