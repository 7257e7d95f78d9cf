#pragma once
// Where packed data lie (docs/data.md, "Packed data"): in a folder of this host, or behind an URL, as a web
// server or an object store gives the files of such a folder. Immutable; thread-safe.

#include <concepts>
#include <filesystem>
#include <memory>
#include <string>

#include "trireme/data/byte_source.h"
#include "trireme/data/disk_cache.h"
#include "trireme/data/http_bytes.h"

namespace trireme::data {

class PackedFiles {
 public:
  /// A folder, or an URL (http://, https://), whose files are read by ranges, through `cache` where there is
  /// one. What stands behind '?' in the URL goes with each file. Nothing is opened yet.
  // NOLINTBEGIN(google-explicit-constructor): what most people have is a folder
  template <std::convertible_to<std::filesystem::path> Place>
  PackedFiles(const Place& place, std::shared_ptr<DiskCache> cache = nullptr, const HttpOptions& http = {})
      : place_(std::filesystem::path(place).string()), cache_(std::move(cache)), http_(http) {}
  // NOLINTEND(google-explicit-constructor)

  /// For messages: an URL without what may be secret in it.
  std::string name() const;
  bool are_far() const;
  /// A file of a folder stays open. Throws DataError: it is not there, or cannot be read.
  std::shared_ptr<const ByteSource> open(const std::string& file) const;

 private:
  std::string place_;
  std::shared_ptr<DiskCache> cache_;
  HttpOptions http_;
};

}  // namespace trireme::data
