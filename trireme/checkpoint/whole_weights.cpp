#include "trireme/checkpoint/whole_weights.h"

#include <ATen/ops/empty.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/checkpoint/consolidate.h"
#include "trireme/checkpoint/internal/torch_save.h"
#include "trireme/checkpoint/shard_catalogue.h"
#include "trireme/checkpoint/shard_exchange.h"
#include "trireme/checkpoint/shard_reader.h"
#include "trireme/checkpoint/tensor_match.h"
#include "trireme/checkpoint/weights_file.h"
#include "trireme/comm/on_every_rank.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

bool is_torch_name(const fs::path& path) { return path.extension() == ".pt" || path.extension() == ".pth"; }

Shards weights_of(comm::Group& group, const LoopModel& model) {
  Shards mine;
  comm::on_every_rank(group, [&] { mine = model.weights(); });
  return mine;
}

/// Writes like torch::nn::Module::save(), with other values. `prefix`: the module's name in the model.
void write(torch::serialize::OutputArchive& archive, const torch::nn::Module& module, const TensorMap& values,
           const std::string& prefix) {
  const auto value = [&](const std::string& name) {
    const auto found = values.find(prefix + name);
    require(found != values.end(), "the model to save has no '", prefix, name, "', which the module has");
    return found->second;
  };
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    if (item.value().defined()) archive.write(item.key(), value(item.key()));
  for (const auto& item : module.named_buffers(/*recurse=*/false))
    if (item.value().defined()) archive.write(item.key(), value(item.key()), /*is_buffer=*/true);
  for (const auto& item : module.named_children()) {
    if (!item.value()->is_serializable()) continue;
    torch::serialize::OutputArchive child(archive.compilation_unit());
    write(child, *item.value(), values, prefix + item.key() + ".");
    archive.write(item.key(), child);
  }
}

void save_as_torch(comm::Group& group, const Shards& mine, const torch::nn::Module& module,
                   const fs::path& path) {
  const ShardCatalogue held(group, mine);
  held.check_complete();
  TensorMap values;
  for (const ShardCatalogue::Entry& entry : held.entries())
    if (group.rank() == 0 && !values.contains(entry.name))
      values.emplace(entry.name, at::empty(entry.global_sizes, at::TensorOptions(entry.type)));
  ShardExchange(group, mine, whole_shards(values)).run(mine, whole_shards(values));
  comm::on_every_rank(group, [&] {
    if (group.rank() != 0) return;
    torch::serialize::OutputArchive archive;
    write(archive, module, values, "");
    write_file_atomic(path, [&](const FileSink& sink) {
      std::optional<DataError> failure;  // an exception through libtorch's writer would end the process
      archive.save_to([&](const void* bytes, std::size_t count) {
        try {
          if (!failure) sink({static_cast<const std::byte*>(bytes), count});
        } catch (const DataError& error) {
          failure = error;
        }
        return count;
      });
      if (failure) throw DataError(*failure);
    });
  });
}

/// The contents of a weights file, on rank 0.
class Source {
 public:
  /// `expected`: names and shapes, without memory. Throws DataError.
  Source(const fs::path& path, const TensorMap& expected) {
    const std::vector<fs::path> files = safetensors_of(path);
    TensorMap found;
    if (files.empty()) {
      tensors_ = is_of_module(path) ? of_module(path, expected) : load_weights_file(path).tensors;
      drop_tied_copies(tensors_, expected);
      found = tensors_;
    } else {
      reader_.emplace(ShardReader::of_files(files));
      for (const auto& [name, stored] : reader_->tensors())
        found.emplace(name, at::empty(stored.sizes, at::TensorOptions(stored.type).device(at::kMeta)));
    }
    check_same_tensors(found, expected, path.string());
  }

  void read(const std::string& name, const Box& box, const at::Tensor& into) {
    if (reader_) return reader_->read(name, box, into);
    const at::Tensor& whole = tensors_.at(name);
    into.copy_(view_of(whole, whole_box(whole.sizes()), box));
  }

 private:
  static bool is_of_module(const fs::path& path) {
    if (std::error_code error; fs::is_fifo(path, error)) return false;
    std::ifstream stream(path, std::ios::binary);
    std::array<char, 2> start = {};
    return stream.read(start.data(), start.size()) && start == std::array{'P', 'K'} &&
           is_module_archive(path);
  }

  static TensorMap of_module(const fs::path& path, const TensorMap& expected) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : expected) names.push_back(name);
    return load_module_archive(path, names);
  }

  std::optional<ShardReader> reader_;
  TensorMap tensors_;  ///< if there is no reader
};

}  // namespace

void save_whole(comm::Context& context, const LoopModel& model, const fs::path& path) {
  require(!is_torch_name(path), "weights for torch::load, which ", path.string(), " stands for, need the ",
          "submodules of a module: call save_whole(context, model, module, path), or write safetensors");
  const Shards mine = weights_of(context.world(), model);
  comm::on_every_rank(context.world(), [&] { save_from_ranks(context.world(), mine, path, {}); });
}

void save_whole(comm::Context& context, const LoopModel& model, const torch::nn::Module& module,
                const fs::path& path) {
  if (!is_torch_name(path)) return save_whole(context, model, path);
  save_as_torch(context.world(), weights_of(context.world(), model), module, path);
}

void save_whole(comm::Context& context, torch::nn::Module& module, const fs::path& path) {
  save_whole(context, replicated_loop(module), module, path);
}

void load_whole(comm::Context& context, const LoopModel& model, const fs::path& path) {
  comm::Group& group = context.world();
  const Shards mine = weights_of(group, model);
  const ShardCatalogue wanted(group, mine);
  std::optional<Source> source;
  comm::on_every_rank(group, [&] {
    if (!context.is_main()) return;
    TensorMap expected;
    for (const ShardCatalogue::Entry& entry : wanted.entries())
      expected.emplace(entry.name,
                       at::empty(entry.global_sizes, at::TensorOptions(entry.type).device(at::kMeta)));
    source.emplace(path, expected);
  });
  for (const ShardCatalogue::Entry& entry : wanted.entries()) {
    for (const Box& piece : pieces_of(entry.box, c10::elementSize(entry.type), kPieceBytes)) {
      at::Tensor values;
      if (source) {
        values = at::empty(piece.sizes, at::TensorOptions(entry.type));
        source->read(entry.name, piece, values);
      }
      for (const int rank : entry.holders) {
        const bool is_mine = rank == group.rank();
        carry(group, {.tensor = values}, 0, is_mine ? place_in(mine, entry.name, entry.box, piece) : Place(),
              rank);
      }
    }
  }
  comm::on_every_rank(group, [&] { model.weights_filled(); });
}

void load_whole(comm::Context& context, torch::nn::Module& module, const fs::path& path) {
  load_whole(context, replicated_loop(module), path);
}

}  // namespace trireme::checkpoint
