#pragma once
// How a safetensors file names what is a part of a tensor only: the entry "NAME[0:4,8:16]", and what it is a
// part of in the file's metadata "boxes", so that each file says by itself what it holds. Stateless;
// thread-safe.

#include <map>
#include <string>

#include "trireme/checkpoint/internal/safetensors_header.h"
#include "trireme/checkpoint/shard.h"

namespace trireme::checkpoint {

/// What an entry of a file is.
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
