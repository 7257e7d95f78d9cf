#include "trireme/checkpoint/checkpoint_report.h"

#include <algorithm>
#include <set>
#include <system_error>

#include "trireme/base/bounded_file.h"
#include "trireme/base/error.h"
#include "trireme/checkpoint/internal/manifest.h"

namespace trireme::checkpoint {
namespace {
namespace fs = std::filesystem;

std::uint64_t bytes_of(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  return error ? 0 : bytes;
}

/// The fault of a file. An unreadable file has a fault, too.
template <class Check>
std::string problem_from(Check check) {
  try {
    return check();
  } catch (const DataError& error) {
    return error.what();
  }
}

/// Names in the folder, sorted; those of folders end in "/".
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
      names.push_back(entry.path().filename().string() + (entry.is_directory() ? "/" : ""));
  } catch (const fs::filesystem_error& error) {
    throw DataError(text("cannot read the folder ", folder.string(), ": ", error.code().message()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

CheckpointContents inspect_checkpoint(const fs::path& checkpoint_folder) {
  const Manifest manifest = read_manifest(checkpoint_folder);
  CheckpointContents contents{
      .step = manifest.step,
      .epoch = manifest.epoch,
      .batch = manifest.batch,
      .config = read_bounded_file(checkpoint_folder / kConfigFile, kMaxConfigBytes, "configuration"),
      .files = {}};
  for (const FileRecord& record : manifest.files) {
    if (record.name.ends_with(kSafetensorsExtension))
      contents.files.push_back(inspect_safetensors(checkpoint_folder / record.name));
  }
  return contents;
}

std::vector<FileVerdict> verify_checkpoint(const fs::path& checkpoint_folder) {
  const std::vector<std::string> present = names_in(checkpoint_folder);
  Manifest manifest;
  const std::string problem = problem_from([&] {
    manifest = read_manifest(checkpoint_folder);
    return std::string();
  });
  std::vector<FileVerdict> verdicts = {
      {.name = kManifestFile, .bytes = bytes_of(checkpoint_folder / kManifestFile), .problem = problem}};
  for (const FileRecord& record : manifest.files) {
    verdicts.push_back({.name = record.name,
                        .bytes = bytes_of(checkpoint_folder / record.name),
                        .problem = problem_from([&] { return problem_of(checkpoint_folder, record); })});
  }
  std::set<std::string> named;
  for (const FileVerdict& verdict : verdicts) named.insert(verdict.name);
  for (const std::string& name : present) {
    if (named.contains(name)) continue;
    verdicts.push_back({.name = name,
                        .bytes = bytes_of(checkpoint_folder / name),
                        .problem = problem.empty() ? "is foreign: the manifest does not name it"
                                                   : "cannot be checked without a valid manifest"});
  }
  return verdicts;
}

}  // namespace trireme::checkpoint
