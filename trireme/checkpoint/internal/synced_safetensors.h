#pragma once
// A file of a checkpoint whose folder is not complete yet: base/synced_file.h. Stateless; thread-safe.

#include <filesystem>
#include <map>
#include <string>

#include "trireme/checkpoint/safetensors.h"

namespace trireme::checkpoint {

/// As save_safetensors; who reads the folder sees the file before it is complete.
FileDigest save_safetensors_synced(const std::filesystem::path& path, const TensorMap& tensors,
                                   const std::map<std::string, std::string>& metadata);

}  // namespace trireme::checkpoint
