#pragma once
// Place of packed data (docs/data.md, "Packed data"): a folder of this host, or a URL, where a web server or
// an object store has the files of such a folder. Immutable; thread-safe.

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
  /// A folder, or a URL (http://, https://), whose files are read by ranges, through `cache` where there is
  /// one. The text after '?' in the URL is added to the URL of each file. Opens nothing yet.
  // NOLINTBEGIN(google-explicit-constructor): most users have a folder
  template <std::convertible_to<std::filesystem::path> Place>
  PackedFiles(const Place& place, std::shared_ptr<DiskCache> cache = nullptr, const HttpOptions& http = {})
      : place_(std::filesystem::path(place).string()), cache_(std::move(cache)), http_(http) {}
  // NOLINTEND(google-explicit-constructor)

  /// For messages: a URL without parts that may be secret.
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
