#pragma once
// A file of a checkpoint whose folder is not complete yet: base/synced_file.h. Stateless; thread-safe.

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trireme/checkpoint/safetensors.h"

namespace trireme::checkpoint {

/// As write_safetensors; readers of the folder see the file before it is complete.
FileDigest write_safetensors_synced(const std::filesystem::path& path,
                                    const std::vector<TensorLayout>& tensors,
                                    const std::map<std::string, std::string>& metadata,
                                    const std::function<void(const TensorLayout&, const FileSink&)>& fill);

/// Throws InvalidArgument: a tensor that cannot be saved.
void check_dense(const std::string& name, const at::Tensor& tensor);
/// Hands over its bytes in row-major order, from any device.
void sink_values(const at::Tensor& tensor, const FileSink& sink);

}  // namespace trireme::checkpoint
