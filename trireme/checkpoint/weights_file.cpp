#include "trireme/checkpoint/weights_file.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "trireme/base/bounded_file.h"
#include "trireme/base/bounded_json.h"
#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/checkpoint/internal/torch_save.h"

namespace trireme::checkpoint {
namespace {

constexpr const char* kExpected =
    "a dict of name -> tensor, written by torch.save(model.state_dict(), FILE), or a safetensors file";

/// The name of a tensor, about 100 bytes, and its file.
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{64} << 20;
constexpr JsonLimits kIndexLimits{.levels = 8, .values = 2'000'000};

template <class... Parts>
[[noreturn]] void fail(const std::filesystem::path& path, const Parts&... found) {
  throw DataError(text(path.string(), ": ", found..., "; expected ", kExpected));
}

/// A pickle begins with 0x80. So may a safetensors file, but the ninth byte begins its header.
bool is_pickle(const std::string& start) {
  return start.starts_with('\x80') && !(start.size() == 9 && start.back() == '{');
}

std::string first_bytes(const std::filesystem::path& path) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::directory) fail(path, "found a directory");
  // Opening a FIFO may block forever.
  if (kind == std::filesystem::file_type::fifo) fail(path, "found a FIFO");
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw DataError(text("cannot open ", path.string(), ": ", std::strerror(errno)));
  std::array<char, 9> bytes = {};
  stream.read(bytes.data(), bytes.size());
  return {bytes.data(), static_cast<std::size_t>(stream.gcount())};
}

/// The files that an index names. They have to be in its folder.
std::vector<std::filesystem::path> named_by(const std::filesystem::path& index) {
  std::set<std::string> names;
  try {
    const std::string content = read_bounded_file(index, kMaxIndexBytes, "index of safetensors files");
    const auto json = parse_json<nlohmann::json>(content, kIndexLimits);
    for (const auto& item : json.at("weight_map").items()) names.insert(item.value().get<std::string>());
  } catch (const nlohmann::json::exception& error) {
    throw DataError(
        text(index.string(), " is no index of safetensors files: ", printable(error.what(), 200)));
  } catch (const DataError& error) {
    throw DataError(text(index.string(), " is no index of safetensors files: ", error.what()));
  }
  std::vector<std::filesystem::path> files;
  for (const std::string& name : names) {
    if (std::filesystem::path(name).filename() != name)
      throw DataError(
          text(index.string(), " names '", printable(name), "'; expected a file in its own folder"));
    files.push_back(index.parent_path() / name);
  }
  if (files.empty()) throw DataError(text(index.string(), " names no file"));
  return files;
}

bool can_be_opened(const std::filesystem::path& path) {
  std::error_code error;
  return !std::filesystem::is_fifo(path, error) && std::ifstream(path).good();
}

bool begins_as_safetensors(const std::filesystem::path& path) {
  if (std::error_code error; std::filesystem::is_directory(path, error) || !can_be_opened(path)) return false;
  const std::string start = first_bytes(path);
  return start.size() == 9 && start.back() == '{' && !start.starts_with("PK\x03\x04");
}

/// All files of an index, as if they were one.
SafetensorsFile load_all(const std::vector<std::filesystem::path>& files) {
  SafetensorsFile all;
  for (const std::filesystem::path& path : files) {
    for (auto& [name, tensor] : load_safetensors(path).tensors) {
      if (!all.tensors.emplace(name, tensor).second)
        throw DataError(
            text(path.string(), ": '", printable(name), "' lies in another file of its index, too"));
    }
  }
  return all;
}

}  // namespace

std::vector<std::filesystem::path> safetensors_of(const std::filesystem::path& path) {
  if (path.extension() == ".json") {
    return can_be_opened(path) ? named_by(path) : std::vector<std::filesystem::path>();
  }
  if (begins_as_safetensors(path)) return {path};
  return {};
}

SafetensorsFile load_weights_file(const std::filesystem::path& path) {
  const std::string start = first_bytes(path);
  if (path.extension() == ".json") return load_all(named_by(path));
  if (start.starts_with("PK\x03\x04")) return {.tensors = load_torch_save(path, kExpected), .metadata = {}};
  if (is_pickle(start))
    fail(path, "found a bare pickle (torch.save before PyTorch 1.6, or pickle.dump); save it again");
  return load_safetensors(path);
}

}  // namespace trireme::checkpoint
