#pragma once
// Packs a data set into a folder of shards that data.name = "packed" reads: docs/data.md, "Packed data". Each
// shard is written under another name, synced and renamed. The manifest comes last. Until then the folder is
// marked as incomplete.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trireme/data/byte_pixels.h"
#include "trireme/data/dataset.h"

namespace trireme::data {

struct PackOptions {
  std::filesystem::path folder;                          ///< made where it is missing
  std::uint64_t shard_bytes = std::uint64_t{256} << 20;  ///< no shard is larger, but for one sample that is
  bool force = false;                                    ///< packed data that are there are replaced
  /// Called now and then while a split is packed; of text, samples are bytes of the file.
  std::function<void(const std::string& split, std::int64_t samples, std::int64_t of)> progress = nullptr;
};

/// Input of packing: data sets whose samples are stored as `get` returns them, one by one.
struct Packable {
  DataSource source;                             ///< train, and test unless it is null
  std::string path = {};                         ///< where it comes from, for the manifest
  std::optional<Normalisation> normalised = {};  ///< normalisation of the input, u8, when it is read
  bool encoded = false;                          ///< the input is bytes of image files
  std::vector<std::string> classes = {};         ///< names
  double black = 0;                              ///< the value of black in images, for augmentations
};

/// A data set by name, in its best form for storage: pixels as bytes, images as encoded files. Throws as
/// open_data does, and InvalidArgument for text, which has pack_tokens. Augmentations are left out: they are
/// applied on reading.
Packable packable(const DataOptions& options, const Log& log = Log());

/// Size of the packed data.
struct PackedSize {
  std::int64_t samples = 0;  ///< of text: tokens
  std::size_t shards = 0;
  std::uint64_t bytes = 0;
  bool is_text = false;
};

/// Throws InvalidArgument: a folder that holds anything but packed data, or those without `force`; samples
/// that vary from epoch to epoch, or hold types that records do not. Throws DataError: errors of the source,
/// samples that differ in fields, a disk that is full. On an error the written files are removed.
PackedSize pack(const Packable& what, const PackOptions& options);

}  // namespace trireme::data
