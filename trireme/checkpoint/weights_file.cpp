#include "trireme/checkpoint/weights_file.h"

#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/import_read.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/internal/dtype.h"

namespace trireme::checkpoint {
namespace {

constexpr const char* kExpected =
    "a dict of name -> tensor, written by torch.save(dict(model.state_dict()), FILE), or a safetensors file";

template <class... Parts>
[[noreturn]] void fail(const std::filesystem::path& path, const Parts&... found) {
  throw DataError(text(path.string(), ": ", found..., "; expected ", kExpected));
}

/// The first byte of a pickle may be that of a safetensors file, too, whose header begins with the ninth.
bool is_pickle(const std::string& start) {
  return start.starts_with('\x80') && !(start.size() == 9 && start.back() == '{');
}

std::string first_bytes(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) fail(path, "found a directory");
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw DataError(text("cannot open ", path.string(), ": ", std::strerror(errno)));
  std::array<char, 9> bytes = {};
  stream.read(bytes.data(), bytes.size());
  return {bytes.data(), static_cast<std::size_t>(stream.gcount())};
}

/// The reason alone: libtorch adds where in its sources it was thrown, and whom to tell.
std::string reason_of(std::string message) {
  message = message.substr(0, message.find('\n'));
  constexpr std::string_view kReport = "please report a bug to PyTorch. ";
  const std::size_t report = message.find(kReport);
  return report == std::string::npos ? message : message.substr(report + kReport.size());
}

[[noreturn]] void fail_unreadable(const std::filesystem::path& path, const std::string& message) {
  fail(path, "cannot be read without Python (", reason_of(message),
       "): it is damaged, or holds an OrderedDict, as state_dict() is without dict(), or other objects");
}

c10::IValue unpickle(const std::filesystem::path& path) {
  try {
    caffe2::serialize::PyTorchStreamReader reader(path.string());
    return torch::jit::readArchiveAndTensors("data", "", "", std::nullopt, std::nullopt, at::kCPU, reader);
  } catch (const c10::Error& error) {
    fail_unreadable(path, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail_unreadable(path, error.what());
  }
}

void add(TensorMap& tensors, const c10::IValue& key, const c10::IValue& value,
         const std::filesystem::path& path) {
  if (!key.isString()) fail(path, "found a key of type ", key.tagKind());
  const std::string& name = key.toStringRef();
  if (!value.isTensor()) fail(path, "found a ", value.tagKind(), " under '", name, "'");
  const at::Tensor& tensor = value.toTensor();
  if (!tensor.defined() || tensor.layout() != at::kStrided) fail(path, "'", name, "' is not a dense tensor");
  try {
    dtype_name(tensor.scalar_type(), name);
  } catch (const InvalidArgument& error) {
    fail(path, error.what());
  }
  tensors.emplace(name, tensor.detach());
}

TensorMap load_torch_save(const std::filesystem::path& path) {
  const c10::IValue value = unpickle(path);
  if (!value.isGenericDict()) fail(path, "found a ", value.tagKind());
  TensorMap tensors;
  for (const auto& item : value.toGenericDict()) add(tensors, item.key(), item.value(), path);
  return tensors;
}

/// Those that an index names, which may lie nowhere else than beside it.
std::vector<std::filesystem::path> named_by(const std::filesystem::path& index) {
  std::set<std::string> names;
  try {
    const nlohmann::json map = nlohmann::json::parse(read_file(index)).at("weight_map");
    for (const auto& item : map.items()) names.insert(item.value().get<std::string>());
  } catch (const nlohmann::json::exception& error) {
    throw DataError(text(index.string(), " is no index of safetensors files: ", error.what()));
  }
  std::vector<std::filesystem::path> files;
  for (const std::string& name : names) {
    if (std::filesystem::path(name).filename() != name)
      throw DataError(text(index.string(), " names '", name, "'; expected a file in its own folder"));
    files.push_back(index.parent_path() / name);
  }
  if (files.empty()) throw DataError(text(index.string(), " names no file"));
  return files;
}

bool can_be_opened(const std::filesystem::path& path) { return std::ifstream(path).good(); }

bool begins_as_safetensors(const std::filesystem::path& path) {
  if (std::error_code error; std::filesystem::is_directory(path, error) || !can_be_opened(path)) return false;
  const std::string start = first_bytes(path);
  return start.size() == 9 && start.back() == '{' && !start.starts_with("PK\x03\x04");
}

/// Of all files of an index, as if it were one.
SafetensorsFile load_all(const std::vector<std::filesystem::path>& files) {
  SafetensorsFile all;
  for (const std::filesystem::path& path : files) {
    for (auto& [name, tensor] : load_safetensors(path).tensors) {
      if (!all.tensors.emplace(name, tensor).second)
        throw DataError(text(path.string(), ": '", name, "' lies in another file of its index, too"));
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
  if (start.starts_with("PK\x03\x04")) return {.tensors = load_torch_save(path), .metadata = {}};
  if (is_pickle(start))
    fail(path, "found a bare pickle (torch.save before PyTorch 1.6, or pickle.dump); save it again");
  return load_safetensors(path);
}

}  // namespace trireme::checkpoint
