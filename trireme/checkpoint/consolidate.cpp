#include "trireme/checkpoint/consolidate.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "trireme/base/bounded_json.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/internal/dtype.h"
#include "trireme/checkpoint/internal/manifest.h"
#include "trireme/checkpoint/internal/tensor_bytes.h"
#include "trireme/checkpoint/internal/xxh3.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/checkpoint/shard_catalogue.h"
#include "trireme/checkpoint/shard_exchange.h"
#include "trireme/checkpoint/shard_reader.h"
#include "trireme/checkpoint/training_checkpoint.h"

namespace trireme::checkpoint {
namespace {
namespace fs = std::filesystem;

/// The layouts of a catalogue's tensors, in name order.
std::vector<TensorLayout> layouts_of(const ShardCatalogue& catalogue) {
  std::vector<TensorLayout> layouts;
  for (const ShardCatalogue::Entry& entry : catalogue.entries()) {
    if (layouts.empty() || layouts.back().name != entry.name)
      layouts.push_back({.name = entry.name, .type = entry.type, .shape = entry.global_sizes});
  }
  return layouts;
}

/// Collects a tensor on rank 0, piece by piece.
class Collector {
 public:
  Collector(comm::Group& group, const ShardCatalogue& catalogue, const Shards& mine)
      : group_(group), catalogue_(catalogue), mine_(mine) {}

  /// `take` gets the pieces in the order of their elements, on rank 0.
  void collect(const TensorLayout& layout, const std::function<void(std::span<const std::byte>)>& take) {
    for (const Box& piece : pieces_of(whole_box(layout.shape), c10::elementSize(layout.type), kPieceBytes)) {
      at::Tensor whole;
      if (group_.rank() == 0) whole = at::empty(piece.sizes, at::TensorOptions(layout.type));
      for (const ShardCatalogue::Entry& entry : catalogue_.of(layout.name)) {
        if (const auto common = overlap(entry.box, piece)) collect(entry, *common, piece, whole);
      }
      if (group_.rank() == 0) take(tensor_bytes(whole));
    }
  }

 private:
  void collect(const ShardCatalogue::Entry& entry, const Box& common, const Box& piece,
               const at::Tensor& whole) {
    const int source = entry.holders.front();
    const bool is_mine = group_.rank() == source;
    const Place from = is_mine ? place_in(mine_, entry.name, entry.box, common) : Place();
    carry(group_, from, source, {.tensor = whole.defined() ? view_of(whole, piece, common) : whole}, 0);
  }

