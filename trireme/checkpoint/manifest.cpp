#include "trireme/checkpoint/internal/manifest.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>

#include "trireme/base/bounded_file.h"
#include "trireme/base/bounded_json.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/json_whole.h"
#include "trireme/base/printable.h"
#include "trireme/checkpoint/internal/xxh3.h"
#include "trireme/checkpoint/training_checkpoint.h"

namespace trireme::checkpoint {
namespace {
namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "trireme training checkpoint";
constexpr int kVersion = 3;
/// Version 1 has one file of each kind, named as those of a single writer are now. Below kFirstInThisOrder,
/// the order of the samples was another one.
constexpr int kOldestVersion = 1;
constexpr std::array<std::string_view, 7> kKeys = {"format", "version", "step", "epoch",
                                                   "batch",  "files",   "xxh3"};

constexpr std::string_view kOf = "-of-";
constexpr std::size_t kDigits = 5;
/// A manifest nests to depth 3. 99999 writers have 200000 files, each with 6 values in about 120 bytes.
constexpr JsonLimits kManifestLimits{.levels = 8, .values = 1'500'000};
constexpr std::uint64_t kMostManifestBytes = std::uint64_t{64} << 20;

const char* stem_of(FileKind kind) { return kind == FileKind::kModel ? "model" : "optimizer"; }

/// Checksum of the text without the checksum itself.
std::string xxh3_of_json(Json manifest) {
  manifest.erase("xxh3");
  Xxh3 hash;
  hash.add(manifest.dump(2));
  return hash.hex();
}

/// One file with a checkpoint's file name may occur in any folder. Two mean that this is a checkpoint.
bool looks_like_ours(const fs::path& folder) {
  std::error_code error;
  int found = 0;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name == kManifestFile || kind_of(name)) ++found;
  }
  return found >= 2;
}

/// The number of writers in a file's name; 1 for a name that is not in a checkpoint.
int num_parts_of(const std::string& name) {
  const auto of = name.find(kOf);
  return of == std::string::npos || !kind_of(name) ? 1 : std::stoi(name.substr(of + kOf.size(), kDigits));
}

/// `what`: the fault of the manifest. Its exception type depends on the other files in the folder.
[[noreturn]] void refuse(const fs::path& folder, const std::string& what) {
  if (looks_like_ours(folder)) throw DamagedCheckpoint(what);
  throw ForeignFolder(text(what, "; it is no checkpoint of this program"));
}

bool names_our_format(const Json& manifest) {
  return manifest.is_object() && manifest.contains("format") && manifest["format"] == kFormat &&
         manifest.contains("version");
}

/// A newer version may define its checksum differently: a mismatch does not prove damage.
void check_format(const Json& manifest) {
  const Json& version = manifest["version"];
  if (!version.is_number_integer() || version < kOldestVersion || version > kVersion) {
    throw DataError(text("it is of version ", printable(version.dump()), ", this program reads versions ",
                         kOldestVersion, " to ", kVersion,
                         "; use the program that wrote it, or move its folder away"));
  }
  if (!manifest.contains("xxh3")) {
    throw DataError(
        "it has no checksum 'xxh3', and without it nothing is known of the files; move its folder away");
  }
  if (manifest["xxh3"] != xxh3_of_json(manifest)) {
    throw DamagedCheckpoint(text("it is damaged: its XXH3 is ", xxh3_of_json(manifest), ", it says ",
                                 printable(manifest["xxh3"].dump())));
  }
  for (const auto& [key, value] : manifest.items()) {
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end())
      throw DataError(text("it holds the unknown key '", printable(key), "'"));
  }
}

FileRecord parse_record(const std::string& name, const Json& json) {
  if (name.empty() || fs::path(name).filename() != fs::path(name) || name.starts_with("."))
    throw DataError(text("'", printable(name), "' is not the name of a file in its folder"));
  return {.name = name,
          .bytes = whole_in<std::uint64_t>(json.at("bytes")),
          .xxh3 = json.at("xxh3").get<std::string>()};
}

/// Requires a file of each kind from each writer, and the configuration.
void check_complete(const std::vector<FileRecord>& files) {
  std::set<std::string_view> names;
  for (const FileRecord& record : files) names.insert(record.name);
  const auto require_file = [&](const std::string& needed) {
    if (!names.contains(needed)) throw DataError(text("it does not list ", needed));
  };
  int num_parts = 1;
  for (const FileRecord& record : files) num_parts = std::max(num_parts, num_parts_of(record.name));
  if (num_parts > 1 && num_parts > std::ssize(files))
    throw DataError(text("it does not list the files of ", num_parts, " writers"));
  for (const FileKind kind : {FileKind::kModel, FileKind::kOptimizer}) {
    for (int number = 0; number < num_parts; ++number) require_file(name_of_file(kind, number, num_parts));
  }
  require_file(kConfigFile);
}

