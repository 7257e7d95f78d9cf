#include "trireme/data/packed_files.h"

#include <algorithm>

namespace trireme::data {

std::string PackedFiles::name() const { return are_far() ? shown_url(place_) : place_; }

bool PackedFiles::are_far() const { return is_url(place_); }

std::shared_ptr<const ByteSource> PackedFiles::open(const std::string& file) const {
  if (!are_far()) return hold_file(std::filesystem::path(place_) / file);
  const std::size_t end = std::min(place_.find('?'), place_.size());
  std::string folder = place_.substr(0, end);
  while (folder.ends_with('/')) folder.pop_back();
  auto source = open_url(folder + "/" + file + place_.substr(end), http_);
  return cache_ ? cached(std::move(source), cache_) : source;
}

}  // namespace trireme::data
