#include "trireme/checkpoint/internal/checkpoint_folder.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <system_error>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/synced_file.h"
#include "trireme/checkpoint/internal/manifest.h"
#include "trireme/checkpoint/training_checkpoint.h"

namespace trireme::checkpoint {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kTemporary = ".writing-";

[[noreturn]] void fail(std::string_view what, const fs::path& path, const std::error_code& error) {
  throw DataError(text("cannot ", what, " ", path.string(), ": ", error.message()));
}

void rename_folder(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail("rename to", to, error);
}

void remove_checkpoint(const fs::path& checkpoint) {
  // Renamed first, so that a partly removed checkpoint does not look like a checkpoint.
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

/// Checkpoints that may be removed, oldest step first. Damaged, foreign and newer ones are not removed.
std::vector<fs::path> removable(const fs::path& folder) {
  std::vector<fs::path> ours;
  for (fs::path& path : list_checkpoints(folder)) {
    if (has_our_manifest(path)) ours.push_back(std::move(path));
  }
  return ours;
}

}  // namespace

std::string name_of(std::int64_t step) {
  std::array<char, 32> name;
  std::snprintf(name.data(), name.size(), "step-%08lld", static_cast<long long>(step));
  return name.data();
}

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

fs::path temporary_of(const fs::path& folder, std::int64_t step, const std::string& attempt) {
  return folder / text(kTemporary, name_of(step), ".", attempt);
}

void remove_leftovers(const fs::path& folder, const std::string& prefix) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kTemporary)) continue;
    const std::string rest = name.substr(kTemporary.size());
    const auto dot = rest.find('.');
    if (!step_of(rest.substr(0, dot))) continue;
    if (dot != std::string::npos && rest.substr(dot + 1).starts_with(prefix)) continue;
    fs::remove_all(entry.path(), error);
  }
}

fs::path move_aside(const fs::path& checkpoint) {
  std::error_code error;
  fs::path aside;
  for (int number = 1; aside.empty() || fs::exists(aside, error); ++number)
    aside = text(checkpoint.string(), ".damaged-", number);
  rename_folder(checkpoint, aside);
  sync_folder(checkpoint.parent_path());
  return aside;
}

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
                         ": the folder exists and is not a checkpoint, so it is not replaced; move it away (",
                         problem.what(), ")"));
  }
}

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

void remove_outdated(const fs::path& folder, std::int64_t saved_step, int keep) {
  const std::vector<fs::path> all = removable(folder);
  const auto later = std::partition_point(all.begin(), all.end(),
                                          [&](const fs::path& path) { return *step_of(path) <= saved_step; });
  std::for_each(later, all.end(), remove_checkpoint);
  if (keep == 0 || later - all.begin() <= keep) return;
  std::for_each(all.begin(), later - keep, remove_checkpoint);
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

std::optional<std::int64_t> newest_step(const fs::path& folder) {
  const std::vector<fs::path> all = list_checkpoints(folder);
  return all.empty() ? std::nullopt : step_of(all.back());
}

}  // namespace trireme::checkpoint
