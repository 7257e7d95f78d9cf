#include "trireme/ps/checkpoint_file.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "trireme/base/bounded_file.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/ps/internal/file_preamble.h"
#include "trireme/ps/internal/older_checkpoint.h"
#include "trireme/wire/fields.h"

namespace trireme::ps {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kManifestMagic = "TRIPSMF3";
constexpr std::string_view kOlderManifestMagic = "TRIPSMF2";
constexpr std::uint64_t kMostManifestBytes = std::uint64_t{64} << 20;
constexpr std::string_view kManifest = "manifest", kFolder = "checkpoint-";

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

/// The components of `path` after those of `parent`; empty if `path` is not below it.
std::vector<std::string> components_below(const fs::path& parent, const fs::path& path) {
  const auto [end, first] = std::mismatch(parent.begin(), parent.end(), path.begin(), path.end());
  if (end != parent.end()) return {};
  return {first, path.end()};
}

/// An absolute path without ".", ".." and a trailing '/'.
fs::path normal(const fs::path& path) {
  const fs::path result = fs::absolute(path).lexically_normal();
  return result.has_filename() || !result.has_relative_path() ? result : result.parent_path();
}

}  // namespace

CheckpointRoot::CheckpointRoot(const fs::path& folder) : given_(normal(folder)) {}

OpenFolder CheckpointRoot::open(const std::string& folder) const {
  const fs::path asked = folder;
  if (!given_.has_relative_path())
    throw DataError(text("a checkpoint was asked for in '", folder,
                         "', and this server has no folder for them but ", given_.string(),
                         ": give it one (serve-params --checkpoints DIR)"));
  std::error_code unknown;
  const fs::path real = fs::canonical(given_, unknown);  // workers may use the given path or the real one
  auto below = components_below(given_, asked);
  if (below.empty() && !unknown) below = components_below(real, asked);
  if (below.empty() || !std::ranges::all_of(below, is_file_name))
    throw DataError(text("a checkpoint was asked for in '", folder, "', which is not a folder below ",
                         given_.string(),
                         ": give the server the folder of its checkpoints (serve-params --checkpoints DIR)"));
  if (!number_of(asked))
    throw DataError(text(folder, " is no folder that a checkpoint was begun in; expected .../checkpoint-N"));
  OpenFolder opened(given_);
  try {
    for (const std::string& each : below) opened = opened.folder(each);
  } catch (const DataError& error) {
    throw DataError(
        text(folder, " is no folder that a checkpoint was begun in, as this server sees it: ", error.what()));
  }
  return opened;
}

void write_manifest(const fs::path& folder, const CheckpointManifest& manifest) {
  const std::vector<std::byte> body = wire::encode(manifest);
  write_file_atomic(folder / kManifest, [&](const FileSink& sink) {
    sink(FilePreamble::before(kManifestMagic, body));
    sink(body);
  });
}

CheckpointManifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifest;
  const std::string content = read_bounded_file(path, kMostManifestBytes, "manifest of a checkpoint");
  const auto bytes = std::as_bytes(std::span(content));
  const FilePreamble preamble =
      FilePreamble::of(path, bytes, bytes.size(), kManifestMagic, kOlderManifestMagic);
  const auto body = bytes.subspan(FilePreamble::kBytes);
  preamble.check(path, body.first(preamble.size));
  auto manifest = preamble.is_older ? decode_older<CheckpointManifest, OlderManifest>(body)
                                    : wire::decode<CheckpointManifest>(body);
  if (!manifest) damaged(path, "is damaged: it says more or less than a manifest");
  return std::move(*manifest);
}

fs::path begin_checkpoint(const fs::path& folder) {
  make_folder(folder);
  const auto there = checkpoints_in(folder);
  for (std::uint64_t number = there.empty() ? 1 : there.rbegin()->first + 1;; ++number) {
    const fs::path path = fs::absolute(folder / text(kFolder, number));
    std::error_code error, other;
    if (fs::create_directory(path, error)) {
      // Servers reject "..". Removing it lexically is only correct without symbolic links.
      const fs::path normal = path.lexically_normal();
      return fs::equivalent(normal, path, other) ? normal : fs::canonical(path);
    }
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
    // The manifest is removed first: after an interrupted removal the rest is no checkpoint.
    std::error_code error;
    fs::remove(each->second / kManifest, error);
    fs::remove_all(each->second, error);
    if (error) throw DataError(text("cannot remove ", each->second.string(), ": ", error.message()));
  }
}

}  // namespace trireme::ps
