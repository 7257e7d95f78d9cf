#pragma once
// Names of parts of tensors in a safetensors file: the entry "NAME[0:4,8:16]", and the whole tensor in the
// file's metadata "boxes", so that each file describes its own content. Stateless; thread-safe.

#include <map>
#include <string>

#include "trireme/checkpoint/internal/safetensors_header.h"
#include "trireme/checkpoint/shard.h"

namespace trireme::checkpoint {

/// The meaning of an entry of a file.
struct StoredBox {
  std::string name;  ///< of the tensor
  std::vector<std::int64_t> global_sizes;
  Box box;
};

/// "NAME", or "NAME[0:4,8:16]" of a part.
std::string entry_name(const Shard& shard);

/// Metadata that names the boxes among the shards; nothing where all are whole.
std::map<std::string, std::string> metadata_of(const Shards& shards);

/// For each entry of the header, in its order. Throws DataError that names `file`.
std::vector<StoredBox> stored_boxes(const SafetensorsHeader& header, const std::string& file);

}  // namespace trireme::checkpoint