Manifest parse_manifest(const Json& json) {
  check_format(json);
  Manifest manifest{.version = whole_in<int>(json.at("version")),
                    .step = whole_in<std::int64_t>(json.at("step")),
                    .epoch = whole_in<std::uint64_t>(json.at("epoch")),
                    .batch = whole_in<std::int64_t>(json.at("batch")),
                    .files = {}};
  for (const auto& [name, record] : json.at("files").items())
    manifest.files.push_back(parse_record(name, record));
  check_complete(manifest.files);
  return manifest;
}

}  // namespace

std::string name_of_file(FileKind kind, int number, int num_parts) {
  if (kind == FileKind::kConfig) return kConfigFile;
  std::array<char, 32> part{};
  if (num_parts > 1) std::snprintf(part.data(), part.size(), "-%05d-of-%05d", number + 1, num_parts);
  return text(stem_of(kind), part.data(), kSafetensorsExtension);
}

std::optional<FileKind> kind_of(const std::string& name) {
  if (name == kConfigFile) return FileKind::kConfig;
  const auto digits = [&](std::size_t begin) {
    return begin + kDigits <= name.size() &&
           std::all_of(name.begin() + static_cast<std::ptrdiff_t>(begin),
                       name.begin() + static_cast<std::ptrdiff_t>(begin + kDigits),
                       [](unsigned char c) { return std::isdigit(c) != 0; });
  };
  for (const FileKind kind : {FileKind::kModel, FileKind::kOptimizer}) {
    const std::string stem = stem_of(kind);
    if (name == stem + std::string(kSafetensorsExtension)) return kind;
    const std::size_t first = stem.size() + 1, second = first + kDigits + kOf.size();
    if (name.size() == second + kDigits + kSafetensorsExtension.size() && name.starts_with(stem + "-") &&
        digits(first) && name.substr(first + kDigits, kOf.size()) == kOf && digits(second) &&
        name.ends_with(kSafetensorsExtension)) {
      return kind;
    }
  }
  return std::nullopt;
}

FileRecord record_of(const fs::path& folder, const std::string& name) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(folder / name, error);
  if (error) throw DataError(text("cannot read ", (folder / name).string(), ": ", error.message()));
  return {.name = name, .bytes = bytes, .xxh3 = xxh3_of_file(folder / name)};
}

void write_manifest(const fs::path& folder, const Manifest& manifest) {
  Json json = {{"format", kFormat},       {"version", kVersion},     {"step", manifest.step},
               {"epoch", manifest.epoch}, {"batch", manifest.batch}, {"files", Json::object()}};
  for (const FileRecord& record : manifest.files)
    append_member(json["files"], record.name, Json{{"bytes", record.bytes}, {"xxh3", record.xxh3}});
  json["xxh3"] = xxh3_of_json(json);
  write_file_atomic(folder / kManifestFile, json.dump(2) + "\n");
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestFile;
  std::error_code error;
  if (fs::status(path, error).type() == fs::file_type::not_found)
    refuse(folder, text(path.string(), " is missing"));
  const std::string content = read_bounded_file(path, kMostManifestBytes, "manifest of a checkpoint");
  const std::string invalid = text(path.string(), " is not a valid manifest of a checkpoint: ");
  Json json;
  try {
    json = parse_json<Json>(content, kManifestLimits);
  } catch (const DataError& reason) {
    refuse(folder, invalid + reason.what());
  }
  if (!names_our_format(json))
    refuse(folder, text(invalid, "it does not say that its format is '", kFormat, "'"));
  try {
    return parse_manifest(json);
  } catch (const DamagedCheckpoint& damage) {
    throw DamagedCheckpoint(invalid + damage.what());
  } catch (const DataError& problem) {
    throw DataError(invalid + problem.what());
  } catch (const Json::exception& problem) {
    throw DataError(invalid + problem.what());
  }
}

std::string problem_of(const fs::path& folder, const FileRecord& record) {
  const fs::path path = folder / record.name;
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  if (error == std::errc::no_such_file_or_directory) return "is missing";
  if (error) throw DataError(text("cannot read ", path.string(), ": ", error.message()));
  if (bytes < record.bytes)
    return text("is truncated: it has ", bytes, " bytes, the manifest says ", record.bytes);
  if (bytes > record.bytes)
    return text("is another file: it has ", bytes, " bytes, the manifest says ", record.bytes);
  const std::string found = xxh3_of_file(path);
  if (found == record.xxh3) return "";
  return text("is damaged: its XXH3 is ", found, ", the manifest says ", record.xxh3);
}

}  // namespace trireme::checkpoint
