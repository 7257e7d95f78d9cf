#include "trireme/train/step/internal/initial_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <fstream>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/checkpoint/shard_exchange.h"
#include "trireme/checkpoint/tensor_match.h"
#include "trireme/checkpoint/weights_file.h"
#include "trireme/comm/on_every_rank.h"
#include "trireme/train/step/model_state.h"
#include "trireme/train/step/shard_specs.h"

namespace trireme::train {
namespace {

/// Size, begin and end of a file; empty: it cannot be read.
std::string look_of(const std::filesystem::path& path) {
  constexpr std::streamoff kEnd = 1 << 16;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? std::streamoff(file.tellg()) : 0, looked = std::min(size, kEnd);
  std::string seen(static_cast<std::size_t>(2 * looked), '\0');
  file.seekg(0).read(seen.data(), looked);
  file.seekg(size - looked).read(seen.data() + looked, looked);
  return file ? text(size, ' ', seen) : "";
}

/// A hash to check whether ranks see the same files. 0: there are none that can be read in parts.
std::int64_t mark_of(const std::vector<std::filesystem::path>& files) {
  std::string all;
  for (const std::filesystem::path& path : files) {
    const std::string look = look_of(path);
    if (look.empty()) return 0;
    all += look;
  }
  return all.empty() ? 0 : static_cast<std::int64_t>(Random::key_of(all) >> 1) | 1;
}

bool all_see_one(const std::vector<std::filesystem::path>& files, comm::Context& context) {
  const std::int64_t mark = mark_of(files);
  at::Tensor least = at::tensor({mark, -mark}, at::kLong);
  context.world().all_reduce(least, comm::ReduceOp::kMin);
  const auto* of_all = least.const_data_ptr<std::int64_t>();
  return of_all[0] != 0 && of_all[0] == -of_all[1];
}

/// Compares piece by piece.
bool are_equal(checkpoint::ShardReader& reader, const std::string& one, const std::string& other) {
  const checkpoint::ShardReader::Stored &a = reader.tensors().at(one), &b = reader.tensors().at(other);
  if (a.sizes != b.sizes || a.type != b.type) return false;
  const checkpoint::Box whole = checkpoint::whole_box(a.sizes);
  return std::ranges::all_of(checkpoint::pieces_of(whole, c10::elementSize(a.type), checkpoint::kPieceBytes),
                             [&](const checkpoint::Box& piece) {
                               const at::Tensor left = at::empty(piece.sizes, at::TensorOptions(a.type)),
                                                right = at::empty_like(left);
                               reader.read(one, piece, left);
                               reader.read(other, piece, right);
                               return left.equal(right);
                             });
}

}  // namespace

std::shared_ptr<const InitialWeights> InitialWeights::open(const std::string& path, comm::Context& context,
                                                           const model::Model& whole) {
  std::vector<std::filesystem::path> files;
  comm::on_every_rank(context.world(), [&] { files = checkpoint::safetensors_of(path); });
  if (!all_see_one(files, context)) return nullptr;
  std::shared_ptr<const InitialWeights> weights;
  comm::on_every_rank(context.world(), [&] {
    weights.reset(new InitialWeights(path, files));
    weights->check(whole, context.is_main() ? context.log() : Log("trireme", LogLevel::kError));
  });
  return weights;
}

InitialWeights::InitialWeights(const std::string& path, const std::vector<std::filesystem::path>& files)
    : path_(path), reader_(checkpoint::ShardReader::of_files(files)) {}

void InitialWeights::check(const model::Model& whole, const Log& log) const {
  const checkpoint::TensorMap ours = state_of(whole);
  checkpoint::TensorMap found;
  for (const auto& [name, stored] : reader_.tensors()) {
    // A copy instead of the binding: clang before version 16 cannot capture bindings in a lambda.
    const auto is_second = [&, &second = name](const auto& own) {
      return reader_.tensors().contains(own.first) && are_equal(reader_, second, own.first);
    };
    if (stored.sizes.size() >= 2 && !ours.contains(name) && std::ranges::any_of(ours, is_second)) {
      log.info(path_, ": '", name, "' is a second name of a tensor that the model takes");
      continue;
    }
    found.emplace(name, at::empty(stored.sizes, at::TensorOptions(stored.type).device(at::kMeta)));
  }
  checkpoint::check_same_tensors(found, ours, path_);
}

void InitialWeights::fill(const std::vector<model::Layer>& layers, const model::Model& model) const {
  const at::NoGradGuard no_grad;
  const std::map<std::string, CutParameter> cut = cut_parameters(model);
  const auto fill_one = [&](const std::string& name, const at::Tensor& tensor) {
    const checkpoint::Box all = checkpoint::whole_box(tensor.sizes());
    const auto parts = cut.find(name);
    if (parts == cut.end()) return reader_.read(name, all, tensor.detach());
    for (const CutParameter::Part& part : parts->second.parts) {
      const checkpoint::Box place{.offsets = part.places, .sizes = part.box.sizes};
      reader_.read(name, part.box, checkpoint::view_of(tensor.detach(), all, place));
    }
  };
  for (const model::Layer& layer : layers) {
    for (const auto& [name, parameter] : layer.parameters) fill_one(name, parameter);
    for (const auto& [name, buffer] : layer.buffers) fill_one(name, buffer);
  }
}

}  // namespace trireme::train
