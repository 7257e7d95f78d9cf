#pragma once
// Files of Python's torch.save for a dict of tensors since PyTorch 1.6, and of libtorch's torch::save for a
// module: a zip archive with a pickle and a file per storage. Every number of it is checked against the
// archive before memory is allocated. Stateless; thread-safe.

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "trireme/checkpoint/safetensors.h"

namespace trireme::checkpoint {

/// Tensors share storages where they did in Python. Of those together at most this many times the size of the
/// file is read (tensors may repeat elements of their storages), or 1 MiB.
inline constexpr std::uint64_t kMaxExpansion = 16;

/// Throws DataError that names the file, the content found and `expected`.
TensorMap load_torch_save(const std::filesystem::path& path, std::string_view expected);

/// Whether an archive is one of libtorch's modules, which has constants. Throws DataError that names the
/// file.
bool is_module_archive(const std::filesystem::path& path);
/// Of libtorch's torch::save(module, FILE): "layer.0.weight" is `weight` of module `0` of `layer`. Entries of
/// the file without such a name are left out of the result. The code in it, and functions that restore
/// objects, are neither read nor executed. Throws DataError that names the file and the content found.
TensorMap load_module_archive(const std::filesystem::path& path, std::span<const std::string> names);

}  // namespace trireme::checkpoint
