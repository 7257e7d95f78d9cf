#pragma once
// Tar archives for tests, header by header, so that each byte can be made wrong.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace trireme::test {

inline std::string tar_checked(std::string header) {
  header.replace(148, 8, 8, ' ');
  unsigned sum = 0;
  for (const char byte : header) sum += static_cast<unsigned char>(byte);
  char digits[8];
  std::snprintf(digits, sizeof(digits), "%06o", sum & 0777777U);
  return header.replace(148, 7, digits, 7);
}

inline std::string tar_header(const std::string& name, std::size_t size, char type = '0') {
  std::string header(512, '\0');
  std::copy_n(name.begin(), std::min<std::size_t>(name.size(), 100), header.begin());  // the field's length
  header.replace(100, 7, "0000644");
  char digits[12];
  std::snprintf(digits, sizeof(digits), "%011lo", static_cast<unsigned long>(size));
  header.replace(124, 11, digits, 11);
  header[156] = type;
  header.replace(257, 8, "ustar\00000", 8);
  return tar_checked(header);
}

inline std::string tar_member(const std::string& name, const std::string& content, char type = '0') {
  return tar_header(name, content.size(), type) + content +
         std::string((512 - content.size() % 512) % 512, '\0');
}

/// A pax header with one record, for the member after it.
inline std::string tar_pax(const std::string& key, const std::string& value) {
  std::size_t length = key.size() + value.size() + 3;
  while (std::to_string(length).size() + key.size() + value.size() + 3 != length)
    length = std::to_string(length).size() + key.size() + value.size() + 3;
  return tar_member("./PaxHeaders/x", std::to_string(length) + ' ' + key + '=' + value + '\n', 'x');
}

inline std::string tar_end() { return std::string(1024, '\0'); }

inline std::filesystem::path write_tar(const std::filesystem::path& path, const std::string& members) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << members << tar_end();
  return path;
}

}  // namespace trireme::test
