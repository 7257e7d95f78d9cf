#include "trireme/data/internal/remote_files.h"

#include "trireme/data/http_bytes.h"

namespace trireme::data {

std::shared_ptr<const ByteSource> RemoteFiles::open(const std::string& path) {
  if (!is_url(path)) return open_file(path);
  auto source = open_url(path, {.private_redirects = options_.private_redirects});
  return cache() ? cached(std::move(source), cache()) : source;
}

std::shared_ptr<DiskCache> RemoteFiles::cache() {
  if (!cache_ && !options_.cache.empty()) {
    cache_ = std::make_shared<DiskCache>(DiskCacheOptions{.folder = options_.cache,
                                                          .most_bytes = options_.cache_mib << 20,
                                                          .memory_bytes = options_.cache_memory_mib << 20},
                                         log_);
  }
  return cache_;
}

}  // namespace trireme::data
