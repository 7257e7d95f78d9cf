#include "cli/checkpoint_inspect.h"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "trireme/base/error.h"
#include "trireme/base/printable.h"
#include "trireme/checkpoint/checkpoint_report.h"

namespace trireme::cli {
namespace {

using checkpoint::CheckpointContents;
using checkpoint::SafetensorsContents;
using checkpoint::TensorInfo;
using nlohmann::ordered_json;

struct Totals {
  std::size_t tensors = 0;
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;
};

std::uint64_t elements_of(const TensorInfo& tensor) {
  std::uint64_t elements = 1;
  for (const std::int64_t dim : tensor.shape) elements *= static_cast<std::uint64_t>(dim);
  return elements;
}

Totals totals_of(const std::vector<SafetensorsContents>& files) {
  Totals totals;
  for (const SafetensorsContents& file : files) {
    totals.tensors += file.tensors.size();
    for (const TensorInfo& tensor : file.tensors) {
      totals.elements += elements_of(tensor);
      totals.bytes += tensor.bytes;
    }
  }
  return totals;
}

ordered_json as_json(const Totals& totals) {
  return {{"tensors", totals.tensors}, {"elements", totals.elements}, {"bytes", totals.bytes}};
}

ordered_json as_json(const SafetensorsContents& file) {
  ordered_json tensors = ordered_json::array();
  for (const TensorInfo& tensor : file.tensors) {
    tensors.push_back(
        {{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"bytes", tensor.bytes}});
  }
  return {{"file", file.file},
          {"file_bytes", file.file_bytes},
          {"metadata", file.metadata},
          {"tensors", std::move(tensors)},
          {"total", as_json(totals_of({file}))}};
}

std::string describe(const Totals& totals) {
  return text(totals.tensors, totals.tensors == 1 ? " tensor, " : " tensors, ", totals.elements,
              totals.elements == 1 ? " element, " : " elements, ", human_bytes(totals.bytes));
}

std::string describe(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> dims;
  for (const std::int64_t dim : shape) dims.push_back(std::to_string(dim));
  return text("[", join(dims), "]");
}

void print(const SafetensorsContents& file) {
  std::cout << "\n" << file.file << "\n";
  std::size_t name_width = 0, shape_width = 0;
  for (const TensorInfo& tensor : file.tensors) {
    name_width = std::max(name_width, printable(tensor.name, kWhole).size());
    shape_width = std::max(shape_width, describe(tensor.shape).size());
  }
  for (const TensorInfo& tensor : file.tensors) {
    std::cout << "  " << std::left << std::setw(static_cast<int>(name_width))
              << printable(tensor.name, kWhole) << "  " << std::setw(4) << tensor.dtype << "  "
              << std::setw(static_cast<int>(shape_width)) << describe(tensor.shape) << "  "
              << human_bytes(tensor.bytes) << "\n";
  }
  for (const auto& [key, value] : file.metadata)
    std::cout << "  metadata " << printable(key, kWhole) << ": " << printable(value, kWhole) << "\n";
  std::cout << "  " << describe(totals_of({file})) << "\n";
}

void print_text(const std::filesystem::path& path, const CheckpointPlace& place,
                const CheckpointContents& contents) {
  std::cout << path.string() << "\n";
  if (!place.is_file()) {
    const RunNames names = names_in_config(contents.config);
    std::cout << "  run    " << printable(names.run) << "\n  model  " << printable(names.model)
              << "\n  step   " << contents.step << "\n  epoch  " << contents.epoch << ", batch "
              << contents.batch << "\n";
    for (const auto& other : place.checkpoints) {
      if (other != path) std::cout << "  also   " << other.string() << "\n";
    }
  }
  for (const SafetensorsContents& file : contents.files) print(file);
  if (contents.files.size() != 1) std::cout << "\ntotal: " << describe(totals_of(contents.files)) << "\n";
}

void print_json(const std::filesystem::path& path, const CheckpointPlace& place,
                const CheckpointContents& contents) {
  ordered_json report = {{"path", path.string()}};
  if (!place.is_file()) {
    const RunNames names = names_in_config(contents.config);
    report.update({{"run", names.run},
                   {"model", names.model},
                   {"step", contents.step},
                   {"epoch", contents.epoch},
                   {"batch", contents.batch}});
    report["checkpoints"] = ordered_json::array();
    for (const auto& each : place.checkpoints) report["checkpoints"].push_back(each.string());
  }
  report["files"] = ordered_json::array();
  for (const SafetensorsContents& file : contents.files) report["files"].push_back(as_json(file));
  report["total"] = as_json(totals_of(contents.files));
  std::cout << report.dump(2) << "\n";
}

struct CheckpointVerdict {
  std::filesystem::path path;
  std::vector<checkpoint::FileVerdict> files;
  bool whole() const {
    return std::all_of(files.begin(), files.end(), [](const auto& file) { return file.problem.empty(); });
  }
};

/// A file has a checksum only in a manifest next to it. Otherwise only its structure is checked.
checkpoint::FileVerdict verify_file(const std::filesystem::path& path) {
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  if (std::filesystem::exists(folder / "manifest.json")) {
    for (checkpoint::FileVerdict& verdict : checkpoint::verify_checkpoint(folder)) {
      if (verdict.name == path.filename().string()) return std::move(verdict);
    }
  }
  checkpoint::FileVerdict verdict{.name = path.filename().string(), .bytes = 0, .problem = ""};
  try {
    verdict.bytes = checkpoint::inspect_safetensors(path).file_bytes;
    checkpoint::load_safetensors(path);
  } catch (const DataError& error) {
    verdict.problem = error.what();
  }
  return verdict;
}

std::vector<CheckpointVerdict> verdicts_on(const CheckpointPlace& place) {
  if (place.is_file()) return {{.path = place.path, .files = {verify_file(place.path)}}};
  std::vector<CheckpointVerdict> verdicts;
  for (const auto& path : place.checkpoints) {
    CheckpointVerdict verdict{.path = path, .files = {}};
    std::error_code ignored;
    try {
      verdict.files = checkpoint::verify_checkpoint(path);
    } catch (const DataError&) {
      if (std::filesystem::exists(path, ignored)) throw;
    }
    // A running training removes its older checkpoints, even while they are read.
    if (std::filesystem::exists(path, ignored)) verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

ordered_json as_json(const CheckpointVerdict& verdict) {
  ordered_json files = ordered_json::array();
  for (const auto& file : verdict.files)
    files.push_back({{"file", file.name}, {"bytes", file.bytes}, {"problem", file.problem}});
  return {{"path", verdict.path.string()}, {"ok", verdict.whole()}, {"files", std::move(files)}};
}

void print(const CheckpointVerdict& verdict) {
  std::cout << verdict.path.string() << ": " << (verdict.whole() ? "ok" : "NOT WHOLE") << "\n";
  std::size_t width = 0;
  for (const auto& file : verdict.files) width = std::max(width, printable(file.name, kWhole).size());
  for (const auto& file : verdict.files) {
    std::cout << "  " << std::left << std::setw(static_cast<int>(width)) << printable(file.name, kWhole)
              << "  "
              << (file.problem.empty() ? text("ok, ", human_bytes(file.bytes))
                                       : printable_message(file.problem))
              << "\n";
  }
}

}  // namespace

void inspect_checkpoints(const CheckpointPlace& place, ReportFormat format) {
  const std::filesystem::path& path = place.is_file() ? place.path : place.checkpoints.back();
  CheckpointContents contents;
  if (place.is_file()) {
    contents.files.push_back(checkpoint::inspect_safetensors(path));
  } else {
    contents = checkpoint::inspect_checkpoint(path);
  }
  (format == ReportFormat::kJson ? print_json : print_text)(path, place, contents);
}

bool verify_checkpoints(const CheckpointPlace& place, ReportFormat format) {
  const std::vector<CheckpointVerdict> verdicts = verdicts_on(place);
  const bool whole = std::all_of(verdicts.begin(), verdicts.end(), [](const auto& v) { return v.whole(); });
  if (format == ReportFormat::kJson) {
    ordered_json report = {{"ok", whole}, {"checkpoints", ordered_json::array()}};
    for (const auto& verdict : verdicts) report["checkpoints"].push_back(as_json(verdict));
    std::cout << report.dump(2) << "\n";
  } else {
    for (const auto& verdict : verdicts) print(verdict);
  }
  return whole;
}

}  // namespace trireme::cli
