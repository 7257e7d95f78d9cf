#include "trireme/data/internal/far_files.h"

#include "trireme/data/http_bytes.h"

namespace trireme::data {

std::shared_ptr<const ByteSource> FarFiles::open(const std::string& path) {
  if (!is_url(path)) return open_file(path);
  if (options_.cache.empty()) return open_url(path);
  if (!cache_) {
    cache_ = std::make_shared<DiskCache>(
        DiskCacheOptions{.folder = options_.cache, .most_bytes = options_.cache_mib << 20}, log_);
  }
  return cached(open_url(path), cache_);
}

}  // namespace trireme::data
