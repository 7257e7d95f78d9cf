#pragma once
// What Python's torch.save writes of a dict of tensors since PyTorch 1.6: a zip archive with a pickle and a
// file per storage. Every number of it is checked against the archive before memory is taken. Stateless;
// thread-safe.

#include <filesystem>
#include <string_view>

#include "trireme/checkpoint/safetensors.h"

namespace trireme::checkpoint {

/// Tensors share storages where they did in Python. Of those together at most this many times the size of the
/// file is read (tensors may repeat elements of their storages), or 1 MiB.
inline constexpr std::uint64_t kMostExpansion = 16;

/// Throws DataError that names the file, what was found and `expected`.
TensorMap load_torch_save(const std::filesystem::path& path, std::string_view expected);

}  // namespace trireme::checkpoint
