#pragma once
// From shards to whole tensors in safetensors files, as others read them, one piece of memory at a time:
// kPieceBytes, however large model and tensors are.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "trireme/checkpoint/shard.h"
#include "trireme/comm/group.h"

namespace trireme::checkpoint {

/// Writes the tensors that the ranks hold together as one file, on rank 0; only that rank uses `path`.
/// Returns there their xxh3_of; the same for any ranks and cuts. Collective. Throws DataError on rank 0,
/// after the other ranks have sent their parts, so that the group stays usable; CommError; InvalidArgument
/// where a part of a tensor is missing.
std::string save_from_ranks(comm::Group group, const Shards& mine, const std::filesystem::path& path,
                            const std::map<std::string, std::string>& metadata);

struct ExportOptions {
  std::map<std::string, std::string> metadata = {};
  std::uint64_t max_file_bytes =
      0;  ///< of tensors in a file; 0: all in one. A larger tensor has one of its own
};

/// Files of export_weights, before or after they are written.
struct ExportedFiles {
  std::size_t num_tensors = 0;
  std::vector<std::filesystem::path> files;  ///< with the index, where there are several
  std::uint64_t bytes = 0;
};

/// Files of export_weights for `out`: one file of that name, or OUT-00001-of-00003.safetensors, ... and
/// OUT.safetensors.index.json, as on model hubs. Reads headers only. Throws DataError.
std::vector<std::filesystem::path> files_of_export(const std::filesystem::path& checkpoint_folder,
                                                   const std::filesystem::path& out,
                                                   const ExportOptions& options);

/// Verifies the checkpoint, then writes its parameters and buffers as evaluations used them: where the run
/// keeps moving averages, those replace the parameters. Throws DamagedCheckpoint, DataError.
ExportedFiles export_weights(const std::filesystem::path& checkpoint_folder, const std::filesystem::path& out,
                             const ExportOptions& options = {});

}  // namespace trireme::checkpoint