  comm::Group& group_;
  const ShardCatalogue& catalogue_;
  const Shards& mine_;
};

/// A file of an export.
struct OutFile {
  fs::path path;
  std::vector<TensorLayout> tensors;
};

/// The tensor that an export takes: the average of the weight if there is one.
std::string source_of(const std::string& name, const ShardReader& reader) {
  const std::string average = text(kOptimizerPrefix, "ema/average/", name);  // docs/checkpoint-format.md
  return reader.tensors().contains(average) ? average : name;
}

std::vector<TensorLayout> weights_in(const ShardReader& reader) {
  std::vector<TensorLayout> layouts;
  for (const auto& [name, stored] : reader.tensors()) {
    if (!name.starts_with(kOptimizerPrefix))
      layouts.push_back({.name = name, .type = stored.type, .shape = stored.sizes});
  }
  return layouts;
}

fs::path numbered(const fs::path& out, std::size_t number, std::size_t of) {
  std::string stem = out.string();
  if (stem.ends_with(kSafetensorsExtension)) stem.resize(stem.size() - kSafetensorsExtension.size());
  std::array<char, 48> part{};
  std::snprintf(part.data(), part.size(), "-%05zu-of-%05zu", number, of);
  return text(stem, part.data(), kSafetensorsExtension);
}

fs::path index_path(const fs::path& out) {
  return text(out.string(), out.string().ends_with(kSafetensorsExtension) ? "" : kSafetensorsExtension,
              ".index.json");
}

std::vector<OutFile> plan(const ShardReader& reader, const fs::path& out, const ExportOptions& options) {
  std::vector<OutFile> files(1);
  std::uint64_t bytes = 0;
  for (TensorLayout& layout : weights_in(reader)) {
    const std::uint64_t more = layout.bytes();
    if (options.max_file_bytes > 0 && bytes > 0 && bytes + more > options.max_file_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += more;
    files.back().tensors.push_back(std::move(layout));
  }
  for (std::size_t i = 0; i < files.size(); ++i)
    files[i].path = files.size() == 1 ? out : numbered(out, i + 1, files.size());
  return files;
}

void write_index(const fs::path& path, const std::vector<OutFile>& files) {
  nlohmann::ordered_json index = {{"metadata", {{"total_size", 0}}},
                                  {"weight_map", nlohmann::ordered_json::object()}};
  std::uint64_t total = 0;
  for (const OutFile& file : files) {
    for (const TensorLayout& layout : file.tensors) {
      total += layout.bytes();
      append_member(index["weight_map"], layout.name, nlohmann::ordered_json(file.path.filename().string()));
    }
  }
  index["metadata"]["total_size"] = total;
  write_file_atomic(path, index.dump(2) + "\n");
}

void write_file(const OutFile& file, ShardReader& reader, const ExportOptions& options) {
  write_safetensors(file.path, file.tensors, options.metadata,
                    [&](const TensorLayout& layout, const FileSink& sink) {
                      const std::string source = source_of(layout.name, reader);
                      reader.check(source, layout.shape, layout.type, "tensor");
                      for (const Box& piece :
                           pieces_of(whole_box(layout.shape), c10::elementSize(layout.type), kPieceBytes)) {
                        const at::Tensor values = at::empty(piece.sizes, at::TensorOptions(layout.type));
                        reader.read(source, piece, values);
                        sink(tensor_bytes(values));
                      }
                    });
}

}  // namespace

std::string save_from_ranks(comm::Group group, const Shards& mine, const fs::path& path,
                            const std::map<std::string, std::string>& metadata) {
  const ShardCatalogue catalogue(group, mine);
  catalogue.check_complete();
  const std::vector<TensorLayout> layouts = layouts_of(catalogue);
  Collector collector(group, catalogue, mine);
  if (group.rank() != 0) {
    for (const TensorLayout& layout : layouts) collector.collect(layout, nullptr);
    return "";
  }
  TensorMapXxh3 hash;
  std::size_t collected = 0;  // number of layouts; they are written in this order
  try {
    write_safetensors(path, layouts, metadata, [&](const TensorLayout& layout, const FileSink& sink) {
      std::optional<DataError> failure;
      hash.begin(layout);
      collector.collect(layout, [&](std::span<const std::byte> bytes) {
        if (failure) return;
        try {
          hash.add(bytes);
          sink(bytes);
        } catch (const DataError& error) {
          failure = error;
        }
      });
      ++collected;
      if (failure) throw DataError(*failure);
    });
  } catch (const DataError&) {
    // The other ranks send the rest and would wait until rank 0 receives it.
    for (; collected < layouts.size(); ++collected)
      collector.collect(layouts[collected], [](std::span<const std::byte>) {});
    throw;
  }
  return hash.hex();
}

std::vector<fs::path> files_of_export(const fs::path& checkpoint_folder, const fs::path& out,
                                      const ExportOptions& options) {
  const std::vector<OutFile> files = plan(ShardReader(checkpoint_folder), out, options);
  std::vector<fs::path> paths;
  for (const OutFile& file : files) paths.push_back(file.path);
  if (files.size() > 1) paths.push_back(index_path(out));
  return paths;
}

ExportedFiles export_weights(const fs::path& checkpoint_folder, const fs::path& out,
                             const ExportOptions& options) {
  check_whole(checkpoint_folder);
  ShardReader reader(checkpoint_folder);
  const std::vector<OutFile> files = plan(reader, out, options);
  ExportedFiles written;
  for (const OutFile& file : files) {
    write_file(file, reader, options);
    written.num_tensors += file.tensors.size();
    written.files.push_back(file.path);
  }
  // After the files that it names: a reader that finds the index finds all of them.
  if (files.size() > 1) {
    write_index(index_path(out), files);
    written.files.push_back(index_path(out));
  }
  for (const fs::path& path : written.files) written.bytes += fs::file_size(path);
  return written;
}

}  // namespace trireme::checkpoint
