#pragma once
// Weights of other programs: a safetensors file, or a file of Python's torch.save(model.state_dict(), FILE)
// (a zip archive with a pickle, since PyTorch 1.6). Their first bytes distinguish them. No code of a pickle
// is run, and each tensor is checked against its record before it is read. Several safetensors files are
// named by their index. Stateless; thread-safe.

#include <filesystem>
#include <vector>

#include "trireme/checkpoint/safetensors.h"

namespace trireme::checkpoint {

/// Tensors are on the CPU. Throws DataError that names the file, the content found and the expected one: a
/// dict of name -> tensor, of types that save_safetensors takes.
SafetensorsFile load_weights_file(const std::filesystem::path& path);

/// The safetensors files that hold the weights at `path`: the file itself, or the files that an index names.
/// An index is a ".json" file with a "weight_map", as `trireme checkpoint export` and model hubs write it.
/// Its files are next to it. Empty: neither, or it cannot be opened. Throws DataError: an index that cannot
/// be read.
std::vector<std::filesystem::path> safetensors_of(const std::filesystem::path& path);

}  // namespace trireme::checkpoint
