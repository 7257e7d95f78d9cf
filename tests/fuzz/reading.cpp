#include "tests/fuzz/reading.h"

#include <fstream>
#include <stdexcept>

namespace trireme::fuzz {

std::vector<std::string_view> parts_of(std::string_view input, std::size_t most, char separator) {
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < most) {
    const std::size_t end = input.find(separator);
    if (end == std::string_view::npos) break;
    parts.push_back(input.substr(0, end));
    input.remove_prefix(end + 1);
  }
  parts.push_back(input);
  return parts;
}

std::filesystem::path Folder::put(const std::string& name, std::string_view content) const {
  const std::filesystem::path file = path() / name;
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  if (!out.write(content.data(), static_cast<std::streamsize>(content.size())).flush())
    throw std::runtime_error("cannot write " + file.string());
  return file;
}

}  // namespace trireme::fuzz
