#pragma once
// Opens the file or URL of data.path, the latter through the cache of data.cache. One thread; opened files
// are thread-safe.

#include <memory>
#include <string>

#include "trireme/base/log.h"
#include "trireme/data/byte_source.h"
#include "trireme/data/dataset.h"
#include "trireme/data/disk_cache.h"

namespace trireme::data {

class RemoteFiles {
 public:
  RemoteFiles(const DataOptions& options, const Log& log) : options_(options), log_(log) {}
  /// Throws DataError.
  std::shared_ptr<const ByteSource> open(const std::string& path);
  /// That data.cache asks for; none where it is empty.
  std::shared_ptr<DiskCache> cache();

 private:
  const DataOptions& options_;
  const Log& log_;
  std::shared_ptr<DiskCache> cache_;
};

}  // namespace trireme::data
